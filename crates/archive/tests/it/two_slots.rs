// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Everything that has two slots, by the same tests: the root of a store, the root of an archive, the
//! catalog. Crashes at every write and every sync, also after a process that was killed before its sync;
//! slots that are damaged, torn just now, or cannot be read; syncs that fail.

use crate::archive_store::{DeviceFolder, append, content, identity, options, reading};
use backstay_archive::{ArchiveDevice, ArchiveStore, Catalog, CatalogReader, Commit};
use backstay_base::io::shared::SharedWords;
use backstay_base::io::two_slots::{Plain, SlotFormat, TwoSlots};
use backstay_base::io::{Device, ReadAt};
use backstay_base::{ErrorKind, Result};
use backstay_format::geometry::{ROOT_OFFSETS, SUPERBLOCK_OFFSETS};
use backstay_format::limits::REVISIONS_MAX;
use backstay_format::stream::StreamRoot;
use backstay_format::{
    ArchiveSuperblock, CatalogState, CatalogSuperblock, Lineage, RevisionEntry, RootSlot,
};
use backstay_format::{CheckpointId, StoreId, Superblock};
use backstay_store::commit::{NodeStore, Policy};
use backstay_store::control::Control;
use backstay_store::reader::{RootSlots, StoreReader};
use backstay_store::reserve::{Reserve, ReserveSettings};
use backstay_store::space::Space;
use backstay_testkit::bytes::SharedBytes;
use backstay_testkit::device::EIO;
use backstay_testkit::{CrashImage, CrashOptions, Operation, SimDevice, for_each_image};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Bytes of a catalog's slot.
const SLOT_BYTES: u32 = 64 << 10;

/// Who has two slots; its state is a number that grows.
trait User: Sized {
    const NAME: &'static str;
    /// Syncs of one change; the last makes the slot durable.
    const SYNCS: u64;
    /// Where the slots are, and how long.
    const SLOTS: ([u64; 2], u64);
    fn make(device: Arc<dyn Device>) -> Result<Self>;
    fn open(device: Arc<dyn Device>) -> Result<Self>;
    /// Makes `value` durable.
    fn change(&mut self, value: u64) -> Result<()>;
    /// What is durable.
    fn value(&self) -> u64;
    /// What who only reads finds, verified.
    fn read(device: Arc<dyn Device>) -> Result<u64>;
}

struct StoreRoot(NodeStore);

impl StoreRoot {
    fn policy() -> Policy {
        Policy {
            retained: 2,
            complete: BTreeSet::new(),
            pinned: BTreeSet::new(),
            protected: None,
            in_groups: BTreeSet::new(),
            archiving: None,
        }
    }
    fn control() -> Result<Control> {
        Control::start(SharedWords::heap(Control::words_for(8)), 8)
    }
    const SETTINGS: ReserveSettings = ReserveSettings {
        reserve_bytes_max: None,
        wait: Duration::from_secs(5),
        space_later: false,
    };
}

impl User for StoreRoot {
    const NAME: &'static str = "root of a store";
    const SYNCS: u64 = 1;
    const SLOTS: ([u64; 2], u64) = (ROOT_OFFSETS, 16 << 10);
    fn make(device: Arc<dyn Device>) -> Result<Self> {
        let superblock = Superblock {
            store: StoreId(*b"two slots, store"),
            segment_bytes: 1 << 18,
            run: 1,
            created_unix_ns: 1,
            job: "slots".to_owned(),
            node: "node".to_owned(),
        };
        let control = Self::control()?;
        let reserve = Reserve::create(device, control, &superblock, 1, Self::SETTINGS)?;
        let roots = reserve.roots()?;
        Ok(Self(NodeStore::successor(reserve, roots)))
    }
    fn open(device: Arc<dyn Device>) -> Result<Self> {
        let reserve = Reserve::open(device, Self::control()?, Self::SETTINGS)?;
        let (roots, space) = (reserve.roots()?, || Space::new(1 << 18));
        Ok(Self(NodeStore::new(reserve, roots, space(), space())))
    }
    fn change(&mut self, value: u64) -> Result<()> {
        let from = CheckpointId::default();
        self.0.begin_start(lineage(value), from, &Self::policy())
    }
    fn value(&self) -> u64 {
        self.0.root().incarnation
    }
    fn read(device: Arc<dyn Device>) -> Result<u64> {
        let (root, _) = StoreReader::open(device)?.newest_root()?;
        Ok(root.incarnation)
    }
}

