// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An archive made smaller on another host than wrote it, with a crash at every write and every sync, and with a start
//! of the job that comes meanwhile: what is listed is whole at every instant.

use crate::archive_fence::revision;
use crate::archive_store::{DeviceFolder, append, content, id, identity, options, reading};
use backstay_archive::{
    ArchiveDevice, ArchiveStore, Catalog, CatalogReader, Commit, Identity, NewCheckpoint, NewPart,
    catalog_file, former, store_file,
};
use backstay_base::ErrorKind;
use backstay_base::io::ReadAt;
use backstay_format::{CatalogState, RankRange, SegmentId, StoreId};
use backstay_testkit::bytes::SharedBytes;
use backstay_testkit::crash::image_at;
use backstay_testkit::{CrashOptions, Operation, SimDevice, for_each_image};
use std::collections::BTreeMap;
use std::sync::Arc;

const SLOT: u32 = 64 << 10;

fn elsewhere(epoch: u32) -> Identity {
    Identity {
        host: "another host".to_owned(),
        ..identity(epoch)
    }
}

/// What each checkpoint needs: segments and their lengths.
type Needs = BTreeMap<u64, Vec<(SegmentId, usize)>>;

/// Three checkpoints in one store, each with a large segment of its own, and one that two share.
fn drained(folder: &DeviceFolder) -> (Catalog, ArchiveStore, Needs) {
    let made = |name: &str| {
        let device = SimDevice::new();
        folder.put(name, &device);
        Arc::new(device)
    };
    let catalog = made(&catalog_file(1));
    let catalog = Catalog::create_on(catalog, &identity(1), SLOT, CatalogState::default()).unwrap();
    let store = made(&store_file(3, 1));
    let store = ArchiveStore::create_on(store, &identity(1), &options()).unwrap();
    let mut needs = Needs::new();
    for number in 1..=3 {
        let mut own: Vec<(SegmentId, usize)> =
            needs.get(&(number - 1)).cloned().unwrap_or_default();
        own.drain(..own.len().saturating_sub(1));
        for length in [150_000, 20_000] {
            own.push((append(&store, number, length), length));
        }
        needs.insert(number, own);
        let commit = Commit {
            incarnation: 1,
            revisions: (1..=number).map(|number| revision(id(number))).collect(),
            ..Commit::default()
        };
        let sequence = store.commit(&commit).unwrap();
        record(&catalog, number, (store.id(), &store_file(3, 1)), sequence).unwrap();
    }
    (catalog, store, needs)
}

fn record(
    catalog: &Catalog,
    number: u64,
    (store, file): (StoreId, &str),
    sequence: u64,
) -> backstay_base::Result<()> {
    catalog.record(&NewCheckpoint {
        checkpoint: id(number),
        world_size: 1,
        bytes_total: 1,
        bytes_written: 1,
        parts: vec![NewPart {
            store,
            file: file.to_owned(),
            sequence,
            ranks: RankRange::of([0]),
        }],
    })
}

/// The steps of a prune on another host, which leaves checkpoint 3, one at a time; `epoch` is that of its files.
struct Prune {
    folder: DeviceFolder,
    epoch: u32,
    catalog: Option<Catalog>,
    store: Option<ArchiveStore>,
}

const STEPS: usize = 5;

impl Prune {
    fn new(folder: &DeviceFolder, epoch: u32) -> Self {
        Self {
            folder: folder.clone(),
            epoch,
            catalog: None,
            store: None,
        }
    }

    /// The newest catalog file with a state, and the file of the store that it names.
    fn found(&self) -> (String, CatalogReader) {
        let (file, reader) = newest(&self.folder, self.epoch).unwrap();
        (file, reader)
    }

    fn step(&mut self, step: usize, needs: &Needs) -> backstay_base::Result<()> {
        match step {
            0 => {
                let (former, _) = self.found();
                let device = SimDevice::new();
                self.folder.put(&catalog_file(self.epoch), &device);
                let (device, identity) = (Arc::new(device), elsewhere(self.epoch));
                let made = Catalog::take_over_on(device, &self.folder, &former, &identity)?;
                self.catalog = Some(made);
            }
            1 => self.catalog().drop_checkpoints(&[id(1), id(2)])?,
            2 => {
                let former = self.listed().1;
                let name = store_file(3, self.epoch);
                let device = SimDevice::new();
                self.folder.put(&name, &device);
                let (device, identity) = (Arc::new(device), elsewhere(self.epoch));
                let store = ArchiveStore::take_over_on(
                    device,
                    &self.folder,
                    &former,
                    &identity,
                    &options(),
                )?;
                let stays: Vec<SegmentId> = needs[&3].iter().map(|(segment, _)| *segment).collect();
                let all = store
                    .device()
                    .entries()
                    .into_iter()
                    .map(|entry| entry.segment);
                store.commit(&Commit {
                    incarnation: 1,
                    revisions: vec![revision(id(3))],
                    free: all.filter(|segment| !stays.contains(segment)).collect(),
                    ..Commit::default()
                })?;
                store.give_up_free()?;
                self.store = Some(store);
            }
            3 => {
                let (store, former) = (self.store.as_ref().unwrap(), self.listed().0);
                let name = store_file(3, self.epoch);
                self.catalog().move_parts(&[former], (store.id(), &name))?;
            }
            _ => {
                self.catalog().is_current()?;
                let device = self.store.as_ref().unwrap().device();
                for (file, number) in device.root().files.iter().zip(1..) {
                    former::give_back(&self.folder, &file.name, device.extents_in(number))?;
                }
            }
        }
        Ok(())
    }

