// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what a scheme would cost, without trying it: bits of a word, and how fast coders are.
//! In from: `choose` (differences, schemes). Out to: `choose` (bits, rates).
//! Invariants: the same words give the same bits; a rate is a number above 0.

use super::words::Word;
use super::{Effort, float};
use backstay_format::scheme::{Arrangement, Coder, Scheme, SecondPass};
use std::ops::Range;

/// Bits of a word of these windows about: its length by how often each length occurs, then its bits
/// below the highest one as they are. Range coders and bins of residuals come close to this.
pub(super) fn bits<W: Word>(words: &[W], windows: &[Range<usize>], signed: bool) -> f64 {
    let (mut lengths, mut below, mut total) = ([0_u32; 65], 0, 0);
    for window in windows {
        for word in words.get(window.clone()).unwrap_or_default() {
            let word = if signed { word.zigzag() } else { *word };
            let length = word.length();
            lengths[length] += 1;
            below += length.saturating_sub(1);
            total += 1;
        }
    }
    if total == 0 {
        return 0.0;
    }
    let used = lengths.iter().filter(|&&count| count > 0);
    let entropy: f64 = used
        .map(|&count| {
            let part = f64::from(count) / float(total);
            -part * part.log2()
        })
        .sum();
    entropy + float(below) / float(total)
}

/// How fast one core encodes and decodes, in bytes of the original per second.
///
/// The numbers of [`Rates::MEASURED`] come from one machine; a writer corrects the encoding rates by
/// what it measures, and tests put in their own.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    /// LZ4: encoding, decoding.
    pub lz4: (f64, f64),
    /// Zstandard at level 3: encoding, decoding.
    pub zstd: (f64, f64),
    /// Pcodec at level 8, its work for each number: encoding, decoding.
    pub pco_numbers: (f64, f64),
    /// Pcodec, its work for each byte of the numbers: encoding, decoding.
    pub pco_bytes: (f64, f64),
    /// One pass over words or planes, either way.
    pub pass: f64,
}

impl Rates {
    /// What one core of an Intel Xeon with AVX-512 did.
    pub const MEASURED: Self = Self {
        lz4: (0.7e9, 2.0e9),
        zstd: (0.3e9, 1.2e9),
        pco_numbers: (0.03e9, 1.0e9),
        pco_bytes: (10e9, 2.2e9),
        pass: 14e9,
    };

    /// The same with encoders that are so much faster.
    #[must_use]
    pub fn corrected(self, factor: f64) -> Self {
        let faster = |(encode, decode)| (encode * factor, decode);
        Self {
            lz4: faster(self.lz4),
            zstd: faster(self.zstd),
            pco_numbers: faster(self.pco_numbers),
            pco_bytes: faster(self.pco_bytes),
            pass: self.pass,
        }
    }
    /// Bytes a second that `scheme` encodes with `effort` on one core.
    pub fn encode(&self, scheme: &Scheme, effort: Effort) -> f64 {
        let harder = match (scheme.coder, effort.zstd) {
            (Coder::Zstd, ..4) => 1.0,
            (Coder::Zstd, 4..13) => 8.0,
            (Coder::Zstd, _) => 60.0,
            (Coder::Pco, _) if effort.pco > 8 => 2.5,
            _ => 1.0,
        };
        let seconds = self.seconds(scheme, |pair| pair.0);
        1.0 / (self.passes(scheme) + harder * seconds)
    }
    /// Bytes a second that `scheme` decodes on one core.
    pub fn decode(&self, scheme: &Scheme) -> f64 {
        let seconds = self.seconds(scheme, |pair| pair.1);
        1.0 / (self.passes(scheme) + seconds)
    }
    fn seconds(&self, scheme: &Scheme, of: impl Fn((f64, f64)) -> f64) -> f64 {
        let second = match scheme.second_pass {
            SecondPass::None => 0.0,
            SecondPass::Zstd => 1.0 / of(self.zstd),
        };
        let width = float(scheme.component_bytes());
        let first = match scheme.coder {
            Coder::Raw => 0.0,
            Coder::Lz4 => 1.0 / of(self.lz4),
            Coder::Zstd => 1.0 / of(self.zstd),
            Coder::Pco => 1.0 / (of(self.pco_numbers) * width) + 1.0 / of(self.pco_bytes),
        };
        first + second
    }
    fn passes(&self, scheme: &Scheme) -> f64 {
        let arranged = match scheme.arrangement {
            Arrangement::Plain => 0,
            Arrangement::Bytes => 1,
            // Bits change places in squares of 8 by 8.
            Arrangement::Bits => 6,
        };
        let passes = 1 + scheme.lags.as_slice().len() + arranged + usize::from(scheme.needs_base());
        float(passes) / self.pass
    }
}
