// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: an aggregator's way to the blocks of a checkpoint on its nodes: through the store where it is
//! in this process or on this host, over the network otherwise; or to files that are imported.
//! In from: nodes' offers. Out to: `work`, which asks for blocks by where they stand.
//! Invariants: every block that is handed on has the digest that its tree gives; pulls are of 1 MiB or
//! more where there is as much to pull.

use super::changes::{Changed, NodeTree};
use super::files::FileSet;
use super::source::{NodeSource, PIECES_MAX, host};
use super::tree::ArchiveTree;
use crate::Payload;
use crate::typed::{self, TypedStream};
use backstay_base::clock::Pulse;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::ReadAt;
use backstay_base::io::file::FileDevice;
use backstay_format::agent::Seat;
use backstay_format::drain::{DrainAnswer, DrainRequest, GatherPiece, Offered};
use backstay_format::width::to_u64;
use backstay_format::{
    BlockRef, CheckpointId, Digest, FormatError, RankEntry, StreamRoot, VariableDescriptor,
};
use backstay_net::{Endpoint, ExposureId, Peer, RemoteDevice, file_exposure};
use backstay_store::reader::StoreReader;
use backstay_store::revision::{ReadPart, read_part};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Bytes of one pull.
const PULL_BYTES: usize = 4 << 20;

/// Where blocks come from.
#[derive(Debug)]
pub(super) enum Source {
    /// A node of the job.
    Node(Box<NodeBlocks>),
    /// Files, which are imported.
    Files(Arc<FileSet>),
}

/// A node whose blocks are drained.
#[derive(Debug)]
pub(super) struct NodeBlocks {
    peer: Peer,
    checkpoint: CheckpointId,
    offered: Offered,
    /// Its store, for pages; and for blocks where it is on this host.
    reader: Arc<StoreReader>,
    is_here: bool,
    endpoint: Arc<dyn Endpoint>,
    within: Duration,
}

/// A block that is wanted: where it is, how long, and where it goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    pub(super) block: BlockRef,
    pub(super) length: usize,
    /// Which segment of the window, and where in it.
    pub(super) segment: usize,
    pub(super) offset: usize,
}

/// Sends a request to the drain of a peer.
pub(super) fn ask(
    endpoint: &dyn Endpoint,
    peer: &Peer,
    request: &DrainRequest,
    within: Duration,
) -> Result<DrainAnswer> {
    let bytes = request.encode();
    let bytes = bytes.map_err(|error| Error::unwritable(format!("a request to {peer}"), error))?;
    let bytes = endpoint.call(peer, &bytes, within)?;
    DrainAnswer::decode(&bytes)
        .map_err(|error| Error::malformed(format!("the answer of {peer}"), error))
}

impl Source {
    /// What there is of the checkpoint.
    pub(super) fn offered(&self) -> &Offered {
        match self {
            Self::Node(node) => &node.offered,
            Self::Files(files) => files.offered(),
        }
    }

    /// The part of a rank.
    pub(super) fn part(&self, entry: &RankEntry) -> Result<ReadPart> {
        match self {
            Self::Node(node) => read_part(&node.reader, &entry.root),
            Self::Files(files) => files.part(entry.rank),
        }
    }

    /// The blocks of a variable of `rank` that the archive does not have in `tree`.
    pub(super) fn compare(
        &self,
        (rank, place): (u32, usize),
        stream: &StreamRoot,
        former: Option<&NodeTree>,
        tree: &ArchiveTree,
        pulse: &Pulse,
    ) -> Result<(NodeTree, Vec<Changed>)> {
        match self {
            Self::Node(node) => NodeTree::compare(&node.reader, stream, former, tree, pulse),
            Self::Files(files) => {
                let changed = files.changed(rank, place, tree);
                Ok((NodeTree::nowhere(stream), changed))
            }
        }
    }

    /// Which blocks of a file are numbers of its datasets.
    pub(super) fn typed(
        &self,
        (rank, place): (u32, usize),
        descriptor: &VariableDescriptor,
        stream: &StreamRoot,
    ) -> Option<TypedStream> {
        let file = descriptor.file.as_ref()?;
        let found = match self {
            Self::Node(node) => typed::structure(&node.reader, file, *stream),
            Self::Files(files) => files.structure(rank, place).cloned(),
        };
        Some(TypedStream::of(&descriptor.name, file, &found?))
    }

    /// Whether its blocks are read without asking it.
    pub(super) fn is_here(&self) -> bool {
        match self {
            Self::Node(node) => node.is_here,
            Self::Files(_) => true,
        }
    }

    /// Fills the segments with `wanted` of its blocks.
    pub(super) fn fill(
        &self,
        wanted: &[Wanted],
        segments: &[Mutex<Payload>],
        pulse: &Pulse,
    ) -> Result<()> {
        match self {
            Self::Node(node) => node.fill(wanted, segments, pulse),
            Self::Files(files) => files.fill(wanted, segments, pulse),
        }
    }
}

