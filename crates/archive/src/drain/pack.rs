// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the segments of a plan: their blocks gathered from the nodes, encoded and handed to the store.
//! In from: `work`, `aggregate` (the plan). Out to: `encode`, the store's writers.
//! Invariants: while one window is encoded the next is gathered, and no third is begun; what was stored
//! is made durable as it grows, so that an interrupted drain goes on from there.

use super::encode::{Planned, raw_header_bytes};
use super::history::History;
use super::sources::{Source, Wanted};
use super::state::State;
use super::work::{Drain, Placed, RankWork, Write};
use super::{PARALLEL_MAX, lock, parallel};
use crate::aggregate::{Block, Part, Piece, Plan, RankBlocks, Segment, VariableBlocks, lags, plan};
use crate::{Commit, Payload};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::width::{index, to_u64};
use backstay_format::{Address, BlockRef, SegmentId, SegmentPiece};
use backstay_store::reader::StoreReader;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Bytes of segments that are gathered before they are encoded: where all nodes are on this host,
const WINDOW_BYTES_HERE: u64 = 8 << 20;
/// and where some are asked over the network, a few questions for each window.
const WINDOW_BYTES_FAR: u64 = 32 << 20;

/// Of a file of which fewer bytes are written nobody asks what they are.
const TYPED_BYTES_MIN: u64 = 64 << 10;

/// What a plan is packed from.
pub(super) struct Packing<'a> {
    pub(super) drain: &'a Drain<'a>,
    pub(super) sources: &'a [Source],
    pub(super) works: &'a [RankWork],
    pub(super) history: &'a History<'a>,
}

/// Segments with their blocks.
struct Window {
    segments: Vec<Planned>,
    bytes: Vec<Mutex<Payload>>,
}

/// Packs all blocks to be written; returns the segments and their lengths.
pub(super) fn pack(
    packing: &Packing<'_>,
    state: &State,
    placed: &mut Placed,
) -> Result<Vec<(SegmentId, u64)>> {
    let parted = parallel(packing.works, PARALLEL_MAX, |work| {
        Ok(Parted::of(packing.sources, work))
    })?;
    let variables: Vec<Vec<VariableBlocks<'_>>> = packing
        .works
        .iter()
        .zip(&parted)
        .map(|(work, parted)| parted.variables(work))
        .collect();
    let ranks: Vec<RankBlocks<'_>> = variables
        .iter()
        .map(|variables| RankBlocks { variables })
        .collect();
    let mut plan = plan(&ranks, packing.drain.settings.options())?;
    let (sender, receiver) = sync_channel(1);
    std::thread::scope(|scope| {
        let planned = (&*ranks, &*parted);
        let gather = move || gather_all(packing, planned, &mut plan, &sender);
        let gathering = std::thread::Builder::new()
            .name("backstay-gather".to_owned())
            .spawn_scoped(scope, gather)
            .map_err(|error| Error::io("starting a thread that gathers", error))?;
        let stored = store_all(packing, state, &receiver, placed);
        // A gatherer that waits for room ends when nobody takes its windows any more.
        drop(receiver);
        let panicked = || Error::new(ErrorKind::Internal, "a gathering thread panicked");
        let gathered = gathering.join().unwrap_or_else(|_| Err(panicked()));
        let stored = stored?;
        gathered.map(|()| stored)
    })
}

/// The blocks of a rank, by what they are.
struct Parted {
    /// Of which variable by its place, of which part of it, and the blocks; in the order of the names.
    all: Vec<(usize, Option<Part>, Vec<Block>)>,
}

