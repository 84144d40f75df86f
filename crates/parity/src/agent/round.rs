// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: one protection round of one group: collect, form stripes, encode, flush, record.
//! In from: `coordinate`. Out to: the group's members.
//! Invariants: a record names what is durable; once one was sent to anybody, it is sent again as it is
//! until all members have it, and no other round begins before; a round that failed earlier leaves the
//! table as it was.
//!
//! A stripe goes when all its extents are dead. When more than half of its bytes are, the living ones
//! are encoded anew with the others that wait, and the old stripe goes with the same record.

use super::coordinate::STORE_PAUSE;
use super::{Agent, Ask, peer, record};
use crate::group::Scheme;
use crate::stripe::{self, Contribution};
use backstay_base::clock::Deadline;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::fanout;
use backstay_format::agent::{Answer, Collected, Request, Seat, StripePlan};
use backstay_format::limits::RECORD_BYTES_MAX;
use backstay_format::{
    CheckpointId, Extent, Member, Round, SegmentId, Stripe, StripeId, StripePiece,
};
use backstay_net::Peer;
use backstay_store::stripe_log::StripeTable;
use std::collections::BTreeSet;
use std::time::Duration;

/// One group and what is known of it.
#[derive(Debug)]
pub(super) struct GroupState {
    pub(super) epoch: u64,
    pub(super) round: u64,
    pub(super) scheme: Scheme,
    /// Losses that were asked to be covered.
    pub(super) asked: usize,
    pub(super) seats: Vec<Seat>,
    pub(super) table: StripeTable,
    /// The next record must carry everything: members may differ.
    pub(super) whole: bool,
    /// A record, in the table already, that some members may not have.
    pub(super) unrecorded: Option<Round>,
    /// The first round that all members were in at the bidding of this coordinator.
    pub(super) known_from: Option<u64>,
}

/// What one round of the job did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RoundReport {
    /// The checkpoint that is protected.
    pub checkpoint: CheckpointId,
    /// Stripes made.
    pub stripes: u64,
    /// Bytes of the extents in them.
    pub bytes: u64,
    /// Stripes given up.
    pub removed: u64,
}

/// Most stripes that a member is asked to encode at a time.
const PLANS_MAX: usize = 1 << 15;

/// Runs `what` for each of `items`, as many as may be at the same time; the results in order.
pub(super) fn each<I: Sync, T: Send>(
    items: &[I],
    what: impl Fn(usize, &I) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    fanout::each(items, fanout::THREADS_MAX, what)
}

pub(super) fn all<T>(results: Vec<Result<T>>) -> Result<Vec<T>> {
    results.into_iter().collect()
}

/// What of a scheme goes into records: parities, and most pieces of a stripe.
pub(super) fn numbers(scheme: Scheme, members: usize) -> (u8, u8) {
    let small = |count: usize| u8::try_from(count).unwrap_or(u8::MAX);
    let parities = scheme.parities();
    match scheme {
        Scheme::Partner => (1, 1),
        _ => (small(parities), small(members.saturating_sub(parities))),
    }
}

impl GroupState {
    pub(super) fn join(&self, agent: &Agent, within: Duration) -> Result<()> {
        let (parity, pieces_max) = numbers(self.scheme, self.seats.len());
        let request = Request::Join {
            epoch: self.epoch,
            parity,
            pieces_max,
            seats: self.seats.clone(),
        };
        // A store that was surveyed may still be about to be attached.
        let deadline = Deadline::after(within.mul_f64(0.9));
        all(each(&self.seats, |_, seat| {
            loop {
                match agent.ask(&peer(seat), &request, within) {
                    Err(error)
                        if error.kind() == ErrorKind::NoCheckpoint && deadline.left().is_some() =>
                    {
                        std::thread::sleep(STORE_PAUSE);
                    }
                    other => return other,
                }
            }
        }))?;
        Ok(())
    }

    /// One round; on an error the next one starts over with a higher number, when all members have what
    /// was sent to any.
    pub(super) fn round(
        &mut self,
        agent: &Agent,
        want: CheckpointId,
        within: Duration,
    ) -> Result<RoundReport> {
        if let Some(record) = self.unrecorded.take() {
            self.record(agent, record, within)?;
        }
        self.round += 1;
        let collected = self.collect(agent, want, within)?;
        let (removed, queues) = self.queues(&collected);
        let plans = self.plan(&super::encode::fitting(queues, &collected))?;
        let empty = self.delta(want, &collected, removed, Vec::new());
        self.make_room(agent, &empty, &plans, within)?;
        let added = self.encode(agent, &plans)?;
        let (epoch, round) = (self.epoch, self.round);
        all(each(&self.seats, |_, seat| {
            let request = Request::Flush { epoch, round };
            agent.ask(&peer(seat), &request, within)
        }))?;
        let report = RoundReport {
            checkpoint: want,
            stripes: backstay_format::width::to_u64(added.len()),
            bytes: bytes_of(&added),
            removed: backstay_format::width::to_u64(empty.removed.len()),
        };
        let delta = Round { added, ..empty };
        self.table.apply(&delta);
        let record = if self.whole || delta.whole {
            self.table.whole(0)
        } else {
            delta
        };
        self.record(agent, record, within)?;
        Ok(report)
    }

