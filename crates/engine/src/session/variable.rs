// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a variable as the program declares it, and what is tracked of it between checkpoints.
//! In from: the program. Out to: `store::revision` (parts), `track` (candidates).
//! Invariants: marks are given up only when the checkpoint that took them is committed.

use crate::config::{Config, Tracking};
use crate::error::{Error, ErrorKind, Result};
use crate::notice;
use crate::region::Region;
use crate::track::{BlockSet, Candidates};
use backstay_format::{ElementType, Geometry, Slab, VariableDescriptor};
use std::ops::Range;

/// Of the blocks that `mark_dirty` did not name, one in so many is checked at each checkpoint.
const MARKED_CHECK_STRIDE: u64 = 1024;

/// A variable: name, type, shape, place in a global array, how it is tracked.
#[derive(Debug, Clone, PartialEq)]
pub struct Variable {
    pub(super) descriptor: VariableDescriptor,
    pub(super) tracking: Option<Tracking>,
    pub(super) block_bytes: Option<u32>,
}

impl Variable {
    /// A variable of this rank; `shape` in elements, row-major, empty for a scalar.
    pub fn new(name: &str, element: ElementType, shape: &[u64]) -> Self {
        let descriptor = VariableDescriptor {
            name: name.to_owned(),
            element,
            shape: shape.to_vec(),
            slab: None,
        };
        Self {
            descriptor,
            tracking: None,
            block_bytes: None,
        }
    }

    /// Declares it as the part of a global array of `global_shape` that begins at `start`.
    #[must_use]
    pub fn slab(mut self, global_shape: &[u64], start: &[u64]) -> Self {
        self.descriptor.slab = Some(Slab {
            global_shape: global_shape.to_vec(),
            start: start.to_vec(),
        });
        self
    }

    /// How its changed blocks are found; by default as the configuration says.
    #[must_use]
    pub fn tracking(mut self, tracking: Tracking) -> Self {
        self.tracking = Some(tracking);
        self
    }

    /// Bytes of its blocks, a power of two; by default as the configuration says.
    #[must_use]
    pub fn block_bytes(mut self, bytes: u32) -> Self {
        self.block_bytes = Some(bytes);
        self
    }
}

/// A registered variable.
#[derive(Debug)]
pub(super) struct Registered {
    pub(super) descriptor: VariableDescriptor,
    pub(super) region: Region,
    pub(super) block_bytes: u32,
    tracking: Tracking,
    /// Registered, moved or resized since the last commit: nothing is known of its changes.
    unknown: bool,
    /// A checkpoint under way has captured it.
    captured: bool,
    marks: Vec<Range<u64>>,
    /// Marks that the checkpoint under way has taken.
    taken: Vec<Range<u64>>,
    checks: u64,
}

impl Registered {
    pub(super) fn new(variable: Variable, address: *mut u8, config: &Config) -> Result<Self> {
        let refuse = |error| {
            let context = format!("variable {:?}", variable.descriptor.name);
            Error::caused(ErrorKind::InvalidArgument, context, error)
        };
        variable.descriptor.validate().map_err(refuse)?;
        let length = variable.descriptor.length_bytes().unwrap_or(0);
        if address.is_null() && length > 0 {
            let context = format!(
                "variable {:?}: its address is null",
                variable.descriptor.name
            );
            return Err(Error::new(ErrorKind::InvalidArgument, context));
        }
        let block_bytes = variable.block_bytes.unwrap_or(config.block_bytes);
        Config {
            block_bytes,
            ..config.clone()
        }
        .validate()?;
        Ok(Self {
            descriptor: variable.descriptor,
            region: region(address, length),
            block_bytes,
            tracking: variable.tracking.unwrap_or(config.tracking),
            unknown: true,
            captured: false,
            marks: Vec::new(),
            taken: Vec::new(),
            checks: 0,
        })
    }

    pub(super) fn mark(&mut self, bytes: Range<u64>) -> Result<()> {
        let length = self.descriptor.length_bytes().unwrap_or(0);
        if bytes.start > bytes.end || bytes.end > length {
            let context = format!(
                "mark_dirty of bytes {} to {} of variable {:?}, which has {length}",
                bytes.start, bytes.end, self.descriptor.name
            );
            return Err(Error::new(ErrorKind::InvalidArgument, context));
        }
        match self.marks.last_mut() {
            Some(last) if last.end == bytes.start => last.end = bytes.end,
            _ => self.marks.push(bytes),
        }
        Ok(())
    }

    /// Which blocks the checkpoint now beginning must hash.
    pub(super) fn candidates(&mut self) -> Candidates {
        self.taken.append(&mut self.marks);
        self.captured = true;
        match self.tracking {
            Tracking::Full => Candidates::AllChanged,
            Tracking::Marked if !self.unknown => {
                self.checks = (self.checks + 1) % MARKED_CHECK_STRIDE;
                Candidates::Some(self.block_set(MARKED_CHECK_STRIDE))
            }
            Tracking::Hash | Tracking::Marked | Tracking::Pages => Candidates::All,
        }
    }

    fn block_set(&self, stride: u64) -> BlockSet {
        let length = self.descriptor.length_bytes().unwrap_or(0);
        let blocks = Geometry::block_count(length, self.block_bytes);
        let mut set = BlockSet::new(blocks, stride, self.checks % stride);
        for range in &self.taken {
            set.mark(range, self.block_bytes);
        }
        set
    }

    /// The checkpoint under way was committed.
    pub(super) fn commit(&mut self) {
        if std::mem::take(&mut self.captured) {
            self.taken.clear();
            self.unknown = false;
        }
    }

    /// The checkpoint under way was not committed: what it took is marked again.
    pub(super) fn roll_back(&mut self) {
        self.captured = false;
        let later = std::mem::replace(&mut self.marks, std::mem::take(&mut self.taken));
        self.marks.extend(later);
    }

    /// All its memory was written by a restore.
    pub(super) fn written(&mut self) {
        self.unknown = true;
        self.marks.clear();
        self.taken.clear();
    }

    /// Blocks changed that nothing had marked: from now on every block is hashed.
    pub(super) fn contract_broken(&mut self, blocks: u64) {
        notice::warn(&format!(
            "variable {:?}: {blocks} blocks changed that were not marked; it is tracked by hash \
             from now on, and the checkpoints since its last full hash are suspect",
            self.descriptor.name
        ));
        self.tracking = Tracking::Hash;
    }
}

#[expect(
    unsafe_code,
    reason = "the caller of Session::protect promised that the memory is valid"
)]
fn region(address: *mut u8, length: u64) -> Region {
    // SAFETY: `Session::protect` is unsafe and hands this promise to its caller.
    unsafe { Region::new(address, length) }
}