/// Each change adds a segment, so that the root has a table to be durable before it.
struct ArchiveRoot(ArchiveStore);

impl User for ArchiveRoot {
    const NAME: &'static str = "root of an archive";
    const SYNCS: u64 = 2;
    const SLOTS: ([u64; 2], u64) = (ROOT_OFFSETS, 16 << 10);
    fn make(device: Arc<dyn Device>) -> Result<Self> {
        ArchiveStore::create_on(device, &identity(1), &options()).map(Self)
    }
    fn open(device: Arc<dyn Device>) -> Result<Self> {
        ArchiveStore::open_on(device, &DeviceFolder::default(), &options()).map(Self)
    }
    fn change(&mut self, value: u64) -> Result<()> {
        let store = &self.0;
        // The table goes to another place each time, and the former one is used again.
        let free = store
            .device()
            .entries()
            .iter()
            .map(|entry| entry.segment)
            .collect();
        append(store, value, 500);
        let commit = Commit {
            incarnation: value,
            free,
            ..Commit::default()
        };
        store.commit(&commit).map(|_| ())
    }
    fn value(&self) -> u64 {
        self.0.root().incarnation
    }
    fn read(device: Arc<dyn Device>) -> Result<u64> {
        let device = ArchiveDevice::open_on(device, &DeviceFolder::default(), &reading())?;
        for entry in device.entries() {
            let length = usize::try_from(entry.decoded_bytes).unwrap();
            assert!(*device.segment(entry.segment)? == content(entry.segment.0, length));
        }
        Ok(device.root().incarnation)
    }
}

impl User for Catalog {
    const NAME: &'static str = "catalog";
    const SYNCS: u64 = 1;
    const SLOTS: ([u64; 2], u64) = ([4 << 20, (4 << 20) + (64 << 10)], 64 << 10);
    fn make(device: Arc<dyn Device>) -> Result<Self> {
        Self::create_on(device, &identity(1), SLOT_BYTES, CatalogState::default())
    }
    fn open(device: Arc<dyn Device>) -> Result<Self> {
        Self::open_on(device, "catalog", None)
    }
    fn change(&mut self, value: u64) -> Result<()> {
        self.begin_start(lineage(value), None)
    }
    fn value(&self) -> u64 {
        self.state().incarnation
    }
    fn read(device: Arc<dyn Device>) -> Result<u64> {
        CatalogReader::on(&*device, "catalog").map(|read| read.state().incarnation)
    }
}

/// What was done, and which value was acknowledged after how many operations.
struct History {
    log: Vec<Operation>,
    initial: SharedBytes,
    marks: Vec<(usize, u64)>,
}

impl History {
    /// Changes; a process that is killed between the write of a slot and its sync, twice in a row; another
    /// that goes on from what it finds on the device, which did not crash.
    fn record<U: User>() -> Self {
        let device = SimDevice::new();
        let initial = device.start_log();
        let shared = || Arc::new(device.clone()) as Arc<dyn Device>;
        let mut user = U::make(shared()).unwrap();
        let mut marks = vec![(device.log_length(), user.value())];
        for value in 1..=9 {
            if value == 4 || value == 5 {
                device.kill_at_sync(U::SYNCS);
                assert!(user.change(value).is_err());
                device.revive();
                user = U::open(shared()).unwrap();
                assert_eq!(user.value(), value, "{}: what was written is read", U::NAME);
            } else {
                user.change(value).unwrap();
            }
            marks.push((device.log_length(), user.value()));
        }
        drop(user);
        let log = device.log();
        Self {
            log,
            initial,
            marks,
        }
    }

