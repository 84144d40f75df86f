// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two starts of one job on one archive, each stalled and let go on at every read, write and sync: what the
//! catalog lists is whole at every instant, and nobody is told of what another start does not know.

use crate::archive_store::{DeviceFolder, content, identity, options, reading, stored_whole};
use backstay_archive::{
    ArchiveDevice, ArchiveStore, Catalog, CatalogReader, Commit, Identity, NewCheckpoint, NewPart,
    Place, catalog_file, store_file,
};
use backstay_base::ErrorKind;
use backstay_base::io::{Device, ReadAt};
use backstay_format::CheckpointId;
use backstay_format::heir::HEIR_OFFSET;
use backstay_format::{CatalogState, Lineage, RevisionEntry, SegmentId, StreamRoot};
use backstay_format::{RankRange, StoreId};
use backstay_testkit::SimDevice;
use backstay_testkit::seeded::Seeded;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex};

const SLOT: u32 = 64 << 10;
/// Bytes of a segment: a few fill the space that is reserved, so that it is used again soon.
const BYTES: usize = 12_000;
/// Drains of each start.
const DRAINS: u64 = 9;

/// Whose turn it is, and for how many operations.
struct Turn {
    start: usize,
    left: u64,
    over: [bool; 2],
    seeded: Seeded,
}

/// The archive, and who may use it at the moment.
struct World {
    files: DeviceFolder,
    turn: Mutex<Turn>,
    changed: Condvar,
    /// What the archive has to have of each checkpoint: written down before it is recorded.
    parts: Mutex<BTreeMap<CheckpointId, BTreeSet<SegmentId>>>,
    /// Whether writers see who goes on from their files.
    looks: bool,
    /// What was found wrong first.
    wrong: Mutex<Option<String>>,
}

impl World {
    fn new(seed: u64, looks: bool) -> Arc<Self> {
        Arc::new(Self {
            looks,
            wrong: Mutex::default(),
            files: DeviceFolder::default(),
            turn: Mutex::new(Turn {
                start: 0,
                left: 40,
                over: [false, true],
                seeded: Seeded::of(&[seed, 0xfe9c]),
            }),
            changed: Condvar::new(),
            parts: Mutex::default(),
        })
    }

    /// Does `what` when `start` has its turn. Between two turns all that is listed has to be whole.
    fn act<T>(&self, start: usize, what: impl FnOnce() -> T) -> T {
        let mut turn = self.turn.lock().unwrap();
        while turn.start != start && !turn.over[1 - start] {
            turn = self.changed.wait(turn).unwrap();
        }
        let done = what();
        turn.left = turn.left.saturating_sub(1);
        if turn.left == 0 {
            self.note(self.check());
            // Mostly short turns; now and then one start stalls for long.
            turn.left = match turn.seeded.below(8) {
                0 => 1 + turn.seeded.below(400),
                1..3 => 1 + turn.seeded.below(60),
                _ => 1 + turn.seeded.below(6),
            };
            turn.start = turn.seeded.index(2);
            self.changed.notify_all();
        }
        done
    }

    fn begins(&self, start: usize) {
        self.turn.lock().unwrap().over[start] = false;
    }

    fn ends(&self, start: usize) {
        self.turn.lock().unwrap().over[start] = true;
        self.changed.notify_all();
    }

    /// The catalog that counts: of the highest epoch that has a state.
    fn catalog(&self) -> Option<CatalogReader> {
        let read = |epoch| {
            let file = catalog_file(epoch);
            let device = self.files.open(&file).ok()?;
            CatalogReader::on(&*device, &file).ok()
        };
        (1..4).rev().find_map(read)
    }

    fn note(&self, found: Result<(), String>) {
        if let Err(text) = found {
            self.wrong.lock().unwrap().get_or_insert(text);
        }
    }

    /// That all that is listed can be had.
    fn check(&self) -> Result<(), String> {
        let Some(catalog) = self.catalog() else {
            return Ok(());
        };
        for listed in catalog.state().restorable() {
            for part in &listed.parts {
                let (id, file) = (listed.checkpoint, &catalog.store_of(part).unwrap().name);
                let checked = self.check_part(id, file);
                checked.map_err(|text| format!("checkpoint {id} in {file}: {text}"))?;
            }
        }
        Ok(())
    }

