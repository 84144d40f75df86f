// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the durable memory of a redundancy group beside a store: which stripes there are, and
//! what every member's store was when they were made.
//! In: rounds, after all that they name is durable. Out: the table as of the last whole record.
//! Invariants: records are only appended; when the log has grown to more than twice its table, the
//! table is written to another of three files, which becomes the log when it is whole and synced;
//! also after an append that failed; what is found at opening is synced before it is built on. While a new
//! composition of the group is not settled, one file is the log of the former one, and is not written.
//! Format: docs/format/parity.md.

use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::Device;
use backstay_base::io::file::FileDevice;
use backstay_format::StripeLogHead;
use backstay_format::agent::RecordPart;
use backstay_format::stripe::{LOG_HEAD_BYTES, records};
use backstay_format::width::{index, to_u64, to_usize};
use backstay_format::{CheckpointId, FormatError, Member, Round, StoreId, Stripe, StripeId};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Names of the log files in the folder of their store: one is the log, one may be that of the former composition,
/// and to one the table is written.
pub const LOG_FILES: [&str; 3] = [
    "stripes-0.backstay",
    "stripes-1.backstay",
    "stripes-2.backstay",
];

/// The files of a log.
pub type LogFiles = [Arc<dyn Device>; LOG_FILES.len()];

/// A log below this size is not written anew.
const COMPACT_BYTES_MIN: u64 = 1 << 20;
/// Space of a log grows in such steps.
const STEP_BYTES: u64 = 256 << 10;
/// A log is never read beyond this.
const LOG_BYTES_MAX: u64 = 4 << 30;

/// The stripes of a group and its members, as the log has them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StripeTable {
    /// Composition of the group; 0 before the first.
    pub epoch: u64,
    /// Last recorded round.
    pub round: u64,
    /// Losses covered.
    pub parity: u8,
    /// Losses that were asked to be covered.
    pub asked: u8,
    /// Most pieces of a stripe.
    pub pieces_max: u8,
    /// Newest protected checkpoint of the group.
    pub protected: CheckpointId,
    /// The members, by column.
    pub members: Vec<Member>,
    /// The stripes.
    pub stripes: BTreeMap<StripeId, Stripe>,
}

impl StripeTable {
    /// Takes what a round changed.
    pub fn apply(&mut self, round: &Round) {
        if round.whole {
            self.stripes.clear();
        }
        self.epoch = round.epoch;
        self.round = round.round;
        (self.parity, self.asked, self.pieces_max) = (round.parity, round.asked, round.pieces_max);
        self.protected = round.protected;
        self.members.clone_from(&round.members);
        for id in &round.removed {
            self.stripes.remove(id);
        }
        for stripe in &round.added {
            self.stripes.insert(stripe.id, stripe.clone());
        }
    }

    /// Part `number` of all of it as one record; `None` behind the last.
    pub fn part(&self, number: u32) -> Option<RecordPart> {
        let (each, at) = (RecordPart::STRIPES_MAX, index(number));
        let parts = self.stripes.len().div_ceil(each).max(1);
        let stripes = self.stripes.values().skip(at.saturating_mul(each));
        (at < parts).then(|| RecordPart {
            number,
            last: at + 1 == parts,
            round: Round {
                added: stripes.take(each).cloned().collect(),
                ..self.clone_head().whole(0)
            },
        })
    }

    /// Bytes of all of it as one record.
    pub fn whole_bytes(&self) -> u64 {
        let stripes = self.stripes.values().map(Stripe::encoded_bytes);
        self.clone_head().whole(0).encoded_bytes() + stripes.sum::<u64>()
    }

    /// All but the stripes.
    #[must_use]
    pub fn clone_head(&self) -> Self {
        Self {
            members: self.members.clone(),
            stripes: BTreeMap::new(),
            ..*self
        }
    }

