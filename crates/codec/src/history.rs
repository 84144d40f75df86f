// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the difference between data and what stood in its place in an earlier checkpoint.
//! In from: the caller (bytes and the base). Out to: `predict` (words), and the way back.
//! Invariants: data and base have one length; what one direction does the other one undoes for
//! every bit pattern.
//! Format: docs/format/codec.md, section "History".

use super::words::Word;
use backstay_format::scheme::History;

/// What bytes become words by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Against<'a> {
    pub(super) history: History,
    /// Bytes to compare with, as many as there are of the data; empty without a history.
    pub(super) base: &'a [u8],
    /// Whether the words are floats that become ordered integers.
    pub(super) ordered: bool,
}

/// The words of `bytes`, which are whole elements.
pub(super) fn forward<W: Word>(against: Against<'_>, bytes: &[u8], words: &mut Vec<W>) {
    words.clear();
    let data = bytes.chunks_exact(W::BYTES).map(W::load);
    let base = against.base.chunks_exact(W::BYTES).map(W::load);
    match (against.history, against.ordered) {
        (History::None, false) => words.extend(data),
        (History::None, true) => words.extend(data.map(W::ordered)),
        (History::Xor, _) => words.extend(data.zip(base).map(|(x, b)| x.xor(b))),
        (History::Subtract, false) => words.extend(data.zip(base).map(|(x, b)| x.minus(b))),
        (History::Subtract, true) => {
            words.extend(data.zip(base).map(|(x, b)| x.ordered().minus(b.ordered())));
        }
    }
}

/// The inverse of [`forward`].
pub(super) fn inverse<W: Word>(against: Against<'_>, words: &[W], bytes: &mut [u8]) {
    let pairs = words.iter().zip(bytes.chunks_exact_mut(W::BYTES));
    let base = against.base.chunks_exact(W::BYTES).map(W::load);
    match (against.history, against.ordered) {
        (History::None, false) => pairs.for_each(|(word, out)| word.store(out)),
        (History::None, true) => pairs.for_each(|(word, out)| word.ordered().store(out)),
        (History::Xor, _) => pairs
            .zip(base)
            .for_each(|((word, out), b)| word.xor(b).store(out)),
        (History::Subtract, false) => pairs
            .zip(base)
            .for_each(|((word, out), b)| word.plus(b).store(out)),
        (History::Subtract, true) => pairs
            .zip(base)
            .for_each(|((word, out), b)| word.plus(b.ordered()).ordered().store(out)),
    }
}