impl NodeBlocks {
    /// The node at `seat`, once it has committed the checkpoint. `own` is the source of this process.
    pub(super) fn open(
        seat: &Seat,
        checkpoint: CheckpointId,
        (own, name): (Option<&NodeSource>, &str),
        endpoint: &Arc<dyn Endpoint>,
        (within, cancel): (Duration, &Arc<AtomicBool>),
    ) -> Result<Self> {
        let peer = Peer::new(seat.node.clone(), seat.address.clone());
        let endpoint = Arc::clone(endpoint);
        let mine = own.filter(|_| seat.address == endpoint.address());
        if let Some(own) = mine {
            let offered = own.offer(&seat.node, checkpoint, &*endpoint, within)?;
            return Ok(Self {
                peer,
                checkpoint,
                offered,
                reader: own.reserve().shared_reader(),
                is_here: true,
                endpoint,
                within,
            });
        }
        let request = DrainRequest::Offer { checkpoint };
        let offered = match ask(&*endpoint, &peer, &request, within)? {
            DrainAnswer::Offered(offered) => offered,
            other => return Err(unexpected(&peer, &other)),
        };
        let mapped = (offered.host == host(name))
            .then(|| map(&offered))
            .flatten();
        let is_here = mapped.is_some();
        let reader = if let Some(reader) = mapped {
            reader
        } else {
            let remote = |exposure, length_bytes| {
                let endpoint = Arc::clone(&endpoint);
                let device =
                    RemoteDevice::new(endpoint, peer.clone(), exposure, length_bytes, within);
                Arc::new(device.until(Arc::clone(cancel)))
            };
            // The node knows where its segments stand.
            let file = remote(file_exposure(offered.store), offered.length_bytes);
            let reader = StoreReader::open_over(file, remote(offered.store.into(), u64::MAX))?;
            Arc::new(reader)
        };
        Ok(Self {
            peer,
            checkpoint,
            offered,
            reader,
            is_here,
            endpoint,
            within,
        })
    }

    /// Fills the segments with `wanted` of this node's blocks.
    fn fill(&self, wanted: &[Wanted], segments: &[Mutex<Payload>], pulse: &Pulse) -> Result<()> {
        if self.is_here {
            for one in wanted {
                let mut segment = super::lock(&segments[one.segment]);
                let into = &mut segment[one.offset..one.offset + one.length];
                self.reader.read(&one.block, into, "block")?;
                pulse.beat();
            }
            return Ok(());
        }
        for some in wanted.chunks(PIECES_MAX) {
            self.fill_by_pulls(some, segments, pulse)?;
        }
        Ok(())
    }

    fn fill_by_pulls(
        &self,
        wanted: &[Wanted],
        segments: &[Mutex<Payload>],
        pulse: &Pulse,
    ) -> Result<()> {
        let piece = |one: &Wanted| GatherPiece {
            address: one.block.address,
            length_bytes: u32::try_from(one.length).unwrap_or(u32::MAX),
        };
        let request = DrainRequest::Gather {
            checkpoint: self.checkpoint,
            pieces: wanted.iter().map(piece).collect(),
        };
        let exposure = match ask(&*self.endpoint, &self.peer, &request, self.within)? {
            DrainAnswer::Gathered { exposure, .. } => exposure,
            other => return Err(unexpected(&self.peer, &other)),
        };
        let pulled = self.pull(ExposureId(exposure), wanted, segments, pulse);
        let release = DrainRequest::Release { exposure };
        let released = ask(&*self.endpoint, &self.peer, &release, self.within);
        pulled.and(released.map(|_| ()))
    }

    fn pull(
        &self,
        exposure: ExposureId,
        wanted: &[Wanted],
        segments: &[Mutex<Payload>],
        pulse: &Pulse,
    ) -> Result<()> {
        let mut buffer = Vec::new();
        let (mut start, mut first) = (0, 0);
        while first < wanted.len() {
            let mut length = 0;
            let mut last = first;
            while last < wanted.len()
                && (last == first || length + wanted[last].length <= PULL_BYTES)
            {
                length += wanted[last].length;
                last += 1;
            }
            buffer.resize(length, 0);
            self.endpoint
                .pull(&self.peer, exposure, start, &mut buffer, self.within)?;
            pulse.beat();
            let mut rest: &[u8] = &buffer;
            for one in &wanted[first..last] {
                let (bytes, left) = rest.split_at(one.length);
                rest = left;
                self.check(one, bytes)?;
                let mut segment = super::lock(&segments[one.segment]);
                segment[one.offset..one.offset + one.length].copy_from_slice(bytes);
            }
            start += to_u64(length);
            first = last;
        }
        Ok(())
    }

    fn check(&self, one: &Wanted, bytes: &[u8]) -> Result<()> {
        let found = Digest::of(bytes);
        if found == one.block.digest {
            return Ok(());
        }
        let what = FormatError::new("block", "digest", 0, one.block.digest, found);
        Err(Error::malformed(
            format!("{} of {}", one.block.address, self.peer),
            what,
        ))
    }
}

/// The store of a node on this host, where its file can be seen.
fn map(offered: &Offered) -> Option<Arc<StoreReader>> {
    if offered.path.is_empty() {
        return None;
    }
    let device = FileDevice::open_read_only(Path::new(&offered.path)).ok()?;
    let device: Arc<dyn ReadAt> = Arc::new(device);
    let reader = StoreReader::open(device).ok()?;
    if reader.superblock().store != offered.store {
        return None;
    }
    reader.read_records(|_, _, _| {}).ok()?;
    Some(Arc::new(reader))
}

pub(super) fn unexpected(from: &Peer, answer: &DrainAnswer) -> Error {
    let text: String = format!("{answer:?}").chars().take(100).collect();
    Error::new(
        ErrorKind::PeerUnreachable,
        format!("{from} gave an answer that was not asked for: {text}"),
    )
}