    /// Has all members record what the table has; what some may not have is kept for the next time.
    fn record(&mut self, agent: &Agent, record: Round, within: Duration) -> Result<()> {
        let sent = each(&self.seats, |_, seat| {
            record::send(agent, &peer(seat), &record, within)
        });
        if let Err(error) = all(sent) {
            self.unrecorded = Some(record);
            return Err(error);
        }
        self.whole = false;
        Ok(())
    }

    /// Has the members make room in their logs, before parity is made for a record that they cannot keep.
    fn make_room(
        &self,
        agent: &Agent,
        empty: &Round,
        plans: &[(usize, StripePlan)],
        within: Duration,
    ) -> Result<()> {
        if plans.is_empty() {
            return Ok(());
        }
        let bytes = |(_, plan): &(usize, StripePlan)| {
            Stripe::bytes_of(plan.pieces.len(), plan.holders.len())
        };
        let added: u64 = plans.iter().map(bytes).sum();
        let record_bytes = empty.encoded_bytes() + added;
        let known = if empty.whole {
            0
        } else {
            self.table.whole_bytes()
        };
        let table_bytes = known + record_bytes;
        if table_bytes > RECORD_BYTES_MAX {
            let context = format!(
                "the stripes of a group would take {table_bytes} bytes of its logs, of at most \
                 {RECORD_BYTES_MAX}: checkpoint less, or take smaller groups or larger segments"
            );
            return Err(Error::new(ErrorKind::Unsupported, context));
        }
        let whole = self.whole || empty.whole;
        let request = Request::MakeRoom {
            epoch: self.epoch,
            round: self.round,
            record_bytes: if whole { table_bytes } else { record_bytes },
            table_bytes,
        };
        let made = each(&self.seats, |_, seat| {
            agent.ask(&peer(seat), &request, within)
        });
        all(made).map(drop)
    }

    fn collect(
        &mut self,
        agent: &Agent,
        want: CheckpointId,
        within: Duration,
    ) -> Result<Vec<Collected>> {
        let request = Request::Collect {
            epoch: self.epoch,
            round: self.round,
            want,
            known_from: self.known_from.unwrap_or(self.round),
        };
        let collected = all(each(&self.seats, |_, seat| {
            match agent.ask(&peer(seat), &request, within)? {
                Answer::Collected(collected) => Ok(collected),
                other => Err(unexpected(&peer(seat), &other)),
            }
        }))?;
        self.known_from.get_or_insert(self.round);
        Ok(collected)
    }

    /// The stripes that go, and what waits on each member: what is in no stripe, and what lives in
    /// stripes that go.
    fn queues(&self, collected: &[Collected]) -> (Vec<StripeId>, Vec<Vec<Extent>>) {
        let mut queues: Vec<Vec<Extent>> =
            collected.iter().map(|one| one.waiting.clone()).collect();
        let dead: Vec<BTreeSet<SegmentId>> = collected
            .iter()
            .map(|one| one.dead.iter().copied().collect())
            .collect();
        if dead.iter().all(BTreeSet::is_empty) {
            return (Vec::new(), queues);
        }
        let is_dead = |piece: &StripePiece| {
            dead.get(usize::from(piece.column))
                .is_some_and(|dead| dead.contains(&piece.extent.segment))
        };
        let mut removed = Vec::new();
        for stripe in self.table.stripes.values() {
            let length = |piece: &StripePiece| u64::from(piece.extent.length_bytes);
            let all: u64 = stripe.pieces.iter().map(length).sum();
            let gone: u64 = stripe
                .pieces
                .iter()
                .filter(|p| is_dead(p))
                .map(length)
                .sum();
            if gone * 2 <= all {
                continue;
            }
            removed.push(stripe.id);
            for piece in stripe.pieces.iter().filter(|piece| !is_dead(piece)) {
                if let Some(queue) = queues.get_mut(usize::from(piece.column)) {
                    queue.push(piece.extent);
                }
            }
        }
        (removed, queues)
    }

