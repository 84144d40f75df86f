// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: words less what their neighbours say: the Lorenzo predictor of any number of dimensions,
//! as one difference after the other, one for each stride of the array.
//! In from: `history` (words). Out to: `shuffle`, `coder` (differences), and the way back.
//! Invariants: wrapping arithmetic, so the inverse is exact; the differences commute.
//! Format: docs/format/codec.md, section "Predictor".
//!
//! Source: L. Ibarria, P. Lindstrom, J. Rossignac, A. Szymczak, "Out-of-core compression and
//! decompression of large n-dimensional scalar fields", Eurographics 2003.

use super::words::Word;

/// Takes from every word the one `stride` before it, for one stride after the other. `spare` is room
/// for as many words.
pub(super) fn forward<W: Word>(strides: &[usize], words: &mut Vec<W>, spare: &mut Vec<W>) {
    let count = words.len();
    for &stride in strides.iter().filter(|&&stride| stride < count) {
        spare.clear();
        spare.extend_from_slice(&words[..stride]);
        let pairs = words[stride..].iter().zip(words.iter());
        spare.extend(pairs.map(|(word, before)| word.minus(*before)));
        std::mem::swap(words, spare);
    }
}

/// The inverse of [`forward`].
pub(super) fn inverse<W: Word>(strides: &[usize], words: &mut [W]) {
    let count = words.len();
    for &stride in strides.iter().filter(|&&stride| stride < count) {
        match stride {
            1 => sum(words),
            2..16 => sum_near(words, stride),
            _ => sum_far(words, stride),
        }
    }
}

fn sum<W: Word>(words: &mut [W]) {
    let mut total = W::default();
    for word in words {
        total = total.plus(*word);
        *word = total;
    }
}

fn sum_near<W: Word>(words: &mut [W], stride: usize) {
    let mut totals = [W::default(); 16];
    for row in words.chunks_mut(stride) {
        for (word, total) in row.iter_mut().zip(&mut totals) {
            *total = total.plus(*word);
            *word = *total;
        }
    }
}

fn sum_far<W: Word>(words: &mut [W], stride: usize) {
    let mut done = stride;
    while done < words.len() {
        let (before, rest) = words.split_at_mut(done);
        for (word, known) in rest.iter_mut().zip(&before[done - stride..]) {
            *word = word.plus(*known);
        }
        done += stride;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition: each word less the one before it, from the last to the first.
    fn naive(strides: &[usize], words: &mut [i32]) {
        for &stride in strides {
            for place in (stride..words.len()).rev() {
                words[place] = words[place].wrapping_sub(words[place - stride]);
            }
        }
    }

    proptest! {
        #[test]
        fn differences_are_as_defined_and_come_back(
            words in prop::collection::vec(any::<i32>(), 0..300),
            strides in prop::collection::vec(1_usize..120, 0..5),
        ) {
            let (mut fast, mut spare, mut wanted) = (words.clone(), Vec::new(), words.clone());
            naive(&strides, &mut wanted);
            forward(&strides, &mut fast, &mut spare);
            prop_assert_eq!(&fast, &wanted);
            inverse(&strides, &mut fast);
            prop_assert_eq!(fast, words);
        }
    }

    #[test]
    fn a_plane_of_two_dimensions_leaves_nothing() {
        let mut words: Vec<i64> = (0..40)
            .flat_map(|y| (0..30).map(move |x| 3 * x + 7 * y))
            .collect();
        forward(&[1, 30], &mut words, &mut Vec::new());
        let inner = words.chunks(30).skip(1).flat_map(|row| &row[1..]);
        assert!(inner.copied().all(|word| word == 0));
    }
}
