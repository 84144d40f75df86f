// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a contributor's work in a round: gathers the other pieces of a stripe, encodes, and lets
//! the holders of parity pull it.
//! In: planned stripes. Out: stripes with the digest of every piece and the place of all parity.
//! Invariants: a piece is what its owner hashed, or the stripe is not made; what is encoded anew is what its
//! stripe says, whatever stands there now; a piece that is short or missing counts as zeros and is never sent:
//! (k - 1 + m) / k bytes move for each byte protected.
//! Source: the paper on non-blocking multi-level checkpointing, section II, generalised from XOR.

use super::pace::Pace;
use super::{Agent, Ask, peer, rebuild};
use crate::code::{Code, Piece};
use backstay_base::clock::Deadline;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::fanout;
use backstay_base::notice;
use backstay_format::agent::{Answer, Collected, Request, Seat, StripePlan};
use backstay_format::width::index;
use backstay_format::{Address, Digest, Extent, Stripe, StripeId, StripePiece, Superblock};
use backstay_net::{Exposed, ExposureId};
use backstay_store::reader::segment_place;
use backstay_store::reserve::Reserve;
use backstay_store::view::{ExtentView, SegmentView};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// What a worker needs to know of its round.
struct Work<'a> {
    agent: &'a Agent,
    epoch: u64,
    round: u64,
    column: u8,
    seats: Vec<Seat>,
    code: Code,
    reserve: Reserve,
    deadline: Deadline,
    pace: Pace,
}

impl Agent {
    /// Encodes `plans`, some at a time; all or an error.
    pub(super) fn encode(
        &self,
        epoch: u64,
        round: u64,
        plans: &[StripePlan],
        within: Duration,
    ) -> Result<Vec<Stripe>> {
        let settings = self.settings();
        let work = self.with_member(|member| {
            member.check(epoch, Some(round))?;
            Ok(Work {
                agent: self,
                epoch,
                round,
                column: member.column(),
                seats: member.seats().to_vec(),
                code: Code::new(usize::from(member.parity()))?,
                reserve: member.reserve().clone(),
                deadline: Deadline::after(within),
                pace: Pace::new(settings.rate_bytes),
            })
        })?;
        fanout::all(plans, settings.threads.max(1), |_, plan| work.stripe(plan))
    }
}