    fn catalog(&self) -> &Catalog {
        self.catalog.as_ref().unwrap()
    }

    /// The store that the catalog names.
    fn listed(&self) -> (StoreId, String) {
        let state = self.catalog().state();
        let [store] = &*state.stores else {
            panic!("{state:?}")
        };
        (store.store, store.name.clone())
    }
}

/// The catalog that counts, of those up to `epoch`.
fn newest(folder: &DeviceFolder, epoch: u32) -> Option<(String, CatalogReader)> {
    (1..=epoch).rev().find_map(|epoch| {
        let file = catalog_file(epoch);
        let device = folder.device(&file).ok()?;
        Some((file.clone(), CatalogReader::on(&device, &file).ok()?))
    })
}

/// That all that the catalog lists is whole; the numbers.
fn check(folder: &DeviceFolder, needs: &Needs) -> Result<Vec<u64>, String> {
    let said = |error: backstay_base::Error| error.to_string();
    let (_, catalog) = newest(folder, 9).ok_or("no catalog")?;
    let mut numbers = Vec::new();
    for listed in catalog.state().restorable() {
        let number = listed.checkpoint.number;
        for part in &listed.parts {
            let file = &catalog.store_of(part).ok_or("no store")?.name;
            let device = Arc::new(folder.device(file).map_err(said)?);
            let device = ArchiveDevice::open_on(device, folder, &reading()).map_err(said)?;
            let has = device
                .root()
                .revisions
                .iter()
                .any(|r| r.checkpoint == listed.checkpoint);
            if !has {
                return Err(format!("{file} has no checkpoint {number}"));
            }
            for &(segment, length) in &needs[&number] {
                let bytes = device.segment(segment).map_err(said)?;
                if *bytes != content(segment.0, length) {
                    return Err(format!("{file}: segment {} has other bytes", segment.0));
                }
            }
        }
        numbers.push(number);
    }
    Ok(numbers)
}

/// What a step did to one file.
struct Done {
    step: usize,
    name: String,
    before: SharedBytes,
    log: Vec<Operation>,
}

fn crashes() -> CrashOptions {
    CrashOptions {
        exhaustive_up_to: 4,
        samples: 24,
        ..CrashOptions::default()
    }
}

/// What is durable when all of `log` was done.
fn durable(done: &Done) -> SharedBytes {
    let options = CrashOptions {
        exhaustive_up_to: 0,
        ..crashes()
    };
    // The image without anything of what was not synced; where there is nothing of that, the only one.
    let image = |index| image_at(&done.log, &done.before, options, done.log.len(), index);
    image(1).or_else(|| image(0)).unwrap().bytes
}

/// All steps of a prune, and what each did to the files, in the order in which they came to be written.
fn history() -> (Needs, Vec<Done>) {
    let folder = DeviceFolder::default();
    let (catalog, store, needs) = drained(&folder);
    drop((catalog, store));
    let names = [
        catalog_file(1),
        catalog_file(2),
        store_file(3, 1),
        store_file(3, 2),
    ];
    let mut prune = Prune::new(&folder, 2);
    let mut all = Vec::new();
    for step in 0..STEPS {
        let devices = names.clone().map(|name| folder.device(&name).ok());
        let before = devices.map(|device| device.map(|device| device.start_log()));
        prune.step(step, &needs).unwrap();
        for (name, before) in names.iter().zip(before) {
            let Ok(device) = folder.device(name) else {
                continue;
            };
            let before = before.unwrap_or_else(|| SharedBytes::new(Vec::new()));
            all.push(Done {
                step,
                name: name.clone(),
                before,
                log: device.log(),
            });
        }
    }
    (needs, all)
}

