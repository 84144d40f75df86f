// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the way back: chooses a checkpoint with all ranks, reads and verifies it into the
//! program's memory, and opens a new start of the job.
//! In from: `store` (what recovery found), `restart::redistribute`. Out to: the program's memory.
//! Invariants: all ranks restore the same checkpoint or none; every byte given back was verified; later
//! checkpoints are durably abandoned before it returns, and only what is proven to be lost, or a number that
//! was named, leads to an older one ([`ErrorKind::proves_loss`]).

use super::assemble::Assembly;
use super::files::RestoredFiles;
use super::slabs::{Slabs, ranks_in};
use super::variable::Registered;
use super::vote::{vote, vote_with};
use super::{Level, Session, Stores, lock, to_i64};
use backstay_base::clock::{Stopwatch, patiently};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::notice;
use backstay_format::limits::NAME_BYTES_MAX;
use backstay_format::{BlockRef, CheckpointId, RankEntry, StreamRoot, VariableDescriptor};
use backstay_metrics::What;
use backstay_store::read_back::read_streams;
use backstay_store::reader::StoreReader;
use backstay_store::recover::FoundRevision;
use backstay_store::redistribute::describe;
use backstay_store::region::Region;
use backstay_store::revision::{ReadPart, Start, read_part, read_ranks};
use backstay_store::track::mappings::Access;
use backstay_store::tree::read_stream;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// What a restore did on this rank.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct Restored {
    /// Which checkpoint.
    pub checkpoint: CheckpointId,
    /// Bytes given back to the program.
    pub bytes_read: u64,
    /// Time it took.
    pub time: Duration,
    /// Ranks of the job that took it.
    pub ranks_then: u32,
    /// Newer checkpoints that were skipped because they were damaged.
    pub fell_back: u32,
    /// Stored variables of this rank that the program does not protect.
    pub unclaimed: u32,
    /// What it took: the stores of the nodes, one that was made again from others' parity or copy, the
    /// archive; the highest of all ranks.
    pub level: Level,
}

/// What a restore read on this rank, before all ranks know that it is whole.
#[derive(Debug)]
struct ReadBack {
    restored: Restored,
    /// What the next capture is compared with, where the rank's part is in its node's store.
    start: Option<Start>,
    /// Files that wait beside their paths, and the number of the restore that they are of.
    files: RestoredFiles,
    token: u64,
}

/// A variable of one rank as it is stored.
#[derive(Debug)]
struct StoredSlab {
    /// The store that has it.
    reader: Arc<StoreReader>,
    /// What it is.
    descriptor: VariableDescriptor,
    /// Where it is.
    stream: StreamRoot,
}

/// Whether a checkpoint is not to be had so: from elsewhere, later, or not at all.
fn is_missing(outcome: &Result<Restored>) -> bool {
    matches!(outcome, Err(error) if error.kind().proves_loss() || error.kind().leaves_open())
}

/// What two ways to the same come to: while one of them could not be tried, nothing is proven.
fn weigh(first: Error, second: Error) -> Error {
    if first.kind().leaves_open() && second.kind().proves_loss() {
        first
    } else {
        second
    }
}

impl Session {
    /// Restores the newest checkpoint that every rank can have whole into the protected variables.
    /// [`ErrorKind::NoCheckpoint`] says that there is none. When a newer one turns out damaged, all
    /// ranks take the next older one; when it could not be read, this is [`ErrorKind::Unreadable`], and
    /// nothing is given up. The first of a program that has `restore_checkpoint` set restores that one. A
    /// checkpoint under way is settled first. Collective.
    pub fn restore(&mut self) -> Result<Restored> {
        self.refuse_open_set("restore")?;
        self.restore_with_files()
    }

    /// The same, also of the set of files that is open.
    pub(super) fn restore_with_files(&mut self) -> Result<Restored> {
        self.process.check()?;
        self.settle_before_restore()?;
        if let (Some(number), false) = (self.config.restore_checkpoint, self.start_begun) {
            return self.restore_number(number);
        }
        if let Some(doubt) = &self.doubt {
            return Err(self.tell_unreadable(doubt.again()));
        }
        let newest_first = self.policy.complete.iter().rev().copied();
        let may = |id: &CheckpointId| self.goes_on_from(*id);
        let candidates: Vec<CheckpointId> = newest_first.filter(may).collect();
        self.restore_one_of(&candidates)
    }

