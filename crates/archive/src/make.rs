// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: makes an archive store on a device, new or with a predecessor's state, and opens one again.
//! In from: `archive::write`. Out to: a device.
//! Invariants: the superblock is written last, when the first root is durable: a file with a superblock
//! is a whole store; a root that is gone on from is durable.
//! Format: docs/format/archive.md, section "How a store is made".

use super::head::{self, RootSlots, State};
use super::heir;
use super::queue::Queue;
use super::view::OpenFile;
use super::{Identity, Place, WriteOptions, private};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::direct::{AlignedBytes, SharedFile};
use backstay_base::io::two_slots::{Plain, TwoSlots};
use backstay_base::io::{Device, ReadAt};
use backstay_base::notice;
use backstay_format::archive::{DATA_OFFSET, GRAIN_BYTES};
use backstay_format::geometry::{ROOT_BYTES, ROOT_OFFSETS, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
use backstay_format::limits::ARCHIVE_FILES_MAX;
use backstay_format::width::{to_u64, to_usize};
use backstay_format::{
    ArchiveFile, ArchiveRoot, ArchiveSuperblock, ArchiveTable, Digest, FormatError, StoreId,
    TablePlace,
};
use rustix::rand::{GetRandomFlags, getrandom};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// Files are so long, and behind that multiples of it.
const GROWTH_GRAIN_BYTES: u64 = 1 << 20;
/// What of the head is used, rounded up.
pub(super) const HEAD_BYTES: u64 = 64 << 10;

/// A store with a durable state.
#[derive(Debug)]
pub(super) struct Made {
    /// What file 0 is written through.
    pub(super) device: Arc<dyn Device>,
    pub(super) superblock: ArchiveSuperblock,
    pub(super) state: State,
    pub(super) roots: TwoSlots<RootSlots>,
    /// File 0 is its own.
    pub(super) files: Vec<OpenFile>,
}

/// What a takeover goes on from.
#[derive(Debug)]
pub(super) struct Former {
    state: State,
    /// Its own file, then those it refers to.
    files: Vec<OpenFile>,
    names: Vec<ArchiveFile>,
}

/// A new store id.
pub(super) fn new_id() -> Result<StoreId> {
    let mut id = [0; 16];
    let drawn = getrandom(&mut id, GetRandomFlags::empty());
    match drawn {
        Ok(16) => Ok(StoreId(id)),
        Ok(_) => Err(Error::new(ErrorKind::Internal, "too few random bytes")),
        Err(error) => Err(Error::io("drawing a store id", error.into())),
    }
}

/// Refuses the file of another job, or of another run of it.
pub(super) fn same_job(what: &str, found: (&str, u32), identity: &Identity) -> Result<()> {
    if found == (identity.job.as_str(), identity.run) {
        return Ok(());
    }
    let context = format!(
        "{what} belongs to job {} run {:08x}, this is job {} run {:08x}; give this job another \
         name or folder, or remove what the other left",
        found.0, found.1, identity.job, identity.run
    );
    Err(Error::new(ErrorKind::StoreBusy, context))
}

/// Makes the file; its folder too.
pub(super) fn create_file(
    folder: &Path,
    name: &str,
    identity: &Identity,
    options: &WriteOptions,
) -> Result<Arc<dyn Device>> {
    let path = folder.join(name);
    let failed = |error| Error::io(format!("{}: making it", path.display()), error);
    private::make_folder(folder)?;
    let heard = |warnings: Vec<String>| warnings.iter().for_each(|text| notice::warn(text));
    heard(options.layout.prepare(folder));
    let layout = |file: &File| {
        heard(options.layout.apply(file, &path));
        Ok(())
    };
    match SharedFile::create(&path, options.direct_write, layout) {
        Ok(file) => Ok(Arc::new(file)),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            let file = SharedFile::open_read_only(&path, true).map_err(failed)?;
            if let Ok(found) = head::superblock(&file) {
                same_job(&file.name(), (&found.job, found.run), identity)?;
            }
            let context = format!(
                "{} is there already; open it, or take it over under a higher epoch",
                path.display()
            );
            Err(Error::new(ErrorKind::StoreBusy, context))
        }
        Err(error) => Err(failed(error)),
    }
}

