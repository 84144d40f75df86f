// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the scheme for a segment: what a sample of it says, under what the caller wants.
//! In from: the caller (a segment, what it is, what may be spent). Out to: the caller (a choice).
//! Invariants: the same segment and policy give the same choice, unless the caller puts in rates that
//! it measured; raw is chosen where nothing gains a tenth; a scheme is only compared with others after
//! it was tried.

use super::estimate::Rates;
use super::{Effort, Work, code_sample, encode_exactly, estimate_bits, float, prepare};
use backstay_base::error::Result;
use backstay_format::ElementType;
use backstay_format::scheme::{Arrangement, Coder, History, LAGS_MAX, Scheme, SecondPass};
use std::ops::Range;

/// Windows of a segment that are looked at, and bytes of each.
const WINDOWS: usize = 4;
const WINDOW_BYTES: usize = 64 << 10;
/// Differences that are tried with coders: those that promise the fewest bits.
const DIFFERENCES: usize = 3;
/// Schemes that are tried on the whole segment where the ratio counts.
const FINALISTS: usize = 4;
/// What a finalist must promise of what the best one does.
const CLOSE: f64 = 0.93;
/// Ratios beyond which windows say little about the whole.
const REPETITIVE: f64 = 6.0;
/// Part of the gain that may be given away for fewer cycles.
const TOLERANCE: f64 = 0.01;
/// Part of the ratio, where only that counts, that may be given away for a faster decoder.
const TOLERANCE_RATIO: f64 = 0.005;
/// What a higher effort must gain.
const HARDER: f64 = 0.005;
/// A smaller ratio is not worth any work.
const RATIO_MIN: f64 = 1.1;
/// A ratio missed by this part, either way, is a change of character.
const SURPRISE: f64 = 0.1;

/// What is being encoded.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// Type of the elements.
    pub element: ElementType,
    /// Strides of the array in elements, innermost first; other distances at which elements resemble
    /// each other may follow.
    pub lags: &'a [u32],
    /// What stood in the place of the segment before, as many bytes.
    pub base: Option<&'a [u8]>,
}

/// What the choice is for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Goal {
    /// The fewest bytes.
    Ratio,
    /// The shortest way to storage, where encoding and writing overlap.
    Pipeline {
        /// What storage takes.
        write_bytes_per_second: f64,
        /// Cores that encode, parts of one included.
        cores: f64,
    },
}

/// What may be spent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Policy {
    /// What the choice is for.
    pub goal: Goal,
    /// Whether a second pass may be tried.
    pub second_pass: bool,
    /// How fast one core must decode.
    pub decode_bytes_per_second_min: f64,
    /// How fast coders are here.
    pub rates: Rates,
    /// A history is chosen only if it leaves less than this part of what the best scheme without one
    /// leaves; from 1 on, whenever it leaves less.
    pub history_part_max: f64,
    /// How fast bases come: what reading them back costs a core beside encoding.
    pub base_bytes_per_second: f64,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            goal: Goal::Ratio,
            second_pass: false,
            decode_bytes_per_second_min: 0.6e9,
            rates: Rates::MEASURED,
            history_part_max: 1.0,
            base_bytes_per_second: f64::INFINITY,
        }
    }
}

/// A scheme, and what it promises.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    /// The scheme.
    pub scheme: Scheme,
    /// How hard the coders are to try.
    pub effort: Effort,
    /// Bytes before over bytes after.
    pub ratio: f64,
    /// Bytes a second that one core is expected to encode.
    pub encode_bytes_per_second: f64,
    /// Bytes a second that one core is expected to decode.
    pub decode_bytes_per_second: f64,
}

impl Choice {
    fn new(scheme: Scheme, effort: Effort, ratio: f64, policy: &Policy) -> Self {
        let rates = &policy.rates;
        let base = if scheme.needs_base() {
            1.0 / policy.base_bytes_per_second
        } else {
            0.0
        };
        Self {
            scheme,
            effort,
            ratio,
            encode_bytes_per_second: 1.0 / (1.0 / rates.encode(&scheme, effort) + base),
            decode_bytes_per_second: rates.decode(&scheme),
        }
    }
}

/// The scheme for `bytes`.
pub fn choose(
    subject: &Subject<'_>,
    bytes: &[u8],
    policy: &Policy,
    work: &mut Work,
) -> Result<Choice> {
    let effort = work.effort();
    let done = Search {
        subject,
        bytes,
        policy,
        work,
        out: Vec::new(),
        tried: Vec::new(),
    }
    .run();
    work.set_effort(effort);
    done
}

/// One choice being made.
struct Search<'a> {
    subject: &'a Subject<'a>,
    bytes: &'a [u8],
    policy: &'a Policy,
    work: &'a mut Work,
    out: Vec<u8>,
    tried: Vec<Choice>,
}

