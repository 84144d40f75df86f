// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the catalog of an archive: the one record of which checkpoints are whole.
//! In from: the composer, when all stores have committed their parts. Out to: everybody who restores.
//! Invariants: a change is one write of the whole state into the other slot, and one sync; the file with
//! the highest epoch that has a valid state counts, and one that cannot be read is not passed over; one
//! process writes a catalog file, ever.
//! Format: docs/format/archive.md, section "Catalog".

use super::fence::{self, Fence};
use super::heir::{self, Watch};
use super::placed::{forget_unused, has_each_once, place_parts};
use super::{Folder, Identity, Place, catalog_file, make, private};

use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::direct::{AlignedBytes, SharedFile};
use backstay_base::io::two_slots::{self, Copied, Medium, Plain, SlotFormat, TwoSlots, Unread};
use backstay_base::io::{Device, ReadAt};
use backstay_base::notice;
use backstay_format::geometry::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
use backstay_format::limits::{CATALOG_CHECKPOINTS_MAX, CATALOG_STARTS_MAX};
use backstay_format::width::{index, to_u64};
use backstay_format::{
    CatalogCheckpoint, CatalogPart, CatalogStart, CatalogState, CatalogStore, CatalogSuperblock,
    CheckpointId, FormatError, Lineage, RankRange, StoreId,
};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use super::placed::slot_bytes_for;

/// Takeovers at once that are evaded.
const TRIES: u32 = 64;

/// One store's part of a checkpoint that is recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewPart {
    /// The store.
    pub store: StoreId,
    /// Its file in the folder of the catalog.
    pub file: String,
    /// What its commit returned.
    pub sequence: u64,
    /// Whose parts it has, ascending.
    pub ranks: Vec<RankRange>,
}

/// A checkpoint that is whole now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewCheckpoint {
    /// Which.
    pub checkpoint: CheckpointId,
    /// Ranks of the job.
    pub world_size: u32,
    /// Bytes of all variables of all ranks.
    pub bytes_total: u64,
    /// Bytes that were stored for it.
    pub bytes_written: u64,
    /// All parts.
    pub parts: Vec<NewPart>,
}

/// The slots of a catalog file.
#[derive(Debug, Clone, Copy)]
struct StateSlots {
    catalog: StoreId,
    offsets: [u64; 2],
    bytes: usize,
}

impl StateSlots {
    fn of(superblock: &CatalogSuperblock) -> Self {
        Self {
            catalog: superblock.catalog,
            offsets: [0, 1].map(|slot| superblock.slot_offset(slot)),
            bytes: index(superblock.slot_bytes),
        }
    }
}

impl SlotFormat for StateSlots {
    /// Shared with whoever looks, not copied.
    type State = Arc<CatalogState>;
    fn what(&self) -> &'static str {
        "catalog state"
    }
    fn offset(&self, slot: usize) -> u64 {
        self.offsets[slot]
    }
    fn slot_bytes(&self) -> usize {
        self.bytes
    }
    fn sequence(&self, state: &Arc<CatalogState>) -> u64 {
        state.sequence
    }
    fn encode(&self, state: &Arc<CatalogState>) -> std::result::Result<Vec<u8>, FormatError> {
        state.encode(self.catalog)
    }
    fn decode(&self, bytes: &[u8]) -> std::result::Result<Arc<CatalogState>, FormatError> {
        CatalogState::decode(bytes, self.catalog).map(Arc::new)
    }
}

/// The catalog, for looking.
#[derive(Debug)]
pub struct CatalogReader {
    superblock: CatalogSuperblock,
    file: String,
    state: Arc<CatalogState>,
    damaged: Option<Error>,
    given_up: Option<Error>,
}

impl CatalogReader {
    /// The state on a device whose file is called `file`.
    pub fn on(device: &dyn ReadAt, file: &str) -> Result<Self> {
        Self::on_as(device, file, Unread::Counts)
    }