    fn check_part(&self, id: CheckpointId, file: &str) -> Result<(), String> {
        let words = |error: backstay_base::Error| error.to_string();
        let device = self.files.open(file).map_err(words)?;
        let device = ArchiveDevice::open_on(device, &self.files, &reading()).map_err(words)?;
        if !device.root().revisions.iter().any(|r| r.checkpoint == id) {
            return Err("it is listed, and its store has it not".to_owned());
        }
        for segment in &self.parts.lock().unwrap()[&id] {
            if *device.segment(*segment).map_err(words)? != content(segment.0, BYTES) {
                return Err(format!("{segment:?} holds something else"));
            }
        }
        Ok(())
    }
}

/// A file as one start sees it.
#[derive(Clone)]
struct Seen {
    start: usize,
    world: Arc<World>,
    file: SimDevice,
}

impl std::fmt::Debug for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Seen({})", self.start)
    }
}

impl ReadAt for Seen {
    fn length_bytes(&self) -> std::io::Result<u64> {
        self.file.length_bytes()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
        self.world.act(self.start, || {
            self.file.read_at(buffer, offset)?;
            if offset == HEIR_OFFSET && !self.world.looks {
                buffer.fill(0);
            }
            Ok(())
        })
    }

    fn name(&self) -> String {
        format!("start {}", self.start)
    }
}

impl Device for Seen {
    fn write_at(&self, bytes: &[u8], offset: u64) -> std::io::Result<()> {
        self.world
            .act(self.start, || self.file.write_at(bytes, offset))
    }

    fn sync(&self) -> std::io::Result<()> {
        self.world.act(self.start, || self.file.sync())
    }

    fn reserve(&self, length_bytes: u64) -> std::io::Result<()> {
        self.file.reserve(length_bytes)
    }
}

/// One start of the job: its way to the files.
#[derive(Debug, Clone)]
struct Start {
    number: usize,
    world: WorldHandle,
}

#[derive(Clone)]
struct WorldHandle(Arc<World>);

impl std::fmt::Debug for WorldHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("world")
    }
}

impl Place for Start {
    fn open(&self, name: &str) -> backstay_base::Result<Arc<dyn ReadAt>> {
        Ok(self.open_to_mark(name)?)
    }
    fn open_to_mark(&self, name: &str) -> backstay_base::Result<Arc<dyn Device>> {
        self.see(&self.world.0.files.device(name)?)
    }
}

impl Start {
    fn new(world: &Arc<World>, number: usize) -> Self {
        Self {
            number,
            world: WorldHandle(Arc::clone(world)),
        }
    }

    #[expect(clippy::unnecessary_wraps, reason = "as a place opens")]
    fn see(&self, file: &SimDevice) -> backstay_base::Result<Arc<dyn Device>> {
        Ok(Arc::new(Seen {
            start: self.number,
            world: Arc::clone(&self.world.0),
            file: file.clone(),
        }))
    }

    fn make(&self, name: &str) -> backstay_base::Result<Arc<dyn Device>> {
        let file = SimDevice::new();
        self.world.0.files.put(name, &file);
        self.see(&file)
    }

    fn identity(&self, epoch: u32) -> Identity {
        Identity {
            host: format!("host {}", self.number),
            ..identity(epoch)
        }
    }

    /// Drains `numbers`, from what `catalog` lists, until another start has the archive; the last checkpoint of
    /// which it was told that it is in the archive.
    fn run(
        &self,
        (catalog, store, file): (&Catalog, &ArchiveStore, &str),
        numbers: std::ops::Range<u64>,
    ) -> (Option<CheckpointId>, Option<ErrorKind>) {
        let incarnation = self.number as u64 + 1;
        let mut last = None;
        for number in numbers {
            let id = CheckpointId::new(incarnation, number);
            match self.drain((catalog, store, file), id) {
                Ok(()) => last = Some(id),
                Err(error) => return (last, Some(error.kind())),
            }
        }
        (last, None)
    }