    /// All of it as one record.
    pub fn whole(&self, generation: u64) -> Round {
        Round {
            generation,
            epoch: self.epoch,
            round: self.round,
            whole: true,
            parity: self.parity,
            asked: self.asked,
            pieces_max: self.pieces_max,
            protected: self.protected,
            members: self.members.clone(),
            removed: Vec::new(),
            added: self.stripes.values().cloned().collect(),
        }
    }

    /// The column of `store`, if it is a member.
    pub fn column(&self, store: StoreId) -> Option<u8> {
        let at = self.members.iter().position(|m| m.store == store)?;
        u8::try_from(at).ok()
    }

    /// The number for the next new stripe.
    pub fn next_stripe(&self) -> StripeId {
        StripeId(self.stripes.last_key_value().map_or(1, |(id, _)| id.0 + 1))
    }
}

/// The table of the log beside the store in `directory`, for reading only; `None` if there is no log
/// that can be read.
pub fn read_beside(directory: &Path, store: StoreId) -> Option<StripeTable> {
    look_beside(directory, store).ok().flatten()
}

/// The same; an error where there may be one that cannot be read.
pub fn look_beside(directory: &Path, store: StoreId) -> Result<Option<StripeTable>> {
    look_at_both(directory, store).map(|found| found.map(|(table, _)| table))
}

/// The same, and the table of the former composition, where the newest is not settled.
pub fn look_at_both(directory: &Path, store: StoreId) -> Result<Option<Tables>> {
    let open = |name: &str| -> Result<Option<Arc<dyn Device>>> {
        let path = directory.join(name);
        match FileDevice::open_read_only(&path) {
            Ok(file) => Ok(Some(Arc::new(file))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io(format!("opening {}", path.display()), error)),
        }
    };
    let mut files = Vec::new();
    for name in LOG_FILES {
        files.extend(open(name)?);
    }
    let Ok(files) = LogFiles::try_from(files) else {
        return Ok(None);
    };
    let found = StripeLog::find(files, store)?;
    Ok(Some((found.table, found.former)))
}

/// The table of a log, and that of the former composition, where the newest is not settled.
pub type Tables = (StripeTable, Option<StripeTable>);

/// The log of one store.
#[derive(Debug)]
pub struct StripeLog {
    files: LogFiles,
    store: StoreId,
    active: usize,
    generation: u64,
    end: u64,
    /// Bytes of the last whole record.
    whole_bytes: u64,
    /// An append failed, and what of it is in the files is not known: the next is a whole record, which
    /// hides it.
    doubtful: bool,
    /// Composition of the group that each file is of; 0 where it is none.
    epochs: [u64; 3],
    /// The file that is the log of the former composition.
    former: Option<usize>,
}

/// A log and what it holds.
struct Found {
    log: StripeLog,
    table: StripeTable,
    former: Option<StripeTable>,
}

impl StripeLog {
    /// The log in `files`, to go on with it, and the table it holds; an empty one where there is none.
    /// What is found is durable on return: who wrote it may not have come to its sync.
    pub fn open(files: LogFiles, store: StoreId) -> Result<(Self, StripeTable)> {
        Self::open_both(files, store).map(|(log, (table, _))| (log, table))
    }

    /// The same, and the table of the former composition, where the newest is not settled.
    pub fn open_both(files: LogFiles, store: StoreId) -> Result<(Self, Tables)> {
        let found = Self::find(files, store)?;
        if found.log.generation > 0 {
            found.log.sync(found.log.active)?;
        }
        Ok((found.log, (found.table, found.former)))
    }

