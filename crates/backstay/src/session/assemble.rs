// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: puts a slab of a global array together from the parts that other ranks stored.
//! In from: `store` (streams), `restart::redistribute` (runs). Out to: the program's memory.
//! Invariants: every byte is from a verified block; of an element that several stored the first rank's counts; one
//! that nobody stored is an error.

use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::{StreamRoot, VariableDescriptor};
use backstay_store::ranges::BlockCache;
use backstay_store::reader::StoreReader;
use backstay_store::redistribute::{Extent, describe, runs, same_array};
use backstay_store::region::Sink;

/// A slab that is being put together.
#[derive(Debug)]
pub(super) struct Assembly<'a> {
    wanted: &'a VariableDescriptor,
    target: Extent,
    /// What no part had so far.
    missing: Vec<Extent>,
}

impl<'a> Assembly<'a> {
    /// Of the slab `wanted` of a global array.
    pub(super) fn new(wanted: &'a VariableDescriptor) -> Result<Self> {
        let target = Extent::of(wanted).ok_or_else(|| {
            let context = "only slabs are put together";
            Error::new(ErrorKind::Internal, context)
        })?;
        let mut missing = vec![target.clone()];
        missing.retain(|piece| piece.element_count() > 0);
        Ok(Self {
            wanted,
            target,
            missing,
        })
    }

    /// Whether all of it is there.
    pub(super) fn is_whole(&self) -> bool {
        self.missing.is_empty()
    }

    /// Takes of a stored slab what is missing.
    pub(super) fn take(
        &mut self,
        reader: &StoreReader,
        (stored, stream): (&VariableDescriptor, &StreamRoot),
        sink: &mut dyn Sink,
    ) -> Result<()> {
        same_array(stored, self.wanted)?;
        let Some(source) = Extent::of(stored) else {
            return Ok(());
        };
        let missing = self.missing.iter();
        let found: Vec<Extent> = missing.filter_map(|m| m.overlap(&source)).collect();
        if found.is_empty() {
            return Ok(());
        }
        let mut blocks = BlockCache::new(reader, *stream)?;
        let width = self.wanted.element.width_bytes();
        for piece in &found {
            runs(&source, &self.target, piece, width, &mut |run| {
                blocks.copy(run.from, run.to, run.length, sink)
            })?;
        }
        let missing = self.missing.iter();
        self.missing = missing.flat_map(|piece| piece.without(&source)).collect();
        Ok(())
    }

    /// The bytes that it has.
    pub(super) fn finish(self) -> Result<u64> {
        if let Some(piece) = self.missing.first() {
            let context = format!(
                "{}: nobody stored its part at {:?} of shape {:?}",
                describe(self.wanted),
                piece.start,
                piece.shape
            );
            return Err(Error::new(ErrorKind::VariableMismatch, context));
        }
        Ok(self.target.element_count() * self.wanted.element.width_bytes())
    }
}