    fn drain(
        &self,
        (catalog, store, file): (&Catalog, &ArchiveStore, &str),
        id: CheckpointId,
    ) -> backstay_base::Result<()> {
        let world = &self.world.0;
        // Two stay: what goes leaves the catalog first.
        let listed: Vec<CheckpointId> = catalog
            .state()
            .restorable()
            .map(|entry| entry.checkpoint)
            .collect();
        let (gone, kept) = listed.split_at(listed.len().saturating_sub(1));
        catalog.drop_checkpoints(gone)?;
        let parts = world.parts.lock().unwrap().clone();
        let before = kept.last().map(|id| parts[id].clone()).unwrap_or_default();
        // Half of the one before stays, the rest is new.
        let mut own: BTreeSet<SegmentId> = before.iter().rev().take(2).copied().collect();
        for _ in 0..2 {
            let segment = store.next_segment();
            store.append(stored_whole(segment, id, content(segment.0, BYTES)))?;
            own.insert(segment);
        }
        let needed: BTreeSet<SegmentId> = before.union(&own).copied().collect();
        let all = store.device().entries();
        let free = all.iter().map(|entry| entry.segment);
        let revisions = kept.iter().chain([&id]).map(|&id| revision(id)).collect();
        world.parts.lock().unwrap().insert(id, own);
        let sequence = store.commit(&Commit {
            incarnation: id.incarnation,
            draining: None,
            revisions,
            free: free.filter(|segment| !needed.contains(segment)).collect(),
        })?;
        catalog.record(&NewCheckpoint {
            checkpoint: id,
            world_size: 1,
            bytes_total: 1,
            bytes_written: 1,
            parts: vec![NewPart {
                store: store.id(),
                file: file.to_owned(),
                sequence,
                ranks: RankRange::of([0]),
            }],
        })
    }
}

pub(crate) fn revision(id: CheckpointId) -> RevisionEntry {
    RevisionEntry {
        checkpoint: id,
        pinned: false,
        complete: true,
        world_size: 1,
        committed_unix_ns: 0,
        bytes_total: 1,
        bytes_changed: 1,
        ranks: StreamRoot::empty(1024),
    }
}

/// The first start drains; the second takes over from it at some instant, and both go on. What went wrong.
fn two_starts(seed: u64, looks: bool) -> Result<(), String> {
    let world = World::new(seed, looks);
    let first = Start::new(&world, 0);
    let store_name = store_file(3, 1);
    let device = first.make(&store_name).unwrap();
    let store = ArchiveStore::create_on(device, &first.identity(1), &options()).unwrap();
    let device = first.make(&catalog_file(1)).unwrap();
    let state = CatalogState::default();
    let catalog = Catalog::create_on(device, &first.identity(1), SLOT, state).unwrap();
    let begun = first.run((&catalog, &store, &store_name), 1..3);
    assert_eq!(begun.1, None);
    world.begins(1);
    let (told, heir) = std::thread::scope(|scope| {
        let old = scope.spawn(|| {
            let told = first.run((&catalog, &store, &store_name), 3..3 + DRAINS);
            drop(store);
            world.ends(0);
            told
        });
        let new = scope.spawn(|| {
            let heir = second_start(&world, seed);
            world.ends(1);
            heir
        });
        (old.join().unwrap(), new.join().unwrap())
    });
    world.note(world.check());
    if let Some(wrong) = world.wrong.lock().unwrap().take() {
        return Err(wrong);
    }
    let (known, last) = heir?;
    // The first start was told of nothing that the second did not find, and of its end.
    if let Some(told) = told.0.filter(|told| *told > known) {
        return Err(format!("{told} was recorded, and {known} was found"));
    }
    if told.0 < Some(CheckpointId::new(1, 2 + DRAINS)) && told.1 != Some(ErrorKind::StoreBusy) {
        return Err(format!("the first start ended with {told:?}"));
    }
    let listed = world.catalog().unwrap();
    let newest = listed.state().restorable().last();
    let newest = newest.map(|entry| entry.checkpoint);
    if newest == Some(last) {
        return Ok(());
    }
    Err(format!("{newest:?} is the newest, and {last} was recorded"))
}

