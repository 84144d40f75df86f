// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a node's part in its group: what of its store waits for protection, the parity it keeps
//! for others, and its stripe log.
//! In from: the coordinator's requests. Out to: the store's space, the log, the words the ranks share.
//! Invariants: parity that a log names, this member's or another's, is never overwritten, and neither is
//! what it covers; what a round took that nobody can have recorded is free again at the next; a retired
//! segment is free when no stripe names it in any log.

use self::former::Former;
use self::log::MemberLog;
use backstay_base::clock::Stopwatch;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::Device;
use backstay_base::io::file::FileDevice;
use backstay_format::agent::{Collected, Request, Seat};
use backstay_format::width::index;
use backstay_format::{
    Address, CheckpointId, Digest, Extent, Round, SegmentClass, SegmentId, StoreId, Stripe,
};
use backstay_store::control::Owner;
use backstay_store::reserve::Reserve;
use backstay_store::space::Space;
use backstay_store::stripe_log::{LOG_FILES, LogFiles, StripeTable};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How often a member looks in a round for space that the ranks gave up.
const RELEASE_EVERY: Duration = Duration::from_millis(50);

/// How much of a segment stripes cover, and how many of them.
#[derive(Debug, Clone, Copy, Default)]
struct Covered {
    bytes: u32,
    stripes: u32,
}

/// A node that keeps parity for its group.
#[derive(Debug)]
pub(super) struct NodeMember {
    reserve: Reserve,
    /// The parity of others.
    space: Space,
    log: MemberLog,
    table: StripeTable,
    /// The composition before, until a vote says that all groups have recorded a round. What it names is kept.
    former: Option<Former>,
    /// The group as the coordinator has it: the table's, or the one that is going to replace it.
    epoch: u64,
    scheme: (u8, u8),
    seats: Vec<Seat>,
    column: u8,
    covered: BTreeMap<SegmentId, Covered>,
    /// Round under way, and the parity taken in it.
    round: u64,
    /// Epoch and round of it, once it was begun here.
    begun: Option<(u64, u64)>,
    taken: Vec<Extent>,
    /// Of parity that was taken: what is still on its way here, also of a round that is over.
    arriving: Vec<Extent>,
    /// Segments whose extents this round may put into stripes.
    offered: BTreeSet<SegmentId>,
    /// When space was given back last.
    released: Stopwatch,
    /// Segments that logs of other members may name though this one's does not.
    unsettled: BTreeSet<SegmentId>,
    /// It was made durable, so that other members may have recorded the round.
    flushed: bool,
    /// Parity that is free once the round is settled.
    freed: Vec<Extent>,
    /// The checkpoint that rounds are to protect, and since when.
    wanted: Option<(CheckpointId, Stopwatch)>,
}

/// The log files beside a store.
pub(super) fn log_files(directory: &Path) -> Result<LogFiles> {
    let open = |name: &str| -> Result<Arc<dyn Device>> {
        let path = directory.join(name);
        let file = FileDevice::open(&path, true)
            .map_err(|error| Error::io(format!("opening {}", path.display()), error))?;
        Ok(Arc::new(file))
    };
    let [first, second, third] = LOG_FILES;
    Ok([open(first)?, open(second)?, open(third)?])
}

fn address(extent: &Extent) -> Address {
    let unit = extent.offset_bytes / Address::UNIT_BYTES;
    Address::new(extent.segment, u16::try_from(unit).unwrap_or(u16::MAX))
}

/// Where stripes have the parity of `column`: segment and offset.
fn parity_places<'a>(
    stripes: impl Iterator<Item = &'a Stripe>,
    column: u8,
) -> BTreeSet<(SegmentId, u32)> {
    let parity = stripes.flat_map(|stripe| &stripe.parity);
    let mine = parity.filter(|piece| piece.column == column);
    mine.map(|piece| (piece.extent.segment, piece.extent.offset_bytes))
        .collect()
}

