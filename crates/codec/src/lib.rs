// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the archive's bytes made fewer, and back: history, predictor, arrangement, coder, second
//! pass; and the choice among them for each variable.
//! In from: the caller (a segment of one variable, and what stood there before). Out to: the caller
//! (encoded bytes and the scheme that decodes them).
//! Invariants: bytes to bytes, no I/O and no threads; every bit pattern comes back; what is kept is
//! never longer than what it was made of; a reader of damaged bytes gives an error or other bytes,
//! and never allocates by a number it has not checked.
//! Format: docs/format/codec.md.
//!
//! | file | what it does |
//! |---|---|
//! | `simd` | loops compiled for better processors too |
//! | `words` | numbers as signed integers of one width |
//! | `history` | the difference to an earlier checkpoint |
//! | `predict` | the difference to neighbours in the array |
//! | `shuffle` | planes of bytes or bits |
//! | `coder` | LZ4, Zstandard and Pcodec |
//! | `choose` | which scheme is best for a segment |

mod simd;
mod words;
mod history;
mod predict;
mod shuffle;
mod coder;
mod choose;
mod estimate;

#[cfg(test)]
mod tests;

use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::scheme::encoded_bytes_max;
use backstay_format::scheme::{Arrangement, Coder, DECODED_BYTES_MAX, History, Scheme, SecondPass};
use coder::General;
use history::Against;
use std::ops::Range;
use words::Word;

pub use choose::{Choice, Chooser, Goal, Policy, Subject, choose};
pub use estimate::Rates;

/// How hard the coders of others try: a writer's business, which a reader need not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effort {
    /// Level of Zstandard.
    pub zstd: i8,
    /// Level of Pcodec.
    pub pco: u8,
}

impl Default for Effort {
    fn default() -> Self {
        Self { zstd: 3, pco: 8 }
    }
}

/// Memory that encoding and decoding use again for one segment after the other: some times the
/// longest of them.
#[derive(Debug)]
pub struct Work {
    bytes: Vec<u8>,
    first_pass: Vec<u8>,
    words8: Pair<i8>,
    words16: Pair<i16>,
    words32: Pair<i32>,
    words64: Pair<i64>,
    general: General,
}

/// Words, and room for as many.
#[derive(Debug, Default)]
struct Pair<W> {
    words: Vec<W>,
    spare: Vec<W>,
}

impl Default for Work {
    fn default() -> Self {
        Self::new()
    }
}

impl Work {
    /// Without any memory yet.
    pub fn new() -> Self {
        Self {
            bytes: Vec::new(),
            first_pass: Vec::new(),
            words8: Pair::default(),
            words16: Pair::default(),
            words32: Pair::default(),
            words64: Pair::default(),
            general: General::new(),
        }
    }
    /// How hard [`encode`] tries from now on.
    pub fn set_effort(&mut self, effort: Effort) {
        self.general.effort = effort;
    }
    /// How hard [`encode`] tries.
    pub fn effort(&self) -> Effort {
        self.general.effort
    }
}

fn damaged(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, what)
}

/// `length` as a float; exact for what is encoded at once.
fn float(length: usize) -> f64 {
    u32::try_from(length).map_or(f64::MAX, f64::from)
}

/// Refuses what the caller must not hand in.
fn check(scheme: &Scheme, length: usize, base: Option<&[u8]>) -> Result<()> {
    let wrong = |words: String| Err(Error::new(ErrorKind::InvalidArgument, words));
    if !scheme.is_valid() {
        return wrong(format!("the scheme {scheme} does not go together"));
    }
    if length > DECODED_BYTES_MAX {
        return wrong(format!(
            "{length} bytes are more than the {DECODED_BYTES_MAX} that are encoded at once"
        ));
    }
    match base {
        _ if !scheme.needs_base() => Ok(()),
        Some(base) if base.len() == length => Ok(()),
        Some(base) => wrong(format!("{length} bytes have a base of {}", base.len())),
        None => wrong(format!("the scheme {scheme} needs a base")),
    }
}

/// What the bytes of whole elements become words by.
fn against<'a>(scheme: &Scheme, base: Option<&'a [u8]>) -> Against<'a> {
    let predicted = !scheme.lags.is_empty();
    let ordered = match scheme.history {
        History::None => predicted || scheme.coder == Coder::Pco && scheme.component_bytes() == 2,
        History::Xor => false,
        History::Subtract => true,
    };
    Against {
        history: scheme.history,
        base: base.filter(|_| scheme.needs_base()).unwrap_or_default(),
        ordered: ordered && scheme.is_float(),
    }
}

/// Whether small differences of both signs should have few bits: Pcodec sees to that itself.
fn is_zigzag(scheme: &Scheme) -> bool {
    let differences = scheme.history == History::Subtract || !scheme.lags.is_empty();
    differences && scheme.coder != Coder::Pco
}