/// Every crash: the file that is written has any image, those before it in the step what they had made durable, those
/// after it what they had before. How many images there were.
fn crashed(needs: &Needs, all: &[Done]) -> Result<usize, String> {
    let mut images = 0;
    for (at, done) in all.iter().enumerate() {
        if done.log.is_empty() {
            continue;
        }
        let others = |folder: &DeviceFolder| {
            for (place, other) in all.iter().enumerate() {
                let bytes = if place < at {
                    durable(other)
                } else if place > at && other.step == 0 && !other.before_is_empty() {
                    other.before.clone()
                } else {
                    continue;
                };
                folder.put(&other.name, &SimDevice::from_shared(bytes));
            }
        };
        let base = DeviceFolder::default();
        others(&base);
        let visited = for_each_image(&done.log, &done.before, crashes(), |image| {
            let folder = base.copied();
            folder.put(&done.name, &image.device());
            let listed = check(&folder, needs)?;
            if !listed.contains(&3) {
                return Err(format!("3 is not among {listed:?}"));
            }
            if !image.index.is_multiple_of(5) {
                return Ok(());
            }
            // Whoever prunes next ends it, whatever was left.
            let mut again = Prune::new(&folder, 5);
            for step in 0..STEPS {
                let went = again.step(step, needs);
                went.map_err(|error| format!("again, step {step}: {error}"))?;
                check(&folder, needs)?;
            }
            // The first segments of the former file were of checkpoint 1 alone.
            let left = folder.device(&store_file(3, 1)).unwrap();
            let mut bytes = vec![1; 150_000];
            left.read_at(&mut bytes, 4 << 20).unwrap();
            if bytes.iter().any(|&byte| byte != 0) {
                return Err("the former file is as large as it was".to_owned());
            }
            Ok(())
        });
        let summary =
            visited.map_err(|failure| format!("step {}, {}: {failure}", done.step, done.name))?;
        images += summary.images;
    }
    Ok(images)
}

impl Done {
    fn before_is_empty(&self) -> bool {
        self.before.length_bytes() == 0
    }
}

#[test]
fn a_prune_on_another_host_survives_every_crash() {
    let (needs, all) = history();
    let former = all
        .iter()
        .rfind(|done| done.name == store_file(3, 1))
        .unwrap();
    let gives_back = |operation: &Operation| {
        matches!(
            operation,
            Operation::Discard { .. } | Operation::Shrink { .. }
        )
    };
    assert!(former.log.iter().any(gives_back), "{:?}", former.log.len());
    let images = crashed(&needs, &all).unwrap();
    assert!(images > 250, "only {images} images");
}

/// The test above is worth what it finds: where the catalog names a file that was not synced it fails.
#[test]
fn a_prune_that_forgets_to_sync_the_new_file_is_found() {
    let (needs, mut all) = history();
    for done in &mut all {
        if done.name == store_file(3, 2) {
            done.log.retain(|operation| *operation != Operation::Sync);
        }
    }
    let wrong = crashed(&needs, &all).unwrap_err();
    assert!(wrong.starts_with("step 3, catalog-2.backstay"), "{wrong}");
}

/// A start of the job that takes over between two steps of the prune refers to what the former file has: nothing of it
/// goes then. One that comes later refers to what is left.
#[test]
fn a_start_that_comes_meanwhile_keeps_what_it_goes_on_from() {
    for comes_before in 2..=STEPS {
        let folder = DeviceFolder::default();
        let (catalog, store, needs) = drained(&folder);
        drop((catalog, store));
        let all: BTreeMap<SegmentId, usize> = needs.values().flatten().copied().collect();
        let mut prune = Prune::new(&folder, 2);
        for step in 0..comes_before {
            prune.step(step, &needs).unwrap();
        }
        // The start: catalog, then store, then a checkpoint that has something of each that it found.
        let (former, _) = newest(&folder, 2).unwrap();
        let made = |name: &str| {
            let device = SimDevice::new();
            folder.put(name, &device);
            Arc::new(device)
        };
        let catalog = made(&catalog_file(4));
        let identity = identity(4);
        let catalog = Catalog::take_over_on(catalog, &folder, &former, &identity).unwrap();
        let former = catalog.state().stores[0].name.clone();
        let store = made(&store_file(3, 4));
        let store =
            ArchiveStore::take_over_on(store, &folder, &former, &identity, &options()).unwrap();
        let had = store.device().entries();
        assert_eq!(had.len() == all.len(), comes_before < 4, "{former}");
        let sequence = store
            .commit(&Commit {
                incarnation: 1,
                revisions: vec![revision(id(3)), revision(id(4))],
                ..Commit::default()
            })
            .unwrap();
        record(&catalog, 4, (store.id(), &store_file(3, 4)), sequence).unwrap();
        let mut refused = None;
        for step in comes_before..STEPS {
            let went = prune.step(step, &needs);
            refused = refused.or(went.err());
            if refused.is_some() {
                break;
            }
        }
        let expected = (comes_before < STEPS).then_some(ErrorKind::StoreBusy);
        assert_eq!(refused.map(|error| error.kind()), expected);
        let mut needs = needs.clone();
        let is_had = |(segment, _): &(SegmentId, usize)| had.iter().any(|e| e.segment == *segment);
        needs.insert(4, all.into_iter().filter(is_had).collect());
        assert_eq!(check(&folder, &needs).unwrap(), [3, 4]);
    }
}