impl Work<'_> {
    fn left(&self) -> Duration {
        let left = self.deadline.left();
        left.unwrap_or(Duration::from_millis(1))
    }

    /// Encodes one stripe.
    fn stripe(&self, plan: &StripePlan) -> Result<Stripe> {
        let lengths = plan.pieces.iter().map(|piece| piece.extent.length_bytes);
        let bytes = lengths.clone().map(u64::from).sum();
        self.pace.pass(bytes, &self.deadline);
        if let ([own], [holder]) = (&plan.pieces[..], &plan.holders[..]) {
            return self.copy_over(plan.id, own, *holder);
        }
        let length = index(lengths.max().unwrap_or(0));
        let buffers = &self.agent.buffers;
        let mut pieces = Vec::with_capacity(plan.pieces.len());
        let mut contents = Vec::with_capacity(plan.pieces.len());
        for piece in &plan.pieces {
            let (content, digest) = self.piece(piece)?;
            let extent = Extent {
                digest,
                ..piece.extent
            };
            let column = piece.column;
            pieces.push(StripePiece { column, extent });
            contents.push(content);
        }
        let mut parity: Vec<Vec<u8>> = plan.holders.iter().map(|_| buffers.take(length)).collect();
        self.combine(&pieces, &contents, &mut parity, length)?;
        for content in contents {
            if let Content::Gathered(buffer) = content {
                buffers.give(buffer);
            }
        }
        let mut kept = Vec::with_capacity(parity.len());
        for (row, bytes) in parity.into_iter().enumerate() {
            kept.push(self.hand_over(plan, row, bytes, length)?);
        }
        Ok(Stripe {
            id: plan.id,
            pieces,
            parity: kept,
        })
    }

    /// A stripe of one extent: its parity is a copy, which the holder pulls from the store itself.
    fn copy_over(&self, id: StripeId, own: &StripePiece, holder: u8) -> Result<Stripe> {
        let extent = own.extent;
        let view = ExtentView {
            segments: SegmentView::of_reserve(&self.reserve),
            start: segment_place(extent.segment, u64::from(extent.offset_bytes)),
            length_bytes: u64::from(extent.length_bytes),
        };
        let exposed = Exposed::Sealed(Arc::new(view));
        let name = (id, 0);
        let mut copy = self.offer(name, holder, exposed, extent.length_bytes)?;
        if let Some(bytes) = self.undamaged(own, copy.extent.digest)? {
            let exposed = Exposed::Memory(Arc::new(bytes));
            // What was taken before is in no record, and is given up with it.
            copy = self.offer(name, holder, exposed, extent.length_bytes)?;
        }
        let digest = copy.extent.digest;
        let original = StripePiece {
            column: own.column,
            extent: Extent { digest, ..extent },
        };
        Ok(Stripe {
            id,
            pieces: vec![original],
            parity: vec![copy],
        })
    }

    /// A piece with its digest: of what stands there, or of what its stripe says where that is damaged.
    fn piece(&self, piece: &StripePiece) -> Result<(Content<'_>, Digest)> {
        let (content, found) = self.fetch(piece)?;
        match self.undamaged(piece, found)? {
            Some(bytes) => Ok((Content::Gathered(bytes), piece.extent.digest)),
            None => Ok((content, found)),
        }
    }

    /// The bytes of a piece that was in a stripe before, from the rest of it, if what was `found` is something
    /// else: the new stripe covers what is damaged as the old one did. `None` where it is as it was, or beyond
    /// repair.
    fn undamaged(&self, piece: &StripePiece, found: Digest) -> Result<Option<Vec<u8>>> {
        let wanted = piece.extent.digest;
        if wanted == Digest::default() || wanted == found {
            return Ok(None);
        }
        let segment = piece.extent.segment.0;
        let node = &self.seat(piece.column)?.node;
        let table = self.agent.with_member(|member| {
            member.check(self.epoch, Some(self.round))?;
            Ok(member.table().clone())
        })?;
        let mut stripes = table.stripes.values();
        let Some(stripe) = stripes.find(|stripe| stripe.pieces.contains(piece)) else {
            let context = format!("segment {segment} on node {node}: it is in no stripe any more");
            return Err(Error::new(ErrorKind::InvalidArgument, context));
        };
        let left = self.left();
        let others = rebuild::Work::new(self.agent, &table, self.column, &self.seats, left)?;
        match others.remake(stripe, Piece::Data(usize::from(piece.column))) {
            Ok(bytes) => {
                notice::warn(&format!(
                    "segment {segment} on node {node} is damaged; it is protected as it was"
                ));
                Ok(Some(bytes))
            }
            // It is lost; what else is to be protected is not.
            Err(error) if error.kind().proves_loss() => {
                notice::warn(&format!(
                    "segment {segment} on node {node} is damaged, beyond repair: {error}"
                ));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// A piece: of this node's store where it stands, if it can be lent; else read or pulled.
    fn fetch(&self, piece: &StripePiece) -> Result<(Content<'_>, Digest)> {
        let extent = &piece.extent;
        let length = index(extent.length_bytes);
        if piece.column != self.column {
            let mut buffer = self.agent.buffers.take(length);
            let seat = self.seat(piece.column)?;
            let offset = segment_place(extent.segment, u64::from(extent.offset_bytes));
            let endpoint = &self.agent.endpoint;
            let into = &mut buffer[..length];
            let left = self.left();
            endpoint.pull(&peer(seat), seat.store.into(), offset, into, left)?;
            let digest = Digest::of(into);
            return Ok((Content::Gathered(buffer), digest));
        }
        let unit = extent.offset_bytes / Address::UNIT_BYTES;
        let at = Address::new(extent.segment, u16::try_from(unit).unwrap_or(u16::MAX));
        let offset = self.reserve.reader().offset_of(at, length)?;
        let device = self.reserve.reader().device();
        let slot = self.reserve.reader().slot_of(extent.segment);
        let sealed = slot.and_then(|slot| {
            let within = u64::from(extent.offset_bytes);
            self.reserve.sealed_range(slot, within, length)
        });
        if let Some(bytes) = sealed.and_then(|range| device.lend(range)) {
            return Ok((Content::Lent(bytes), Digest::of(bytes)));
        }
        let mut buffer = self.agent.buffers.take(length);
        device
            .read_at(&mut buffer[..length], offset)
            .map_err(|error| Error::io(device.name(), error))?;
        let digest = Digest::of(&buffer[..length]);
        Ok((Content::Gathered(buffer), digest))
    }

    fn seat(&self, column: u8) -> Result<&Seat> {
        let none = || Error::new(ErrorKind::InvalidArgument, format!("no member {column}"));
        self.seats.get(usize::from(column)).ok_or_else(none)
    }

    fn combine(
        &self,
        pieces: &[StripePiece],
        contents: &[Content<'_>],
        parity: &mut [Vec<u8>],
        length: usize,
    ) -> Result<()> {
        let data: Vec<(usize, &[u8])> = pieces
            .iter()
            .zip(contents)
            .map(|(piece, bytes)| {
                let own = &bytes.bytes()[..index(piece.extent.length_bytes)];
                (usize::from(piece.column), own)
            })
            .collect();
        let mut rows: Vec<(usize, &mut [u8])> = parity
            .iter_mut()
            .enumerate()
            .map(|(row, bytes)| (row, &mut bytes[..length]))
            .collect();
        self.code.encode(&data, &mut rows)
    }

    /// Lets a holder pull a parity extent.
    fn hand_over(
        &self,
        plan: &StripePlan,
        row: usize,
        bytes: Vec<u8>,
        length: usize,
    ) -> Result<StripePiece> {
        let holder = plan.holders.get(row).copied().unwrap_or(u8::MAX);
        let bytes = Arc::new(bytes);
        let exposed = Exposed::Memory(Arc::clone(&bytes));
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        let kept = self.offer((plan.id, row), holder, exposed, length);
        if let Some(buffer) = Arc::into_inner(bytes) {
            self.agent.buffers.give(buffer);
        }
        kept
    }

    /// Has `holder` pull what is exposed, and keep it. Its digest is the one that both sides of the pull
    /// computed.
    fn offer(
        &self,
        (id, row): (StripeId, usize),
        holder: u8,
        exposed: Exposed,
        length_bytes: u32,
    ) -> Result<StripePiece> {
        let seat = self.seat(holder)?;
        // A request that came twice is worked on twice, and what one of them is over with the other still offers.
        let offer = self.agent.offers.fetch_add(1, Ordering::Relaxed);
        let name = format!(
            "parity {} {} {} {} {row} {offer}",
            self.agent.node, self.epoch, self.round, id.0
        );
        let exposure = ExposureId(Digest::of(name.as_bytes()).0);
        let endpoint = &self.agent.endpoint;
        endpoint.expose(exposure, exposed);
        let request = Request::Take {
            epoch: self.epoch,
            round: self.round,
            from: self.column,
            exposure: exposure.0,
            length_bytes,
            digest: Digest::default(),
        };
        let taken = self.agent.ask(&peer(seat), &request, self.left());
        endpoint.withdraw(exposure);
        match taken? {
            Answer::Taken(extent) if extent.length_bytes == length_bytes => Ok(StripePiece {
                column: holder,
                extent,
            }),
            other => {
                let context = format!("{} took parity and answered {other:?}", peer(seat));
                Err(Error::new(ErrorKind::PeerUnreachable, context))
            }
        }
    }
}

/// The bytes of a piece.
enum Content<'a> {
    /// Where they stand.
    Lent(&'a [u8]),
    /// The front of a buffer.
    Gathered(Vec<u8>),
}

impl Content<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Lent(bytes) => bytes,
            Self::Gathered(buffer) => buffer,
        }
    }
}