impl NodeMember {
    /// The member that `reserve` is, with what its log says, or its group where that was `told`; claims the
    /// slots of all that the stripes name.
    pub(super) fn attach(
        reserve: &Reserve,
        directory: &Path,
        told: Option<StripeTable>,
    ) -> Result<Self> {
        let store = reserve.reader().superblock().store;
        let (log, (table, former)) = MemberLog::open(directory, store, told)?;
        let mut member = Self {
            space: Space::new(reserve.geometry().segment_bytes),
            reserve: reserve.clone(),
            log,
            epoch: 0,
            scheme: (table.parity, table.pieces_max),
            seats: Vec::new(),
            column: table.column(store).unwrap_or(0),
            covered: BTreeMap::new(),
            round: table.round,
            begun: None,
            taken: Vec::new(),
            arriving: Vec::new(),
            offered: BTreeSet::new(),
            released: Stopwatch::start(),
            unsettled: BTreeSet::new(),
            flushed: false,
            freed: Vec::new(),
            wanted: None,
            table,
            former: former.map(|table| Former::of(table, store)),
        };
        member.claim();
        if let Some(logged) = member.newest_up_to(member.table.protected) {
            member.reserve.control().set_logged(logged);
        }
        Ok(member)
    }

    pub(super) fn store(&self) -> StoreId {
        self.reserve.reader().superblock().store
    }
    pub(super) fn reserve(&self) -> &Reserve {
        &self.reserve
    }
    pub(super) fn table(&self) -> &StripeTable {
        &self.table
    }
    /// That, and the one of the former composition.
    pub(super) fn tables(&self) -> (&StripeTable, Option<&StripeTable>) {
        let former = self.former.as_ref();
        (&self.table, former.map(|former| &former.table))
    }
    pub(super) fn column(&self) -> u8 {
        self.column
    }
    pub(super) fn parity(&self) -> u8 {
        self.scheme.0
    }
    pub(super) fn seats(&self) -> &[Seat] {
        &self.seats
    }

    /// Takes the slots of this store's parity, and keeps those of segments that no revision uses but
    /// a stripe does.
    fn claim(&mut self) {
        self.pass_named();
        let (live, store) = (CheckpointId::default(), self.store());
        self.space.note_revision(live);
        let former = self.former.as_ref().map(|former| &former.table);
        for table in former.into_iter().chain([&self.table]) {
            let Some(column) = table.column(store) else {
                continue;
            };
            for stripe in table.stripes.values() {
                for piece in stripe.parity.iter().filter(|piece| piece.column == column) {
                    let extent = &piece.extent;
                    if !self.space.owns(extent.segment)
                        && let Some((slot, class)) =
                            self.reserve.claim(extent.segment, Owner::Parity)
                    {
                        self.space.adopt(extent.segment, slot, class);
                    }
                    self.space.note(address(extent), index(extent.length_bytes));
                }
                for piece in stripe.pieces.iter().filter(|piece| piece.column == column) {
                    // It fails where a revision uses the segment, as it should.
                    self.reserve.claim(piece.extent.segment, Owner::Retired);
                }
            }
        }
        self.space.begin_from(Some(live));
        self.space.retain(|_| false);
        if let Some(column) = self.table.column(store) {
            self.cover_all(column);
        }
    }

    /// Gives no id out anew that a stripe names: the store may be of an earlier time than its log.
    fn pass_named(&self) {
        let store = self.store();
        let former = self.former.as_ref().map(|former| &former.table);
        for table in former.into_iter().chain([&self.table]) {
            let pieces = |stripe: &Stripe| -> Option<SegmentId> {
                let all = stripe.pieces.iter().chain(&stripe.parity);
                let mine = all.filter(|piece| table.column(store) == Some(piece.column));
                mine.map(|piece| piece.extent.segment).max()
            };
            if let Some(newest) = table.stripes.values().filter_map(pieces).max() {
                self.reserve.control().pass_segment(newest);
            }
        }
    }

    fn cover_all(&mut self, column: u8) {
        self.covered.clear();
        let stripes = std::mem::take(&mut self.table.stripes);
        for stripe in stripes.values() {
            self.cover(stripe, column);
        }
        self.table.stripes = stripes;
    }

    fn cover(&mut self, stripe: &Stripe, column: u8) {
        for piece in stripe.pieces.iter().filter(|piece| piece.column == column) {
            let covered = self.covered.entry(piece.extent.segment).or_default();
            let end = piece.extent.offset_bytes + piece.extent.length_bytes;
            covered.bytes = covered.bytes.max(end);
            covered.stripes += 1;
        }
    }

