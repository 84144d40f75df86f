// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what an archive device shows: a root, its files, and which segment stands in which slot.
//! Invariants: a segment keeps its slot as long as it is shown, so that readers that placed it stay right.

use super::head;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::ReadAt;
use backstay_format::width::{to_u64, to_usize};
use backstay_format::{ArchiveRoot, ArchiveSuperblock, SegmentId, StoreId, TableEntry};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A file of an archive, open.
#[derive(Debug, Clone)]
pub(super) struct OpenFile {
    pub(super) store: StoreId,
    pub(super) device: Arc<dyn ReadAt>,
}

impl OpenFile {
    /// Opens the files of predecessors that `root` names.
    pub(super) fn open_others(
        own: &ArchiveSuperblock,
        root: &ArchiveRoot,
        place: &dyn super::Place,
    ) -> Result<Vec<Self>> {
        let open = |file: &backstay_format::ArchiveFile| {
            let device = place.open(&file.name)?;
            let found = head::superblock(&*device)?;
            if (found.store, found.run) != (file.store, own.run) {
                let context = format!(
                    "{}: it is store {} of run {}, but store {} of run {} refers to it as store {}",
                    device.name(),
                    found.store,
                    found.run,
                    own.store,
                    own.run,
                    file.store
                );
                return Err(Error::new(ErrorKind::Corrupt, context));
            }
            Ok(Self {
                store: file.store,
                device,
            })
        };
        root.files.iter().map(open).collect()
    }
}

/// A root, and what it refers to.
#[derive(Debug)]
pub(super) struct View {
    pub(super) root: Arc<ArchiveRoot>,
    /// File 0 is the store's own.
    pub(super) files: Vec<OpenFile>,
    slots: Vec<Option<TableEntry>>,
    places: BTreeMap<SegmentId, usize>,
    vacant: BTreeSet<usize>,
}

impl View {
    pub(super) fn new(root: ArchiveRoot, files: Vec<OpenFile>, entries: Vec<TableEntry>) -> Self {
        let place = |(slot, entry): (usize, &TableEntry)| (entry.segment, slot);
        Self {
            root: Arc::new(root),
            files,
            places: entries.iter().enumerate().map(place).collect(),
            slots: entries.into_iter().map(Some).collect(),
            vacant: BTreeSet::new(),
        }
    }

    /// Shows another root and its entries.
    pub(super) fn replace(
        &mut self,
        root: ArchiveRoot,
        files: Vec<OpenFile>,
        entries: &[TableEntry],
    ) {
        (self.root, self.files) = (Arc::new(root), files);
        let kept: BTreeSet<SegmentId> = entries.iter().map(|entry| entry.segment).collect();
        let gone: Vec<SegmentId> = self.places.keys().copied().collect();
        for segment in gone.into_iter().filter(|segment| !kept.contains(segment)) {
            self.remove(segment);
        }
        for entry in entries {
            self.insert(*entry);
        }
    }

    pub(super) fn insert(&mut self, entry: TableEntry) {
        let known = self.places.get(&entry.segment).copied();
        let slot = known.or_else(|| self.vacant.pop_first());
        let slot = slot.unwrap_or(self.slots.len());
        if slot == self.slots.len() {
            self.slots.push(None);
        }
        self.slots[slot] = Some(entry);
        self.places.insert(entry.segment, slot);
    }

    pub(super) fn remove(&mut self, segment: SegmentId) {
        if let Some(slot) = self.places.remove(&segment) {
            self.slots[slot] = None;
            self.vacant.insert(slot);
        }
    }

    pub(super) fn slot_count(&self) -> u64 {
        to_u64(self.slots.len())
    }
    pub(super) fn slot_of(&self, segment: SegmentId) -> Option<u64> {
        self.places.get(&segment).map(|&slot| to_u64(slot))
    }
    pub(super) fn at(&self, slot: u64) -> Option<TableEntry> {
        self.slots.get(to_usize(slot)).copied().flatten()
    }
    pub(super) fn find(&self, segment: SegmentId) -> Option<TableEntry> {
        self.slots[*self.places.get(&segment)?]
    }
    /// All entries, ascending.
    pub(super) fn entries(&self) -> Vec<TableEntry> {
        let slots = self.places.values();
        slots.filter_map(|&slot| self.slots[slot]).collect()
    }
}