    fn on_as(device: &dyn ReadAt, file: &str, unread: Unread) -> Result<Self> {
        let superblock = superblock_copy(device)?.value;
        let format = StateSlots::of(&superblock);
        let found = two_slots::look(device, &format).found_as(&format, unread)?;
        let Some((state, _)) = found.states.into_iter().next() else {
            return Err(Error::new(ErrorKind::Internal, "no slot is good"));
        };
        Ok(Self {
            superblock,
            file: file.to_owned(),
            state,
            damaged: found.damaged,
            given_up: found.given_up,
        })
    }

    /// What the file says of itself.
    pub fn superblock(&self) -> &CatalogSuperblock {
        &self.superblock
    }
    /// The name of the file in its folder.
    pub fn file(&self) -> &str {
        &self.file
    }
    /// What it said when it was read.
    pub fn state(&self) -> &CatalogState {
        &self.state
    }
    /// What was found damaged on the way: the other slot, which may just be written, or a file of a
    /// higher epoch, which may just be made.
    pub fn damaged(&self) -> Option<&Error> {
        self.damaged.as_ref()
    }
    /// Why a slot could not be read, where what may stand there was given up.
    pub fn given_up(&self) -> Option<&Error> {
        self.given_up.as_ref()
    }
    /// The file in which `part` of a checkpoint is.
    pub fn store_of(&self, part: &CatalogPart) -> Option<&CatalogStore> {
        self.state.stores.get(index(part.store))
    }
}

fn superblock_copy(device: &dyn ReadAt) -> Result<Copied<CatalogSuperblock>> {
    let places = (SUPERBLOCK_OFFSETS.as_slice(), SUPERBLOCK_BYTES);
    let decode = CatalogSuperblock::decode;
    two_slots::first_copy(device, places, "catalog superblock", decode)
}

/// Whether the making of the file never came to its superblocks, which are written last: it holds nothing.
pub fn is_half_made(device: &dyn ReadAt) -> bool {
    let Ok(length) = device.length_bytes() else {
        return false;
    };
    SUPERBLOCK_OFFSETS.into_iter().all(|offset| {
        let mut bytes = AlignedBytes::new(SUPERBLOCK_BYTES);
        length < offset + to_u64(SUPERBLOCK_BYTES)
            || device.read_at(&mut bytes, offset).is_ok() && bytes.iter().all(|&byte| byte == 0)
    })
}

/// The epochs of the catalog files in `folder`, highest first.
fn epochs(folder: &Path) -> Result<Vec<u32>> {
    let failed = |error| Error::io(format!("{}: listing it", folder.display()), error);
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let name = entry.map_err(failed)?.file_name();
        let name = name.to_string_lossy();
        found.extend(crate::FileName::catalog(&name));
    }
    found.sort_unstable_by(|a, b| b.cmp(a));
    Ok(found)
}

/// The catalog, for the one process that writes it.
#[derive(Debug)]
pub struct Catalog {
    device: Arc<dyn Device>,
    superblock: CatalogSuperblock,
    file: String,
    slots: Mutex<TwoSlots<StateSlots>>,
    /// Whether another catalog goes on from this one.
    watch: Watch,
    _fence: Option<Fence>,
}

impl Catalog {
    /// Makes the first catalog of a job in `folder`; `identity.epoch` has no meaning. Another job's
    /// catalog there is [`ErrorKind::StoreBusy`].
    pub fn create(folder: &Path, identity: &Identity, slot_bytes: u32) -> Result<Self> {
        if let Some(found) = Self::found(folder, Unread::Counts)? {
            let superblock = &found.superblock;
            let what = folder.join(&found.file).display().to_string();
            make::same_job(&what, (&superblock.job, superblock.run), identity)?;
            let context = format!("{what} is there already; open it or take it over");
            return Err(Error::new(ErrorKind::StoreBusy, context));
        }
        Self::make_in(folder, identity, slot_bytes, Unread::Counts)
    }

    /// Reads the catalog in `folder`: [`ErrorKind::NoCheckpoint`] if there is none.
    pub fn open_reader(folder: &Path) -> Result<CatalogReader> {
        Self::open_reader_as(folder, Unread::Counts)
    }

