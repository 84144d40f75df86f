// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the numbers that a segment consists of, as signed integers of one width.
//! In: bytes. Out: words and bytes.
//! Invariants: all arithmetic wraps; every bit pattern has a word and comes back from it.
//! Format: docs/format/codec.md, section "Words".

/// A signed integer that stands for the bits of a number.
pub(super) trait Word:
    Copy + Default + Eq + bytemuck::Pod + pco::data_types::Number
{
    /// Its width.
    const BYTES: usize;
    /// From little-endian bytes; there are [`Word::BYTES`] of them.
    fn load(bytes: &[u8]) -> Self;
    /// Into little-endian bytes; there is room for [`Word::BYTES`].
    fn store(self, bytes: &mut [u8]);
    /// The sum.
    fn plus(self, other: Self) -> Self;
    /// The difference.
    fn minus(self, other: Self) -> Self;
    /// Exclusive or.
    fn xor(self, other: Self) -> Self;
    /// The bits of a float as an integer that grows with it; and back, since it is its own inverse.
    fn ordered(self) -> Self;
    /// 0, -1, 1, -2, ... become 0, 1, 2, 3, ...
    fn zigzag(self) -> Self;
    /// The inverse of [`Word::zigzag`].
    fn unzigzag(self) -> Self;
    /// How many bits there are up to the highest one that is set.
    fn length(self) -> usize;
    /// Its byte number `place`, the lowest first.
    fn byte(self, place: usize) -> u8;
    /// The byte at `place`, all others 0.
    fn of_byte(byte: u8, place: usize) -> Self;
}

macro_rules! word {
    ($signed:ty, $unsigned:ty) => {
        impl Word for $signed {
            const BYTES: usize = size_of::<$signed>();
            #[inline(always)]
            fn load(bytes: &[u8]) -> Self {
                let mut array = [0; size_of::<$signed>()];
                array.copy_from_slice(bytes);
                Self::from_le_bytes(array)
            }
            #[inline(always)]
            fn store(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_le_bytes());
            }
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn minus(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }
            #[inline(always)]
            fn xor(self, other: Self) -> Self {
                self ^ other
            }
            #[inline(always)]
            fn ordered(self) -> Self {
                self ^ ((self >> (Self::BITS - 1)) & Self::MAX)
            }
            #[inline(always)]
            fn zigzag(self) -> Self {
                (self << 1) ^ (self >> (Self::BITS - 1))
            }
            #[inline(always)]
            fn unzigzag(self) -> Self {
                (self.cast_unsigned() >> 1).cast_signed() ^ (self & 1).wrapping_neg()
            }
            #[inline(always)]
            fn length(self) -> usize {
                backstay_format::width::index(Self::BITS - self.leading_zeros())
            }
            #[inline(always)]
            fn byte(self, place: usize) -> u8 {
                (self.cast_unsigned() >> (8 * place)).to_le_bytes()[0]
            }
            #[inline(always)]
            fn of_byte(byte: u8, place: usize) -> Self {
                (<$unsigned>::from(byte) << (8 * place)).cast_signed()
            }
        }
    };
}

word!(i8, u8);
word!(i16, u16);
word!(i32, u32);
word!(i64, u64);

#[cfg(test)]
mod tests {
    use super::Word;
    use proptest::prelude::*;

    fn check<W: Word + std::fmt::Debug>(word: W) {
        assert_eq!(word.ordered().ordered(), word);
        assert_eq!(word.zigzag().unzigzag(), word);
        let mut bytes = vec![0; W::BYTES];
        word.store(&mut bytes);
        assert_eq!(W::load(&bytes), word);
        let mut again = W::default();
        for (place, &byte) in bytes.iter().enumerate() {
            assert_eq!(word.byte(place), byte);
            again = again.xor(W::of_byte(byte, place));
        }
        assert_eq!(again, word);
    }

    proptest! {
        #[test]
        fn every_word_comes_back(bits in any::<i64>()) {
            let [a, b, c, d, ..] = bits.to_le_bytes();
            check(i8::from_le_bytes([a]));
            check(i16::from_le_bytes([a, b]));
            check(i32::from_le_bytes([a, b, c, d]));
            check(bits);
        }

        #[test]
        fn ordered_words_grow_with_the_floats(a in any::<f64>(), b in any::<f64>()) {
            let word = |float: f64| float.to_bits().cast_signed().ordered();
            if a < b {
                prop_assert!(word(a) < word(b));
            }
        }
    }

    #[test]
    fn every_pattern_of_16_bits_comes_back() {
        for bits in i16::MIN..=i16::MAX {
            check(bits);
        }
    }
}