    fn check<U: User>(&self, image: &CrashImage) -> std::result::Result<(), String> {
        let device = image.device();
        let shared = || Arc::new(device.clone()) as Arc<dyn Device>;
        let due = self
            .marks
            .partition_point(|(mark, _)| *mark <= image.ops_applied);
        if due == 0 && !has_superblock(&device) {
            return Ok(());
        }
        let near = [due.checked_sub(1), Some(due)].into_iter().flatten();
        let allowed: Vec<u64> = near
            .filter_map(|at| self.marks.get(at))
            .map(|(_, value)| *value)
            .collect();
        let said = |error: backstay_base::Error| error.to_string();
        let found = U::read(shared()).map_err(said)?;
        if !allowed.contains(&found) {
            return Err(format!("{found}, not of {allowed:?}"));
        }
        let mut user = U::open(shared()).map_err(said)?;
        if user.value() != found {
            return Err(format!("{} for who writes, {found} read", user.value()));
        }
        for value in [100, 101] {
            user.change(value).map_err(said)?;
            if U::read(shared()).map_err(said)? != value {
                return Err(format!("{value} is not read"));
            }
        }
        Ok(())
    }

    fn visit<U: User>(&self, log: &[Operation], from: usize) -> std::result::Result<usize, String> {
        let options = CrashOptions {
            exhaustive_up_to: 4,
            samples: 30,
            from_operation: from,
            ..CrashOptions::default()
        };
        let visited = for_each_image(log, &self.initial, options, |image| self.check::<U>(image));
        visited
            .map(|summary| summary.images)
            .map_err(|failure| failure.to_string())
    }

    /// Every crash; and without any one sync a crash must show it.
    fn survives<U: User>(&self) {
        match self.visit::<U>(&self.log, 0) {
            Ok(images) => assert!(images > 80, "{}: only {images}", U::NAME),
            Err(failure) => panic!("{}: {failure}", U::NAME),
        }
        let mut log = self.log.clone();
        let mut missed = Vec::new();
        for place in 0..log.len() {
            if log[place] != Operation::Sync {
                continue;
            }
            // A write of nothing keeps the marks where they are.
            log[place] = backstay_testkit::crash::write(0, &[]);
            if self.visit::<U>(&log, place).is_ok() {
                missed.push(place);
            }
            log[place] = Operation::Sync;
        }
        assert_eq!(missed, Vec::<usize>::new(), "{}: syncs", U::NAME);
    }
}

fn has_superblock(device: &SimDevice) -> bool {
    SUPERBLOCK_OFFSETS.into_iter().any(|offset| {
        let mut bytes = vec![0; 4096];
        let is_one = |bytes: &[u8]| {
            ArchiveSuperblock::decode(bytes).is_ok()
                || CatalogSuperblock::decode(bytes).is_ok()
                || Superblock::decode(bytes).is_ok()
        };
        device.read_at(&mut bytes, offset).is_ok() && is_one(&bytes)
    })
}

#[test]
fn every_crash_shows_the_last_state_or_the_next() {
    History::record::<StoreRoot>().survives::<StoreRoot>();
    History::record::<ArchiveRoot>().survives::<ArchiveRoot>();
    History::record::<Catalog>().survives::<Catalog>();
}