    fn uncover(&mut self, stripe: &Stripe, column: u8) {
        for piece in stripe.pieces.iter().filter(|piece| piece.column == column) {
            if let Some(covered) = self.covered.get_mut(&piece.extent.segment) {
                covered.stripes = covered.stripes.saturating_sub(1);
                if covered.stripes == 0 {
                    self.covered.remove(&piece.extent.segment);
                }
            }
        }
    }

    /// Becomes a member of a group: the one of the table if the epoch is the same.
    fn join(&mut self, epoch: u64, scheme: (u8, u8), seats: &[Seat]) -> Result<()> {
        let store = self.store();
        let Some(column) = seats.iter().position(|seat| seat.store == store) else {
            let context = format!("store {store} is not in the group it shall join");
            return Err(Error::new(ErrorKind::InvalidArgument, context));
        };
        self.column = u8::try_from(column).unwrap_or(u8::MAX);
        self.epoch = epoch;
        self.scheme = scheme;
        self.seats = seats.to_vec();
        if epoch == self.table.epoch {
            self.cover_all(self.column);
        } else {
            self.covered.clear();
        }
        Ok(())
    }

    /// Does what a request asks of this member alone.
    pub(super) fn answer(&mut self, request: &Request) -> Result<()> {
        match request {
            Request::Join {
                epoch,
                parity,
                pieces_max,
                seats,
            } => self.join(*epoch, (*parity, *pieces_max), seats),
            Request::MakeRoom {
                epoch,
                round,
                record_bytes,
                table_bytes,
            } => self.make_room((*epoch, *round), *record_bytes, *table_bytes),
            Request::Flush { epoch, round } => self.flush(*epoch, *round),
            Request::Settle {
                epoch,
                round,
                protected,
            } => self.settle(*epoch, *round, *protected),
            Request::Settled {
                epoch,
                round,
                protected,
            } => self.settled(*epoch, *round, *protected),
            _ => Err(Error::new(ErrorKind::Internal, "not a member's request")),
        }
    }

    /// That a request is of the group and, where it matters, of the round under way.
    pub(super) fn check(&self, epoch: u64, round: Option<u64>) -> Result<()> {
        if epoch == self.epoch && round.is_none_or(|round| round == self.round) {
            return Ok(());
        }
        let context = format!(
            "a request of epoch {epoch}, round {round:?}; this member is at epoch {}, round {}",
            self.epoch, self.round
        );
        Err(Error::new(ErrorKind::InvalidArgument, context))
    }

    /// Begins a round. What the one before took, and was not recorded here, is given up: at once where
    /// nobody can have recorded it, which is known of rounds from `known_from` on. A request that is repeated
    /// changes nothing.
    fn begin(&mut self, (epoch, round): (u64, u64), known_from: u64) -> Result<()> {
        self.check(epoch, None)?;
        let is_recorded = (self.table.epoch, self.table.round) == (epoch, round);
        if self.begun == Some((epoch, round)) && round == self.round && !is_recorded {
            return Ok(());
        }
        if round < self.round || (round == self.round && self.table.epoch == epoch) {
            let context = format!("round {round} begins, and {} did before it", self.round);
            return Err(Error::new(ErrorKind::InvalidArgument, context));
        }
        self.begun = Some((epoch, round));
        let before = std::mem::replace(&mut self.round, round);
        let arriving = &self.arriving;
        let taken = std::mem::take(&mut self.taken).into_iter();
        let taken: Vec<Extent> = taken.filter(|one| !arriving.contains(one)).collect();
        let offered = std::mem::take(&mut self.offered);
        if std::mem::replace(&mut self.flushed, false) && before < known_from {
            // A log that is newer than this member's may name it, until the next round is settled.
            self.freed.extend(taken);
            self.unsettled.extend(offered);
        } else {
            for extent in taken {
                self.give_up(&extent);
            }
        }
        self.release();
        Ok(())
    }

    /// Rounds from now on are to protect `want`.
    fn want(&mut self, want: CheckpointId) {
        if self.wanted.as_ref().is_none_or(|(known, _)| *known != want) {
            self.wanted = Some((want, Stopwatch::start()));
        }
    }