impl Parted {
    fn of(sources: &[Source], work: &RankWork) -> Self {
        let mut all = Vec::new();
        let parts = work.part.descriptors.iter().zip(&work.part.streams);
        for (place, ((descriptor, stream), variable)) in parts.zip(&work.variables).enumerate() {
            let blocks: Vec<Block> = variable.writes.iter().map(block_of).collect();
            let bytes: u64 = blocks.iter().map(|block| u64::from(block.length)).sum();
            let source = &sources[work.source];
            let typed = (descriptor.file.is_some() && bytes >= TYPED_BYTES_MIN)
                .then(|| source.typed((work.rank, place), descriptor, stream))
                .flatten();
            let Some(typed) = typed else {
                all.push((place, None, blocks));
                continue;
            };
            let mut others = Vec::new();
            let mut of_parts: Vec<Vec<Block>> = vec![Vec::new(); typed.parts.len()];
            for block in blocks {
                let start = block.index * u64::from(stream.block_bytes);
                match typed.part_of(start, u64::from(block.length)) {
                    Some(part) => of_parts[part].push(block),
                    None => others.push(block),
                }
            }
            all.push((place, None, others));
            let some = typed.parts.into_iter().zip(of_parts);
            let some = some.filter(|(_, blocks)| !blocks.is_empty());
            all.extend(some.map(|(part, blocks)| (place, Some(part), blocks)));
        }
        Self { all }
    }

    fn variables<'a>(&'a self, work: &'a RankWork) -> Vec<VariableBlocks<'a>> {
        let variable = |(place, part, blocks): &'a (usize, Option<Part>, Vec<Block>)| {
            let part = part.as_ref();
            VariableBlocks {
                descriptor: &work.part.descriptors[*place],
                part,
                block_bytes: work.part.streams[*place].block_bytes,
                blocks,
            }
        };
        self.all.iter().map(variable).collect()
    }
}

fn block_of(write: &Write) -> Block {
    Block {
        index: to_u64(write.at),
        length: u32::try_from(write.length).unwrap_or(u32::MAX),
    }
}

/// Pieces name variables again, not what of them they are.
fn of_variables(segment: &mut Segment<'_>, parted: &[Parted]) {
    for piece in &mut segment.pieces {
        let parts = parted.get(index(piece.rank)).map(|parted| &parted.all);
        let found = parts.and_then(|parts| parts.get(index(piece.variable)));
        if let Some((place, ..)) = found {
            piece.variable = u32::try_from(*place).unwrap_or(u32::MAX);
        }
    }
}