    fn find(files: LogFiles, store: StoreId) -> Result<Found> {
        let mut log = Self {
            files,
            store,
            active: 0,
            generation: 0,
            end: 0,
            whole_bytes: 0,
            doubtful: false,
            epochs: [0; 3],
            former: None,
        };
        let mut tables: Vec<(usize, FoundLog)> = Vec::new();
        for which in 0..LOG_FILES.len() {
            let found = read_file(&*log.files[which], store)?;
            log.epochs[which] = found.as_ref().map_or(0, |found| found.table.epoch);
            tables.extend(found.map(|found| (which, found)));
        }
        tables.sort_by_key(|(_, found)| found.generation);
        let mut table = StripeTable::default();
        if let Some((which, found)) = tables.pop() {
            (log.active, log.generation) = (which, found.generation);
            (log.end, log.whole_bytes) = (found.end, found.whole_bytes);
            table = found.table;
        }
        // What a log that was written anew left behind is of the same composition, and an older state of the former
        // one may be there as well.
        tables.retain(|(_, found)| (1..table.epoch).contains(&found.table.epoch));
        let order = |(_, found): &(usize, FoundLog)| {
            let epoch = std::cmp::Reverse(found.table.epoch);
            (epoch, found.generation)
        };
        tables.sort_by_key(order);
        let former = tables.pop().map(|(which, found)| {
            log.former = Some(which);
            found.table
        });
        Ok(Found { log, table, former })
    }

    /// Has space for a record of so many bytes, or for the whole table with it where that is written.
    pub fn make_room(&self, whole: bool, record_bytes: u64, table_bytes: u64) -> Result<()> {
        if self.is_due_anew(whole) {
            return self.reserve(self.next_file(), to_u64(LOG_HEAD_BYTES) + table_bytes);
        }
        self.reserve(self.active, self.end + record_bytes)
    }

    fn is_due_anew(&self, whole: bool) -> bool {
        let grown = self.end > COMPACT_BYTES_MIN && self.end > 2 * self.whole_bytes;
        self.generation == 0 || whole || grown || self.doubtful
    }

    /// What was to be written cannot be said in the format.
    fn unwritable(&self, error: FormatError) -> Error {
        let name = self.files[self.active].name();
        Error::unwritable(format!("{name}: a record of the stripe log"), error)
    }

    /// Appends `round`, durably; `table` is the state with it, for the day the log is written anew.
    pub fn append(&mut self, round: &Round, table: &StripeTable) -> Result<()> {
        let anew = self.is_due_anew(round.whole);
        self.doubtful = true;
        if anew {
            self.start(table)?;
        } else {
            self.add(round)?;
        }
        self.doubtful = false;
        Ok(())
    }

    /// Writes `round` behind the last good record.
    fn add(&mut self, round: &Round) -> Result<()> {
        let round = Round {
            generation: self.generation,
            ..round.clone()
        };
        let bytes = round.encode().map_err(|error| self.unwritable(error))?;
        self.write(self.active, &bytes, self.end)?;
        self.sync(self.active)?;
        self.end += to_u64(bytes.len());
        Ok(())
    }

    /// The file that the whole table is written to: neither the log nor that of the former composition, without which
    /// nobody who has not recorded the new one would be protected.
    fn next_file(&self) -> usize {
        let is_free = |which: &usize| *which != self.active && self.former != Some(*which);
        (0..LOG_FILES.len()).find(is_free).unwrap_or(self.active)
    }

    /// The former composition protects nobody any more: what it names may be written over on return.
    pub fn forget_former(&mut self) -> Result<()> {
        let Some(former) = self.former else {
            return Ok(());
        };
        // Compositions that none settled after it go first: none of them is taken for it.
        for which in 0..LOG_FILES.len() {
            let is_older = (1..self.epochs[self.active]).contains(&self.epochs[which]);
            if is_older && which != former {
                self.erase(which)?;
            }
        }
        self.erase(former)?;
        self.former = None;
        Ok(())
    }

    /// Makes a file one that does not count.
    fn erase(&mut self, which: usize) -> Result<()> {
        self.write(which, &[0; LOG_HEAD_BYTES], 0)?;
        self.sync(which)?;
        self.epochs[which] = 0;
        Ok(())
    }