    /// Of what this round took, its record names all that counts: the rest was taken for a request that came
    /// twice. What is still on its way here stays until it arrived.
    fn give_up_unnamed(&mut self, round: &Round, column: u8) {
        let named = parity_places(round.added.iter(), column);
        for extent in std::mem::take(&mut self.taken) {
            if named.contains(&(extent.segment, extent.offset_bytes)) {
                continue;
            }
            if self.arriving.contains(&extent) {
                self.taken.push(extent);
            } else {
                self.give_up(&extent);
            }
        }
    }

    fn give_up(&mut self, extent: &Extent) {
        self.space
            .replace(address(extent), index(extent.length_bytes));
    }

    /// Gives back the space that no log of the group can name.
    fn release(&mut self) {
        self.released = Stopwatch::start();
        self.space.settle();
        self.space.release_empty(&self.reserve.pool(Owner::Parity));
        let control = self.reserve.control();
        for slot in (0..control.slots()).filter(|&slot| control.is_retired(slot)) {
            let segment = control.slot_segment(slot).map(|(segment, _)| segment);
            let named = segment.is_some_and(|segment| self.is_named(segment));
            if !named {
                control.free_slot(slot);
            }
        }
    }

    /// Whether a stripe of any log of the group, as far as is known, names a segment.
    fn is_named(&self, segment: SegmentId) -> bool {
        // While the epoch changes, what the log names stays as well.
        self.covered.contains_key(&segment)
            || self.offered.contains(&segment)
            || self.unsettled.contains(&segment)
            || self
                .former
                .as_ref()
                .is_some_and(|former| former.names(segment))
            || self.epoch != self.table.epoch
                && self.table.stripes.values().any(|stripe| {
                    let column = self.table.column(self.store()).unwrap_or(u8::MAX);
                    stripe.on(column).any(|extent| extent.segment == segment)
                })
    }

    /// What a round for `id` protects of what the newest root names: `id`, or, where a start went back behind it,
    /// the newest that is older.
    fn newest_up_to(&self, id: CheckpointId) -> Option<CheckpointId> {
        let (root, _) = self.reserve.reader().newest_root().ok()?;
        let named = root.revisions.iter().map(|revision| revision.checkpoint);
        named.filter(|named| *named <= id).max()
    }
    fn retains(&self, id: CheckpointId) -> bool {
        self.newest_up_to(id) == Some(id)
    }

    /// Tells the node's ranks what the group protects; whether the node retains it: a checkpoint that was abandoned
    /// meanwhile protects nothing.
    fn publish_protected(&self, protected: CheckpointId) -> bool {
        let control = self.reserve.control();
        if protected <= control.protected_in_group() {
            return true;
        }
        if !self.retains(protected) {
            return false;
        }
        control.set_protected_in_group(protected);
        if control.one_group() {
            control.set_all_recorded();
        }
        self.still_retains(protected)
    }

    /// A restore that abandons what was published just now may have come between.
    fn still_retains(&self, protected: CheckpointId) -> bool {
        let retains = self.retains(protected);
        if !retains {
            let control = self.reserve.control();
            control.forget_protection_after(CheckpointId::default());
        }
        retains
    }

    /// All members were told of the round: what they tell in votes keeps the checkpoint from now on, so that the job
    /// has it where this group is all of it.
    fn settled(&mut self, epoch: u64, round: u64, protected: CheckpointId) -> Result<()> {
        self.check(epoch, Some(round))?;
        let control = self.reserve.control();
        if control.one_group() && protected > control.protected() && self.retains(protected) {
            control.set_protected(protected);
            self.still_retains(protected);
        }
        Ok(())
    }

