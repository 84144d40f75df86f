// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: which stretches of a file are numbers of one dataset, one behind the other.
//! In: the structure of a file. Out: stretches in the order of the file, which share nothing.
//! Invariants: datasets that are filtered, and what two datasets claim, are in none.

use crate::{Dataset, Structure};
use backstay_format::ElementType;

/// A stretch of numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plain {
    /// Where it begins in the file.
    pub start: u64,
    /// Its bytes.
    pub length: u64,
    /// Its dataset, by its place in the structure.
    pub dataset: usize,
}

impl Dataset {
    /// Whether its values stand in the file as they are, and are numbers.
    pub fn is_plain(&self) -> bool {
        self.filters.is_empty() && self.item.element != ElementType::Bytes
    }

    /// The element type that its values are compressed as: words of the same width where their bytes stand the other
    /// way round, of which planes of bytes are as good, and differences say nothing.
    pub fn stored_element(&self) -> ElementType {
        if !self.item.big_endian {
            return self.item.element;
        }
        match self.item.element.width_bytes() {
            2 => ElementType::U16,
            4 => ElementType::U32,
            _ => ElementType::U64,
        }
    }
}

/// The stretches of `structure` that are numbers, in the order of the file.
pub fn plain(structure: &Structure) -> Vec<Plain> {
    let mut all: Vec<Plain> = Vec::new();
    for (at, dataset) in structure.datasets.iter().enumerate() {
        if !dataset.is_plain() {
            continue;
        }
        let extents = dataset.extents.iter().filter(|extent| extent.length > 0);
        all.extend(extents.map(|extent| Plain {
            start: extent.offset,
            length: extent.length,
            dataset: at,
        }));
    }
    all.sort_unstable_by_key(|one| (one.start, one.length));
    let mut found: Vec<Plain> = Vec::with_capacity(all.len());
    // How far what came so far reaches, also what is left out.
    let mut end = 0;
    for one in all {
        let reach = one.start + one.length;
        if one.start < end {
            // Nobody knows whose it is: both go.
            if found
                .last()
                .is_some_and(|last| last.start + last.length > one.start)
            {
                found.pop();
            }
            end = end.max(reach);
            continue;
        }
        match found.last_mut() {
            Some(last) if last.dataset == one.dataset && last.start + last.length == one.start => {
                last.length += one.length;
            }
            _ => found.push(one),
        }
        end = reach;
    }
    found
}
