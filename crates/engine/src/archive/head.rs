// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the state of an archive file: its superblock, its newest root, and that root's table.
//! In: a device. Out: checked structures, or errors that name file, structure and offset.
//! Invariants: what a writer changes meanwhile is read again; damage in the newer root or its table is
//! told, and the other root taken.
//! Format: docs/format/archive.md.

use crate::error::{Error, ErrorKind, Result};
use crate::io::Device;
use crate::io::direct::AlignedBytes;
use backstay_format::geometry::{ROOT_BYTES, ROOT_OFFSETS, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
use backstay_format::width::{index, to_u64, to_usize};
use backstay_format::{
    ArchiveRoot, ArchiveSuperblock, ArchiveTable, Digest, FormatError, StoreId, TableEntry,
};
use std::time::Duration;

/// How often the state is read again when commits come meanwhile.
const TRIES: usize = 10;
/// How often a root that is not good is looked at again first, and after how long.
const SETTLING: usize = 3;
const SETTLE: Duration = Duration::from_micros(500);

/// What a file holds.
#[derive(Debug)]
pub(super) struct State {
    pub(super) root: ArchiveRoot,
    /// The slot the root stands in.
    pub(super) slot: usize,
    pub(super) entries: Vec<TableEntry>,
    /// What is wrong with the newer root or its table, if the older one had to be taken.
    pub(super) damaged: Option<Error>,
}

/// Fills `buffer`; what lies beyond the end of the file is damage.
pub(super) fn read(
    device: &dyn Device,
    buffer: &mut [u8],
    offset: u64,
    what: &'static str,
) -> Result<()> {
    let failed = |error: std::io::Error| {
        let name = device.name();
        if error.kind() == std::io::ErrorKind::UnexpectedEof {
            let found = "the end of the file";
            let damage = FormatError::new(what, "bytes", 0, "a longer file", found);
            return Error::corrupt(format!("{name}: {what} at byte {offset}"), damage);
        }
        Error::io(format!("{name}: reading {what} at byte {offset}"), error)
    };
    device.read_at(buffer, offset).map_err(failed)
}

/// The superblock, from either copy.
pub(super) fn superblock(device: &dyn Device) -> Result<ArchiveSuperblock> {
    let mut first = None;
    for offset in SUPERBLOCK_OFFSETS {
        let mut bytes = AlignedBytes::new(SUPERBLOCK_BYTES);
        let found = read(device, &mut bytes, offset, "archive superblock").and_then(|()| {
            ArchiveSuperblock::decode(&bytes).map_err(|error| {
                let place = format!("{}: superblock at byte {offset}", device.name());
                Error::corrupt(place, error)
            })
        });
        match found {
            Ok(superblock) => return Ok(superblock),
            Err(error) => first = first.or(Some(error)),
        }
    }
    Err(first.unwrap_or_else(|| Error::new(ErrorKind::Internal, "no superblock")))
}

/// The newest root whose table is good, and that table.
pub(super) fn state(device: &dyn Device, store: StoreId) -> Result<State> {
    let mut last = None;
    for attempt in 0..TRIES {
        let (mut roots, mut damaged) = roots(device, store);
        if damaged.is_some() && attempt < SETTLING {
            // It may be in the middle of being written.
            std::thread::sleep(SETTLE);
            continue;
        }
        roots.sort_by_key(|(root, _)| std::cmp::Reverse(root.sequence));
        let newest = roots.first().map(|(root, _)| root.sequence);
        for (root, slot) in roots {
            match table(device, &root) {
                Ok(entries) => {
                    return Ok(State {
                        root,
                        slot,
                        entries,
                        damaged,
                    });
                }
                Err(error) => {
                    // A commit that came meanwhile may have used the table's place again.
                    if moved_on(device, store, newest) {
                        damaged = None;
                        last = Some(error);
                        break;
                    }
                    damaged = damaged.or(Some(error));
                }
            }
        }
        if let Some(damaged) = damaged {
            return Err(damaged);
        }
    }
    let place = format!("{}: commits came faster than reads", device.name());
    Err(last.unwrap_or_else(|| Error::new(ErrorKind::Timeout, place)))
}

fn moved_on(device: &dyn Device, store: StoreId, newest: Option<u64>) -> bool {
    let (now, _) = roots(device, store);
    now.iter().map(|(root, _)| root.sequence).max() > newest
}

/// The roots that are there, with their slots, and the first damage. A slot of zeros was never written.
fn roots(device: &dyn Device, store: StoreId) -> (Vec<(ArchiveRoot, usize)>, Option<Error>) {
    let (mut found, mut damaged) = (Vec::new(), None);
    for (slot, offset) in ROOT_OFFSETS.into_iter().enumerate() {
        let mut bytes = AlignedBytes::new(ROOT_BYTES);
        let root = read(device, &mut bytes, offset, "archive root").and_then(|()| {
            ArchiveRoot::decode(&bytes, store).map_err(|error| {
                let place = format!("{}: root slot {slot} at byte {offset}", device.name());
                Error::corrupt(place, error)
            })
        });
        match root {
            Ok(root) => found.push((root, slot)),
            Err(_) if slot == 1 && bytes.iter().all(|&byte| byte == 0) => {}
            Err(error) => damaged = damaged.or(Some(error)),
        }
    }
    if found.is_empty() && damaged.is_none() {
        let place = format!("{}: both root slots are empty", device.name());
        damaged = Some(Error::new(ErrorKind::Corrupt, place));
    }
    (found, damaged)
}

/// The table of `root`, verified.
fn table(device: &dyn Device, root: &ArchiveRoot) -> Result<Vec<TableEntry>> {
    let place = root.table;
    if place.is_none() {
        return Ok(Vec::new());
    }
    let at = || format!("{}: segment table at byte {}", device.name(), place.offset);
    let damaged = |field, expected: String, found: String| {
        let damage = FormatError::new("segment table", field, 0, expected, found);
        Error::corrupt(at(), damage)
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
        .map_err(|error| Error::corrupt(at(), error))?;
    match table.entries.last() {
        Some(last) if last.segment.0 >= root.next_segment => Err(damaged(
            "segment id",
            format!("below {}", root.next_segment),
            last.segment.0.to_string(),
        )),
        _ => Ok(table.entries),
    }
}