    /// Restores checkpoint `number`, and abandons those after it. A checkpoint under way is settled first.
    /// Collective.
    pub fn restore_from(&mut self, number: u64) -> Result<Restored> {
        self.process.check()?;
        self.refuse_open_set("restore_from")?;
        self.settle_before_restore()?;
        self.restore_number(number)
    }

    fn restore_number(&mut self, number: u64) -> Result<Restored> {
        let id = self.complete_of(number)?;
        self.restore_one_of(&[id])
    }

    fn complete_of(&self, number: u64) -> Result<CheckpointId> {
        let mut complete = self.policy.complete.iter().copied();
        let found = complete.find(|id| id.number == number);
        found.ok_or_else(|| self.not_retained(number))
    }

    fn restore_one_of(&mut self, candidates: &[CheckpointId]) -> Result<Restored> {
        let watch = Stopwatch::start();
        let mut last = self.nothing_to_restore();
        for (fell_back, &id) in (0..).zip(candidates) {
            match self.try_restore(id) {
                Ok(ReadBack {
                    mut restored,
                    start,
                    files,
                    token,
                }) => {
                    self.place_files(id, files, token)?;
                    self.open_start(id, start)?;
                    restored.fell_back = fell_back;
                    restored.time = watch.elapsed();
                    self.note_restore(&restored);
                    return Ok(restored);
                }
                Err(error) if error.kind().proves_loss() => {
                    if self.comm.rank() == 0 {
                        notice::warn(&format!("checkpoint {id} cannot be restored: {error}"));
                    }
                    // Shapes are asked for of the one that can be had.
                    self.policy.complete.remove(&id);
                    self.lost = Some(error.again());
                    last = error;
                }
                Err(error) if error.kind() == ErrorKind::Unreadable => {
                    return Err(self.tell_unreadable(self.not_given_up(id, &error)));
                }
                Err(error) => return Err(error),
            }
        }
        Err(self.archive.nothing_left(last))
    }

    /// Reads checkpoint `id` on all ranks. Where one cannot, parity is asked for what it was, and then the
    /// archive for its own part of the same checkpoint.
    fn try_restore(&mut self, id: CheckpointId) -> Result<ReadBack> {
        let what = format!("restoring checkpoint {}", id.number);
        let found = self.find_committed();
        let mut slabs = self.find_slabs(id);
        let mut mine = found.and_then(|()| self.read_within_limit(id, &slabs));
        let mut outcome = self.vote_read(&what, id, &mine);
        if is_missing(&outcome) {
            let repaired = self.protection.repair(&self.comm, &self.config, &self.node);
            match repaired {
                Ok(false) => {}
                Ok(true) => {
                    self.find_slabs_again(id, &mut slabs);
                    mine = mine.or_else(|_| self.read_within_limit(id, &slabs));
                    outcome = self.vote_read(&what, id, &mine);
                }
                Err(error) if error.kind().leaves_open() => {
                    mine = mine.map_err(|damage| weigh(error, damage));
                    outcome = self.vote_read(&what, id, &mine);
                }
                Err(error) => return Err(error),
            }
        }
        if is_missing(&outcome) && self.archive.has(id) {
            if let (0, Err(error)) = (self.comm.rank(), &outcome) {
                notice::warn(&format!(
                    "checkpoint {id} is read from the archive: {error}"
                ));
            }
            let prefers = mine.is_err() && self.archive.prefer(id);
            self.find_slabs_again(id, &mut slabs);
            if prefers {
                mine = mine.or_else(|first| {
                    let second = self.read_within_limit(id, &slabs);
                    second.map_err(|second| weigh(first, second))
                });
            }
            outcome = self.vote_read(&what, id, &mine);
        }
        let restored = outcome?;
        mine.map(|read| ReadBack { restored, ..read })
    }

    /// Where it was not found out who has which slabs, on all ranks, that is tried once more. Collective.
    fn find_slabs_again(&self, id: CheckpointId, slabs: &mut Result<Slabs>) {
        if slabs.is_err() {
            *slabs = self.find_slabs(id);
        }
    }