    /// The same, where what may stand in a slot that cannot be read may be given up.
    pub fn open_reader_as(folder: &Path, unread: Unread) -> Result<CatalogReader> {
        Self::found(folder, unread)?.ok_or_else(|| {
            let is_begun = epochs(folder).is_ok_and(|epochs| !epochs.is_empty());
            let why = if is_begun {
                "its first catalog was begun and holds nothing: a job makes it just now, or was killed while it did; \
                 the next start makes another, and backstay rm removes this one"
            } else {
                "there is no catalog of an archive"
            };
            let context = format!("{}: {why}", folder.display());
            Error::new(ErrorKind::NoCheckpoint, context)
        })
    }

    /// The newest catalog with a valid state, if there is one.
    fn found(folder: &Path, unread: Unread) -> Result<Option<CatalogReader>> {
        let mut tries = 0;
        loop {
            match Self::found_once(folder, unread) {
                // A file may go between listing and opening: another has its place then.
                Err(error) if is_gone(&error) && tries < TRIES => tries += 1,
                found => return found,
            }
        }
    }

    fn found_once(folder: &Path, unread: Unread) -> Result<Option<CatalogReader>> {
        let place = Folder {
            path: folder.to_owned(),
            direct: true,
        };
        let mut damaged = None;
        for epoch in epochs(folder)? {
            let file = catalog_file(epoch);
            let read = place.open(&file).and_then(|device| {
                if is_half_made(&*device) {
                    return Ok(None);
                }
                CatalogReader::on_as(&*device, &file, unread).map(Some)
            });
            match read {
                Ok(Some(mut reader)) => {
                    reader.damaged = damaged.or(reader.damaged);
                    return Ok(Some(reader));
                }
                Ok(None) => {}
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    damaged = damaged.or(Some(error));
                }
                // It may be good and the newest: what an older one says is not taken for it, or what is
                // newer would be given up, and its space with it.
                Err(error) => return Err(error),
            }
        }
        damaged.map_or(Ok(None), Err)
    }

    /// Opens the newest catalog again, on the host that made it, once its former process is proven dead.
    /// Otherwise [`ErrorKind::StoreBusy`]: [`Catalog::take_over`] is the way then.
    pub fn open_writer(folder: &Path, identity: &Identity) -> Result<Self> {
        let found = Self::open_reader(folder)?;
        let path = folder.join(&found.file);
        let what = path.display().to_string();
        let superblock = found.superblock;
        make::same_job(&what, (&superblock.job, superblock.run), identity)?;
        let fence = Fence::again(superblock.catalog, &superblock.host, &what)?;
        let device = super::opened(&path, SharedFile::open(&path, false))?;
        let watch = Watch::of(&Self::place(folder), &found.file)?;
        Self::open_with(Arc::new(device), &found.file, (Some(fence), watch))
    }

    /// Makes a catalog of the next epoch with the state of the newest one.
    pub fn take_over(folder: &Path, identity: &Identity) -> Result<Self> {
        let found = Self::open_reader(folder)?;
        let what = folder.join(&found.file).display().to_string();
        let superblock = &found.superblock;
        make::same_job(&what, (&superblock.job, superblock.run), identity)?;
        Self::make_in(folder, identity, superblock.slot_bytes, Unread::Counts)
    }

    /// As [`Catalog::open_or_create`], where what may stand in a slot that cannot be read was given up: the state
    /// of the other slot goes into a file of the next epoch, so that nobody has to read that slot again.
    pub fn go_on_past_unread(folder: &Path, identity: &Identity, slot_bytes: u32) -> Result<Self> {
        let found = Self::found(folder, Unread::GivenUp)?;
        let Some(found) = found.filter(|found| found.given_up.is_some()) else {
            return Self::open_or_create(folder, identity, slot_bytes);
        };
        let superblock = &found.superblock;
        let what = folder.join(&found.file).display().to_string();
        make::same_job(&what, (&superblock.job, superblock.run), identity)?;
        if superblock.host == fence::host() && Fence::is_held(superblock.catalog) {
            let context = format!("{what}: a process of this host writes it; end it");
            return Err(Error::new(ErrorKind::StoreBusy, context));
        }
        Self::make_in(folder, identity, superblock.slot_bytes, Unread::GivenUp)
    }

    /// The first of [`Catalog::open_writer`], [`Catalog::take_over`] and [`Catalog::create`] that fits.
    /// Another job's catalog is refused, and one that a process of this host writes.
    pub fn open_or_create(folder: &Path, identity: &Identity, slot_bytes: u32) -> Result<Self> {
        let Some(found) = Self::found(folder, Unread::Counts)? else {
            return Self::create(folder, identity, slot_bytes);
        };
        let what = folder.join(&found.file).display().to_string();
        let superblock = &found.superblock;
        make::same_job(&what, (&superblock.job, superblock.run), identity)?;
        if let Some(damaged) = &found.damaged {
            notice::warn(&format!(
                "{damaged}; the archive resumes from state {} in {what}",
                found.state.sequence
            ));
        }
        let is_here = superblock.host == fence::host();
        let is_written = is_here && Fence::is_held(superblock.catalog);
        if superblock.slot_bytes < slot_bytes && !is_written {
            return Self::make_in(folder, identity, slot_bytes, Unread::Counts);
        }
        match Self::open_writer(folder, identity) {
            Err(error) if error.kind() == ErrorKind::StoreBusy && !is_written => {
                Self::take_over(folder, identity)
            }
            opened => opened,
        }
    }

    fn place(folder: &Path) -> Folder {
        Folder {
            path: folder.to_owned(),
            direct: true,
        }
    }

    /// Makes the file of the next epoch in `folder`, which goes on from all that are there.
    fn make_in(
        folder: &Path,
        identity: &Identity,
        slot_bytes: u32,
        unread: Unread,
    ) -> Result<Self> {
        let failed = |error| Error::io(format!("{}: making a catalog", folder.display()), error);
        private::make_folder(folder)?;
        let mut epoch = epochs(folder)?.first().map_or(1, |last| last + 1);
        let mut tries = 0;
        let (file, device) = loop {
            let file = catalog_file(epoch);
            match SharedFile::create(&folder.join(&file), false, |_| Ok(())) {
                Ok(device) => break (file, device),
                Err(error)
                    if error.kind() == std::io::ErrorKind::AlreadyExists && tries < TRIES =>
                {
                    (epoch, tries) = (epoch + 1, tries + 1);
                }
                Err(error) => return Err(failed(error)),
            }
        };
        let identity = Identity {
            epoch,
            ..identity.clone()
        };
        let made = Self::succeed(folder, (&file, device), &identity, (slot_bytes, unread));
        if made.is_err() {
            // This process made it, and whoever goes on from it has what is in it.
            drop(std::fs::remove_file(folder.join(&file)));
        }
        made
    }

    /// Goes on, in a file that was just made, from the newest catalog in `folder`, whoever writes it. Whoever
    /// goes on from one says so in it before it reads it, in each that is there: of those who do so at once
    /// the one of the highest epoch has it.
    fn succeed(
        folder: &Path,
        (file, device): (&str, SharedFile),
        identity: &Identity,
        (slot_bytes, unread): (u32, Unread),
    ) -> Result<Self> {
        let place = Self::place(folder);
        for other in epochs(folder)? {
            if other > identity.epoch {
                let other = folder.join(catalog_file(other));
                let context = format!(
                    "{}: another process takes over the catalog at this moment; end one of the two jobs",
                    other.display()
                );
                return Err(Error::new(ErrorKind::StoreBusy, context));
            }
            if other < identity.epoch {
                let next = heir::heir(StoreId::default(), identity.epoch, &identity.host);
                match heir::publish(&place, &catalog_file(other), &next) {
                    Err(error) if is_gone(&error) => {}
                    published => published?,
                }
            }
        }
        let (mut state, mut slot_bytes) = (Arc::default(), slot_bytes);
        if let Some(found) = Self::found(folder, unread)? {
            let superblock = &found.superblock;
            let what = folder.join(&found.file).display().to_string();
            make::same_job(&what, (&superblock.job, superblock.run), identity)?;
            (state, slot_bytes) = (found.state, superblock.slot_bytes.max(slot_bytes));
        }
        let id = make::new_id()?;
        let fence = Fence::first(id)?;
        let watch = Watch::of(&place, file)?;
        let guard = (Some(fence), watch);
        let made = Self::make(
            Arc::new(device),
            (file, id),
            identity,
            (slot_bytes, state),
            guard,
        )?;
        make::sync_folder(folder)?;
        // Who came meanwhile may have read nothing of it.
        made.watch.look()?;
        Ok(made)
    }

    /// Makes a catalog on a device, with the state of another or an empty one, without a fence.
    pub fn create_on(
        device: Arc<dyn Device>,
        identity: &Identity,
        slot_bytes: u32,
        state: impl Into<Arc<CatalogState>>,
    ) -> Result<Self> {
        let file = catalog_file(identity.epoch);
        let id = make::new_id()?;
        let watch = Watch::on(device.clone());
        Self::make(
            device,
            (&file, id),
            identity,
            (slot_bytes, state.into()),
            (None, watch),
        )
    }

    /// Makes a catalog on a device, with the state of the file `former` of `place`, without a fence.
    pub fn take_over_on(
        device: Arc<dyn Device>,
        place: &dyn Place,
        former: &str,
        identity: &Identity,
    ) -> Result<Self> {
        let next = heir::heir(StoreId::default(), identity.epoch, &identity.host);
        heir::publish(place, former, &next)?;
        let found = CatalogReader::on(&*place.open(former)?, former)?;
        let superblock = found.superblock;
        make::same_job(former, (&superblock.job, superblock.run), identity)?;
        Self::create_on(device, identity, superblock.slot_bytes, found.state)
    }

    fn make(
        device: Arc<dyn Device>,
        (file, catalog): (&str, StoreId),
        identity: &Identity,
        (slot_bytes, mut state): (u32, Arc<CatalogState>),
        (fence, watch): (Option<Fence>, Watch),
    ) -> Result<Self> {
        let superblock = CatalogSuperblock {
            catalog,
            slot_bytes,
            run: identity.run,
            created_unix_ns: backstay_base::clock::unix_ns(),
            epoch: identity.epoch,
            job: identity.job.clone(),
            host: identity.host.clone(),
        };
        let name = device.name();
        let block = superblock
            .encode()
            .map_err(|error| Error::unwritable(format!("{name}: a catalog"), error))?;
        let length = superblock.file_bytes();
        device
            .reserve(length)
            .map_err(|error| Error::io(format!("{name}: reserving {length} bytes"), error))?;
        make::give_back_head(&*device);
        Arc::make_mut(&mut state).sequence += 1;
        let medium = Plain(&*device);
        let slots = TwoSlots::make(&medium, StateSlots::of(&superblock), state)?;
        for offset in SUPERBLOCK_OFFSETS {
            let mut padded = AlignedBytes::new(SUPERBLOCK_BYTES);
            padded[..block.len()].copy_from_slice(&block);
            medium.write(&padded, offset)?;
        }
        medium.sync()?;
        Ok(Self {
            device,
            superblock,
            file: file.to_owned(),
            slots: Mutex::new(slots),
            watch,
            _fence: fence,
        })
    }

    /// Opens the catalog on a device, which is called `file`, to go on.
    pub fn open_on(device: Arc<dyn Device>, file: &str, fence: Option<Fence>) -> Result<Self> {
        let watch = Watch::on(device.clone());
        Self::open_with(device, file, (fence, watch))
    }

    fn open_with(
        device: Arc<dyn Device>,
        file: &str,
        (fence, watch): (Option<Fence>, Watch),
    ) -> Result<Self> {
        let copy = superblock_copy(&*device)?;
        copy.refuse_later(&*device)?;
        let superblock = copy.value;
        let slots = TwoSlots::open(&Plain(&*device), StateSlots::of(&superblock))?;
        watch.look()?;
        Ok(Self {
            device,
            superblock,
            file: file.to_owned(),
            slots: Mutex::new(slots),
            watch,
            _fence: fence,
        })
    }

    fn lock(&self) -> MutexGuard<'_, TwoSlots<StateSlots>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the file says of itself.
    pub fn superblock(&self) -> &CatalogSuperblock {
        &self.superblock
    }
    /// The name of the file in its folder.
    pub fn file(&self) -> &str {
        &self.file
    }
    /// The durable state.
    pub fn state(&self) -> Arc<CatalogState> {
        Arc::clone(self.lock().state())
    }

    /// Makes a changed state durable.
    fn change(&self, change: impl FnOnce(&mut CatalogState) -> Result<()>) -> Result<()> {
        let mut slots = self.lock();
        slots.usable()?;
        let mut state = CatalogState::clone(slots.state());
        change(&mut state)?;
        state.sequence = slots.next_sequence();
        slots.write(&Plain(&*self.device), Arc::new(state))?;
        // A successor that comes from now on reads this state. One that came before may know it or not, and
        // what this process says counts no more.
        self.watch.look()
    }

    /// That no other catalog goes on from this one; else [`ErrorKind::StoreBusy`].
    pub fn is_current(&self) -> Result<()> {
        self.watch.look()
    }

    /// Start `incarnation` of the job writes from now on; [`ErrorKind::StoreBusy`] if a later one does, or,
    /// where it is `new`, if this number is taken.
    pub fn claim(&self, incarnation: u64, new: bool) -> Result<()> {
        let known = self.lock().state().incarnation;
        if known > incarnation || new && known == incarnation {
            let context = format!(
                "{}: start {known} of this job writes the archive; this is start {incarnation}, which has to \
                 end, or to be started again if it just began",
                self.device.name()
            );
            return Err(Error::new(ErrorKind::StoreBusy, context));
        }
        if known == incarnation {
            return Ok(());
        }
        self.change(|state| {
            state.incarnation = incarnation;
            Ok(())
        })
    }

    /// Records that a checkpoint is whole; once more with other parts, where they moved. One of a start
    /// that was left behind is refused as [`ErrorKind::NotRetained`].
    pub fn record(&self, checkpoint: &NewCheckpoint) -> Result<()> {
        self.change(|state| {
            let id = checkpoint.checkpoint;
            if state.is_abandoned(id) {
                let context = format!("checkpoint {id}: a later start resumed from an older one");
                return Err(Error::new(ErrorKind::NotRetained, context));
            }
            let ranges = checkpoint.parts.iter().flat_map(|part| part.ranks.clone());
            if !has_each_once(ranges.collect(), checkpoint.world_size) {
                let context =
                    format!("checkpoint {id}: parts of some ranks are in no store, or in two");
                return Err(Error::new(ErrorKind::Corrupt, context));
            }
            let parts = place_parts(state, &checkpoint.parts)?;
            let before = state.find(id);
            let before = before.map(|entry| (entry.kept, entry.finished));
            let (kept, finished) = before.unwrap_or_default();
            state.checkpoints.retain(|entry| entry.checkpoint != id);
            let entry = CatalogCheckpoint {
                checkpoint: id,
                world_size: checkpoint.world_size,
                kept,
                finished,
                archived_unix_ns: backstay_base::clock::unix_ns(),
                bytes_total: checkpoint.bytes_total,
                bytes_written: checkpoint.bytes_written,
                parts,
            };
            let at = state
                .checkpoints
                .partition_point(|entry| entry.checkpoint < id);
            state.checkpoints.insert(at, entry);
            state.incarnation = state.incarnation.max(id.incarnation);
            forget_unused(state);
            if to_u64(state.checkpoints.len()) > u64::from(CATALOG_CHECKPOINTS_MAX) {
                let context = format!("{}: it lists too many checkpoints", self.device.name());
                return Err(Error::new(ErrorKind::StoreFull, context));
            }
            Ok(())
        })
    }

    /// A start of the job goes on from nothing, where nothing is listed: the catalog knows of its lineage.
    pub fn name_lineage(&self, lineage: Lineage) -> Result<()> {
        if self.lock().state().lineage.order() >= lineage.order() {
            return Ok(());
        }
        self.change(|state| {
            state.incarnation = state.incarnation.max(lineage.start);
            state.lineage = lineage;
            Ok(())
        })
    }

    /// The program is done: no later start goes on from what is listed unless it is told to, and `last`, if it is
    /// listed, stays until it is removed.
    pub fn finish(&self, lineage: Lineage, last: CheckpointId) -> Result<()> {
        self.change(|state| {
            state.lineage = Lineage {
                finished: true,
                ..lineage
            };
            let entries = state.checkpoints.iter_mut();
            for entry in entries.filter(|entry| entry.checkpoint == last) {
                entry.finished = true;
            }
            Ok(())
        })
    }

    /// The start of `lineage` began from `from` (`None`: anew): later checkpoints of earlier starts are
    /// abandoned, and where the program had finished with `from` it no longer has.
    pub fn begin_start(&self, lineage: Lineage, from: Option<CheckpointId>) -> Result<()> {
        let incarnation = lineage.start;
        let start = CatalogStart {
            incarnation,
            from: from.unwrap_or_default(),
        };
        if self.lock().state().starts.last() == Some(&start) {
            return Ok(());
        }
        self.change(|state| {
            let newest = state.starts.last().map_or(0, |last| last.incarnation);
            if incarnation <= newest {
                let context = format!("start {incarnation} after start {newest}");
                return Err(Error::new(ErrorKind::InvalidArgument, context));
            }
            state.incarnation = state.incarnation.max(incarnation);
            state.lineage = lineage;
            for entry in &mut state.checkpoints {
                entry.finished &= Some(entry.checkpoint) != from || !lineage.has(entry.checkpoint);
            }
            state.starts.push(start);
            if state.starts.len() > index(CATALOG_STARTS_MAX) {
                let abandons = |start: &CatalogStart| {
                    state.checkpoints.iter().any(|entry| {
                        let id = entry.checkpoint;
                        start.incarnation > id.incarnation && id > start.from
                    })
                };
                let Some(spare) = state.starts.iter().position(|start| !abandons(start)) else {
                    let context = "the catalog remembers too many starts; drop what they abandoned";
                    return Err(Error::new(ErrorKind::StoreFull, context));
                };
                state.starts.remove(spare);
            }
            Ok(())
        })
    }

    /// Takes checkpoints off the list. When it returned, their segments may be freed. Others than those
    /// listed are left out.
    pub fn drop_checkpoints(&self, checkpoints: &[CheckpointId]) -> Result<()> {
        let listed = |id: &CheckpointId| self.lock().state().find(*id).is_some();
        if !checkpoints.iter().any(listed) {
            return Ok(());
        }
        self.change(|state| {
            state
                .checkpoints
                .retain(|entry| !checkpoints.contains(&entry.checkpoint));
            forget_unused(state);
            Ok(())
        })
    }

    /// Whatever is in one of the stores `from` is in `to`, a store and its file, from now on: it goes on from them, and
    /// has what is listed of them.
    pub fn move_parts(&self, from: &[StoreId], (to, file): (StoreId, &str)) -> Result<()> {
        self.change(|state| {
            let stores = &mut state.stores;
            let known = stores.iter().position(|store| store.store == to);
            let place = known.unwrap_or(stores.len());
            if known.is_none() {
                stores.push(CatalogStore {
                    store: to,
                    name: file.to_owned(),
                });
            }
            let moves: Vec<bool> = stores.iter().map(|s| from.contains(&s.store)).collect();
            let place = u32::try_from(place).unwrap_or(u32::MAX);
            for entry in &mut state.checkpoints {
                let parts = entry.parts.iter_mut();
                for part in parts.filter(|part| moves.get(index(part.store)) == Some(&true)) {
                    part.store = place;
                }
                entry.parts.sort_unstable_by_key(|part| part.store);
            }
            forget_unused(state);
            Ok(())
        })
    }

    /// Keeps the newest checkpoint with this number, or no longer.
    pub fn keep(&self, number: u64, kept: bool) -> Result<()> {
        self.change(|state| {
            let found = state
                .checkpoints
                .iter()
                .rposition(|entry| entry.checkpoint.number == number);
            let Some(at) = found else {
                let listed: Vec<u64> = state
                    .checkpoints
                    .iter()
                    .map(|entry| entry.checkpoint.number)
                    .collect();
                let context = format!("the archive has no checkpoint {number}: it has {listed:?}");
                return Err(Error::new(ErrorKind::NotRetained, context));
            };
            state.checkpoints[at].kept = kept;
            Ok(())
        })
    }
}

/// Whether a file was not there any more.
fn is_gone(error: &Error) -> bool {
    let source = std::error::Error::source(error);
    let io = source.and_then(|source| source.downcast_ref::<std::io::Error>());
    io.is_some_and(|io| io.kind() == std::io::ErrorKind::NotFound)
}