    /// What waits for protection. The root goes first: what it refers to was sealed before it. Where this group is all
    /// of the job, nobody counts on checkpoints that were committed between its rounds: only what `want` and the pinned
    /// ones use is encoded, and the root names no other that needs more.
    fn collect(&mut self, want: CheckpointId) -> Result<Collected> {
        let reserve = self.reserve.clone();
        let (reader, control) = (reserve.reader(), reserve.control());
        let (mut root, _) = reader.newest_root()?;
        let pinned = root.revisions.iter().filter(|revision| revision.pinned);
        let mut needed: Vec<u64> = pinned.map(|revision| revision.checkpoint.number).collect();
        needed.push(want.number);
        let is_needed = |slot| {
            !control.one_group() || needed.iter().any(|&number| control.may_use(slot, number))
        };
        let (mut waiting, mut dead, mut left) = (Vec::new(), Vec::new(), Vec::new());
        let slots = control.slots();
        self.reserve.refresh();
        for slot in 0..slots {
            let Some((segment, class)) = control.slot_segment(slot) else {
                continue;
            };
            let covered = self.covered.get(&segment).copied().unwrap_or_default();
            if control.is_retired(slot) {
                if covered.stripes > 0 {
                    dead.push(segment);
                }
                continue;
            }
            let sealed = u32::try_from(control.sealed(slot)).unwrap_or(0);
            if !control.is_of_revisions(slot) || sealed <= covered.bytes {
                continue;
            }
            if is_needed(slot) {
                self.offered.insert(segment);
                waiting.push(Extent {
                    segment,
                    class,
                    offset_bytes: covered.bytes,
                    length_bytes: sealed - covered.bytes,
                    digest: Digest::default(),
                });
            } else {
                left.push(slot);
            }
        }
        root.revisions.retain(|revision| {
            let number = revision.checkpoint.number;
            !left.iter().any(|&slot| control.may_use(slot, number))
        });
        let unwritable = |error| {
            let name = reader.device().name();
            Error::unwritable(format!("{name}: its superblock or root"), error)
        };
        Ok(Collected {
            superblock: reader.superblock().encode().map_err(unwritable)?,
            root: root.encode().map_err(unwritable)?,
            waiting,
            dead,
        })
    }

    /// Space for a parity extent.
    fn allocate(&mut self, length_bytes: u32) -> Result<(Extent, u64)> {
        // In a long round the ranks go on, and give up what it does not need.
        if self.released.elapsed() > RELEASE_EVERY {
            self.release();
        }
        let pool = self.reserve.pool(Owner::Parity);
        let place = self.space.allocate(index(length_bytes), &pool)?;
        let extent = Extent {
            segment: place.segment(),
            class: SegmentClass::of(index(length_bytes)),
            offset_bytes: place.offset_bytes(),
            length_bytes,
            digest: Digest::default(),
        };
        self.taken.push(extent);
        self.arriving.push(extent);
        let offset = self
            .reserve
            .reader()
            .offset_of(place, index(length_bytes))?;
        Ok((extent, offset))
    }

    /// A parity extent stands in the store, or never will; an error if its round is over meanwhile.
    fn arrived(&mut self, (epoch, round): (u64, u64), extent: &Extent) -> Result<()> {
        self.arriving.retain(|other| other != extent);
        let outcome = self.check(epoch, Some(round));
        if outcome.is_err() {
            self.give_up(extent);
        }
        outcome
    }

    /// Has space in the log for the record of this round.
    fn make_room(
        &mut self,
        (epoch, round): (u64, u64),
        record_bytes: u64,
        table_bytes: u64,
    ) -> Result<()> {
        self.check(epoch, Some(round))?;
        let whole = epoch != self.table.epoch || record_bytes >= table_bytes;
        self.log.make_room(whole, record_bytes, table_bytes)
    }

    /// Makes what was taken durable.
    fn flush(&mut self, epoch: u64, round: u64) -> Result<()> {
        self.check(epoch, Some(round))?;
        self.flushed = true;
        if self.taken.is_empty() {
            return Ok(());
        }
        self.reserve.sync()
    }

