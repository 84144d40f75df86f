// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what bytes that others read are known by: `HighwayHash` under a key of the job, without which nobody
//! can find other bytes for it.
//! In: the job secret; bytes, whole or piece by piece. Out: 32 bytes.
//! Invariants: a fingerprint says something only to who holds its key; the key is never sent or printed.
//! Why this hash: docs/decisions/0021-keyed-fingerprints.md. Format: docs/format/wire.md, section "Reads".

use highway::{HighwayHash, HighwayHasher, Key};
use std::fmt;

/// What the key of fingerprints is derived for.
pub const FINGERPRINT_CONTEXT: &str = "Backstay wire protocol 2: fingerprints of sealed bytes";

/// The key of all fingerprints of one start of a job.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FingerprintKey([u64; 4]);

impl FingerprintKey {
    /// The key of those who know `secret`.
    pub fn derive(secret: &[u8; 32]) -> Self {
        let derived = blake3::derive_key(FINGERPRINT_CONTEXT, secret);
        let (words, _) = derived.as_chunks::<8>();
        let mut key = [0; 4];
        for (word, bytes) in key.iter_mut().zip(words) {
            *word = u64::from_le_bytes(*bytes);
        }
        Self(key)
    }

    /// The fingerprint of `bytes`.
    pub fn of(&self, bytes: &[u8]) -> KeyedFingerprint {
        let mut fingerprinter = self.begin();
        fingerprinter.update(bytes);
        fingerprinter.finish()
    }

    /// Begins the fingerprint of bytes that come piece by piece: the same as of all of them at once.
    pub fn begin(&self) -> Fingerprinter {
        Fingerprinter {
            key: *self,
            hasher: HighwayHasher::new(Key(self.0)),
        }
    }
}

/// A key is not for logs.
impl fmt::Debug for FingerprintKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FingerprintKey")
    }
}

/// `HighwayHash`-256 of some bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint(pub [u8; 32]);

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

/// A fingerprint and the key that it is of: under another key it says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyedFingerprint {
    /// The key of whom told it and of whom compares.
    pub key: FingerprintKey,
    /// What it is under that key.
    pub fingerprint: Fingerprint,
}

/// A fingerprint that was begun.
#[derive(Debug)]
pub struct Fingerprinter {
    key: FingerprintKey,
    hasher: HighwayHasher,
}

impl Fingerprinter {
    /// Takes the next piece.
    pub fn update(&mut self, piece: &[u8]) {
        self.hasher.append(piece);
    }

    /// The fingerprint of all pieces.
    pub fn finish(self) -> KeyedFingerprint {
        let words = self.hasher.finalize256();
        let mut fingerprint = [0; 32];
        for (bytes, word) in fingerprint.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        KeyedFingerprint {
            key: self.key,
            fingerprint: Fingerprint(fingerprint),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tag as the four words of the published examples.
    fn words(keyed: KeyedFingerprint) -> [u64; 4] {
        let (words, _) = keyed.fingerprint.0.as_chunks::<8>();
        [0, 1, 2, 3].map(|place: usize| u64::from_le_bytes(words[place]))
    }

    #[test]
    fn it_is_highwayhash_256() {
        // The first of kExpected256 of google/highwayhash, whose key is the bytes 0 to 31; and the example of the crate.
        let key = [0, 1, 2, 3].map(|word| 0x0706_0504_0302_0100 + word * 0x0808_0808_0808_0808);
        let none = [
            0xdd44_482a_c2c8_74f5,
            0xd946_0173_13c7_351f,
            0xb3ae_becc_b987_14ff,
            0x41da_2331_4575_1df4,
        ];
        assert_eq!(words(FingerprintKey(key).of(b"")), none);
        let one = words(FingerprintKey([1, 2, 3, 4]).of(&[255]));
        assert_eq!(one[..2], [0x7161_cadb_f7cd_70e1, 0xaac4_905d_e62b_2f5e]);
    }

    #[test]
    fn pieces_give_the_same_as_the_whole_and_another_secret_another() {
        let bytes: Vec<u8> = (0..=255).cycle().take(5_000).collect();
        let key = FingerprintKey::derive(&[7; 32]);
        for split in [0, 1, 31, 32, 33, 4_999] {
            let mut fingerprinter = key.begin();
            fingerprinter.update(&bytes[..split]);
            fingerprinter.update(&bytes[split..]);
            assert_eq!(fingerprinter.finish(), key.of(&bytes), "{split}");
        }
        let other = FingerprintKey::derive(&[8; 32]);
        assert_ne!(other.of(&bytes).fingerprint, key.of(&bytes).fingerprint);
        assert_eq!(format!("{key:?}"), "FingerprintKey");
    }
}
