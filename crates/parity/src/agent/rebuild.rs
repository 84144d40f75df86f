// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the way back of `encode`: a lost store from the stripes of its group, under the same ids.
//! In: the log of a surviving member, the pieces of the others. Out: a store; pieces, to `repair`.
//! Invariants: every piece is verified before it is used, and what is rebuilt against the digest its
//! stripe has; a damaged piece counts as lost; the superblock, which makes a file a store, goes last.

use super::survey::REBUILT_PREFIX;
use super::{Agent, file_exposure, lock, peer};
use crate::code::{Code, Piece};
use crate::remake::{self, on_column};
use backstay_base::clock::{Backoff, Deadline, Stopwatch};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::fanout;
use backstay_base::io::Device;
use backstay_base::io::file::FileDevice;
use backstay_base::io::two_slots::{Plain, TwoSlots};
use backstay_base::notice;
use backstay_format::agent::{Answer, Seat};
use backstay_format::geometry::{RECORD_COPIES, SUPERBLOCK_OFFSETS};
use backstay_format::width::{index, to_u64};
use backstay_format::{
    BlockRef, CheckpointId, Digest, Extent, Geometry, Member, RevisionEntry, RootSlot,
    SegmentClass, SegmentId, SegmentRecord, StoreId, Stripe, StripePiece, Superblock,
};
use backstay_store::place::{STORE_BEING_MADE, STORE_FILE};
use backstay_store::reader::{RootSlots, StoreReader, segment_place};
use backstay_store::recover::walk_part;
use backstay_store::revision::read_ranks;
use backstay_store::stripe_log::{StripeLog, StripeTable};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A store to make again.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Lost {
    pub(super) store: StoreId,
    /// The member whose log tells how.
    pub(super) authority: StoreId,
    /// The composition that is followed.
    pub(super) epoch: u64,
    /// What must be whole in it.
    pub(super) checkpoint: CheckpointId,
    /// Whether it becomes this node's own.
    pub(super) own: bool,
    /// Whether somebody named the checkpoint, and others are given up that cannot be read.
    pub(super) named: bool,
}

/// What a restart had this node do, so that a request that comes again does it no second time.
#[derive(Debug, Default)]
pub(super) struct Done {
    rebuilt: Mutex<BTreeMap<Lost, Arc<Mutex<Option<Answer>>>>>,
    set_aside: Mutex<BTreeSet<StoreId>>,
}

/// The segments of a store that is made again, each with its slot.
type Slots = BTreeMap<SegmentId, (u64, SegmentClass)>;

/// What a rebuild or a repair has to work with.
pub(super) struct Work<'a> {
    agent: &'a Agent,
    table: &'a StripeTable,
    seats: &'a [Seat],
    code: Code,
    column: u8,
    deadline: Deadline,
    /// Why a piece that a member has could not be had from it: then nothing proves that it is lost.
    pub(super) unread: Mutex<Option<Error>>,
}

#[derive(Debug, Default)]
struct Counts {
    extents: AtomicU64,
    bytes: AtomicU64,
    lost: AtomicU64,
    /// The store's own data that could not be made again, and why.
    beyond: Mutex<Vec<(Extent, Error)>>,
}

impl Agent {
    /// Makes the store of a lost member again on this node, once.
    pub(super) fn rebuild(&self, lost: &Lost, seats: &[Seat], within: Duration) -> Result<Answer> {
        let known = Arc::clone(lock(&self.done.rebuilt).entry(lost.clone()).or_default());
        let mut known = lock(&known);
        if let Some(answer) = &*known {
            return Ok(answer.clone());
        }
        if lost.own {
            self.check_unopened()?;
        }
        let answer = self.make_again(lost, seats, within)?;
        *known = Some(answer.clone());
        Ok(answer)
    }