    /// Reads checkpoint `id` on this rank. A file that could not be read is opened and read again within
    /// `timeout_ms`; a peer was asked again where it was pulled from.
    fn read_within_limit(&self, id: CheckpointId, slabs: &Result<Slabs>) -> Result<ReadBack> {
        let slabs = slabs.as_ref().map_err(Error::again)?;
        let limit = Duration::from_millis(self.config.timeout_ms);
        let may_pass = |error: &Error| error.kind() == ErrorKind::StoreIo && error.may_pass();
        let read = patiently(limit, may_pass, || {
            self.read_checkpoint(id, slabs).inspect_err(|error| {
                if may_pass(error) {
                    self.archive.close_readers();
                }
            })
        });
        let is_named = self.node.names_one && !self.start_begun;
        match read {
            Err(error) if is_named && may_pass(&error) && self.archive.give_up_unread() => {
                notice::warn(&format!(
                    "{error}; a checkpoint to restore was named, so what can be read of the archive's file is \
                     taken, and what may stand in a slot that cannot be is given up with the restore"
                ));
                self.read_checkpoint(id, slabs)
            }
            read => read,
        }
    }

    /// All ranks' outcome of reading; the level that it took is the highest of all ranks.
    fn vote_read(&self, what: &str, id: CheckpointId, read: &Result<ReadBack>) -> Result<Restored> {
        let level = read
            .as_ref()
            .map_or(Level::Node, |read| read.restored.level);
        let mut highest = [i64::from(level as u8)];
        // As one kind: where another rank proved that it is lost, that counts.
        let mine = match read {
            Ok(read) => Ok(read.restored.clone()),
            Err(error) if error.kind().leaves_open() => Err(error.as_kind(ErrorKind::Unreadable)),
            Err(error) => Err(error.again()),
        };
        let outcome = vote_with(&self.comm, what, to_i64(id.number), mine, &mut highest);
        outcome.map(|restored| Restored {
            level: Level::of(highest[0]).unwrap_or_default(),
            ..restored
        })
    }

    fn note_restore(&mut self, restored: &Restored) {
        if self.comm.rank() == 0 {
            notice::info(&format!(
                "restored checkpoint {} of {} ranks in {:.3} s{}",
                restored.checkpoint,
                restored.ranks_then,
                restored.time.as_secs_f64(),
                if restored.fell_back > 0 {
                    ", after newer ones failed"
                } else {
                    ""
                }
            ));
        }
        let seconds = restored.time.as_secs_f64();
        let relaunch = self.relaunch_seconds(seconds);
        let recovery = seconds + relaunch.unwrap_or(0.0);
        self.pace_from(restored.checkpoint, restored.level, recovery);
        self.keep_learnt();
        let Some(file) = &mut self.metrics else {
            return;
        };
        let metrics = &mut file.metrics;
        metrics.restarts += 1;
        metrics.incarnation = self.incarnation;
        metrics.restore_seconds.add(seconds);
        let of_level = metrics.restore_seconds_by_level.entry(restored.level as u8);
        of_level.or_default().add(seconds);
        if let Some(relaunch) = relaunch {
            metrics.relaunch_seconds.add(relaunch);
        }
        file.note(What::Restore, restored.checkpoint.number, seconds);
        if let Err(error) = file.write() {
            notice::warn(&error.to_string());
        }
    }

    /// How long it took from when the start before was seen to be dead until this one began to restore what took
    /// `restore_seconds`: once, and where `backstay run` said when that was.
    fn relaunch_seconds(&mut self, restore_seconds: f64) -> Option<f64> {
        let died = Duration::from_millis(self.died_unix_ms.take()?);
        let now = Duration::from_nanos(backstay_base::clock::unix_ns());
        // The clock of another machine may be behind.
        let since = now.checked_sub(died)?.as_secs_f64();
        Some((since - restore_seconds).max(0.0))
    }

