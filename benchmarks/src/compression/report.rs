// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what was found about compression, case by case.
//! In from: `bench-codecs`. Out to: a JSON file, and from there to `page`.
//! Invariants: ratios are bytes before over bytes after, with the head of each segment.

use serde::{Deserialize, Serialize};

/// Everything.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Report {
    /// Where it was measured.
    pub machine: String,
    /// Of which commit.
    pub commit: String,
    /// Whether less was measured than usual.
    pub quick: bool,
    /// Variables, without history.
    pub variables: Vec<VariableRow>,
    /// Variables of close checkpoints, with history.
    pub history: Vec<HistoryRow>,
    /// Checkpoints of all ranks.
    pub checkpoints: Vec<CheckpointRow>,
    /// Ratios by ranks that are merged with each other.
    pub groups: Vec<GroupRow>,
    /// Ratios by scheme.
    pub merges: Vec<MergeRow>,
    /// Ratios with and without second pass.
    pub passes: Vec<PassRow>,
    /// Ratios over the course.
    pub course: Vec<CourseRow>,
}

/// A way to compress, and what it reached.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Reached {
    /// Its name.
    pub method: String,
    /// Bytes before over bytes after.
    pub ratio: f64,
    /// Decoded bytes a second on one core, in 10^9.
    pub decode_gb_s: f64,
    /// Encoded bytes a second on one core, in 10^6.
    pub encode_mb_s: f64,
}

/// A variable without history, beside other compressors.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct VariableRow {
    /// Of which case.
    pub case: String,
    /// Its name.
    pub variable: String,
    /// Type of its elements.
    pub element: String,
    /// Its bytes on all ranks.
    pub bytes: u64,
    /// What the codec stage made of it.
    pub ours: Reached,
    /// The best of those that decode fast.
    pub best_fast: Option<Reached>,
    /// The best of all.
    pub best: Option<Reached>,
}

/// A variable of two checkpoints close to each other.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct HistoryRow {
    /// Of which case.
    pub case: String,
    /// Its name.
    pub variable: String,
    /// Type of its elements.
    pub element: String,
    /// Steps made before the later one.
    pub step: u64,
    /// Steps between both.
    pub apart: u64,
    /// Ratio without the earlier one.
    pub without: f64,
    /// Ratio with it.
    pub with: f64,
    /// How it was encoded with it.
    pub scheme: String,
}

/// A checkpoint of all ranks.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CheckpointRow {
    /// Of which case.
    pub case: String,
    /// Its bytes.
    pub bytes: u64,
    /// Whole checkpoints one after the other, Zstandard at level 3.
    pub agnostic: f64,
    /// Merged and encoded, equal blocks and zeros stored once.
    pub ours: f64,
    /// The same, each block stored.
    pub every_block: f64,
    /// The agnostic way, equal blocks and zeros stored once.
    pub agnostic_once: f64,
    /// Part of the bytes in blocks equal to another, or zero.
    pub equal_share: f64,
    /// Decoded bytes a second on one core, in 10^9.
    pub decode_gb_s: f64,
    /// Seconds that decoding took.
    pub decode_seconds: f64,
    /// Encoded bytes a second on one core, without the choice of schemes, in 10^6.
    pub encode_mb_s: f64,
    /// Seconds that the choice of schemes took.
    pub choose_seconds: f64,
}

/// Ratios of a case by group size.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GroupRow {
    /// Which case.
    pub case: String,
    /// How ranks are merged.
    pub merge: String,
    /// Ranks of a group, and the ratio.
    pub ratios: Vec<(u32, f64)>,
}

/// Ratios of a case by scheme.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MergeRow {
    /// Which case.
    pub case: String,
    /// Scheme and ratio.
    pub ratios: Vec<(String, f64)>,
}

/// Ratios of a case with and without a second pass.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PassRow {
    /// Which case.
    pub case: String,
    /// The codec stage without one.
    pub without: f64,
    /// With Zstandard behind every segment's first pass.
    pub with: f64,
    /// Zstandard over the checkpoint as it is.
    pub agnostic: f64,
    /// Zstandard over what that made.
    pub agnostic_twice: f64,
}

/// Ratios of a case over its course.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CourseRow {
    /// Which case.
    pub case: String,
    /// Steps made, the ratio, and that of the agnostic way.
    pub ratios: Vec<(u64, f64, f64)>,
}

/// The geometric mean.
pub fn geometric(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let (mut sum, mut count) = (0.0, 0_u32);
    for value in values {
        sum += value.ln();
        count += 1;
    }
    (count > 0).then(|| (sum / f64::from(count)).exp())
}