    /// Before a store is opened for writing it may be replaced, and by a request that comes late never after.
    fn check_unopened(&self) -> Result<()> {
        if !self.was_opened() {
            return Ok(());
        }
        let context = format!("node {}'s store is open, and stays where it is", self.node);
        Err(Error::new(ErrorKind::StoreBusy, context))
    }

    fn make_again(&self, lost: &Lost, seats: &[Seat], within: Duration) -> Result<Answer> {
        let watch = Stopwatch::start();
        let table = self.fetch_table((lost.authority, lost.epoch), seats, within)?;
        let Some(column) = table.column(lost.store) else {
            let context = format!("store {} is in no group that is known", lost.store);
            return Err(Error::new(ErrorKind::NotRetained, context));
        };
        let work = Work::new(self, &table, column, seats, within)?;
        let (directory, aside) = self.rebuild_directory(lost)?;
        let counts = work.make_store(&directory, lost).inspect_err(|_| {
            // What stood there is better than nothing.
            if let Some(aside) = aside {
                drop(std::fs::rename(aside, directory.join(STORE_FILE)));
            }
        })?;
        let (extents, bytes) = (
            counts.extents.load(Ordering::Relaxed),
            counts.bytes.load(Ordering::Relaxed),
        );
        let gone = &table.members[usize::from(column)].node;
        notice::info(&format!(
            "rebuilt the store of node {gone} on node {}: {extents} extents, {} MiB, in {:.3} s",
            self.node,
            bytes >> 20,
            watch.seconds()
        ));
        self.survey();
        Ok(Answer::Rebuilt {
            extents,
            bytes,
            lost: counts.lost.load(Ordering::Relaxed),
        })
    }

    fn fetch_table(
        &self,
        (authority, epoch): (StoreId, u64),
        seats: &[Seat],
        within: Duration,
    ) -> Result<StripeTable> {
        let Some(seat) = seats.iter().find(|seat| seat.store == authority) else {
            let context = "the member whose log is to be followed is not named";
            return Err(Error::new(ErrorKind::InvalidArgument, context));
        };
        super::record::fetch(self, &peer(seat), (authority, epoch), within)
    }

    /// An empty folder for the store; what cannot be read, or is behind, and stands in its way is moved
    /// aside: to the second path.
    fn rebuild_directory(&self, lost: &Lost) -> Result<(PathBuf, Option<PathBuf>)> {
        let own = self.directory();
        let directory = if lost.own {
            own
        } else {
            own.join(format!("{REBUILT_PREFIX}{}", lost.store))
        };
        std::fs::create_dir_all(&directory)
            .map_err(|error| Error::io(format!("making {}", directory.display()), error))?;
        let aside = move_aside(&directory.join(STORE_FILE))?;
        Ok((directory, aside))
    }

    /// Moves a store aside that was made again on another node since: it is of an earlier time.
    pub(super) fn set_aside(&self, store: StoreId) -> Result<()> {
        let mut done = lock(&self.done.set_aside);
        if done.contains(&store) {
            return Ok(());
        }
        let _looking = lock(&self.looking);
        // Held to the end: nobody opens the store meanwhile.
        let unopened = lock(&self.member);
        self.check_unopened()?;
        let found = lock(&self.stores)
            .iter()
            .find(|found| found.survey.store == store)
            .cloned();
        self.forget(store);
        let Some(found) = found else { return Ok(()) };
        move_aside(&found.directory.join(STORE_FILE))?;
        drop(unopened);
        done.insert(store);
        Ok(())
    }
}

fn move_aside(path: &Path) -> Result<Option<PathBuf>> {
    let looked = |error| Error::io(format!("looking for {}", path.display()), error);
    if !path.try_exists().map_err(looked)? {
        return Ok(None);
    }
    let aside = path.with_extension("aside");
    notice::warn(&format!(
        "{} is moved to {}",
        path.display(),
        aside.display()
    ));
    std::fs::rename(path, &aside)
        .map_err(|error| Error::io(format!("moving {}", path.display()), error))?;
    Ok(Some(aside))
}

