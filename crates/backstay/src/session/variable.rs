// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a variable as the program declares it, and as it is registered.
//! In from: the program. Out to: `session::changes`, `store::revision` (parts).
//! Invariants: its memory has addresses; whether it is there is looked at before each use.

use super::changes::Changes;
use crate::config::{Config, Tracking};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::width::to_usize;
use backstay_format::{ElementType, Slab, VariableDescriptor};
use backstay_store::region::{Region, Source};
use backstay_store::track::Candidates;
use backstay_store::track::pages::{PageRegion, PageTracker};
use std::ops::Range;

/// A variable: name, type, shape, place in a global array, how it is tracked.
#[derive(Debug, Clone, PartialEq)]
pub struct Variable {
    pub(super) descriptor: VariableDescriptor,
    pub(super) tracking: Option<Tracking>,
    pub(super) block_bytes: Option<u32>,
}

impl Variable {
    /// What is stored of it in checkpoints: name, type, shape, place in a global array.
    pub fn descriptor(&self) -> &VariableDescriptor {
        &self.descriptor
    }

    /// A variable of this rank; `shape` in elements, row-major, empty for a scalar.
    pub fn new(name: &str, element: ElementType, shape: &[u64]) -> Self {
        let descriptor = VariableDescriptor {
            name: name.to_owned(),
            element,
            shape: shape.to_vec(),
            slab: None,
            file: None,
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
    pub(super) changes: Changes,
}

impl Registered {
    pub(super) fn new(variable: Variable, address: *mut u8, config: &Config) -> Result<Self> {
        let name = &variable.descriptor.name;
        let wrong = |what: String| {
            let context = format!("variable {name:?}: {what}");
            Error::new(ErrorKind::InvalidArgument, context)
        };
        variable.descriptor.validate().map_err(|error| {
            let context = format!("variable {name:?}");
            Error::caused(ErrorKind::InvalidArgument, context, error)
        })?;
        let length = variable.descriptor.length_bytes().unwrap_or(0);
        if address.is_null() && length > 0 {
            return Err(wrong("its address is null".to_owned()));
        }
        // One page more, so that whole pages around it have addresses too.
        let room = usize::MAX - address.addr();
        let needed = usize::try_from(length).ok().and_then(|length| {
            let page = rustix::param::page_size();
            length.checked_add(page)
        });
        if needed.is_none_or(|needed| needed > room) {
            let address = address.addr();
            return Err(wrong(format!(
                "{length} bytes at {address:#x} pass the last address"
            )));
        }
        let block_bytes = variable.block_bytes.unwrap_or(config.block_bytes);
        Config {
            block_bytes,
            ..config.clone()
        }
        .validate()?;
        let tracking = variable.tracking.unwrap_or(config.tracking);
        Ok(Self {
            descriptor: variable.descriptor,
            region: region(address, length),
            block_bytes,
            changes: Changes::new(tracking, length, block_bytes),
        })
    }

    pub(super) fn mark(&mut self, bytes: &Range<u64>) -> Result<()> {
        let length = self.region.length_bytes();
        if bytes.start > bytes.end || bytes.end > length {
            let context = format!(
                "mark_dirty of bytes {} to {} of variable {:?}, which has {length}",
                bytes.start, bytes.end, self.descriptor.name
            );
            return Err(Error::new(ErrorKind::InvalidArgument, context));
        }
        self.changes.mark(bytes);
        Ok(())
    }

    /// Which blocks the checkpoint now beginning must hash.
    pub(super) fn candidates(&mut self, tracker: Option<&mut PageTracker>) -> Result<Candidates> {
        let name = &self.descriptor.name;
        self.changes.candidates(name, &self.region, tracker)
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

#[expect(
    unsafe_code,
    reason = "the caller of Session::protect promised that the memory is its own"
)]
pub(super) fn watch(tracker: &mut PageTracker, region: &Region) -> Result<PageRegion> {
    let length = to_usize(region.length_bytes());
    // SAFETY: `Session::protect` is unsafe and hands this promise to its caller.
    unsafe { tracker.register(region.address().cast_const(), length) }
}