    /// Records a round of this group, durably; one that is recorded already is left as it is.
    fn record(&mut self, round: &Round) -> Result<()> {
        self.check(round.epoch, Some(round.round))?;
        // While a record is sent again and again, the ranks go on.
        self.release();
        if (self.table.epoch, self.table.round) == (round.epoch, round.round) {
            return Ok(());
        }
        if round.members.len() != self.seats.len() {
            let context = format!("a record of {} members", round.members.len());
            return Err(Error::new(ErrorKind::InvalidArgument, context));
        }
        let column = self.column;
        let former = self.table.column(self.store());
        let mut table = self.table.clone_head();
        let mut freed = Vec::new();
        let removed: Vec<Stripe> = if round.whole {
            std::mem::take(&mut self.table.stripes)
                .into_values()
                .collect()
        } else {
            let ids = round.removed.iter();
            ids.filter_map(|id| self.table.stripes.remove(id)).collect()
        };
        let is_former = self.former.is_none() && (1..round.epoch).contains(&table.epoch);
        let before = is_former.then(|| table.clone_head());
        for stripe in removed.iter().filter(|_| !is_former) {
            let mine = stripe.parity.iter().filter(|p| Some(p.column) == former);
            freed.extend(mine.map(|piece| piece.extent));
        }
        table.stripes = std::mem::take(&mut self.table.stripes);
        table.apply(round);
        if round.whole {
            let kept = parity_places(table.stripes.values(), column);
            freed.retain(|extent| !kept.contains(&(extent.segment, extent.offset_bytes)));
        }
        if let Err(error) = self.log.append(round, &table) {
            // As before: what was taken out of the table goes back.
            let back = removed.into_iter().map(|stripe| (stripe.id, stripe));
            for id in round.added.iter().map(|stripe| stripe.id) {
                table.stripes.remove(&id);
            }
            table.stripes.extend(back);
            self.table.stripes = table.stripes;
            return Err(error);
        }
        self.table = table;
        if round.whole {
            self.cover_all(column);
        } else {
            for stripe in &removed {
                self.uncover(stripe, column);
            }
            for stripe in &round.added {
                self.cover(stripe, column);
            }
        }
        self.freed.extend(freed);
        self.give_up_unnamed(round, column);
        self.offered.clear();
        if let Some(mut before) = before {
            before.stripes = removed.into_iter().map(|one| (one.id, one)).collect();
            self.former = Some(Former::of(before, self.store()));
        } else {
            let pieces = removed.iter().flat_map(|stripe| &stripe.pieces);
            let mine = pieces.filter(|piece| Some(piece.column) == former);
            self.unsettled
                .extend(mine.map(|piece| piece.extent.segment));
        }
        self.flushed = false;
        Ok(())
    }

    /// The round is recorded by all members: what it replaced is free.
    fn settle(&mut self, epoch: u64, round: u64, protected: CheckpointId) -> Result<()> {
        self.check(epoch, Some(round))?;
        if (self.table.epoch, self.table.round) != (epoch, round) {
            let context = format!("round {round} is settled, and not recorded here");
            return Err(Error::new(ErrorKind::InvalidArgument, context));
        }
        for extent in std::mem::take(&mut self.freed) {
            self.give_up(&extent);
        }
        self.unsettled.clear();
        let is_kept = self.publish_protected(protected);
        let control = self.reserve.control();
        if let Some((_, since)) = self.wanted.take().filter(|(id, _)| *id == protected) {
            control.set_protect_seconds(since.seconds());
        }
        if control.all_recorded()
            && let Err(error) = self.forget_former()
        {
            // The next round tries again.
            tracing::debug!("what protected before is kept: {error}");
        }
        self.release();
        if !is_kept {
            let context = format!("checkpoint {protected} was given up while it was encoded");
            return Err(Error::new(ErrorKind::NotRetained, context));
        }
        let control = self.reserve.control();
        control.set_round(control.round().0, 0);
        Ok(())
    }
}

impl NodeMember {
    /// Every group of the job has recorded a round in this start: the former composition protects nobody any more.
    fn forget_former(&mut self) -> Result<()> {
        if self.former.is_none() {
            return Ok(());
        }
        self.log.forget_former()?;
        let parity = self.former.take().map(Former::into_parity);
        for extent in parity.unwrap_or_default() {
            self.give_up(&extent);
        }
        Ok(())
    }

    /// The table of the composition `epoch`.
    pub(super) fn table_of(&self, epoch: u64) -> Option<&StripeTable> {
        let (table, former) = self.tables();
        former
            .into_iter()
            .chain([table])
            .find(|table| table.epoch == epoch)
    }
}

mod answers;
mod former;
mod log;
#[cfg(test)]
pub(super) mod tests;