/// Makes the name of a new file durable, where the file system can.
pub(super) fn sync_folder(folder: &Path) -> Result<()> {
    backstay_base::io::sync_folder(folder)
        .map_err(|error| Error::io(format!("{}: syncing the folder", folder.display()), error))
}

/// The state of the file `name`, to go on from.
pub(super) fn predecessor(place: &dyn Place, name: &str, identity: &Identity) -> Result<Former> {
    let device = place.open(name)?;
    let superblock = head::superblock(&*device)?;
    same_job(&device.name(), (&superblock.job, superblock.run), identity)?;
    if superblock.epoch >= identity.epoch {
        let context = format!(
            "{}: its epoch is {}, so that of its successor is higher than {}",
            device.name(),
            superblock.epoch,
            identity.epoch
        );
        return Err(Error::new(ErrorKind::InvalidArgument, context));
    }
    // First, so that what its writer frees from now on stays as it is.
    let next = heir::heir(superblock.store, identity.epoch, &identity.host);
    heir::publish(place, name, &next)?;
    let state = head::state(&*device, superblock.store)?;
    if state.root.files.len() >= ARCHIVE_FILES_MAX {
        let context = format!(
            "{}: it refers to {ARCHIVE_FILES_MAX} files of predecessors already; drop checkpoints \
             that need them",
            device.name()
        );
        return Err(Error::new(ErrorKind::StoreFull, context));
    }
    let own = OpenFile {
        store: superblock.store,
        device: device.clone(),
    };
    let mut files = vec![own];
    files.extend(OpenFile::open_others(&superblock, &state.root, place)?);
    let mut names = vec![ArchiveFile {
        store: superblock.store,
        name: name.to_owned(),
    }];
    names.extend(state.root.files.iter().cloned());
    Ok(Former {
        state,
        files,
        names,
    })
}

/// Makes a store on `device`.
pub(super) fn store(
    device: Arc<dyn Device>,
    store: StoreId,
    identity: &Identity,
    options: &WriteOptions,
    former: Option<Former>,
) -> Result<Made> {
    let superblock = ArchiveSuperblock {
        store,
        segment_bytes: options.segment_bytes,
        run: identity.run,
        created_unix_ns: backstay_base::clock::unix_ns(),
        aggregator: identity.aggregator,
        epoch: identity.epoch,
        job: identity.job.clone(),
        host: identity.host.clone(),
    };
    let name = device.name();
    let unwritable = |what: &str, error| Error::unwritable(format!("{name}: {what}"), error);
    let encoded = superblock.encode();
    let encoded = encoded.map_err(|error| unwritable("an archive", error))?;
    let mut state = State {
        root: ArchiveRoot {
            store,
            sequence: 1,
            incarnation: 0,
            next_segment: 1,
            draining: None,
            table: TablePlace::default(),
            files: Vec::new(),
            revisions: Vec::new(),
        },
        entries: Vec::new(),
        damaged: None,
    };
    let mut files = vec![OpenFile {
        store,
        device: device.clone(),
    }];
    if let Some(former) = former {
        go_on(&mut state, former, &mut files);
    }
    let table = place_table(&mut state);
    let table = table.map_err(|error| unwritable("its segment table", error))?;
    let write_bytes = to_u64(options.write_bytes).next_multiple_of(GRAIN_BYTES);
    let data = to_u64(table.len()) + options.reserve_bytes;
    let length = (DATA_OFFSET + data).next_multiple_of(growth_grain(write_bytes));
    if device.length_bytes().unwrap_or(0) < length {
        device
            .reserve(length)
            .map_err(|error| Error::io(format!("{name}: reserving {length} bytes"), error))?;
        give_back_head(&*device);
    }
    let queue = Queue::new(Arc::clone(&device), options);
    clear_head(&queue, &*device)?;
    write_padded(&queue, &table, DATA_OFFSET, write_bytes)?;
    let roots = TwoSlots::make(&*queue, RootSlots(store), state.root.clone())?;
    let mut block = AlignedBytes::new(SUPERBLOCK_BYTES);
    fill(&mut block, &encoded);
    for offset in SUPERBLOCK_OFFSETS {
        queue.write(&[&block], offset)?;
    }
    queue.sync()?;
    Ok(Made {
        device,
        superblock,
        state,
        roots,
        files,
    })
}

