// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: how a variable is stored in an archive: its codecs, what they make of it, with whom it is
//! merged.
//! In: the trees of its parts, the headers of the segments that hold them. Out: sums by scheme.
//! Invariants: a segment's stored bytes are shared among what is in it by length; a block that two parts
//! share counts once.

use super::{Checkpoint, StoredVariable, Stores, share};
use backstay_base::error::Result;
use backstay_format::scheme::Scheme;
use backstay_format::width::{index, to_u64};
use backstay_format::{Address, Decoder, Merge, SegmentId};
use backstay_store::tree::walk;
use std::collections::{BTreeMap, BTreeSet};

/// How a variable is stored in an archive.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StoredAs {
    /// Segments that hold its blocks.
    pub segments: u64,
    /// Of these, segments that are deltas to others.
    pub deltas: u64,
    /// Bytes of its blocks, each shared one once.
    pub bytes: u64,
    /// Its share of what these segments take, as stored.
    pub bytes_stored: u64,
    /// How it was encoded, most bytes first.
    pub codecs: Vec<StoredCodec>,
    /// How it was merged over ranks, by id.
    pub merges: Vec<u8>,
    /// Most ranks whose blocks one segment holds.
    pub ranks_merged: usize,
}

/// One way in which blocks were encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredCodec {
    /// The scheme; `None` if this version does not know it.
    pub scheme: Option<Scheme>,
    /// Segments.
    pub segments: u64,
    /// Bytes of the variable's blocks in them.
    pub bytes: u64,
    /// Its share of what they take.
    pub bytes_stored: u64,
}

impl StoredAs {
    /// Bytes over bytes stored; `None` of nothing.
    pub fn ratio(&self) -> Option<f64> {
        (self.bytes_stored > 0).then(|| share(self.bytes, self.bytes_stored))
    }

    /// The names of the merges.
    pub fn merge_names(&self) -> Vec<&'static str> {
        let name = |&id: &u8| Merge::from_id(id).map_or("unknown", Merge::name);
        self.merges.iter().map(name).collect()
    }
}

impl StoredCodec {
    /// The scheme in words: what is done with the bytes, in order, without what is not.
    pub fn name(&self) -> String {
        let Some(scheme) = &self.scheme else {
            return "unknown".to_owned();
        };
        let mut words = Vec::new();
        if scheme.history != backstay_format::scheme::History::None {
            words.push(format!("history {}", scheme.history.name()));
        }
        if !scheme.lags.is_empty() {
            let lags = scheme.lags.as_slice().iter().map(ToString::to_string);
            words.push(format!("lags {}", lags.collect::<Vec<_>>().join(",")));
        }
        if scheme.arrangement != backstay_format::scheme::Arrangement::Plain {
            words.push(scheme.arrangement.name().to_owned());
        }
        words.push(scheme.coder.name().to_owned());
        if scheme.second_pass != backstay_format::scheme::SecondPass::None {
            words.push(format!("second pass {}", scheme.second_pass.name()));
        }
        words.join(" + ")
    }
}

/// What of a variable one segment holds.
#[derive(Debug, Default)]
struct Held {
    blocks: BTreeMap<Address, usize>,
    ranks: BTreeSet<u32>,
}

impl Stores {
    /// How a variable of an archived checkpoint is stored; `None` of one that only nodes have.
    pub fn stored_as(
        &self,
        checkpoint: &Checkpoint,
        variable: &StoredVariable,
    ) -> Result<Option<StoredAs>> {
        let mut held: BTreeMap<(usize, SegmentId), Held> = BTreeMap::new();
        for part in &variable.parts {
            if self.stores[part.store].archive().is_none() {
                return Ok(None);
            }
            let mut failed = None;
            walk(
                self.stores[part.store].reader(),
                &part.stream,
                &mut |what, block, length| {
                    if matches!(what, backstay_store::tree::Found::Page) {
                        return;
                    }
                    let key = (part.store, block.address.segment());
                    let segment = held.entry(key).or_default();
                    segment.blocks.insert(block.address, length);
                    segment.ranks.insert(part.rank);
                },
                &mut |_, _, error| {
                    failed.get_or_insert(error);
                },
            );
            if let Some(error) = failed {
                return Err(self.judge(part.store, checkpoint.id, error));
            }
        }
        self.sum(checkpoint, &held).map(Some)
    }

    fn sum(
        &self,
        checkpoint: &Checkpoint,
        held: &BTreeMap<(usize, SegmentId), Held>,
    ) -> Result<StoredAs> {
        let mut sum = StoredAs::default();
        let mut codecs: BTreeMap<Vec<u8>, StoredCodec> = BTreeMap::new();
        let mut merges = BTreeSet::new();
        for ((store, segment), held) in held {
            let Some(device) = self.stores[*store].archive_device() else {
                continue;
            };
            let header = device.header(*segment);
            let header = header.map_err(|error| self.judge(*store, checkpoint.id, error))?;
            let stored = device.entry(*segment).map_or(0, |entry| entry.stored_bytes);
            let bytes: u64 = held.blocks.values().map(|&length| to_u64(length)).sum();
            let whole = index(header.decoded_bytes).max(1);
            let part = u128::from(stored) * u128::from(bytes) / whole as u128;
            let part = u64::try_from(part).unwrap_or(u64::MAX);
            sum.segments += 1;
            sum.deltas += u64::from(!header.is_base());
            sum.bytes += bytes;
            sum.bytes_stored += part;
            sum.ranks_merged = sum.ranks_merged.max(held.ranks.len());
            merges.insert(header.merge);
            let codec = codecs
                .entry(header.scheme.clone())
                .or_insert_with(|| StoredCodec {
                    scheme: Scheme::decode(&mut Decoder::new("scheme", &header.scheme)).ok(),
                    segments: 0,
                    bytes: 0,
                    bytes_stored: 0,
                });
            codec.segments += 1;
            codec.bytes += bytes;
            codec.bytes_stored += part;
        }
        sum.merges = merges.into_iter().collect();
        sum.codecs = codecs.into_values().collect();
        sum.codecs
            .sort_by_key(|codec| std::cmp::Reverse(codec.bytes));
        Ok(sum)
    }
}