/// Strides of the predictor in words.
fn strides(scheme: &Scheme) -> impl Iterator<Item = usize> {
    let components = scheme.components();
    let lags = scheme.lags.as_slice().to_vec().into_iter();
    lags.map(move |lag| backstay_format::width::index(lag).saturating_mul(components))
}

/// Encodes `bytes` into `out`, which is emptied, and gives the scheme that decodes it: `scheme`, or
/// [`Scheme::raw`] if that would not make it shorter.
///
/// `base` are the bytes to compare with, as many as `bytes`; a scheme without a history ignores it.
pub fn encode(
    scheme: &Scheme,
    bytes: &[u8],
    base: Option<&[u8]>,
    work: &mut Work,
    out: &mut Vec<u8>,
) -> Result<Scheme> {
    encode_exactly(scheme, bytes, base, work, out)?;
    if out.len() < bytes.len() || *scheme == Scheme::raw(scheme.element) {
        return Ok(*scheme);
    }
    out.clear();
    out.extend_from_slice(bytes);
    Ok(Scheme::raw(scheme.element))
}

/// [`encode`] without the way out: what comes out may be up to
/// [`backstay_format::scheme::encoded_bytes_max`] long.
pub fn encode_exactly(
    scheme: &Scheme,
    bytes: &[u8],
    base: Option<&[u8]>,
    work: &mut Work,
    out: &mut Vec<u8>,
) -> Result<()> {
    check(scheme, bytes.len(), base)?;
    out.clear();
    if scheme.second_pass == SecondPass::None {
        return encode_first(scheme, bytes, base, work, out);
    }
    let mut first = std::mem::take(&mut work.first_pass);
    first.clear();
    let done = encode_first(scheme, bytes, base, work, &mut first);
    let done = done.and_then(|()| {
        let length = u32::try_from(first.len()).unwrap_or(u32::MAX);
        out.extend(length.to_le_bytes());
        work.general.zstd(&first, out)
    });
    work.first_pass = first;
    done
}

/// Decodes what [`encode`] made; `out` has the length of what was encoded.
pub fn decode(
    scheme: &Scheme,
    encoded: &[u8],
    base: Option<&[u8]>,
    work: &mut Work,
    out: &mut [u8],
) -> Result<()> {
    check(scheme, out.len(), base)?;
    if scheme.second_pass == SecondPass::None {
        return decode_first(scheme, encoded, base, work, out);
    }
    let cut = || damaged("a second pass has no length");
    let (length, frame) = encoded.split_first_chunk::<4>().ok_or_else(cut)?;
    let length = backstay_format::width::index(u32::from_le_bytes(*length));
    if length > encoded_bytes_max(out.len()) {
        return Err(damaged("a second pass is longer than a first one can be"));
    }
    let mut first = std::mem::take(&mut work.first_pass);
    first.resize(length, 0);
    let done = work.general.unzstd(frame, &mut first);
    let done = done.and_then(|()| decode_first(scheme, &first, base, work, out));
    work.first_pass = first;
    done
}

/// Runs `$call` with the words of the scheme's width, taken out of `$work` meanwhile.
macro_rules! with_words {
    ($scheme:expr, $work:expr, $call:expr) => {
        match $scheme.component_bytes() {
            1 => with_words!(@ words8, $work, $call),
            2 => with_words!(@ words16, $work, $call),
            4 => with_words!(@ words32, $work, $call),
            _ => with_words!(@ words64, $work, $call),
        }
    };
    (@ $field:ident, $work:expr, $call:expr) => {{
        let mut pair = std::mem::take(&mut $work.$field);
        let done = $call(&mut pair, $work);
        $work.$field = pair;
        done
    }};
}

fn encode_first(
    scheme: &Scheme,
    bytes: &[u8],
    base: Option<&[u8]>,
    work: &mut Work,
    out: &mut Vec<u8>,
) -> Result<()> {
    with_words!(scheme, work, |pair: &mut _, work: &mut _| encode_words(
        scheme, bytes, base, pair, work, out
    ))
}

fn decode_first(
    scheme: &Scheme,
    encoded: &[u8],
    base: Option<&[u8]>,
    work: &mut Work,
    out: &mut [u8],
) -> Result<()> {
    with_words!(scheme, work, |pair: &mut _, work: &mut _| decode_words(
        scheme, encoded, base, pair, work, out
    ))
}

fn encode_words<W: Word>(
    scheme: &Scheme,
    bytes: &[u8],
    base: Option<&[u8]>,
    pair: &mut Pair<W>,
    work: &mut Work,
    out: &mut Vec<u8>,
) -> Result<()> {
    let tail = difference(scheme, bytes, base, pair);
    code(scheme, &mut pair.words, tail, work, out)
}

/// The words of `bytes` less what history and neighbours say; gives the bytes after the last word.
fn difference<'a, W: Word>(
    scheme: &Scheme,
    bytes: &'a [u8],
    base: Option<&[u8]>,
    pair: &mut Pair<W>,
) -> &'a [u8] {
    let (whole, tail) = bytes.split_at(bytes.len() / W::BYTES * W::BYTES);
    history::forward(against(scheme, base), whole, &mut pair.words);
    let strides: Vec<usize> = strides(scheme).collect();
    predict::forward(&strides, &mut pair.words, &mut pair.spare);
    tail
}