    /// Before its first checkpoint a start that restored nothing is named in every store that an earlier one
    /// left, so that none gives the same names. Collective.
    pub(super) fn open_start_from_nothing(&mut self) -> Result<()> {
        if self.start_begun {
            return Ok(());
        }
        self.begin_lineage();
        if self.node.was_there {
            let named = match (&self.store, self.node.leads()) {
                (Some(store), true) => lock(&store.node).name_start(self.lineage),
                (None, true) => self.node.put_unopened_aside(),
                _ => Ok(()),
            };
            vote(
                &self.comm,
                "recording this start",
                to_i64(self.incarnation),
                named,
            )?;
        }
        self.start_begun = true;
        Ok(())
    }

    /// Durably abandons what is newer than `id`, and starts this start from it. Collective.
    fn open_start(&mut self, id: CheckpointId, start: Option<Start>) -> Result<()> {
        if std::mem::replace(&mut self.start_begun, true) {
            self.incarnation += 1;
        }
        self.go_on_with_lineage(id);
        self.policy.complete.retain(|other| *other <= id);
        // Where a protected checkpoint is abandoned, its parity covers this one, and nothing of what comes, whose
        // numbers may be lower.
        self.policy.protected = self.policy.protected.map(|protected| protected.min(id));
        let begun = match (&self.store, self.node.leads()) {
            (None, true) => self.node.put_unopened_aside(),
            (Some(store), true) => {
                let mut node = lock(&store.node);
                let begun = node.begin_start(self.lineage, id, &self.policy);
                // What is restored can be protected at once.
                begun.and_then(|()| node.seal(id))
            }
            _ => Ok(()),
        };
        vote(
            &self.comm,
            "recording a new start",
            to_i64(self.incarnation),
            begun,
        )?;
        if self.node.leads() {
            // Now that no root names them.
            self.node.control.forget_protection_after(id);
        }
        self.give_up_no_more();
        self.last_number = id.number;
        self.doubt = None;
        self.failed_turns.clear();
        self.turns_before = self.turn;
        // Before anything is forgotten: what this rank went on from may be among it.
        if let Some(store) = &mut self.store {
            store.rank.start_from(start);
        }
        let begun = self
            .archive
            .begin(self.lineage, Some(id), &mut self.protection);
        vote(
            &self.comm,
            "recording this start in the archive",
            to_i64(self.incarnation),
            begun,
        )?;
        if self.node.leads() {
            // Now that nobody drains what is abandoned.
            self.node.control.forget_archive_after(id);
        }
        self.archive.abandon_after(id);
        self.archive.close_readers();
        for variable in self.variables.values_mut() {
            variable.changes.written();
        }
        self.drop_unretained(None);
        Ok(())
    }

    /// Finds the checkpoints that this start committed, as an earlier start's were found at opening.
    pub(super) fn find_committed(&mut self) -> Result<()> {
        let Some(store) = &self.store else {
            return Ok(());
        };
        let known: BTreeSet<CheckpointId> = self.found.iter().map(FoundRevision::id).collect();
        if self.policy.complete.is_subset(&known) {
            return Ok(());
        }
        let reserve = store.rank.reserve();
        reserve.refresh();
        let (root, _) = reserve.reader().newest_root()?;
        for revision in root.revisions {
            if known.contains(&revision.checkpoint) {
                continue;
            }
            let ranks = read_ranks(reserve.reader(), &revision);
            let rank = self.comm.rank();
            let own = ranks
                .as_ref()
                .ok()
                .and_then(|r| r.iter().find(|entry| entry.rank == rank));
            let part = own.map(|entry| Ok(entry.root));
            self.found.push(FoundRevision {
                revision,
                ranks,
                part,
                unread: None,
            });
        }
        Ok(())
    }

    pub(super) fn found(&self, id: CheckpointId) -> Result<&FoundRevision> {
        let found = self.found.iter().find(|found| found.id() == id);
        found.ok_or_else(|| self.not_retained(id.number))
    }

    pub(super) fn stores(&self) -> Result<&Stores> {
        let none = || Error::new(ErrorKind::NoCheckpoint, "nothing is stored for this job");
        self.store.as_ref().ok_or_else(none)
    }