/// Gives a store that is whole its name, which nobody has meanwhile.
fn put_in_place(making: &Path, path: &Path) -> Result<()> {
    let directory = path.parent().unwrap_or(path);
    std::fs::hard_link(making, path)
        .and_then(|()| std::fs::remove_file(making))
        .and_then(|()| backstay_base::io::sync_folder(directory))
        .map_err(|error| Error::io(format!("putting {} in its place", path.display()), error))
}

fn write(device: &dyn Device, bytes: &[u8], offset: u64) -> Result<()> {
    device
        .write_at(bytes, offset)
        .map_err(|error| Error::io(format!("{}: writing at {offset}", device.name()), error))
}

impl<'a> Work<'a> {
    /// For what `column` has.
    pub(super) fn new(
        agent: &'a Agent,
        table: &'a StripeTable,
        column: u8,
        seats: &'a [Seat],
        within: Duration,
    ) -> Result<Self> {
        Ok(Self {
            agent,
            table,
            seats,
            code: Code::new(usize::from(table.parity.max(1)))?,
            column,
            deadline: Deadline::after(within),
            unread: Mutex::default(),
        })
    }

    /// Runs `what` for everything that this column has in stripes, on several threads.
    pub(super) fn each_stripe(
        &self,
        what: impl Fn(&Stripe, Piece, &Extent) -> Result<()> + Sync,
    ) -> Result<()> {
        let stripes: Vec<(&Stripe, Piece, &Extent)> = self
            .table
            .stripes
            .values()
            .flat_map(|stripe| on_column(stripe, self.column).map(move |(p, e)| (stripe, p, e)))
            .collect();
        let threads = self.agent.settings().threads.max(1);
        fanout::all(&stripes, threads, |_, (stripe, piece, extent)| {
            what(stripe, *piece, extent)
        })?;
        Ok(())
    }

    /// The bytes of one piece from the others of its stripe.
    pub(super) fn remake(&self, stripe: &Stripe, lost: Piece) -> Result<Vec<u8>> {
        let members = &self.table.members;
        let fetch = |piece: &StripePiece| self.fetch(piece.column, &piece.extent);
        remake::remake(&self.code, members, stripe, lost, fetch)
    }

    /// A piece from the member that has it, and what it hashes to.
    fn fetch(&self, column: u8, extent: &Extent) -> Result<(Vec<u8>, Digest)> {
        let member = &self.table.members[usize::from(column)];
        let Some(seat) = self.seats.iter().find(|seat| seat.store == member.store) else {
            let context = format!("node {} is lost", member.node);
            return Err(Error::new(ErrorKind::NotRetained, context));
        };
        let mut bytes = vec![0; index(extent.length_bytes)];
        let within = self.deadline.left().unwrap_or(Duration::from_millis(1));
        let offset = segment_place(extent.segment, u64::from(extent.offset_bytes));
        let endpoint = &self.agent.endpoint;
        let pulled = endpoint.pull(&peer(seat), seat.store.into(), offset, &mut bytes, within);
        pulled.map_err(|error| {
            if error.kind() == ErrorKind::InvalidArgument {
                // It was read: that store has no such bytes, as it is of an earlier time.
                return error;
            }
            let unread = error.as_kind(ErrorKind::PeerUnreachable);
            lock(&self.unread).get_or_insert_with(|| unread.again());
            // Damage on the way, or a peer that shows nothing now, is none of what it has.
            if error.kind().proves_loss() {
                unread
            } else {
                error
            }
        })?;
        let digest = Digest::of(&bytes);
        Ok((bytes, digest))
    }

