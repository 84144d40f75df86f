// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: reads what a rank has committed, and mends what application memory still holds.
//! In from: the program. Out to: the node's store.
//! Invariants: nothing is written but what its digest says.

use super::variable::Registered;
use super::{Session, Stores};
use backstay_base::error::{ErrorKind, Result};
use backstay_base::notice;
use backstay_format::{BlockRef, Digest, Geometry};
use backstay_store::region::Source;
use backstay_store::track::mappings::Access;

/// What a scrub found on this rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Scrubbed {
    /// Blocks read and verified.
    pub blocks: u64,
    /// Damaged blocks written again from application memory.
    pub healed: u64,
    /// Damaged blocks whose memory has changed since: the next checkpoint replaces them.
    pub beyond: u64,
}

impl Session {
    /// Reads every committed block of this rank; writes damaged ones again where application memory
    /// still holds what their digest says. Local.
    pub fn scrub(&mut self) -> Result<Scrubbed> {
        self.process.check()?;
        let mut scrubbed = Scrubbed::default();
        let Some(store) = &self.store else {
            return Ok(scrubbed);
        };
        self.memory.check(self.variables.values(), Access::Read)?;
        for variable in self.variables.values() {
            scrub_variable(store, variable, &mut scrubbed)?;
        }
        if scrubbed.healed > 0 {
            store.rank.reserve().sync()?;
        }
        if scrubbed.healed + scrubbed.beyond > 0 {
            notice::warn(&format!(
                "rank {}: scrub healed {} damaged blocks from memory; {} are beyond it",
                self.comm.rank(),
                scrubbed.healed,
                scrubbed.beyond
            ));
        }
        Ok(scrubbed)
    }
}

fn scrub_variable(store: &Stores, variable: &Registered, scrubbed: &mut Scrubbed) -> Result<()> {
    let Some(tree) = store.rank.tree(&variable.descriptor.name) else {
        return Ok(());
    };
    let reserve = store.rank.reserve();
    for group in 0..tree.group_count() {
        for (entry, block) in tree.group(reserve.reader(), group)?.iter().enumerate() {
            let index = group * backstay_format::limits::FANOUT + entry;
            scrubbed.blocks += 1;
            let mut bytes = vec![0; tree.root().block_length(index)];
            match reserve.reader().read(block, &mut bytes, "block") {
                Ok(()) => continue,
                Err(error) if error.kind() == ErrorKind::Corrupt => {}
                Err(error) => return Err(error),
            }
            if heal(variable, tree.root().block_bytes, index, block, &mut bytes) {
                reserve.write(block.address, &bytes)?;
                scrubbed.healed += 1;
            } else {
                scrubbed.beyond += 1;
            }
        }
    }
    Ok(())
}

/// Whether application memory still holds block `index` as committed; if so it is in `bytes`.
fn heal(
    variable: &Registered,
    block_bytes: u32,
    index: usize,
    block: &BlockRef,
    bytes: &mut [u8],
) -> bool {
    let length = variable.region.length_bytes();
    let offset = backstay_format::width::to_u64(index) * u64::from(block_bytes);
    if Geometry::block_length(length, block_bytes, index) != bytes.len() {
        return false;
    }
    variable.region.copy_out(offset, bytes);
    Digest::of(bytes) == block.digest
}