    /// Where `rank`'s part is: in this node's store, or in one of another node.
    pub(super) fn entry(
        &self,
        id: CheckpointId,
        rank: u32,
    ) -> Result<(Arc<StoreReader>, BlockRef)> {
        let find = |ranks: &[RankEntry]| {
            let mut ranks = ranks.iter();
            ranks
                .find(|entry| entry.rank == rank)
                .map(|entry| entry.root)
        };
        let mut wrong = None;
        let prefers = self.archive.is_preferred(id);
        if let (Ok(found), Ok(stores), false) = (self.found(id), self.stores(), prefers) {
            match &found.ranks {
                // Its space is not known in full: nothing can be written beside it.
                _ if found.unread().is_some() => wrong = found.unread().map(Error::again),
                Ok(ranks) => {
                    if let Some(entry) = find(ranks) {
                        return Ok((stores.rank.reserve().shared_reader(), entry));
                    }
                }
                Err(error) => wrong = Some(error.again()),
            }
        }
        let reader = match self.reader_elsewhere(id, rank) {
            // The same store by another way.
            Ok(reader) if wrong.is_some() && self.is_own(&reader) => {
                return Err(wrong.unwrap_or_else(|| self.not_retained(id.number)));
            }
            Ok(reader) => reader,
            Err(error) if prefers => return Err(error),
            Err(error) => {
                return Err(match wrong {
                    Some(wrong) => weigh(wrong, error),
                    None => error,
                });
            }
        };
        let entry = find(&ranks_in(&reader, id)?);
        let gone = || {
            let name = reader.device().name();
            let context = format!("{name} has no part of rank {rank} of checkpoint {id}");
            Error::new(ErrorKind::NotRetained, context)
        };
        let entry = entry.ok_or_else(gone)?;
        Ok((reader, entry))
    }

    /// The store that has `rank`'s part, where that is not what this rank has open to write.
    pub(super) fn reader_elsewhere(&self, id: CheckpointId, rank: u32) -> Result<Arc<StoreReader>> {
        let prefers = self.archive.is_preferred(id);
        if prefers || self.protection.choice(id).is_none() && self.archive.has(id) {
            return self.archive.reader_for(id, rank);
        }
        // As long as nothing of this start is written.
        let gives_up = self.node.names_one && !self.start_begun;
        self.protection
            .reader_for(id, rank, (&self.config, gives_up))
    }

    fn is_own(&self, reader: &StoreReader) -> bool {
        let own = self.store.as_ref().map(|store| store.rank.reserve());
        own.is_some_and(|own| own.reader().superblock().store == reader.superblock().store)
    }

    /// Which level this rank's part of a checkpoint comes from, or all parts where their number changed.
    fn level_of(&self, id: CheckpointId, world_size: u32) -> Level {
        let rank = self.comm.rank();
        let is_here = |found: &FoundRevision| match &found.ranks {
            Ok(_) if world_size != self.comm.size() => found.holds_all_ranks(),
            Ok(ranks) => ranks.iter().any(|entry| entry.rank == rank),
            Err(_) => false,
        };
        let is_here = self.stores().is_ok() && self.found(id).is_ok_and(is_here);
        if self.archive.is_preferred(id) {
            Level::Archive
        } else if is_here || !self.archive.has(id) || self.protection.choice(id).is_some() {
            self.protection.level_of(id)
        } else {
            Level::Archive
        }
    }

    pub(super) fn world_size(&self, id: CheckpointId) -> Result<u32> {
        match (self.found(id), self.protection.choice(id)) {
            (Ok(found), _) => Ok(found.revision.world_size),
            (Err(_), Some(choice)) => Ok(choice.world_size),
            (Err(error), None) => self.archive.world_size(id).ok_or(error),
        }
    }