/// After a write that failed the slot is in doubt, and is tried again; after a sync that failed nothing
/// more is written; whatever of it is there, it is the former state or the one that was tried.
fn failures<U: User>() {
    for fails in ["write", "sync"] {
        let device = SimDevice::new();
        let shared = || Arc::new(device.clone()) as Arc<dyn Device>;
        let mut user = U::make(shared()).unwrap();
        user.change(1).unwrap();
        user.change(2).unwrap();
        let initial = device.start_log();
        // The archive writes a segment and a table first.
        match fails {
            "write" => device.fail_write(2 * U::SYNCS - 1, EIO),
            _ => device.fail_sync(U::SYNCS, EIO),
        }
        let error = user.change(3).unwrap_err();
        let after = device.log_length();
        assert_eq!(user.value(), 2, "{}: {fails}", U::NAME);
        if fails == "write" {
            assert_eq!(error.kind(), ErrorKind::StoreIo, "{error}");
            user.change(4).unwrap();
            assert_eq!(U::read(shared()).unwrap(), 4);
        } else {
            assert_eq!(error.kind(), ErrorKind::StoreFailed, "{error}");
            let slots = |operation: &Operation| {
                let (slots, length) = U::SLOTS;
                matches!(operation, Operation::Write { offset, .. }
                    if slots.iter().any(|at| (*at..at + length).contains(offset)))
            };
            let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| user.change(4)));
            assert!(!matches!(refused, Ok(Ok(()))), "{}", U::NAME);
            assert!(!device.log()[after..].iter().any(slots), "{}", U::NAME);
        }
        drop(user);
        let log = device.log();
        let visited = for_each_image(&log, &initial, CrashOptions::default(), |image| {
            let found = U::read(Arc::new(image.device())).map_err(|error| error.to_string())?;
            let wanted = if fails == "write" { 2..=4 } else { 2..=3 };
            if wanted.contains(&found) {
                return Ok(());
            }
            Err(format!("{found}"))
        });
        assert!(visited.unwrap().images > 5);
    }
}

#[test]
fn a_write_that_fails_is_tried_again_and_a_failed_sync_is_the_end() {
    failures::<StoreRoot>();
    failures::<ArchiveRoot>();
    failures::<Catalog>();
}

/// A device that gives a torn slot so many times, as a reader finds it in the middle of being written.
#[derive(Debug)]
struct Torn {
    device: SimDevice,
    at: u64,
    times: AtomicUsize,
}

impl ReadAt for Torn {
    fn length_bytes(&self) -> std::io::Result<u64> {
        self.device.length_bytes()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
        self.device.read_at(buffer, offset)?;
        let left = &self.times;
        if offset == self.at
            && left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
                .is_ok()
        {
            let middle = buffer.len().min(64);
            buffer[40..middle].fill(0xa5);
        }
        Ok(())
    }

    fn name(&self) -> String {
        "torn device".to_owned()
    }
}

impl Device for Torn {
    fn write_at(&self, bytes: &[u8], offset: u64) -> std::io::Result<()> {
        self.device.write_at(bytes, offset)
    }

    fn sync(&self) -> std::io::Result<()> {
        self.device.sync()
    }

    fn reserve(&self, length_bytes: u64) -> std::io::Result<()> {
        self.device.reserve(length_bytes)
    }
}

/// Three changes; the slot of the newest and of the other.
fn changed<U: User>() -> (SimDevice, [u64; 2]) {
    let device = SimDevice::new();
    let mut user = U::make(Arc::new(device.clone())).unwrap();
    (1..=3).for_each(|value| user.change(value).unwrap());
    // The first state goes to slot 0, the third change to slot 1.
    let ([first, second], _) = U::SLOTS;
    (device, [second, first])
}