impl Search<'_> {
    fn run(mut self) -> Result<Choice> {
        let raw = Scheme::raw(self.subject.element);
        let raw = Choice::new(raw, Effort::default(), 1.0, self.policy);
        if self.bytes.len() < 64 {
            return Ok(raw);
        }
        let plain = Scheme::raw(self.subject.element);
        let windows = self.windows(&plain);
        for difference in self.differences(&windows) {
            prepare(&difference, self.bytes, self.subject.base, self.work);
            for (scheme, effort) in candidates(&difference, self.policy.second_pass) {
                self.sample(&scheme, effort, &windows)?;
            }
        }
        self.weigh_histories();
        let best = match self.policy.goal {
            Goal::Ratio => self.best_ratio()?,
            Goal::Pipeline { .. } => self.best_pipeline(),
        };
        Ok(best.filter(|best| best.ratio >= RATIO_MIN).unwrap_or(raw))
    }

    /// Windows of words, evenly over the segment.
    fn windows(&self, scheme: &Scheme) -> Vec<Range<usize>> {
        let words = self.bytes.len() / scheme.component_bytes();
        let long = WINDOW_BYTES / scheme.component_bytes();
        if words <= WINDOWS * long {
            return std::iter::once(0..words).collect();
        }
        let gap = (words - long) / (WINDOWS - 1);
        (0..WINDOWS)
            .map(|number| number * gap / 8 * 8..number * gap / 8 * 8 + long)
            .collect()
    }

    /// The differences that promise the fewest bits, and none at all.
    fn differences(&mut self, windows: &[Range<usize>]) -> Vec<Scheme> {
        let plain = Scheme::raw(self.subject.element);
        let mut rated = Vec::new();
        let histories: &[History] = match self.subject.base {
            Some(base) if base.len() == self.bytes.len() => &History::ALL,
            _ => &[History::None],
        };
        for &history in histories {
            for lags in lag_sets(self.subject.lags) {
                let scheme = plain.with_history(history).with_lags(&lags);
                if scheme == plain || history == History::Xor && !lags.is_empty() {
                    continue;
                }
                prepare(&scheme, self.bytes, self.subject.base, self.work);
                rated.push((estimate_bits(&scheme, windows, self.work), scheme));
            }
            if history == History::Xor {
                let scheme = plain.with_history(history);
                prepare(&scheme, self.bytes, self.subject.base, self.work);
                rated.push((estimate_bits(&scheme, windows, self.work), scheme));
            }
        }
        rated.sort_by(|a, b| a.0.total_cmp(&b.0));
        let all = rated.iter().map(|&(_, scheme)| scheme);
        let mut best: Vec<Scheme> = all.clone().take(DIFFERENCES).collect();
        if self.policy.history_part_max < 1.0 {
            // What histories are weighed against.
            let mut others = all.skip(DIFFERENCES).filter(|scheme| !scheme.needs_base());
            let is_one = best.iter().any(|scheme| !scheme.needs_base());
            best.extend(others.next().filter(|_| !is_one));
        }
        best.push(plain);
        best
    }

    fn sample(&mut self, scheme: &Scheme, effort: Effort, windows: &[Range<usize>]) -> Result<()> {
        self.work.set_effort(effort);
        self.out.clear();
        let length = code_sample(scheme, windows, self.work, &mut self.out)?;
        let choice = self.rated(scheme, effort, length);
        if choice.decode_bytes_per_second >= self.policy.decode_bytes_per_second_min {
            self.tried.push(choice);
        }
        Ok(())
    }

    /// Leaves out histories that gain too little over what does without.
    fn weigh_histories(&mut self) {
        let part = self.policy.history_part_max;
        let best = |with: bool| {
            let such = self.tried.iter().filter(|c| c.scheme.needs_base() == with);
            such.map(|choice| self.gain(choice)).fold(1.0, f64::max)
        };
        if part < 1.0 && best(true) * part < best(false) {
            self.tried.retain(|choice| !choice.scheme.needs_base());
        }
    }

    /// What a choice is good for, where raw is 1.
    fn gain(&self, choice: &Choice) -> f64 {
        match self.policy.goal {
            Goal::Ratio => choice.ratio,
            Goal::Pipeline {
                write_bytes_per_second,
                cores,
            } => {
                let coded = choice.encode_bytes_per_second * cores / write_bytes_per_second;
                choice.ratio.min(coded)
            }
        }
    }

    /// The best ratio, among those tried on the whole segment.
    fn best_ratio(&mut self) -> Result<Option<Choice>> {
        self.tried.sort_by(|a, b| b.ratio.total_cmp(&a.ratio));
        let Some(first) = self.tried.first().map(|choice| choice.ratio) else {
            return Ok(None);
        };
        let close = if first > REPETITIVE { 0.5 } else { CLOSE };
        let promising = self
            .tried
            .iter()
            .filter(|choice| choice.ratio >= close * first);
        let promising: Vec<Choice> = promising.copied().take(FINALISTS).collect();
        let mut whole = Vec::new();
        for choice in promising {
            whole.push(self.whole(&choice.scheme, choice.effort)?);
        }
        whole.sort_by(|a, b| b.ratio.total_cmp(&a.ratio));
        for (coder, count) in [
            (Coder::Pco, 1),
            (Coder::Zstd, if close < CLOSE { 3 } else { 1 }),
        ] {
            let best = whole.iter().filter(|choice| choice.scheme.coder == coder);
            for best in best.take(count).copied().collect::<Vec<_>>() {
                self.climb(best, &mut whole)?;
            }
        }
        Ok(fastest_of_best(&whole))
    }

    /// Tries harder as long as that gains what it costs.
    fn climb(&mut self, mut best: Choice, whole: &mut Vec<Choice>) -> Result<()> {
        let most = whole.iter().map(|choice| choice.ratio).fold(0.0, f64::max);
        // What is far behind does not catch up, but by repeats that are far apart.
        if best.ratio < 0.9 * most && most < REPETITIVE {
            return Ok(());
        }
        for effort in harder(&best) {
            let next = self.whole(&best.scheme, effort)?;
            if next.ratio < (1.0 + HARDER) * best.ratio {
                break;
            }
            whole.push(next);
            best = next;
        }
        Ok(())
    }

    fn whole(&mut self, scheme: &Scheme, effort: Effort) -> Result<Choice> {
        self.work.set_effort(effort);
        encode_exactly(
            scheme,
            self.bytes,
            self.subject.base,
            self.work,
            &mut self.out,
        )?;
        Ok(self.rated(scheme, effort, self.bytes.len()))
    }

    /// What became of `length` bytes.
    fn rated(&self, scheme: &Scheme, effort: Effort, length: usize) -> Choice {
        let ratio = float(length) / float(self.out.len().max(1));
        Choice::new(*scheme, effort, ratio, self.policy)
    }

    /// The most bytes a second to storage: encoding and writing overlap, so the slower one counts.
    fn best_pipeline(&self) -> Option<Choice> {
        let gain = |choice: &Choice| self.gain(choice);
        let best = self.tried.iter().map(gain).max_by(f64::total_cmp)?;
        if best < RATIO_MIN {
            return None;
        }
        // Of those that are as good, the one that costs the fewest cycles.
        let good = self
            .tried
            .iter()
            .filter(|choice| gain(choice) >= (1.0 - TOLERANCE) * best);
        good.max_by(|a, b| {
            a.encode_bytes_per_second
                .total_cmp(&b.encode_bytes_per_second)
        })
        .copied()
    }
}

