// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the state of an archive file: its superblock, its newest root, and that root's table.
//! In: a device. Out: checked structures, or errors that name file, structure and offset.
//! Invariants: what a writer changes meanwhile is read again; damage in the newer root or its table is
//! told, and the other root taken.
//! Format: docs/format/archive.md.

use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::ReadAt;
use backstay_base::io::direct::AlignedBytes;
pub(super) use backstay_base::io::two_slots::read;
use backstay_base::io::two_slots::{self, Copied, Found, SlotFormat, TwoSlots, Unread};
use backstay_base::notice;
use backstay_format::geometry::{ROOT_BYTES, ROOT_OFFSETS, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
use backstay_format::width::{index, to_u64, to_usize};
use backstay_format::{
    ArchiveRoot, ArchiveSuperblock, ArchiveTable, Digest, FormatError, StoreId, TableEntry,
};

/// How often the state is read again when commits come meanwhile, or a table cannot be read.
const TRIES: usize = 10;

/// The root slots of an archive file.
#[derive(Debug, Clone, Copy)]
pub(super) struct RootSlots(pub(super) StoreId);

impl SlotFormat for RootSlots {
    type State = ArchiveRoot;
    fn what(&self) -> &'static str {
        "archive root"
    }
    fn offset(&self, slot: usize) -> u64 {
        ROOT_OFFSETS[slot]
    }
    fn slot_bytes(&self) -> usize {
        ROOT_BYTES
    }
    fn sequence(&self, root: &ArchiveRoot) -> u64 {
        root.sequence
    }
    fn encode(&self, root: &ArchiveRoot) -> std::result::Result<Vec<u8>, FormatError> {
        root.encode()
    }
    fn decode(&self, bytes: &[u8]) -> std::result::Result<ArchiveRoot, FormatError> {
        ArchiveRoot::decode(bytes, self.0)
    }
}

/// What a file holds.
#[derive(Debug)]
pub(super) struct State {
    pub(super) root: ArchiveRoot,
    pub(super) entries: Vec<TableEntry>,
    /// What is wrong with the newer root or its table, if the older one had to be taken.
    pub(super) damaged: Option<Error>,
}

/// The superblock, from either copy.
pub(super) fn superblock(device: &dyn ReadAt) -> Result<ArchiveSuperblock> {
    superblock_copy(device).map(|copy| copy.value)
}

fn superblock_copy(device: &dyn ReadAt) -> Result<Copied<ArchiveSuperblock>> {
    let places = (SUPERBLOCK_OFFSETS.as_slice(), SUPERBLOCK_BYTES);
    let decode = ArchiveSuperblock::decode;
    two_slots::first_copy(device, places, "archive superblock", decode)
}

/// The newest root whose table is good, and that table.
pub(super) fn state(device: &dyn ReadAt, store: StoreId) -> Result<State> {
    state_as(device, store, Unread::Counts)
}

/// The same, where what may stand in a root slot that cannot be read may be given up.
pub(super) fn state_as(device: &dyn ReadAt, store: StoreId, unread: Unread) -> Result<State> {
    find(device, store, unread).map(|(state, _)| state)
}

/// The same, to go on from: the slots are not synced yet. A writer leaves alone what a later minor version
/// wrote.
pub(super) fn state_to_write(
    device: &dyn ReadAt,
    store: StoreId,
) -> Result<(State, TwoSlots<RootSlots>)> {
    superblock_copy(device)?.refuse_later(device)?;
    let (state, found) = find(device, store, Unread::Counts)?;
    let slots = TwoSlots::of(device, RootSlots(store), found)?;
    Ok((state, slots))
}

/// The state, and the roots that were found, with that of the state first.
fn find(
    device: &dyn ReadAt,
    store: StoreId,
    unread: Unread,
) -> Result<(State, Found<ArchiveRoot>)> {
    let format = RootSlots(store);
    let mut last = None;
    for _ in 0..TRIES {
        let mut found = two_slots::look(device, &format).found_as(&format, unread)?;
        if let Some(error) = &found.given_up {
            notice::warn(&format!(
                "{error}; a checkpoint to restore was named, so the other root slot is read"
            ));
        }
        let newest = found.states.first().map(|(root, _)| root.sequence);
        let mut damaged = found.damaged.take();
        let mut again = false;
        for at in 0..found.states.len() {
            let root = &found.states[at].0;
            match table(device, root) {
                Ok(entries) => {
                    let root = root.clone();
                    found.states.swap(0, at);
                    let state = State {
                        root,
                        entries,
                        damaged,
                    };
                    return Ok((state, found));
                }
                // A commit that came meanwhile may have used the table's place again.
                Err(error) if moved_on(device, store, newest) => {
                    (again, last) = (true, Some(error));
                    break;
                }
                // What cannot be read may be good: the older root is not taken for it.
                Err(error) if error.kind() != ErrorKind::Corrupt => {
                    (again, last) = (true, Some(error));
                    break;
                }
                Err(error) => damaged = damaged.or(Some(error)),
            }
        }
        if let (Some(damaged), false) = (damaged, again) {
            return Err(damaged);
        }
    }
    let place = format!("{}: commits came faster than reads", device.name());
    Err(last.unwrap_or_else(|| Error::new(ErrorKind::Timeout, place)))
}

fn moved_on(device: &dyn ReadAt, store: StoreId, newest: Option<u64>) -> bool {
    let format = RootSlots(store);
    let found = two_slots::look_once(device, &format).found(&format);
    found.is_ok_and(|now| now.states.first().map(|(root, _)| root.sequence) > newest)
}

/// The table of `root`, verified.
fn table(device: &dyn ReadAt, root: &ArchiveRoot) -> Result<Vec<TableEntry>> {
    let place = root.table;
    if place.is_none() {
        return Ok(Vec::new());
    }
    let at = || format!("{}: segment table at byte {}", device.name(), place.offset);
    let damaged = |field, expected: String, found: String| {
        let damage = FormatError::new("segment table", field, 0, expected, found);
        Error::malformed(at(), damage)
    };
    let length = device
        .length_bytes()
        .map_err(|error| Error::io(format!("{}: asking for the length", device.name()), error))?;
    let end = place.offset.saturating_add(u64::from(place.length_bytes));
    if end > length {
        return Err(damaged(
            "end",
            format!("at most {length}, the end of the file"),
            end.to_string(),
        ));
    }
    let mut bytes = AlignedBytes::new(index(place.length_bytes).next_multiple_of(4096));
    let whole = to_usize(to_u64(bytes.len()).min(length - place.offset));
    read(device, &mut bytes[..whole], place.offset, "segment table")?;
    let bytes = &bytes[..index(place.length_bytes)];
    let found = Digest::of(bytes);
    if found != place.digest {
        return Err(damaged(
            "digest",
            place.digest.to_string(),
            found.to_string(),
        ));
    }
    let table = ArchiveTable::decode(bytes, root.store, root.files.len())
        .map_err(|error| Error::malformed(at(), error))?;
    match table.entries.last() {
        Some(last) if last.segment.0 >= root.next_segment => Err(damaged(
            "segment id",
            format!("below {}", root.next_segment),
            last.segment.0.to_string(),
        )),
        _ => Ok(table.entries),
    }
}
