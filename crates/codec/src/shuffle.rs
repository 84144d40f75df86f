// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: planes: all first bytes, all second bytes; or all first bits, all second bits.
//! In from: `predict` (words). Out to: `coder` (bytes), and the way back.
//! Invariants: as many bytes as the words have; the fast loops give what `naive` in the tests gives.
//! Format: docs/format/codec.md, section "Arrangement".
#![expect(
    clippy::inline_always,
    reason = "instructions only become part of a function that is inlined where they are allowed"
)]

use super::simd::{Loop, fast};
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
        let long = strip.len();
        let plane = |place: usize| &planes[place * count + number * STRIP..][..long];
        let mut all: [&[u8]; 8] = [&[]; 8];
        for (place, slot) in all.iter_mut().take(W::BYTES).enumerate() {
            *slot = plane(place);
        }
        fast(Together {
            planes: all,
            words: strip,
        });
    }
}

/// Words being put together from their byte planes, of which as many are there as a word has bytes.
struct Together<'a, W> {
    planes: [&'a [u8]; 8],
    words: &'a mut [W],
}

impl<W: Word> Loop for Together<'_, W> {
    type Out = ();
    #[inline(always)]
    fn run(self) {
        let planes = self.planes;
        match W::BYTES {
            1 => from_planes([planes[0]], self.words),
            2 => from_planes([planes[0], planes[1]], self.words),
            4 => from_planes([planes[0], planes[1], planes[2], planes[3]], self.words),
            _ => from_planes(planes, self.words),
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
fn transpose_bits(mut bits: u64) -> u64 {
    // Blocks of 1, 2 and 4 bits change places: H. S. Warren, "Hacker's Delight", 7-3.
    for (mask, shift) in [
        (0x00aa_00aa_00aa_00aa, 7),
        (0x0000_cccc_0000_cccc, 14),
        (0x0000_0000_f0f0_f0f0, 28),
    ] {
        let moved = (bits ^ (bits >> shift)) & mask;
        bits ^= moved ^ (moved << shift);
    }
    bits
}

/// The 8 x 8 bytes of eight rows, rows for columns.
#[inline(always)]
fn transpose_bytes(rows: &mut [u64; 8]) {
    for (apart, shift, mask) in [
        (1, 8, 0x00ff_00ff_00ff_00ff),
        (2, 16, 0x0000_ffff_0000_ffff),
        (4, 32, 0x0000_0000_ffff_ffff),
    ] {
        for low in (0..8).filter(|row| row & apart == 0) {
            let moved = ((rows[low] >> shift) ^ rows[low + apart]) & mask;
            rows[low + apart] ^= moved;
            rows[low] ^= moved << shift;
        }
    }
}

/// Groups of eight words whose planes are made at once: writing 64 places in turn would leave the
/// cache each time.
const GROUPS: usize = 64;
/// The bytes of one place of as many words.
type Plane = [u8; 8 * GROUPS];
/// Their bits: one row for each.
type Rows = [[u8; GROUPS]; 8];

#[inline(always)]
fn eight(bytes: &[u8]) -> u64 {
    bytes
        .first_chunk()
        .map_or(0, |eight| u64::from_le_bytes(*eight))
}

/// The bits of a plane, eight groups at a time.
#[inline(always)]
fn rows_of(plane: &Plane) -> Rows {
    let mut rows = [[0; GROUPS]; 8];
    for (number, part) in plane.chunks_exact(64).enumerate() {
        let mut square: [u64; 8] =
            std::array::from_fn(|group| transpose_bits(eight(&part[8 * group..])));
        transpose_bytes(&mut square);
        for (row, bits) in rows.iter_mut().zip(square) {
            row[8 * number..8 * number + 8].copy_from_slice(&bits.to_le_bytes());
        }
    }
    rows
}

/// The inverse of [`rows_of`].
#[inline(always)]
fn plane_of(rows: &Rows) -> Plane {
    let mut plane = [0; 8 * GROUPS];
    for (number, part) in plane.chunks_exact_mut(64).enumerate() {
        let mut square: [u64; 8] = std::array::from_fn(|row| eight(&rows[row][8 * number..]));
        transpose_bytes(&mut square);
        for (group, bits) in part.chunks_exact_mut(8).zip(square) {
            group.copy_from_slice(&transpose_bits(bits).to_le_bytes());
        }
    }
    plane
}

struct ToRows<'a>(&'a Plane);

impl Loop for ToRows<'_> {
    type Out = Rows;
    #[inline(always)]
    fn run(self) -> Rows {
        rows_of(self.0)
    }
}

struct ToPlane<'a>(&'a Rows);

impl Loop for ToPlane<'_> {
    type Out = Plane;
    #[inline(always)]
    fn run(self) -> Plane {
        plane_of(self.0)
    }
}

/// The bit planes of `words`, the lowest first; each byte has the bits of eight words, the first one
/// lowest. Words beyond the last multiple of eight follow as they are.
pub(super) fn to_bits<W: Word>(words: &[W], planes: &mut [u8]) {
    let groups = words.len() / 8;
    let (planes, rest) = planes.split_at_mut(groups * 8 * W::BYTES);
    for (number, strip) in words[..groups * 8].chunks(8 * GROUPS).enumerate() {
        for place in 0..W::BYTES {
            let mut plane = [0; 8 * GROUPS];
            let bytes = plane.iter_mut().zip(strip);
            bytes.for_each(|(byte, word)| *byte = word.byte(place));
            let rows = fast(ToRows(&plane));
            let count = strip.len() / 8;
            for (bit, row) in rows.iter().enumerate() {
                let from = (8 * place + bit) * groups + number * GROUPS;
                planes[from..from + count].copy_from_slice(&row[..count]);
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
    // Byte planes of a strip, one after the other.
    let mut bytes = [0; 64 * GROUPS];
    for (number, strip) in whole.chunks_mut(8 * GROUPS).enumerate() {
        let count = strip.len() / 8;
        for place in 0..W::BYTES {
            let mut rows = [[0; GROUPS]; 8];
            for (bit, row) in rows.iter_mut().enumerate() {
                let from = (8 * place + bit) * groups + number * GROUPS;
                row[..count].copy_from_slice(&planes[from..from + count]);
            }
            let plane = fast(ToPlane(&rows));
            bytes[place * strip.len()..][..strip.len()].copy_from_slice(&plane[..strip.len()]);
        }
        from_bytes(&bytes, strip);
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