/// Pieces of this size stay in the cache from the pull to the parity: a stripe of four of them took 0.85 of
/// the time of one of whole segments.
const PIECE_BYTES: u32 = 1 << 20;
/// Where more waits than so many pieces, they are larger, so that the log does not grow with it.
const STRIPES_WANTED: u64 = 16 << 10;

/// What waits, in extents whose parity fits into a segment of every member: stores may have segments of
/// different sizes.
pub(super) fn fitting(queues: Vec<Vec<Extent>>, members: &[Collected]) -> Vec<Vec<Extent>> {
    let sizes = members
        .iter()
        .filter_map(|member| Superblock::decode(&member.superblock).ok());
    let most = sizes.map(|superblock| superblock.segment_bytes).min();
    let waiting: u64 = queues
        .iter()
        .flatten()
        .map(|extent| u64::from(extent.length_bytes))
        .sum();
    let few = u32::try_from(waiting / STRIPES_WANTED).unwrap_or(u32::MAX);
    let piece = few.max(PIECE_BYTES).checked_next_power_of_two();
    let most = most
        .unwrap_or(u32::MAX)
        .min(piece.unwrap_or(u32::MAX))
        .max(1);
    let parts = |whole: Extent| {
        let fits = whole.length_bytes <= most;
        (0..whole.length_bytes.div_ceil(most).max(1)).map(move |part| Extent {
            offset_bytes: whole.offset_bytes + part * most,
            length_bytes: most.min(whole.length_bytes - part * most),
            digest: if fits {
                whole.digest
            } else {
                Digest::default()
            },
            ..whole
        })
    };
    let split = |queue: Vec<Extent>| queue.into_iter().flat_map(parts).collect();
    queues.into_iter().map(split).collect()
}