    fn read_checkpoint(&self, id: CheckpointId, slabs: &Slabs) -> Result<ReadBack> {
        let world_size = self.world_size(id)?;
        let own = if world_size == self.comm.size() {
            Some(self.entry(id, self.comm.rank())?)
        } else {
            self.refuse_rank_variables(world_size)?;
            None
        };
        let part = match &own {
            Some((reader, entry)) => Some((&**reader, read_part(reader, entry)?)),
            None => None,
        };
        let mut restored = Restored {
            checkpoint: id,
            ranks_then: world_size,
            level: self.level_of(id, world_size),
            ..Restored::default()
        };
        self.memory.check(self.variables.values(), Access::Write)?;
        let (mut streams, mut of_others) = (Vec::new(), Vec::new());
        for variable in self.variables.values() {
            match Self::find_variable(id, part.as_ref(), variable)? {
                Some(stream) => streams.push((stream, variable.region)),
                None => of_others.push(variable),
            }
        }
        if let Some((reader, _)) = &part {
            let threads = self.node.capture_threads(self.config.capture_threads);
            restored.bytes_read += read_streams(reader, &streams, threads)?;
        }
        restored.bytes_read += self.gather_slabs((id, world_size), &of_others, slabs)?;
        let token = slabs.token();
        let of_files = part.as_ref().map(|(reader, part)| (*reader, part));
        let files = self.files.read(id, of_files, token)?;
        restored.bytes_read += files.bytes;
        if let Some((_, part)) = &part {
            let unclaimed = |d: &&VariableDescriptor| {
                !self.variables.contains(&d.name) && !self.files.claims(d)
            };
            let count = part.descriptors.iter().filter(unclaimed).count();
            restored.unclaimed = u32::try_from(count).unwrap_or(u32::MAX);
        }
        let start = match (&own, &self.store) {
            (Some((reader, entry)), Some(store))
                if Arc::ptr_eq(reader, &store.rank.reserve().shared_reader()) =>
            {
                Some(store.rank.load_start(id, *entry)?)
            }
            _ => None,
        };
        Ok(ReadBack {
            restored,
            start,
            files,
            token,
        })
    }

    fn refuse_rank_variables(&self, world_size: u32) -> Result<()> {
        let of_a_rank = self
            .variables
            .values()
            .filter(|v| v.descriptor.slab.is_none());
        let names: Vec<&str> = of_a_rank.map(|v| &*v.descriptor.name).take(8).collect();
        if names.is_empty() && !self.files.is_empty() {
            let context = format!(
                "the checkpoint is of {world_size} ranks, this job has {}: files {:?} and routed ones are those \
                 of a rank; unprotect them, restore, and write them by old rank (stored_files, restore_file)",
                self.comm.size(),
                self.files.names(8)
            );
            return Err(Error::new(ErrorKind::VariableMismatch, context));
        }
        if names.is_empty() {
            return Ok(());
        }
        let context = format!(
            "the checkpoint is of {world_size} ranks, this job has {}: variables {names:?} are not \
             declared as slabs of a global array; unprotect them and read them by old rank",
            self.comm.size()
        );
        Err(Error::new(ErrorKind::VariableMismatch, context))
    }

    /// A variable of this rank's own part, as it was stored; nothing where it is a slab that others stored.
    fn find_variable(
        id: CheckpointId,
        part: Option<&(&StoreReader, ReadPart)>,
        variable: &Registered,
    ) -> Result<Option<StreamRoot>> {
        let wanted = &variable.descriptor;
        let stored = part.and_then(|(_, part)| part.find(&wanted.name));
        if let Some((stored, stream)) = stored
            && stored.element == wanted.element
            && stored.shape == wanted.shape
            && stored.slab == wanted.slab
        {
            return Ok(Some(*stream));
        }
        if wanted.slab.is_some() {
            return Ok(None);
        }
        let found = match (stored, part) {
            (Some((stored, _)), _) => describe(stored),
            (None, Some((_, part))) => {
                let names: Vec<&str> = part.descriptors.iter().map(|d| &*d.name).take(16).collect();
                format!("no variable of that name; there are {names:?}")
            }
            (None, None) => "a checkpoint of another number of ranks".to_owned(),
        };
        let context = format!(
            "the program protects {}; checkpoint {id} has {found}",
            describe(wanted)
        );
        Err(Error::new(ErrorKind::VariableMismatch, context))
    }