    /// Stripes of all that waits, each with the column that encodes it.
    fn plan(&self, queues: &[Vec<Extent>]) -> Result<Vec<(usize, StripePlan)>> {
        let named: Vec<Vec<stripe::Extent>> = queues
            .iter()
            .map(|queue| {
                let lengths = queue.iter().enumerate();
                lengths
                    .map(|(id, extent)| stripe::Extent {
                        id,
                        length: u64::from(extent.length_bytes),
                    })
                    .collect()
            })
            .collect();
        let formed = stripe::form(&named, self.scheme, self.round)?;
        let small = |column: usize| u8::try_from(column).unwrap_or(u8::MAX);
        let first = self.table.next_stripe().0;
        let piece = |part: &Contribution| StripePiece {
            column: small(part.column),
            extent: queues[part.column][part.extent.id],
        };
        let plans = (first..).zip(&formed).map(|(id, formed)| {
            let plan = StripePlan {
                id: StripeId(id),
                pieces: formed.contributions.iter().map(piece).collect(),
                holders: formed.holders.iter().map(|&column| small(column)).collect(),
            };
            (formed.gatherer, plan)
        });
        Ok(plans.collect())
    }

    fn encode(&self, agent: &Agent, plans: &[(usize, StripePlan)]) -> Result<Vec<Stripe>> {
        let mut shares: Vec<Vec<StripePlan>> = vec![Vec::new(); self.seats.len()];
        for (gatherer, plan) in plans {
            shares[*gatherer].push(plan.clone());
        }
        let settings = agent.settings();
        let encoded = each(&shares, |column, share| {
            if share.is_empty() {
                return Ok(Vec::new());
            }
            let seat = &self.seats[column];
            let mut made = Vec::with_capacity(share.len());
            // As many as fit into a message.
            for plans in share.chunks(PLANS_MAX) {
                let request = Request::Encode {
                    epoch: self.epoch,
                    round: self.round,
                    stripes: plans.to_vec(),
                };
                let within = settings.within_for(planned_bytes(plans));
                match agent.ask(&peer(seat), &request, within)? {
                    Answer::Encoded(stripes) if matches(&stripes, plans) => made.extend(stripes),
                    other => return Err(unexpected(&peer(seat), &other)),
                }
            }
            Ok(made)
        });
        let mut stripes: Vec<Stripe> = all(encoded)?.into_iter().flatten().collect();
        stripes.sort_by_key(|stripe| stripe.id);
        Ok(stripes)
    }

    fn delta(
        &self,
        want: CheckpointId,
        collected: &[Collected],
        removed: Vec<StripeId>,
        added: Vec<Stripe>,
    ) -> Round {
        let (parity, pieces_max) = numbers(self.scheme, self.seats.len());
        let members = self.seats.iter().zip(collected).map(|(seat, one)| Member {
            store: seat.store,
            node: seat.node.clone(),
            domain: seat.domain.clone(),
            superblock: one.superblock.clone(),
            root: one.root.clone(),
        });
        Round {
            generation: 0,
            epoch: self.epoch,
            round: self.round,
            // A new composition replaces the stripes of the former one.
            whole: self.table.epoch != self.epoch,
            parity,
            asked: u8::try_from(self.asked).unwrap_or(u8::MAX),
            pieces_max,
            protected: want,
            members: members.collect(),
            removed,
            added,
        }
    }
}

fn planned_bytes(plans: &[StripePlan]) -> u64 {
    let pieces = plans.iter().flat_map(|plan| &plan.pieces);
    pieces
        .map(|piece| u64::from(piece.extent.length_bytes))
        .sum()
}

/// Whether these are the stripes that were planned: the same pieces, and parity on the holders.
fn matches(stripes: &[Stripe], plans: &[StripePlan]) -> bool {
    let mut found: Vec<&Stripe> = stripes.iter().collect();
    found.sort_by_key(|stripe| stripe.id);
    let same = |(stripe, plan): (&&Stripe, &StripePlan)| {
        let place = |piece: &StripePiece| {
            let extent = piece.extent;
            let range = (extent.offset_bytes, extent.length_bytes);
            (piece.column, extent.segment, extent.class, range)
        };
        let holders = stripe.parity.iter().map(|piece| piece.column);
        let length = stripe.parity_bytes();
        stripe.id == plan.id
            && stripe
                .pieces
                .iter()
                .map(place)
                .eq(plan.pieces.iter().map(place))
            && holders.eq(plan.holders.iter().copied())
            && stripe
                .parity
                .iter()
                .all(|piece| piece.extent.length_bytes == length)
    };
    found.len() == plans.len() && found.iter().zip(plans).all(same)
}

fn bytes_of(stripes: &[Stripe]) -> u64 {
    let pieces = stripes.iter().flat_map(|stripe| &stripe.pieces);
    pieces
        .map(|piece| u64::from(piece.extent.length_bytes))
        .sum()
}

pub(super) fn unexpected(from: &Peer, answer: &Answer) -> Error {
    let text: String = format!("{answer:?}").chars().take(100).collect();
    Error::new(
        ErrorKind::PeerUnreachable,
        format!("{from} gave an answer that was not asked for: {text}"),
    )
}
