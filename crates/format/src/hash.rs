// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the one hash of the format, XXH3, as a digest of 128 bits and a checksum of 64.
//! Why XXH3-128: docs/decisions/0001-hash.md.

use serde::{Deserialize, Serialize};
use std::fmt;
use twox_hash::{XxHash3_64, XxHash3_128};

/// XXH3-128 (seed 0) of some bytes, kept as its value in little-endian order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Digest(pub [u8; 16]);

impl Digest {
    /// The digest of `bytes`.
    #[inline]
    pub fn of(bytes: &[u8]) -> Self {
        Self(XxHash3_128::oneshot(bytes).to_le_bytes())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_le_bytes(self.0))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

/// The digest of bytes that come piece by piece: the same as of all of them at once.
pub struct Digester(XxHash3_128);

impl Digester {
    /// Of nothing yet.
    pub fn new() -> Self {
        Self(XxHash3_128::new())
    }
    /// Takes the next piece.
    #[inline]
    pub fn update(&mut self, piece: &[u8]) {
        self.0.write(piece);
    }
    /// The digest of all pieces so far.
    pub fn finish(&self) -> Digest {
        Digest(self.0.finish_128().to_le_bytes())
    }
}

impl Default for Digester {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Digester {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Digester")
    }
}

/// XXH3-64 (seed 0) of `bytes`: the checksum of head structures.
#[inline]
pub fn checksum(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

/// XXH3-64 (seed 0) of bytes that are cut into `parts`.
pub fn checksum_of(parts: &[&[u8]]) -> u64 {
    use std::hash::Hasher;
    match parts {
        [] => checksum(&[]),
        [only] => checksum(only),
        parts => {
            let mut sum = XxHash3_64::new();
            for part in parts {
                sum.write(part);
            }
            sum.finish()
        }
    }
}