/// Gathers window after window until the plan is at its end, or nobody wants more.
fn gather_all(
    packing: &Packing<'_>,
    (ranks, parted): (&[RankBlocks<'_>], &[Parted]),
    plan: &mut Plan<'_>,
    out: &SyncSender<Window>,
) -> Result<()> {
    let store = packing.drain.store;
    let reader = StoreReader::open(store.device())?;
    let window_bytes = if packing.sources.iter().all(Source::is_here) {
        WINDOW_BYTES_HERE
    } else {
        WINDOW_BYTES_FAR
    };
    let window_bytes = window_bytes.min(packing.progress_bytes());
    loop {
        let (mut segments, mut bytes, mut length) = (Vec::new(), Vec::new(), 0);
        let mut wanted: Vec<Vec<Wanted>> = vec![Vec::new(); packing.sources.len()];
        let mut moved = Vec::new();
        while length < window_bytes {
            let Some(mut segment) = plan.next() else {
                break;
            };
            let lags = lags(&segment, ranks);
            of_variables(&mut segment, parted);
            packing.want(segments.len(), &segment, &mut wanted, &mut moved)?;
            length += u64::from(segment.length);
            let planned = Planned::new(store.next_segment(), &segment, lags);
            let room = store.room(raw_header_bytes(&planned), index(segment.length));
            bytes.push(Mutex::new(room));
            segments.push(planned);
        }
        if segments.is_empty() {
            return Ok(());
        }
        packing.drain.go_on()?;
        let places: Vec<usize> = (0..wanted.len()).collect();
        parallel(&places, PARALLEL_MAX, |&at| {
            packing.sources[at].fill(&wanted[at], &bytes, packing.drain.pulse)
        })?;
        if !moved.is_empty() {
            // What is cleaned may stand in segments of earlier commits only.
            reader.read_records(|_, _, _| {})?;
        }
        for one in &moved {
            let mut segment = lock(&bytes[one.segment]);
            let into = &mut segment[one.offset..one.offset + one.length];
            reader.read(&one.block, into, "block")?;
            packing.drain.pulse.beat();
        }
        if out.send(Window { segments, bytes }).is_err() {
            return Ok(());
        }
    }
}

impl Packing<'_> {
    fn progress_bytes(&self) -> u64 {
        let drain = self.drain;
        drain.settings.progress_bytes(drain.job.aggregators)
    }

    /// Notes where the pieces of a segment are to be had.
    fn want(
        &self,
        at: usize,
        segment: &Segment<'_>,
        wanted: &mut [Vec<Wanted>],
        moved: &mut Vec<Wanted>,
    ) -> Result<()> {
        for piece in &segment.pieces {
            let work = &self.works[index(piece.rank)];
            let write = self.write_of(piece)?;
            let one = Wanted {
                block: write.block,
                length: write.length,
                segment: at,
                offset: index(piece.offset),
            };
            if write.from_archive {
                moved.push(one);
            } else {
                wanted[work.source].push(one);
            }
        }
        Ok(())
    }

    /// Where the pieces of a segment are from now on.
    fn note(&self, segment: &Planned, placed: &mut Placed) -> Result<()> {
        for piece in &segment.pieces {
            let (rank, variable) = (index(piece.rank), index(piece.variable));
            let write = self.write_of(piece)?;
            let unit = piece.offset / Address::UNIT_BYTES;
            let address = Address::new(segment.id, u16::try_from(unit).unwrap_or(u16::MAX));
            let digest = write.block.digest;
            placed[rank][variable].insert(write.at, BlockRef { address, digest });
        }
        Ok(())
    }

    pub(super) fn write_of(&self, piece: &Piece) -> Result<&Write> {
        let writes = &self.works[index(piece.rank)].variables[index(piece.variable)].writes;
        let found = writes.binary_search_by(|write| to_u64(write.at).cmp(&piece.block.index));
        let missing = |_| Error::new(ErrorKind::Internal, "a plan names an unknown block");
        found.map(|at| &writes[at]).map_err(missing)
    }

    fn records(&self, segment: &Planned) -> Result<Vec<SegmentPiece>> {
        let record = |piece: &Piece| {
            Ok(SegmentPiece {
                offset: piece.offset,
                length_bytes: piece.block.length,
                digest: self.write_of(piece)?.block.digest,
            })
        };
        segment.pieces.iter().map(record).collect()
    }
}

/// Encodes and stores window after window.
fn store_all(
    packing: &Packing<'_>,
    state: &State,
    windows: &Receiver<Window>,
    placed: &mut Placed,
) -> Result<Vec<(SegmentId, u64)>> {
    let drain = packing.drain;
    let progress_bytes = packing.progress_bytes();
    let mut opened = Vec::new();
    let mut since = 0;
    for window in windows {
        drain.go_on()?;
        encode_window(packing, &window)?;
        for segment in &window.segments {
            packing.note(segment, placed)?;
            opened.push((segment.id, u64::from(segment.length)));
            since += u64::from(segment.length);
        }
        if since >= progress_bytes {
            since = 0;
            drain.store.commit(&Commit {
                incarnation: drain.job.incarnation,
                draining: Some(drain.job.checkpoint),
                revisions: state.revisions.clone(),
                free: Vec::new(),
            })?;
        }
    }
    Ok(opened)
}

/// Encodes the segments of a window in so many threads as asked for, and hands them to the store.
fn encode_window(packing: &Packing<'_>, window: &Window) -> Result<()> {
    let drain = packing.drain;
    let places: Vec<usize> = (0..window.segments.len()).collect();
    let threads = index(drain.settings.threads.max(1));
    parallel(&places, threads, |&at| {
        drain.go_on()?;
        let segment = &window.segments[at];
        let bytes = std::mem::replace(&mut *lock(&window.bytes[at]), Vec::new().into());
        let pieces = packing.records(segment)?;
        let checkpoint = drain.job.checkpoint;
        let base = packing.history.base(packing, drain.encoders, segment);
        let new = drain
            .encoders
            .encode(segment, &drain.means, checkpoint, pieces, bytes, base)?;
        packing.history.note(&new);
        let stored = to_u64(new.payload.len());
        drain.store.append(new)?;
        drain.pulse.beat();
        let mut progress = lock(drain.progress);
        progress.bytes_encoded += u64::from(segment.length);
        progress.bytes_stored += stored;
        Ok(())
    })
    .map(drop)
}