/// Appends what arrangement and coder make of differences, which are overwritten.
fn code<W: Word>(
    scheme: &Scheme,
    words: &mut [W],
    tail: &[u8],
    work: &mut Work,
    out: &mut Vec<u8>,
) -> Result<()> {
    if scheme.coder == Coder::Pco {
        out.extend_from_slice(tail);
        if words.is_empty() {
            return Ok(());
        }
        return coder::encode_numbers(scheme, words, work.general.effort, out);
    }
    if is_zigzag(scheme) {
        for word in words.iter_mut() {
            *word = word.zigzag();
        }
    }
    let Work {
        bytes: arranged,
        general,
        ..
    } = work;
    let length = words.len() * W::BYTES;
    arranged.resize(length + tail.len(), 0);
    let (planes, rest) = arranged.split_at_mut(length);
    rest.copy_from_slice(tail);
    match scheme.arrangement {
        Arrangement::Plain => {
            let places = planes.chunks_exact_mut(W::BYTES);
            for (out, word) in places.zip(&*words) {
                word.store(out);
            }
        }
        Arrangement::Bytes => shuffle::to_bytes(words, planes),
        Arrangement::Bits => shuffle::to_bits(words, planes),
    }
    general.encode(scheme.coder, arranged, out)
}

fn decode_words<W: Word>(
    scheme: &Scheme,
    encoded: &[u8],
    base: Option<&[u8]>,
    pair: &mut Pair<W>,
    work: &mut Work,
    out: &mut [u8],
) -> Result<()> {
    let length = out.len();
    let (whole, tail) = out.split_at_mut(length / W::BYTES * W::BYTES);
    let count = whole.len() / W::BYTES;
    let words = &mut pair.words;
    words.resize(count, W::default());
    let Work {
        bytes: arranged,
        general,
        ..
    } = work;
    if scheme.coder == Coder::Pco {
        let cut = || damaged("an encoded stream ends before its first bytes");
        let (first, numbers) = encoded.split_at_checked(tail.len()).ok_or_else(cut)?;
        tail.copy_from_slice(first);
        match (count, numbers.is_empty()) {
            (0, true) => return Ok(()),
            (0, false) => return Err(damaged("an empty stream has bytes")),
            _ => coder::decode_numbers(scheme, numbers, words)?,
        }
    } else {
        arranged.resize(length, 0);
        general.decode(scheme.coder, encoded, arranged)?;
        tail.copy_from_slice(&arranged[whole.len()..]);
        unarrange(scheme, &arranged[..whole.len()], words);
    }
    let strides: Vec<usize> = strides(scheme).collect();
    predict::inverse(&strides, words);
    history::inverse(against(scheme, base), words, whole);
    Ok(())
}

/// Makes the differences of a whole segment, and keeps them for [`estimate_bits`] and [`code_sample`].
fn prepare(scheme: &Scheme, bytes: &[u8], base: Option<&[u8]>, work: &mut Work) {
    with_words!(scheme, work, |pair: &mut _, _: &mut Work| {
        difference(scheme, bytes, base, pair);
    });
}

/// Bits that a prepared word takes about.
fn estimate_bits(scheme: &Scheme, windows: &[Range<usize>], work: &mut Work) -> f64 {
    let signed = is_zigzag(&Scheme {
        coder: Coder::Raw,
        ..*scheme
    });
    with_words!(scheme, work, |pair: &mut Pair<_>, _: &mut Work| {
        estimate::bits(&pair.words, windows, signed)
    })
}

/// Appends what a scheme makes of some prepared words, and gives how many bytes those are.
fn code_sample(
    scheme: &Scheme,
    windows: &[Range<usize>],
    work: &mut Work,
    out: &mut Vec<u8>,
) -> Result<usize> {
    with_words!(scheme, work, |pair: &mut Pair<_>, work: &mut Work| {
        let Pair { words, spare } = pair;
        spare.clear();
        for window in windows {
            spare.extend_from_slice(words.get(window.clone()).unwrap_or_default());
        }
        let length = spare.len() * scheme.component_bytes();
        code(scheme, spare, &[], work, out).map(|()| length)
    })
}

/// The words that stand in arranged bytes.
fn unarrange<W: Word>(scheme: &Scheme, arranged: &[u8], words: &mut [W]) {
    match scheme.arrangement {
        Arrangement::Plain => {
            let loaded = arranged.chunks_exact(W::BYTES).map(W::load);
            for (word, loaded) in words.iter_mut().zip(loaded) {
                *word = loaded;
            }
        }
        Arrangement::Bytes => shuffle::from_bytes(arranged, words),
        Arrangement::Bits => shuffle::from_bits(arranged, words),
    }
    if is_zigzag(scheme) {
        for word in words.iter_mut() {
            *word = word.unzigzag();
        }
    }
}