    /// Puts this rank's parts of global arrays together from those of the ranks of then that have some, one after the
    /// other, each read once; returns the bytes of all.
    fn gather_slabs(
        &self,
        (id, ranks_then): (CheckpointId, u32),
        variables: &[&Registered],
        slabs: &Slabs,
    ) -> Result<u64> {
        let mut assemblies = Vec::new();
        let mut sources: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (at, variable) in variables.iter().enumerate() {
            let assembly = Assembly::new(&variable.descriptor)?;
            let ranks = if slabs.are_known() {
                slabs.ranks_of(&variable.descriptor)?
            } else {
                // This rank's part could not be read when it was asked for; now it could.
                (0..ranks_then).collect()
            };
            for rank in ranks {
                sources.entry(rank).or_default().push(at);
            }
            assemblies.push((assembly, variable.region));
        }
        for (rank, wanted) in sources {
            if wanted.iter().all(|&at| assemblies[at].0.is_whole()) {
                continue;
            }
            let (reader, entry) = self.entry(id, rank)?;
            let part = read_part(&reader, &entry)?;
            for at in wanted {
                let (assembly, region) = &mut assemblies[at];
                let stored = part.find(&variables[at].descriptor.name);
                if let (Some(stored), false) = (stored, assembly.is_whole()) {
                    assembly.take(&reader, stored, region)?;
                }
            }
        }
        let whole = assemblies.into_iter();
        whole.map(|(assembly, _)| assembly.finish()).sum()
    }

    /// The shape of a variable as the checkpoint stores it that [`Session::restore`] would take.
    pub fn stored_shape(&mut self, name: &str, rank: u32) -> Result<Vec<u64>> {
        self.process.check()?;
        let stored = self.stored_variable(name, rank)?;
        Ok(stored.descriptor.shape)
    }

    /// The checkpoint that [`Session::restore`] would take, as far as is known before any is read.
    fn to_restore(&self) -> Result<CheckpointId> {
        if let Some(number) = self.config.restore_checkpoint.filter(|_| !self.start_begun) {
            return self.complete_of(number);
        }
        let newest = self.newest_to_go_on_from();
        newest.ok_or_else(|| self.nothing_to_restore())
    }

    /// The part of `rank` in the checkpoint that [`Session::restore`] would take. Local.
    pub(super) fn part_to_restore(
        &mut self,
        rank: u32,
    ) -> Result<(CheckpointId, Arc<StoreReader>, ReadPart)> {
        self.find_committed()?;
        let id = self.to_restore()?;
        let (reader, entry) = self.entry(id, rank)?;
        let part = read_part(&reader, &entry)?;
        Ok((id, reader, part))
    }

    fn stored_variable(&mut self, name: &str, rank: u32) -> Result<StoredSlab> {
        let (id, reader, part) = self.part_to_restore(rank)?;
        if let Some((stored, stream)) = part.find(name) {
            return Ok(StoredSlab {
                reader,
                descriptor: stored.clone(),
                stream: *stream,
            });
        }
        let names: Vec<&str> = part.descriptors.iter().map(|d| &*d.name).take(16).collect();
        let name: String = name.chars().take(NAME_BYTES_MAX).collect();
        let context =
            format!("rank {rank} has no variable {name:?} in checkpoint {id}; there are {names:?}");
        Err(Error::new(ErrorKind::VariableMismatch, context))
    }

    /// Reads a variable of any rank of the restored, or newest, checkpoint into memory of ours. Local.
    ///
    /// # Safety
    /// `address` is valid for writes of `bytes`.
    #[expect(unsafe_code, reason = "the program's memory is reached by pointer")]
    pub unsafe fn read_rank(
        &mut self,
        name: &str,
        rank: u32,
        address: *mut u8,
        bytes: u64,
    ) -> Result<()> {
        self.process.check()?;
        let StoredSlab {
            reader,
            descriptor: stored,
            stream,
        } = self.stored_variable(name, rank)?;
        if stream.length_bytes != bytes || (address.is_null() && bytes > 0) {
            let context = format!(
                "{} of rank {rank} has {} bytes, the buffer has {bytes}",
                describe(&stored),
                stream.length_bytes
            );
            return Err(Error::new(ErrorKind::InvalidArgument, context));
        }
        // SAFETY: the caller promises that `address` is valid for `bytes`; used until we return.
        let mut region = unsafe { Region::new(address, bytes) };
        self.memory.check_buffer(&region.addresses(), name)?;
        read_stream(&reader, &stream, "block", &mut region).map(|_| ())
    }
}
