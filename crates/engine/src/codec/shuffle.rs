// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: planes: all first bytes, all second bytes; or all first bits, all second bits.
//! In from: `predict` (words). Out to: `coder` (bytes), and the way back.
//! Invariants: as many bytes as the words have; the fast loops give what `naive` in the tests gives.
//! Format: docs/format/codec.md, section "Arrangement".

use super::words::Word;

/// Words of which all planes are made before the next ones are looked at: they stay in the cache.
const STRIP: usize = 2048;

/// The byte planes of `words`, the lowest first.
pub(super) fn to_bytes<W: Word>(words: &[W], planes: &mut [u8]) {
    let count = words.len();
    for (number, strip) in words.chunks(STRIP).enumerate() {
        for place in 0..W::BYTES {
            let from = place * count + number * STRIP;
            let plane = &mut planes[from..from + strip.len()];
            for (byte, word) in plane.iter_mut().zip(strip) {
                *byte = word.byte(place);
            }
        }
    }
}

/// The inverse of [`to_bytes`].
pub(super) fn from_bytes<W: Word>(planes: &[u8], words: &mut [W]) {
    let count = words.len();
    for (number, strip) in words.chunks_mut(STRIP).enumerate() {
        let plane = |place: usize| &planes[place * count + number * STRIP..][..strip.len()];
        match W::BYTES {
            1 => from_planes([plane(0)], strip),
            2 => from_planes([plane(0), plane(1)], strip),
            4 => from_planes([0, 1, 2, 3].map(plane), strip),
            _ => from_planes([0, 1, 2, 3, 4, 5, 6, 7].map(plane), strip),
        }
    }
}

#[inline(always)]
fn from_planes<W: Word, const N: usize>(planes: [&[u8]; N], words: &mut [W]) {
    let count = words.len();
    let planes = planes.map(|plane| &plane[..count]);
    for (place, word) in words.iter_mut().enumerate() {
        let mut value = W::default();
        for (number, plane) in planes.iter().enumerate() {
            value = value.xor(W::of_byte(plane[place], number));
        }
        *word = value;
    }
}

/// The 8 x 8 bits of eight bytes, rows for columns.
#[inline(always)]
fn transpose(mut bits: u64) -> u64 {
    // Blocks of 1, 2 and 4 bits change places: H. S. Warren, "Hacker's Delight", 7-3.
    let swap = |bits: u64, mask: u64, shift: u32| {
        let moved = (bits ^ (bits >> shift)) & mask;
        bits ^ moved ^ (moved << shift)
    };
    bits = swap(bits, 0x00aa_00aa_00aa_00aa, 7);
    bits = swap(bits, 0x0000_cccc_0000_cccc, 14);
    swap(bits, 0x0000_0000_f0f0_f0f0, 28)
}

/// The bit planes of `words`, the lowest first; each byte has the bits of eight words, the first one
/// lowest. Words beyond the last multiple of eight follow as they are.
pub(super) fn to_bits<W: Word>(words: &[W], planes: &mut [u8]) {
    let groups = words.len() / 8;
    let (planes, rest) = planes.split_at_mut(groups * 8 * W::BYTES);
    for (group, eight) in words.chunks_exact(8).enumerate() {
        for place in 0..W::BYTES {
            let mut bytes = [0; 8];
            for (byte, word) in bytes.iter_mut().zip(eight) {
                *byte = word.byte(place);
            }
            let bits = transpose(u64::from_le_bytes(bytes)).to_le_bytes();
            for (bit, byte) in bits.into_iter().enumerate() {
                planes[(8 * place + bit) * groups + group] = byte;
            }
        }
    }
    let rest = rest.chunks_exact_mut(W::BYTES);
    for (word, out) in words[groups * 8..].iter().zip(rest) {
        word.store(out);
    }
}

/// The inverse of [`to_bits`].
pub(super) fn from_bits<W: Word>(planes: &[u8], words: &mut [W]) {
    let groups = words.len() / 8;
    let (planes, rest) = planes.split_at(groups * 8 * W::BYTES);
    let (whole, last) = words.split_at_mut(groups * 8);
    whole.fill(W::default());
    for place in 0..W::BYTES {
        let plane = |bit: usize| &planes[(8 * place + bit) * groups..][..groups];
        let eight = [0, 1, 2, 3, 4, 5, 6, 7].map(plane);
        for (group, words) in whole.chunks_exact_mut(8).enumerate() {
            let bits = eight.map(|plane| plane[group]);
            let bytes = transpose(u64::from_le_bytes(bits)).to_le_bytes();
            for (word, byte) in words.iter_mut().zip(bytes) {
                *word = word.xor(W::of_byte(byte, place));
            }
        }
    }
    for (word, bytes) in last.iter_mut().zip(rest.chunks_exact(W::BYTES)) {
        *word = W::load(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn naive_bits(words: &[i32]) -> Vec<u8> {
        let groups = words.len() / 8;
        let mut planes = vec![0; words.len() * 4];
        for (number, word) in words[..groups * 8].iter().enumerate() {
            for bit in 0..32 {
                let set = word.byte(bit / 8) >> (bit % 8) & 1;
                planes[bit * groups + number / 8] |= set << (number % 8);
            }
        }
        for (word, out) in words[groups * 8..]
            .iter()
            .zip(planes[groups * 32..].chunks_mut(4))
        {
            word.store(out);
        }
        planes
    }

    proptest! {
        #[test]
        fn planes_are_as_defined_and_come_back(words in prop::collection::vec(any::<i32>(), 0..5000)) {
            let mut planes = vec![0; words.len() * 4];
            to_bytes(&words, &mut planes);
            for (number, &byte) in planes.iter().enumerate() {
                prop_assert_eq!(byte, words[number % words.len()].byte(number / words.len()));
            }
            let mut again = vec![0; words.len()];
            from_bytes(&planes, &mut again);
            prop_assert_eq!(&again, &words);
            to_bits(&words, &mut planes);
            prop_assert_eq!(&planes, &naive_bits(&words));
            from_bits(&planes, &mut again);
            prop_assert_eq!(&again, &words);
        }

        #[test]
        fn planes_of_other_widths_come_back(words in prop::collection::vec(any::<i64>(), 0..100)) {
            let mut planes = vec![0; words.len() * 8];
            let mut again = vec![0; words.len()];
            to_bytes(&words, &mut planes);
            from_bytes(&planes, &mut again);
            prop_assert_eq!(&again, &words);
            to_bits(&words, &mut planes);
            from_bits(&planes, &mut again);
            prop_assert_eq!(&again, &words);
            let words: Vec<i8> = words.iter().map(|word| i8::from_le_bytes([word.byte(3)])).collect();
            let mut again = vec![0; words.len()];
            to_bits(&words, &mut planes[..words.len()]);
            from_bits(&planes[..words.len()], &mut again);
            prop_assert_eq!(&again, &words);
        }
    }
}