/// The fastest decoder of those whose ratio is the best, but for [`TOLERANCE_RATIO`].
fn fastest_of_best(tried: &[Choice]) -> Option<Choice> {
    let best = tried
        .iter()
        .map(|choice| choice.ratio)
        .max_by(f64::total_cmp)?;
    let good = tried
        .iter()
        .filter(|choice| choice.ratio >= (1.0 - TOLERANCE_RATIO) * best);
    let order = |a: &&Choice, b: &&Choice| {
        let rate = a
            .decode_bytes_per_second
            .total_cmp(&b.decode_bytes_per_second);
        rate.then(a.ratio.total_cmp(&b.ratio))
    };
    good.max_by(order).copied()
}

/// Sets of lags worth a look, made of the strides of an array: its first dimensions, one alone, and
/// second differences.
fn lag_sets(lags: &[u32]) -> Vec<Vec<u32>> {
    let mut lags: Vec<u32> = lags.iter().copied().filter(|&lag| lag > 0).collect();
    lags.dedup();
    lags.truncate(LAGS_MAX / 2);
    let mut sets = vec![Vec::new()];
    for count in 1..=lags.len() {
        sets.push(lags[..count].to_vec());
        let twice = lags[..count].iter().flat_map(|&lag| [lag, lag]);
        sets.push(twice.collect());
    }
    for (place, &lag) in lags.iter().enumerate().skip(1) {
        sets.push(vec![lag]);
        sets.push(vec![lag, lag]);
        if place >= 2 {
            sets.push(lags[1..=place].to_vec());
        }
    }
    sets
}