    /// Writes the whole store: space, records, extents, root, superblock; then its log.
    fn make_store(&self, directory: &Path, lost: &Lost) -> Result<Counts> {
        let member = &self.table.members[usize::from(self.column)];
        let superblock = Superblock::decode(&member.superblock).map_err(|error| {
            Error::malformed("the superblock of the lost store".to_owned(), error)
        })?;
        let root = RootSlot::decode(&member.root, member.store)
            .map_err(|error| Error::malformed("the root of the lost store".to_owned(), error))?;
        let encoded = superblock.encode().map_err(|error| {
            Error::unwritable("the superblock of the lost store".to_owned(), error)
        })?;
        let slots = self.slots();
        let path = directory.join(STORE_FILE);
        // Nobody looks for a store there: until it is whole there is none.
        let making = directory.join(STORE_BEING_MADE);
        drop(std::fs::remove_file(&making));
        let device = FileDevice::open(&making, true)
            .map_err(|error| Error::io(format!("making {}", making.display()), error))?;
        let device: Arc<dyn Device> = Arc::new(device);
        let made = self.fill(&device, superblock.geometry(), &slots, member);
        let counts = made.and_then(|counts| {
            let mut roots = write_roots(&*device, root)?;
            sync(&*device)?;
            for offset in SUPERBLOCK_OFFSETS {
                write(&*device, &encoded, offset)?;
            }
            sync(&*device)?;
            let gone = self.make_whole(&device, &slots, lost, &counts)?;
            leave_out(&*device, &mut roots, &gone)?;
            sync(&*device)?;
            let beyond = std::mem::take(&mut *lock(&counts.beyond));
            if lost.own {
                self.agent.check_unopened()?;
            }
            put_in_place(&making, &path)?;
            // Behind all that may fail: of what is put back instead it would not be true.
            self.write_log(directory, member.store).inspect_err(|_| {
                drop(std::fs::remove_file(&path));
            })?;
            if let Some((_, first)) = beyond.first() {
                let count = beyond.len();
                let gone: Vec<String> = gone.iter().map(ToString::to_string).collect();
                let without = match gone.len() {
                    0 => String::new(),
                    _ => format!(", and which {} needed, so it lists them no more", gone.join(", ")),
                };
                notice::warn(&format!(
                    "{}: {count} extents of data could not be rebuilt, of which checkpoint {} needs \
                     none{without}: {first}",
                    device.name(),
                    lost.checkpoint
                ));
            }
            Ok(counts)
        });
        drop(std::fs::remove_file(&making));
        counts
    }

    fn write_log(&self, directory: &Path, store: StoreId) -> Result<()> {
        let mut log = StripeLog::open(super::member::log_files(directory)?, store)?.0;
        log.append(&self.table.whole(0), self.table)
    }

    /// The segments of the lost store, each with a slot.
    fn slots(&self) -> Slots {
        let mut classes = BTreeMap::new();
        for stripe in self.table.stripes.values() {
            for extent in stripe.on(self.column) {
                classes.insert(extent.segment, extent.class);
            }
        }
        let numbered = (0..).zip(classes);
        numbered
            .map(|(slot, (segment, class))| (segment, (slot, class)))
            .collect()
    }

    fn fill(
        &self,
        device: &Arc<dyn Device>,
        geometry: Geometry,
        slots: &Slots,
        member: &Member,
    ) -> Result<Counts> {
        let length = geometry.file_bytes(to_u64(slots.len()));
        device
            .reserve(length)
            .map_err(|error| Error::io(format!("{}: reserving {length}", device.name()), error))?;
        for (&segment, &(slot, class)) in slots {
            let record = SegmentRecord {
                store: member.store,
                segment,
                class,
            };
            let encoded = record.encode().map_err(|error| {
                Error::unwritable(format!("{}: a segment record", device.name()), error)
            })?;
            for copy in 0..RECORD_COPIES {
                write(&**device, &encoded, geometry.record_offset(slot, copy))?;
            }
        }
        let counts = Counts::default();
        self.make_extents(&**device, (geometry, slots), |_| true, &counts)?;
        Ok(counts)
    }