    /// Writes `table` to another file, which is the log from then on.
    fn start(&mut self, table: &StripeTable) -> Result<()> {
        let (which, generation) = (self.next_file(), self.generation + 1);
        let head = StripeLogHead {
            store: self.store,
            generation,
        };
        let whole = table.whole(generation).encode();
        let whole = whole.map_err(|error| self.unwritable(error))?;
        let mut bytes = head.encode().map_err(|error| self.unwritable(error))?;
        bytes.resize(LOG_HEAD_BYTES, 0);
        bytes.extend_from_slice(&whole);
        self.write(which, &bytes, 0)?;
        self.sync(which)?;
        if self.former.is_none() && (1..table.epoch).contains(&self.epochs[self.active]) {
            self.former = Some(self.active);
        }
        (self.active, self.generation) = (which, generation);
        self.epochs[which] = table.epoch;
        self.end = to_u64(bytes.len());
        self.whole_bytes = self.end;
        Ok(())
    }

    fn write(&self, which: usize, bytes: &[u8], offset: u64) -> Result<()> {
        self.reserve(which, offset + to_u64(bytes.len()))?;
        let device = &self.files[which];
        let failed = |error| Error::io(format!("{}: writing at {offset}", device.name()), error);
        device.write_at(bytes, offset).map_err(failed)
    }

    /// Makes a file at least so long, of real space.
    fn reserve(&self, which: usize, end: u64) -> Result<()> {
        let device = &self.files[which];
        let failed = |error| Error::io(format!("{}: {end} bytes for it", device.name()), error);
        if end > LOG_BYTES_MAX {
            let context = format!("{}: a stripe log of {end} bytes", device.name());
            return Err(Error::new(ErrorKind::StoreFull, context));
        }
        if device.length_bytes().map_err(failed)? < end {
            let length = end.next_multiple_of(STEP_BYTES);
            device.reserve(length).map_err(failed)?;
        }
        Ok(())
    }

    fn sync(&self, which: usize) -> Result<()> {
        let device = &self.files[which];
        let failed = |error| Error::io(format!("{}: syncing", device.name()), error);
        device.sync().map_err(failed)
    }
}

struct FoundLog {
    generation: u64,
    end: u64,
    whole_bytes: u64,
    table: StripeTable,
}