/// What the length of a file is a multiple of, beside [`DATA_OFFSET`].
pub(super) fn growth_grain(write_bytes: u64) -> u64 {
    write_bytes.min(GROWTH_GRAIN_BYTES)
}

/// The head has a few pages in front of a long gap, which takes no space. That it takes some is no failure.
pub(super) fn give_back_head(device: &dyn Device) {
    if let Err(error) = device.discard(HEAD_BYTES, DATA_OFFSET - HEAD_BYTES) {
        tracing::debug!("{}: the gap of the head stays: {error}", device.name());
    }
}

/// Takes over what a predecessor had: its segments are those of file 1 and later.
fn go_on(state: &mut State, former: Former, files: &mut Vec<OpenFile>) {
    state.root = ArchiveRoot {
        store: state.root.store,
        sequence: former.state.root.sequence + 1,
        table: TablePlace::default(),
        files: former.names,
        ..former.state.root
    };
    state.entries = former.state.entries;
    for entry in &mut state.entries {
        entry.file += 1;
    }
    files.extend(former.files);
}

/// The first table, behind the head.
fn place_table(state: &mut State) -> std::result::Result<Vec<u8>, FormatError> {
    if state.entries.is_empty() {
        return Ok(Vec::new());
    }
    let table = ArchiveTable {
        store: state.root.store,
        sequence: state.root.sequence,
        entries: state.entries.clone(),
    };
    let encoded = table.encode(state.root.files.len())?;
    state.root.table = TablePlace {
        offset: DATA_OFFSET,
        length_bytes: u32::try_from(encoded.len()).unwrap_or(u32::MAX),
        digest: Digest::of(&encoded),
    };
    Ok(encoded)
}

/// Where something stands in the head already (a region that was used before), it goes first.
fn clear_head(queue: &Queue, device: &dyn Device) -> Result<()> {
    let end = to_usize(ROOT_OFFSETS[1]) + ROOT_BYTES;
    let mut bytes = AlignedBytes::new(end);
    head::read(device, &mut bytes, 0, "head of an archive")?;
    if bytes.iter().any(|&byte| byte != 0) {
        bytes.fill(0);
        queue.write(&[&bytes], 0)?;
        queue.sync()?;
    }
    Ok(())
}

fn fill(place: &mut [u8], bytes: &[u8]) {
    place[..bytes.len()].copy_from_slice(bytes);
}

/// Writes `bytes`, padded to the grain, in writes of `write_bytes` at most.
pub(super) fn write_padded(
    queue: &Queue,
    bytes: &[u8],
    offset: u64,
    write_bytes: u64,
) -> Result<()> {
    let mut at = offset;
    for part in bytes.chunks(to_usize(write_bytes)) {
        let mut padded = AlignedBytes::new(part.len().next_multiple_of(to_usize(GRAIN_BYTES)));
        fill(&mut padded, part);
        queue.write(&[&padded], at)?;
        at += to_u64(part.len());
    }
    Ok(())
}

/// Opens the store on `device` to go on.
pub(super) fn open(
    device: Arc<dyn Device>,
    superblock: ArchiveSuperblock,
    place: &dyn Place,
) -> Result<Made> {
    let (state, mut roots) = head::state_to_write(&*device, superblock.store)?;
    roots.settle(&Plain(&*device))?;
    let own = OpenFile {
        store: superblock.store,
        device: device.clone(),
    };
    let mut files = vec![own];
    files.extend(OpenFile::open_others(&superblock, &state.root, place)?);
    Ok(Made {
        device,
        superblock,
        state,
        roots,
        files,
    })
}