/// Coders worth a try on a difference.
fn candidates(difference: &Scheme, second_pass: bool) -> Vec<(Scheme, Effort)> {
    let effort = Effort::default();
    let of = |arrangement, coder| Scheme {
        arrangement,
        coder,
        ..*difference
    };
    let mut all = vec![
        of(Arrangement::Plain, Coder::Pco),
        of(Arrangement::Bytes, Coder::Zstd),
        of(Arrangement::Bits, Coder::Zstd),
        of(Arrangement::Plain, Coder::Zstd),
        of(Arrangement::Bytes, Coder::Lz4),
        of(Arrangement::Bits, Coder::Lz4),
        of(Arrangement::Plain, Coder::Lz4),
    ];
    if second_pass {
        let first = [all[4], all[5]].map(|scheme| scheme.with_second_pass(SecondPass::Zstd));
        all.extend(first);
    }
    all.retain(Scheme::is_valid);
    all.into_iter().map(|scheme| (scheme, effort)).collect()
}

/// Efforts above the usual one.
fn harder(choice: &Choice) -> Vec<Effort> {
    let usual = choice.effort;
    match choice.scheme.coder {
        Coder::Zstd => vec![Effort { zstd: 12, ..usual }, Effort { zstd: 19, ..usual }],
        Coder::Pco => vec![Effort { pco: 12, ..usual }],
        _ => Vec::new(),
    }
}

/// A choice that stays the same is looked at ever more seldom, down to this part.
const SELDOM_MAX: u32 = 8;

/// What is remembered of one variable: its choice, until the data changes character.
#[derive(Debug, Clone)]
pub struct Chooser {
    /// Segments between two choices, of which the second may be another.
    every: u32,
    /// Times as many until the next.
    seldom: u32,
    choice: Option<Choice>,
    since: u32,
    /// Encoding rate found over the rate expected.
    correction: f64,
}

impl Default for Chooser {
    fn default() -> Self {
        Self::new(64)
    }
}

impl Chooser {
    /// One that chooses anew after `every` segments, and later where that changes nothing.
    pub fn new(every: u32) -> Self {
        Self {
            every: every.max(1),
            seldom: 1,
            choice: None,
            since: 0,
            correction: 1.0,
        }
    }

    /// The choice for the next segment: the one before, unless it is time for a new one.
    pub fn next(
        &mut self,
        subject: &Subject<'_>,
        bytes: &[u8],
        policy: &Policy,
        work: &mut Work,
    ) -> Result<Choice> {
        if let Some(choice) = self.known(subject, bytes.len()) {
            return Ok(choice);
        }
        let choice = choose(subject, bytes, &self.corrected(policy), work)?;
        self.learn(choice);
        Ok(choice)
    }

    /// The choice before, where it still stands for the next segment, of so many bytes.
    pub fn known(&mut self, subject: &Subject<'_>, length: usize) -> Option<Choice> {
        let fits = |choice: &Choice| {
            let base = subject.base.is_some_and(|base| base.len() == length);
            choice.scheme.element == subject.element && (base || !choice.scheme.needs_base())
        };
        let stands = self.since < self.period();
        let choice = self.choice.filter(|choice| stands && fits(choice))?;
        self.since += 1;
        Some(choice)
    }

    /// What a choice is made by: with the rates that were found here.
    pub fn corrected(&self, policy: &Policy) -> Policy {
        Policy {
            rates: policy.rates.corrected(self.correction),
            ..*policy
        }
    }

    /// A choice was made anew: it stands for the segments to come.
    pub fn learn(&mut self, choice: Choice) {
        let same = (self.choice).is_some_and(|before| before.scheme == choice.scheme);
        self.seldom = if same {
            (self.seldom * 2).min(SELDOM_MAX)
        } else {
            1
        };
        self.choice = Some(choice);
        self.since = 1;
    }

    fn period(&self) -> u32 {
        self.every.saturating_mul(self.seldom)
    }

    /// Whether the next segment would be compared with its base, if it had one.
    pub fn wants_base(&self) -> bool {
        self.choice
            .is_none_or(|choice| self.since >= self.period() || choice.scheme.needs_base())
    }

    /// Says what became of a segment: its bytes before and after, and the seconds that one core took,
    /// if they were measured. Where the ratio is not what was expected, the next segment is chosen for
    /// anew.
    pub fn note(&mut self, before: usize, after: usize, seconds: Option<f64>) {
        let Some(choice) = &self.choice else {
            return;
        };
        let ratio = float(before) / float(after.max(1));
        if (ratio / choice.ratio - 1.0).abs() > SURPRISE {
            self.seldom = 1;
            self.since = self.every;
        }
        if let Some(seconds) = seconds.filter(|&seconds| seconds > 0.0) {
            let found = float(before) / seconds / choice.encode_bytes_per_second;
            // One segment says a quarter, and a pause of the process does not say everything.
            let found = 1.0 + 0.25 * (found.clamp(0.1, 10.0) - 1.0);
            self.correction = (self.correction * found).clamp(0.02, 50.0);
        }
    }

    /// Encoding rate found over the rate expected, smoothed.
    pub fn correction(&self) -> f64 {
        self.correction
    }
}