/// What one file holds; `None` if it is no log of `store`, or has no whole record.
fn read_file(device: &dyn Device, store: StoreId) -> Result<Option<FoundLog>> {
    let failed = |error| Error::io(format!("{}: reading", device.name()), error);
    let length = device.length_bytes().map_err(failed)?.min(LOG_BYTES_MAX);
    if length < to_u64(LOG_HEAD_BYTES) {
        return Ok(None);
    }
    let mut bytes = vec![0; to_usize(length)];
    device.read_at(&mut bytes, 0).map_err(failed)?;
    let head = match StripeLogHead::decode(&bytes, store) {
        Ok(head) => head,
        Err(error) => {
            let error = Error::malformed(device.name(), error);
            let is_damage = error.kind() == ErrorKind::Corrupt;
            return if is_damage { Ok(None) } else { Err(error) };
        }
    };
    let mut found = FoundLog {
        generation: head.generation,
        end: to_u64(LOG_HEAD_BYTES),
        whole_bytes: 0,
        table: StripeTable::default(),
    };
    for (round, end) in records(&bytes, head.generation) {
        found.table.apply(&round);
        found.end = to_u64(end);
        if round.whole {
            found.whole_bytes = found.end;
        }
    }
    Ok((found.whole_bytes > 0).then_some(found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use backstay_format::{Digest, Extent, SegmentClass, SegmentId, StripePiece};

    const STORE: StoreId = StoreId([7; 16]);

    fn files(folder: &Path) -> LogFiles {
        LOG_FILES.map(|name| {
            let file = FileDevice::open(&folder.join(name), true).unwrap();
            Arc::new(file) as Arc<dyn Device>
        })
    }

    fn piece(column: u8, segment: u64) -> StripePiece {
        let extent = Extent {
            segment: SegmentId(segment),
            class: SegmentClass::Large,
            offset_bytes: 0,
            length_bytes: 16_384,
            digest: Digest::of(&segment.to_le_bytes()),
        };
        StripePiece { column, extent }
    }

    fn round(number: u64, stripes: std::ops::Range<u64>) -> Round {
        let member = |store: u8| Member {
            store: StoreId([store; 16]),
            node: format!("n{store}"),
            domain: format!("n{store}"),
            superblock: vec![1, 2, 3],
            root: vec![store; 100],
        };
        let stripe = |id| Stripe {
            id: StripeId(id),
            pieces: vec![piece(0, id), piece(1, id)],
            parity: vec![piece(2, id)],
        };
        Round {
            generation: 0,
            epoch: 1,
            round: number,
            whole: number == 1,
            parity: 1,
            asked: 2,
            pieces_max: 2,
            protected: CheckpointId::new(1, number),
            members: (7..10).map(member).collect(),
            removed: stripes.clone().map(|id| StripeId(id - 1)).collect(),
            added: stripes.map(stripe).collect(),
        }
    }

    #[test]
    fn what_was_appended_is_read_again_also_after_the_log_was_written_anew() {
        let folder = tempfile::tempdir().unwrap();
        let (mut log, mut table) = StripeLog::open(files(folder.path()), STORE).unwrap();
        assert_eq!(table, StripeTable::default());
        let mut switched = 0;
        for number in 1..400 {
            let round = round(number, number * 20..number * 20 + 20);
            table.apply(&round);
            let before = log.active;
            log.append(&round, &table).unwrap();
            switched += usize::from(before != log.active);
            if number % 50 == 1 {
                let (_, read) = StripeLog::open(files(folder.path()), STORE).unwrap();
                assert_eq!(read, table);
            }
        }
        assert!(switched >= 2, "{switched}");
        let (_, read) = StripeLog::open(files(folder.path()), StoreId([8; 16])).unwrap();
        assert_eq!(read, StripeTable::default(), "of another store");
    }

    /// It is not empty: parity that it knows of would be written over.
    #[test]
    fn a_log_of_a_later_version_is_refused() {
        use backstay_format::bytes::{FRAME_HEAD_BYTES, FRAME_TAIL_BYTES};
        let folder = tempfile::tempdir().unwrap();
        let (mut log, mut table) = StripeLog::open(files(folder.path()), STORE).unwrap();
        let round = round(1, 1..2);
        table.apply(&round);
        log.append(&round, &table).unwrap();
        let file = &files(folder.path())[log.active];
        let mut head = vec![0; LOG_HEAD_BYTES];
        file.read_at(&mut head, 0).unwrap();
        let length = head[..FRAME_HEAD_BYTES][12..].first_chunk().unwrap();
        let summed = index(u32::from_le_bytes(*length)) - FRAME_TAIL_BYTES;
        head[8] += 1;
        let sum = backstay_format::hash::checksum(&head[..summed]).to_le_bytes();
        head[summed..][..FRAME_TAIL_BYTES].copy_from_slice(&sum);
        file.write_at(&head, 0).unwrap();
        let refused = StripeLog::open(files(folder.path()), STORE).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    }

    #[test]
    fn a_torn_record_is_as_if_it_had_never_been_written() {
        let folder = tempfile::tempdir().unwrap();
        let (mut log, mut table) = StripeLog::open(files(folder.path()), STORE).unwrap();
        for number in 1..=2 {
            let round = round(number, number..number + 1);
            table.apply(&round);
            log.append(&round, &table).unwrap();
        }
        let before = table.clone();
        let third = round(3, 3..4);
        let start = log.end;
        table.apply(&third);
        log.append(&third, &table).unwrap();
        let file = files(folder.path());
        let whole = to_usize(log.end - start);
        let mut bytes = vec![0; whole];
        file[log.active].read_at(&mut bytes, start).unwrap();
        for cut in 0..whole {
            let mut torn = bytes[..cut].to_vec();
            torn.resize(whole, 0);
            file[log.active].write_at(&torn, start).unwrap();
            let (again, read) = StripeLog::open(files(folder.path()), STORE).unwrap();
            let zeros = bytes[cut..].iter().all(|&byte| byte == 0);
            assert_eq!(read, if zeros { table.clone() } else { before.clone() });
            assert!(zeros || again.end == start);
        }
    }
}
