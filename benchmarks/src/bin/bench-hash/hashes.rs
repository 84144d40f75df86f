// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the hashes that are compared, each as a function from bytes to a number.

use md5::{Digest, Md5};
use twox_hash::{XxHash3_64, XxHash3_128};

/// A hash.
#[derive(Debug)]
pub(crate) struct Hash {
    /// Stable name.
    pub(crate) id: &'static str,
    /// Name for people.
    pub(crate) name: &'static str,
    /// Bits of its digest.
    pub(crate) bits: u32,
    /// The hash.
    pub(crate) of: fn(&[u8]) -> u128,
}

const fn hash(id: &'static str, name: &'static str, bits: u32, of: fn(&[u8]) -> u128) -> Hash {
    Hash { id, name, bits, of }
}

/// All that are compared.
pub(crate) const HASHES: [Hash; 7] = [
    hash("adler32", "Adler32", 32, |bytes| {
        u128::from(simd_adler32::adler32(&bytes))
    }),
    hash("fletcher32_65536", "Fletcher32 mod 65536", 32, |bytes| {
        u128::from(fletcher_65536(bytes))
    }),
    hash("fletcher32_65535", "Fletcher32 mod 65535", 32, |bytes| {
        u128::from(fletcher_65535(bytes))
    }),
    hash("crc32", "CRC32", 32, |bytes| {
        u128::from(crc32fast::hash(bytes))
    }),
    hash("md5", "MD5", 128, |bytes| {
        u128::from_le_bytes(Md5::digest(bytes).into())
    }),
    hash("xxh3_64", "XXH3-64", 64, |bytes| {
        u128::from(XxHash3_64::oneshot(bytes))
    }),
    hash("xxh3_128", "XXH3-128", 128, XxHash3_128::oneshot),
];

fn words(bytes: &[u8]) -> impl Iterator<Item = u16> + '_ {
    bytes
        .chunks_exact(2)
        .map(|pair| u16::from(pair[0]) | (u16::from(pair[1]) << 8))
}

/// Fletcher's checksum over words of 16 bits, modulo 65536: sums that wrap by themselves.
fn fletcher_65536(bytes: &[u8]) -> u32 {
    let add = |(low, high): (u16, u16), word| {
        let low = low.wrapping_add(word);
        (low, high.wrapping_add(low))
    };
    let (low, high) = words(bytes).fold((0, 0), add);
    (u32::from(high) << 16) | u32::from(low)
}

/// Fletcher's checksum over words of 16 bits, modulo 65535: 0x0000 and 0xffff are the same to it.
fn fletcher_65535(bytes: &[u8]) -> u32 {
    // Sums of so many words stay below 2^32.
    const RUN_BYTES: usize = 359 * 2;
    let (mut low, mut high) = (0u32, 0u32);
    for run in bytes.chunks(RUN_BYTES) {
        for word in words(run) {
            low += u32::from(word);
            high += low;
        }
        low %= 65_535;
        high %= 65_535;
    }
    (high << 16) | low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        assert_eq!(fletcher_65535(b"abcdef"), 0x5650_2d2a);
        let value = |id: &str| (HASHES.iter().find(|hash| hash.id == id).unwrap().of)(b"Wikipedia");
        assert_eq!(value("adler32"), 0x11e6_0398);
        assert_eq!(value("crc32"), 0xadaa_c02e);
    }

    #[test]
    fn zeros_and_ones_are_the_same_modulo_65535_only() {
        assert_eq!(fletcher_65535(&[0; 64]), fletcher_65535(&[0xff; 64]));
        assert_ne!(fletcher_65536(&[0; 64]), fletcher_65536(&[0xff; 64]));
    }
}
