// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what authenticates the frames of a session: a key for each direction of each connection,
//! and a MAC behind each frame.
//! In: the job secret and what both sides said in the handshake; frames. Out: keys, MACs.
//! Invariants: no key serves two connections or two directions; a MAC covers the number of its frame, so
//! none can be repeated, left out or moved; comparing takes the same time however wrong a MAC is.
//! Format: docs/format/wire.md, section "Session".

use crate::bytes::FormatError;
use crate::width::to_u64;
use crate::wire::{HEAD_BYTES, Head, Kind, Role, STRUCTURE, proven};
use std::fmt::{self, Debug};

/// Bytes of a MAC: keyed BLAKE3.
pub const MAC_BYTES: usize = 32;
/// What keys of a direction are derived for.
pub const SESSION_CONTEXT: &str = "Backstay wire protocol 2: frames of one direction of a session";
/// What names of secrets are derived for.
pub const SECRET_ID_CONTEXT: &str = "Backstay wire protocol 2: the name of a job secret";
/// Bytes of the name of a secret.
pub const SECRET_ID_BYTES: usize = 16;

/// Names a job secret without telling it: who has several knows which one is meant.
pub fn secret_id(secret: &[u8; 32]) -> [u8; SECRET_ID_BYTES] {
    let derived = blake3::derive_key(SECRET_ID_CONTEXT, secret);
    let mut id = [0; SECRET_ID_BYTES];
    id.copy_from_slice(&derived[..SECRET_ID_BYTES]);
    id
}

/// One direction of a session, at either end: its key, and the number of its next frame.
pub struct Sealer {
    key: [u8; 32],
    next: u64,
}

impl Sealer {
    /// The direction in which `sender` speaks, after the bodies `hello` and `welcome`.
    pub fn derive(secret: &[u8; 32], sender: Role, hello: &[u8], welcome: &[u8]) -> Self {
        let mut material = blake3::Hasher::new_derive_key(SESSION_CONTEXT);
        material
            .update(secret)
            .update(&proven(sender, hello, welcome));
        Self {
            key: *material.finalize().as_bytes(),
            next: 0,
        }
    }

    /// Begins the MAC of the next frame.
    pub fn begin(&mut self) -> FrameMac {
        let number = self.next;
        self.next += 1;
        FrameMac {
            hasher: blake3::Hasher::new_keyed(&self.key),
            number,
            length: 0,
        }
    }

    /// The next frame, whole.
    pub fn seal(&mut self, kind: Kind, body: &[u8]) -> Result<Vec<u8>, FormatError> {
        let head = Head::new(kind, body.len())?;
        let mut mac = self.begin();
        mac.update(body);
        Ok([&head.encode()[..], body, &mac.finish(&head)].concat())
    }

    /// The next frame, which `bytes` are: its head, its kind, its body.
    pub fn open<'a>(&mut self, bytes: &'a [u8]) -> Result<(Head, Kind, &'a [u8]), FormatError> {
        let head = Head::decode(bytes)?;
        let kind = head.check()?;
        let rest = &bytes[HEAD_BYTES..];
        let (body, tail) = rest.split_last_chunk::<MAC_BYTES>().ok_or_else(|| {
            let wanted = format!("{MAC_BYTES} bytes");
            FormatError::new(STRUCTURE, "MAC", to_u64(HEAD_BYTES), wanted, rest.len())
        })?;
        if to_u64(body.len()) != u64::from(head.body_bytes) {
            let (wanted, found) = (head.body_bytes, body.len());
            let field = "body length";
            return Err(FormatError::new(STRUCTURE, field, 16, wanted, found));
        }
        let mut mac = self.begin();
        mac.update(body);
        mac.verify(&head, tail)?;
        Ok((head, kind, body))
    }
}

/// A key is not for logs.
impl Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sealer(at frame {})", self.next)
    }
}

/// The MAC of one frame: over its body, its head, and its number, in this order.
pub struct FrameMac {
    hasher: blake3::Hasher,
    number: u64,
    length: u64,
}

impl FrameMac {
    /// The next bytes of the body.
    pub fn update(&mut self, bytes: &[u8]) {
        self.length += to_u64(bytes.len());
        self.hasher.update(bytes);
    }

    fn end(mut self, head: &Head) -> blake3::Hash {
        self.hasher.update(&head.encode());
        self.hasher.update(&self.number.to_le_bytes());
        self.hasher.finalize()
    }

    /// The MAC.
    pub fn finish(self, head: &Head) -> [u8; MAC_BYTES] {
        *self.end(head).as_bytes()
    }

    /// Compares with the MAC that came behind the body.
    pub fn verify(self, head: &Head, tail: &[u8; MAC_BYTES]) -> Result<(), FormatError> {
        let (number, offset) = (self.number, to_u64(HEAD_BYTES) + self.length);
        // Of two hashes: in constant time.
        if self.end(head) == blake3::Hash::from(*tail) {
            return Ok(());
        }
        let wanted = format!("that of frame {number} of this session");
        let found = "another: it was changed, repeated, left out or put in on the way";
        Err(FormatError::new(STRUCTURE, "MAC", offset, wanted, found))
    }
}

impl Debug for FrameMac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FrameMac(of frame {})", self.number)
    }
}