fn slots_that_are_not_good<U: User>() {
    let name = U::NAME;
    let shared = |device: &SimDevice| Arc::new(device.clone()) as Arc<dyn Device>;
    // In the middle of being written.
    let (device, [newest, _]) = changed::<U>();
    let torn = |times| {
        Arc::new(Torn {
            device: device.clone(),
            at: newest,
            times: AtomicUsize::new(times),
        })
    };
    assert_eq!(U::read(torn(2)).unwrap(), 3, "{name}: read again");
    assert_eq!(U::open(torn(1)).unwrap().value(), 3, "{name}: read again");
    // Provably not what was written: the other one, and it goes on from there.
    let (device, [newest, _]) = changed::<U>();
    assert!(device.flip(newest + 41, 0x10));
    assert_eq!(U::read(shared(&device)).unwrap(), 2, "{name}");
    let mut user = U::open(shared(&device)).unwrap();
    user.change(7).unwrap();
    assert_eq!(U::read(shared(&device)).unwrap(), 7, "{name}");
    // An error that passes.
    let (device, [newest, older]) = changed::<U>();
    for nth in 1..=5 {
        device.fail_read(nth, EIO);
        assert_eq!(U::read(shared(&device)).unwrap(), 3, "{name}: read {nth}");
        while U::read(shared(&device)).is_err() {}
    }
    // One that does not: the newest state may stand there. Nothing is given up, nothing is written.
    for slot in [newest, older] {
        device.make_unreadable(slot..slot + 4096, EIO);
        let before = device.log_length();
        let kinds = [
            U::read(shared(&device)).map(|_| ()).unwrap_err().kind(),
            U::open(shared(&device)).map(|_| ()).unwrap_err().kind(),
        ];
        assert_eq!(kinds, [ErrorKind::StoreIo; 2], "{name}");
        assert_eq!(device.log_length(), before, "{name}");
        device.make_readable();
        assert_eq!(U::read(shared(&device)).unwrap(), 3, "{name}");
    }
}

#[test]
fn a_slot_that_cannot_be_read_is_no_damaged_slot() {
    slots_that_are_not_good::<StoreRoot>();
    slots_that_are_not_good::<ArchiveRoot>();
    slots_that_are_not_good::<Catalog>();
}

/// A copy of the superblock that cannot be read does no harm; both are an error, and no damage.
fn copies<U: User>() {
    let shared = |device: &SimDevice| Arc::new(device.clone()) as Arc<dyn Device>;
    let (device, _) = changed::<U>();
    device.make_unreadable(0..4096, EIO);
    assert_eq!(U::read(shared(&device)).unwrap(), 3, "{}", U::NAME);
    device.make_unreadable(4096..8192, EIO);
    let error = U::read(shared(&device)).map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StoreIo, "{}: {error}", U::NAME);
    device.make_readable();
    assert!(device.flip(50, 1) && device.flip(4096 + 50, 1));
    let error = U::read(shared(&device)).map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{}: {error}", U::NAME);
}

#[test]
fn a_superblock_counts_in_either_copy() {
    copies::<StoreRoot>();
    copies::<ArchiveRoot>();
    copies::<Catalog>();
}

/// What a reader would refuse is never written: both slots stay as they are.
#[test]
fn a_root_that_cannot_be_read_back_is_not_written() {
    let device = SimDevice::new();
    let mut user = StoreRoot::make(Arc::new(device.clone())).unwrap();
    user.change(1).unwrap();
    let format = RootSlots(user.0.root().store);
    let mut slots = TwoSlots::open(&Plain(&device), format).unwrap();
    let revision = |number| RevisionEntry {
        checkpoint: CheckpointId::new(1, number),
        pinned: true,
        complete: true,
        world_size: 1,
        committed_unix_ns: 0,
        bytes_total: 0,
        bytes_changed: 0,
        ranks: StreamRoot::empty(1024),
    };
    let root = |slots: &TwoSlots<RootSlots>, count: usize| RootSlot {
        sequence: slots.next_sequence(),
        revisions: (1..=u64::try_from(count).unwrap()).map(revision).collect(),
        ..slots.state().clone()
    };
    let most = root(&slots, REVISIONS_MAX);
    slots.write(&Plain(&device), most.clone()).unwrap();
    let before = device.log_length();
    for _ in 0..2 {
        let beyond = root(&slots, REVISIONS_MAX + 1);
        let error = slots.write(&Plain(&device), beyond).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.to_string().contains("revisions"), "{error}");
    }
    assert_eq!(device.log_length(), before);
    assert!(!slots.in_doubt());
    let again = TwoSlots::open(&Plain(&device), format).unwrap();
    assert_eq!(again.state(), &most);
    assert_eq!(format.sequence(again.state()) + 1, again.next_sequence());
}

/// The lineage as start `start` of the job has it, which the first began.
fn lineage(start: u64) -> Lineage {
    Lineage {
        began: 1,
        start,
        ..Lineage::default()
    }
}
