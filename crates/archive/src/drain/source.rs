// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the blocks of a checkpoint on their node, as others pull them: what the node has, and blocks
//! gathered behind one another so that pulls are long.
//! In from: the node's store. Out to: `transport` (exposures), an aggregator's `sources`.
//! Invariants: only blocks of a checkpoint that the node retains are handed out; nothing is copied before
//! it is asked for.

use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::ReadAt;
use backstay_format::drain::{GatherPiece, Offered};
use backstay_format::width::{index, to_u64, to_usize};
use backstay_format::{CheckpointId, Digest, StoreId};
use backstay_net::{Endpoint, Exposed, ExposureId};
use backstay_store::control::wait_until;
use backstay_store::place::boot_id;
use backstay_store::reserve::Reserve;
use backstay_store::revision::read_ranks;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Most blocks that are gathered at once.
pub(super) const PIECES_MAX: usize = 1 << 17;

/// The store of a node as a source of drains.
#[derive(Debug)]
pub(super) struct NodeSource {
    reserve: Reserve,
    gathered: Mutex<BTreeMap<ExposureId, CheckpointId>>,
    count: AtomicU64,
}

/// This host: its name and boot.
pub(super) fn host(node: &str) -> String {
    format!("{node} {}", boot_id().trim())
}

impl NodeSource {
    pub(super) fn new(reserve: Reserve) -> Self {
        Self {
            reserve,
            gathered: Mutex::default(),
            count: AtomicU64::new(0),
        }
    }

    pub(super) fn reserve(&self) -> &Reserve {
        &self.reserve
    }

    pub(super) fn store(&self) -> StoreId {
        self.reserve.reader().superblock().store
    }

    /// What the node has of a checkpoint that it has committed or is committing. One that the job went back
    /// behind meanwhile is not waited for.
    pub(super) fn offer(
        &self,
        node: &str,
        id: CheckpointId,
        endpoint: &dyn Endpoint,
        within: Duration,
    ) -> Result<Offered> {
        let control = self.reserve.control();
        wait_until(
            "the checkpoint to be committed",
            within.mul_f64(0.9),
            || control.committed() >= id || !control.may_commit(id),
        )?;
        self.release_before(id, endpoint);
        self.reserve.refresh();
        let reader = self.reserve.reader();
        let (root, _) = reader.newest_root()?;
        let revision = root.revisions.iter().find(|r| r.checkpoint == id);
        let Some(revision) = revision else {
            let context = format!("node {node} does not retain checkpoint {id} any more");
            return Err(Error::new(ErrorKind::NotRetained, context));
        };
        let device = reader.device();
        let path = device
            .backing()
            .map(|b| b.path.to_string_lossy().into_owned());
        Ok(Offered {
            store: self.store(),
            length_bytes: self.reserve.length_bytes(),
            path: path.unwrap_or_default(),
            host: host(node),
            world_size: revision.world_size,
            committed_unix_ns: revision.committed_unix_ns,
            ranks: read_ranks(reader, revision)?,
        })
    }

    /// What aggregators that went away did not release.
    fn release_before(&self, id: CheckpointId, endpoint: &dyn Endpoint) {
        let mut gathered = super::lock(&self.gathered);
        let old: Vec<ExposureId> = gathered
            .iter()
            .filter(|(_, of)| **of < id)
            .map(|(&exposure, _)| exposure)
            .collect();
        for exposure in old {
            gathered.remove(&exposure);
            endpoint.withdraw(exposure);
        }
    }

    /// Exposes blocks of checkpoint `id`, one behind the other.
    pub(super) fn gather(
        &self,
        id: CheckpointId,
        pieces: &[GatherPiece],
        endpoint: &dyn Endpoint,
    ) -> Result<(ExposureId, u64)> {
        if pieces.len() > PIECES_MAX {
            let context = format!("{} blocks at once: at most {PIECES_MAX}", pieces.len());
            return Err(Error::new(ErrorKind::InvalidArgument, context));
        }
        self.reserve.refresh();
        let view = GatherView::new(self.reserve.clone(), pieces);
        let length = view.length_bytes;
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let name = format!("gathered {number} of {id} from store {}", self.store());
        let exposure = ExposureId(Digest::of(name.as_bytes()).0);
        endpoint.expose(exposure, Exposed::Device(Arc::new(view)));
        super::lock(&self.gathered).insert(exposure, id);
        Ok((exposure, length))
    }

    pub(super) fn release(&self, exposure: ExposureId, endpoint: &dyn Endpoint) {
        super::lock(&self.gathered).remove(&exposure);
        endpoint.withdraw(exposure);
    }
}

/// Blocks of a store, one behind the other.
#[derive(Debug)]
struct GatherView {
    reserve: Reserve,
    /// Where each begins in the view, and the block.
    pieces: Vec<(u64, GatherPiece)>,
    length_bytes: u64,
}

impl GatherView {
    fn new(reserve: Reserve, blocks: &[GatherPiece]) -> Self {
        let mut length_bytes = 0;
        let pieces = blocks.iter().map(|piece| {
            let start = length_bytes;
            length_bytes += u64::from(piece.length_bytes);
            (start, *piece)
        });
        Self {
            pieces: pieces.collect(),
            reserve,
            length_bytes,
        }
    }
}

impl ReadAt for GatherView {
    fn length_bytes(&self) -> std::io::Result<u64> {
        Ok(self.length_bytes)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
        let reader = self.reserve.reader();
        let mut at = self.pieces.partition_point(|(start, _)| *start <= offset);
        let mut done = 0;
        while done < buffer.len() {
            let Some((start, piece)) = at.checked_sub(1).and_then(|at| self.pieces.get(at)) else {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            };
            let within = to_usize(offset + to_u64(done) - start);
            let length = index(piece.length_bytes);
            let count = length.saturating_sub(within).min(buffer.len() - done);
            if count == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            let place = reader.offset_of(piece.address, length);
            let place = place.map_err(|error| std::io::Error::other(error.to_string()))?;
            let into = &mut buffer[done..done + count];
            reader.device().read_at(into, place + to_u64(within))?;
            done += count;
            at += 1;
        }
        Ok(())
    }

    fn name(&self) -> String {
        let count = self.pieces.len();
        format!(
            "{count} blocks of {}",
            self.reserve.reader().device().name()
        )
    }
}