    /// Makes extents of the store again, those that are `wanted`.
    fn make_extents(
        &self,
        device: &dyn Device,
        (geometry, slots): (Geometry, &Slots),
        wanted: impl Fn(&Extent) -> bool + Sync,
        counts: &Counts,
    ) -> Result<()> {
        self.each_stripe(|stripe, piece, extent| {
            if !wanted(extent) {
                return Ok(());
            }
            let bytes = match (self.remake(stripe, piece), piece) {
                (Ok(bytes), _) => bytes,
                (Err(error), Piece::Parity(_)) => {
                    // The checkpoint is whole without it; only the next loss would need it.
                    notice::warn(&format!("parity that protects others stays lost: {error}"));
                    counts.lost.fetch_add(1, Ordering::Relaxed);
                    return Ok(());
                }
                (Err(error), Piece::Data(_)) if self.deadline.left().is_none() => {
                    return Err(error);
                }
                (Err(error), Piece::Data(_)) => {
                    // Up to half of a stripe is of no checkpoint any more: what is whole decides.
                    counts.lost.fetch_add(1, Ordering::Relaxed);
                    lock(&counts.beyond).push((*extent, error));
                    return Ok(());
                }
            };
            let slot = slots.get(&extent.segment).map_or(0, |&(slot, _)| slot);
            let offset = geometry.slot_offset(slot) + u64::from(extent.offset_bytes);
            write(device, &bytes, offset)?;
            counts.extents.fetch_add(1, Ordering::Relaxed);
            counts
                .bytes
                .fetch_add(to_u64(bytes.len()), Ordering::Relaxed);
            Ok(())
        })
    }

    /// Makes again what could not be read and some checkpoint of the store needs, for a while; which checkpoints
    /// other than the wanted one are not whole then. Without being named none is given up for a read that failed.
    fn make_whole(
        &self,
        device: &Arc<dyn Device>,
        slots: &Slots,
        lost: &Lost,
        counts: &Counts,
    ) -> Result<BTreeSet<CheckpointId>> {
        let mut again = Backoff::within(self.deadline.left().unwrap_or_default() / 2);
        loop {
            let found = verify(device, lost.checkpoint, &lock(&counts.beyond));
            let open = match &found {
                Ok(gone) => gone.iter().find(|(_, error)| error.kind().leaves_open()),
                Err(error) if error.kind().leaves_open() => None,
                Err(_) => return found.map(|_| BTreeSet::new()),
            };
            if found.is_ok() && open.is_none() || !again.pause() {
                if let (Some((id, error)), false) = (open, lost.named) {
                    let why = format!(
                        "checkpoint {id}, which is older, would be given up; if it may be, name {} as \
                         restore_checkpoint",
                        lost.checkpoint.number
                    );
                    return Err(error.again().within(&why));
                }
                return found.map(|gone| gone.into_keys().collect());
            }
            let geometry = StoreReader::open(device.clone())?.geometry();
            let beyond = std::mem::take(&mut *lock(&counts.beyond));
            let is_open = |(_, error): &(Extent, Error)| error.kind().leaves_open();
            let (unread, proven): (Vec<_>, Vec<_>) = beyond.into_iter().partition(is_open);
            lock(&counts.beyond).extend(proven);
            counts
                .lost
                .fetch_sub(to_u64(unread.len()), Ordering::Relaxed);
            let wanted = |extent: &Extent| unread.iter().any(|(one, _)| one == extent);
            self.make_extents(&**device, (geometry, slots), wanted, counts)?;
        }
    }
}

fn sync(device: &dyn Device) -> Result<()> {
    device
        .sync()
        .map_err(|error| Error::io(format!("{}: syncing", device.name()), error))
}

