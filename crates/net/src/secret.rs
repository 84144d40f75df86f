// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the job secret: who knows it belongs to the job.
//! In from: composers, which bring it to the job's processes. Out to: handshakes.
//! Invariants: it is never printed and never sent; what is sent proves that the sender knows it, for
//! one connection only.

use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::mac::{SECRET_ID_BYTES, secret_id};
use hmac::{Hmac, Mac};
use rustix::rand::{GetRandomFlags, getrandom};
use sha2::Sha256;
use std::fmt::{self, Debug};
use std::sync::Arc;

/// The job secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; Self::BYTES]);

impl Secret {
    /// Bytes of a secret.
    pub const BYTES: usize = 32;

    /// A new one that nobody can guess.
    pub fn draw() -> Result<Self> {
        Ok(Self(drawn()?))
    }

    /// The one that another process of the job drew.
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    /// Its bytes, to bring it to another process of the job: by the communicator, or a file that
    /// only its owner reads; never by a command line, the environment or a log.
    pub const fn bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }

    /// Its name, which tells nothing of it.
    pub fn id(&self) -> [u8; SECRET_ID_BYTES] {
        secret_id(&self.0)
    }

    /// Proves knowledge of the secret for `text`.
    pub(super) fn prove(&self, text: &[u8]) -> Result<[u8; 32]> {
        Ok(self.keyed(text)?.finalize().into_bytes().into())
    }

    /// Whether `proof` is that of one who knows the secret, in time that does not tell how wrong it is.
    pub(super) fn verify(&self, text: &[u8], proof: &[u8; 32]) -> Result<bool> {
        Ok(self.keyed(text)?.verify_slice(proof).is_ok())
    }

    fn keyed(&self, text: &[u8]) -> Result<Hmac<Sha256>> {
        let mac = Hmac::<Sha256>::new_from_slice(&self.0);
        let mut mac = mac.map_err(|error| Error::caused(ErrorKind::Internal, "HMAC", error))?;
        mac.update(text);
        Ok(mac)
    }
}

impl Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Where an endpoint that outlives a start of its job finds the secret of the next one.
#[derive(Clone)]
pub struct SecretSource(Arc<dyn Fn() -> Result<Secret> + Send + Sync>);

impl SecretSource {
    /// What `read` reads, at most once a second: strangers can ask for it.
    pub fn new(read: impl Fn() -> Result<Secret> + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    pub(super) fn read(&self) -> Result<Secret> {
        (self.0)()
    }
}

impl Debug for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretSource")
    }
}

/// Random bytes of the kernel.
pub(super) fn drawn<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => {
                let context = "drawing random bytes";
                return Err(Error::caused(ErrorKind::Internal, context, errno));
            }
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_shows_nothing_and_proves_what_it_is() {
        let (one, other) = (Secret::draw().unwrap(), Secret::draw().unwrap());
        assert_ne!(one, other);
        assert_eq!(format!("{one:?}"), "Secret");
        let proof = one.prove(b"text").unwrap();
        assert!(one.verify(b"text", &proof).unwrap());
        assert!(!one.verify(b"other text", &proof).unwrap());
        assert!(!other.verify(b"text", &proof).unwrap());
    }

    #[test]
    fn the_proof_is_hmac_sha256() {
        // RFC 4231 has no key of 32 bytes; this value was computed by Python's hmac module.
        let secret = Secret::from_bytes([7; 32]);
        let proof = secret.prove(b"Backstay").unwrap();
        let first = [0x03, 0x4c, 0x0b, 0xc9, 0x83, 0xb2, 0x1e, 0x82];
        assert_eq!(proof[..8], first);
    }
}