/// Takes over catalog and store, and drains; what it found, and its last one.
fn second_start(world: &Arc<World>, seed: u64) -> Result<(CheckpointId, CheckpointId), String> {
    let words = |error: backstay_base::Error| error.to_string();
    let second = Start::new(world, 1);
    // At some time.
    for _ in 0..Seeded::of(&[seed, 7]).below(12) {
        world.act(1, || ());
    }
    let device = second.make(&catalog_file(2)).unwrap();
    let identity = second.identity(2);
    let catalog = Catalog::take_over_on(device, &second, &catalog_file(1), &identity);
    let catalog = catalog.map_err(words)?;
    let known = catalog.state().restorable().last().unwrap().checkpoint;
    catalog
        .begin_start(lineage(2), Some(known))
        .map_err(words)?;
    let name = store_file(3, 2);
    let device = second.make(&name).unwrap();
    let former = store_file(3, 1);
    let store = ArchiveStore::take_over_on(device, &second, &former, &identity, &options());
    let store = store.map_err(words)?;
    let numbers = known.number + 1..known.number + 1 + DRAINS;
    match second.run((&catalog, &store, &name), numbers) {
        (Some(last), None) => Ok((known, last)),
        (last, error) => Err(format!("nobody takes over from it: {last:?} {error:?}")),
    }
}

#[test]
fn of_two_starts_the_later_one_has_the_archive_and_what_is_listed_is_whole() {
    for seed in 0..60 {
        if let Err(wrong) = two_starts(seed, true) {
            panic!("seed {seed}: {wrong}");
        }
    }
}

/// The test above finds what it is to find: without looks for heirs what is listed is freed and overwritten.
#[test]
fn without_a_look_what_is_listed_is_not_whole() {
    let found: Vec<String> = (0..60)
        .filter_map(|seed| two_starts(seed, false).err())
        .collect();
    let broken = found.iter().filter(|text| text.contains("in aggregate-3-"));
    assert!(broken.count() > 0, "{found:?}");
}

#[test]
fn what_was_recorded_is_never_lost_between_two_that_take_over_again_and_again() {
    for seed in 0..30 {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let mut seeded = Seeded::of(&[seed, 0xca7a]);
        let host = |who: usize| Identity {
            host: format!("host {who}"),
            ..identity(0)
        };
        let mut open: [Option<Catalog>; 2] = [None, None];
        let mut recorded = Vec::new();
        for number in 1..40 {
            let who = seeded.index(2);
            if open[who].is_none() {
                open[who] = Some(Catalog::open_or_create(folder, &host(who), SLOT).unwrap());
            }
            let id = CheckpointId::new(1, number);
            let entry = NewCheckpoint {
                checkpoint: id,
                world_size: 1,
                bytes_total: 1,
                bytes_written: 1,
                parts: vec![NewPart {
                    store: StoreId([1; 16]),
                    file: store_file(0, 1),
                    sequence: number,
                    ranks: RankRange::of([0]),
                }],
            };
            match open[who].as_ref().unwrap().record(&entry) {
                Ok(()) => recorded.push(id),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::StoreBusy, "seed {seed}: {error}");
                    open[who] = None;
                }
            }
            let reader = Catalog::open_reader(folder).unwrap();
            let listed: Vec<CheckpointId> = reader
                .state()
                .restorable()
                .map(|entry| entry.checkpoint)
                .collect();
            assert!(
                recorded.iter().all(|id| listed.contains(id)),
                "seed {seed}: {number}"
            );
        }
    }
}

#[test]
fn a_start_that_is_over_and_one_that_drew_the_same_number_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let catalog = Catalog::create(folder.path(), &identity(0), SLOT).unwrap();
    catalog.claim(3, true).unwrap();
    catalog.claim(3, false).unwrap();
    for (incarnation, new) in [(3, true), (2, false), (2, true)] {
        let error = catalog.claim(incarnation, new).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StoreBusy);
        assert!(error.to_string().contains("start 3 of this job"), "{error}");
    }
    catalog.claim(4, true).unwrap();
}

/// The lineage as start `start` of the job has it, which the first began.
fn lineage(start: u64) -> Lineage {
    Lineage {
        began: 1,
        start,
        ..Lineage::default()
    }
}