/// Writes the root, as in any store: the other slot holds the one before.
fn write_roots(device: &dyn Device, root: RootSlot) -> Result<TwoSlots<RootSlots>> {
    let (medium, format) = (Plain(device), RootSlots(root.store));
    if root.sequence < 2 {
        return TwoSlots::make(&medium, format, root);
    }
    let before = RootSlot {
        sequence: root.sequence - 1,
        ..root.clone()
    };
    let mut roots = TwoSlots::make(&medium, format, before)?;
    roots.write(&medium, root)?;
    Ok(roots)
}

/// Writes a root without the checkpoints in `gone`, so that no store lists what it cannot give back.
fn leave_out(
    device: &dyn Device,
    roots: &mut TwoSlots<RootSlots>,
    gone: &BTreeSet<CheckpointId>,
) -> Result<()> {
    if gone.is_empty() {
        return Ok(());
    }
    let mut next = RootSlot {
        sequence: roots.next_sequence(),
        ..roots.state().clone()
    };
    next.revisions
        .retain(|revision| !gone.contains(&revision.checkpoint));
    roots.write(&Plain(device), next)
}

/// Checks that `checkpoint` is whole; which others are not, for want of what is `beyond` repair, and why.
fn verify(
    device: &Arc<dyn Device>,
    checkpoint: CheckpointId,
    beyond: &[(Extent, Error)],
) -> Result<BTreeMap<CheckpointId, Error>> {
    let reader = StoreReader::open(device.clone())?;
    reader.read_records(|_, _, _| {})?;
    let (root, _) = reader.newest_root()?;
    let found = root.revisions.iter().find(|r| r.checkpoint == checkpoint);
    let Some(revision) = found else {
        let context = format!("the lost store did not have checkpoint {checkpoint}");
        return Err(Error::new(ErrorKind::NotRetained, context));
    };
    is_whole(&reader, revision, beyond)?;
    if beyond.is_empty() {
        return Ok(BTreeMap::new());
    }
    let others = root.revisions.iter().filter(|r| r.checkpoint != checkpoint);
    let gone = others.filter_map(|other| {
        let error = is_whole(&reader, other, beyond).err()?;
        Some((other.checkpoint, error))
    });
    Ok(gone.collect())
}

/// That every table and page of a revision is there and has the digest its parent says, and that it needs
/// nothing of what could not be made again. That it is lost only where what could not be read has no part in it.
fn is_whole(
    reader: &StoreReader,
    revision: &RevisionEntry,
    beyond: &[(Extent, Error)],
) -> Result<()> {
    let is_open = |(_, error): &&(Extent, Error)| error.kind().leaves_open();
    let (mut damage, mut needed, mut open) = (None, None, None);
    let mut visit = |block: &BlockRef, length: usize| {
        let start = block.address.offset_bytes();
        let end = u64::from(start) + to_u64(length);
        let overlaps = |(extent, _): &&(Extent, Error)| {
            extent.segment == block.address.segment()
                && u64::from(extent.offset_bytes) < end
                && start < extent.offset_bytes + extent.length_bytes
        };
        for one in beyond.iter().filter(overlaps) {
            let first = if is_open(&one) {
                &mut open
            } else {
                &mut needed
            };
            first.get_or_insert(one);
        }
    };
    match read_ranks(reader, revision) {
        Ok(ranks) => {
            for entry in ranks {
                walk_part(reader, &entry.root, &mut visit, &mut |_, error| {
                    damage.get_or_insert(error);
                });
            }
        }
        Err(error) => damage = Some(error),
    }
    if let (None, Some(_)) = (needed, &damage) {
        // It may stand where nothing could be read.
        open = open.or(beyond.iter().find(is_open));
    }
    match needed.or(open) {
        Some((_, error)) => Err(error.again()),
        None => damage.map_or(Ok(()), Err),
    }
}

impl Agent {
    /// Exposes nothing of a store that is gone from this node.
    pub fn forget(&self, store: StoreId) {
        self.endpoint.withdraw(store.into());
        self.endpoint.withdraw(file_exposure(store));
        lock(&self.stores).retain(|found| found.survey.store != store);
    }
}
