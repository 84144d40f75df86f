// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what bytes that others read are known by: BLAKE3, which nobody can find other bytes for.
//! In: bytes, whole or piece by piece. Out: 32 bytes.
//! Why not the digest of the store: docs/decisions/0014-fingerprints-before-reads.md.

use std::fmt;

/// BLAKE3 of some bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    /// The fingerprint of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&blake3::Hash::from(self.0).to_hex())
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

/// The fingerprint of bytes that come piece by piece: the same as of all of them at once.
#[derive(Debug, Default)]
pub struct Fingerprinter(blake3::Hasher);

impl Fingerprinter {
    /// Takes the next piece.
    pub fn update(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }
    /// The fingerprint of all pieces so far.
    pub fn finish(&self) -> Fingerprint {
        Fingerprint(*self.0.finalize().as_bytes())
    }
}
