// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what stores and stripe logs there are on a node, for a restart to choose from.
//! In: the folder of the node's store. Out: surveys, and what was found open for reading.
//! Invariants: nothing is written; a store that cannot be read is as if it were not there, and said.

use super::view::SegmentView;
use super::{Agent, lock};
use crate::error::{Error, Result};
use crate::io::file::FileDevice;
use crate::notice;
use crate::store::place::STORE_FILE;
use crate::store::reader::StoreReader;
use crate::store::reserve::is_blank;
use crate::store::revision::read_ranks;
use crate::store::stripe_log::{LOG_FILES, StripeTable, read_beside};
use crate::transport::{Exposed, file_exposure};
use backstay_format::agent::{Survey, SurveyedGroup, SurveyedMember, SurveyedRevision};
use backstay_format::{Member, RootSlot, StoreId};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Folders of stores that were made again for reading only begin so.
pub const REBUILT_PREFIX: &str = "rebuilt-";

/// A store on this node, open for reading.
#[derive(Debug, Clone)]
pub struct LocalStore {
    /// What it has.
    pub survey: Survey,
    /// The folder it lies in.
    pub directory: PathBuf,
    /// Its reading side, with all records read.
    pub reader: Arc<StoreReader>,
}

/// Every readable store on a node: its own first, if there is one.
pub fn stores_in(directory: &Path) -> Vec<LocalStore> {
    let mut folders = vec![(directory.to_owned(), false)];
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry
            .file_name()
            .to_string_lossy()
            .starts_with(REBUILT_PREFIX)
        {
            folders.push((entry.path(), true));
        }
    }
    folders.sort();
    let mut found = Vec::new();
    for (folder, rebuilt) in folders {
        match open(&folder, rebuilt) {
            Ok(store) => found.extend(store),
            Err(error) => notice::warn(&format!("{} is not used: {error}", folder.display())),
        }
    }
    found.sort_by_key(|store| store.survey.rebuilt);
    found
}

fn open(directory: &Path, rebuilt: bool) -> Result<Option<LocalStore>> {
    let path = directory.join(STORE_FILE);
    if !path.exists() {
        return Ok(None);
    }
    let device = FileDevice::open_read_only(&path)
        .map_err(|error| Error::io(format!("opening {}", path.display()), error))?;
    if is_blank(&device) {
        return Ok(None);
    }
    let reader = Arc::new(StoreReader::open(Arc::new(device))?);
    reader.read_records(|_, _, _| {})?;
    let survey = survey(&reader, directory, rebuilt)?;
    Ok(Some(LocalStore {
        survey,
        directory: directory.to_owned(),
        reader,
    }))
}

fn survey(reader: &StoreReader, directory: &Path, rebuilt: bool) -> Result<Survey> {
    let (root, _) = reader.newest_root()?;
    let superblock = reader.superblock();
    let revisions = root.revisions.iter().map(|revision| {
        let ranks = read_ranks(reader, revision).unwrap_or_default();
        SurveyedRevision {
            checkpoint: revision.checkpoint,
            complete: revision.complete,
            world_size: revision.world_size,
            ranks: ranks.iter().map(|entry| entry.rank).collect(),
        }
    });
    let length = reader.device().length_bytes();
    Ok(Survey {
        store: superblock.store,
        run: superblock.run,
        incarnation: root.incarnation,
        length_bytes: length.map_err(|error| Error::io(reader.device().name(), error))?,
        rebuilt,
        revisions: revisions.collect(),
        group: read_log(directory, superblock.store)
            .filter(|table| table.epoch > 0)
            .map(|table| surveyed_group(&table)),
    })
}

/// The stripe log beside a store, if there is one that can be read.
pub fn read_log(directory: &Path, store: StoreId) -> Option<StripeTable> {
    read_beside(directory, store)
}

fn surveyed_group(table: &StripeTable) -> SurveyedGroup {
    let surveyed = |member: &Member| {
        let root = RootSlot::decode(&member.root, member.store).ok();
        let revisions = root.iter().flat_map(|root| &root.revisions);
        SurveyedMember {
            store: member.store,
            node: member.node.clone(),
            domain: member.domain.clone(),
            incarnation: root.as_ref().map_or(0, |root| root.incarnation),
            checkpoints: revisions.map(|r| r.checkpoint).collect(),
        }
    };
    let members = table.members.iter().map(surveyed);
    SurveyedGroup {
        epoch: table.epoch,
        round: table.round,
        parity: table.parity,
        pieces_max: table.pieces_max,
        protected: table.protected,
        members: members.collect(),
    }
}

/// Removes a stripe log that is of no use any more: this life protects nothing.
pub fn remove_log(directory: &Path) {
    for name in LOG_FILES {
        drop(std::fs::remove_file(directory.join(name)));
    }
}

/// Removes stores that were made again for reading only.
pub fn remove_rebuilt(directory: &Path) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry
            .file_name()
            .to_string_lossy()
            .starts_with(REBUILT_PREFIX)
        {
            drop(std::fs::remove_dir_all(entry.path()));
        }
    }
}

impl Agent {
    /// Looks at the node's folder again, and exposes what it finds.
    pub fn survey(&self) -> Vec<Survey> {
        let found = stores_in(&self.directory());
        // Held meanwhile: a store that is being attached must not be exposed as it was before.
        let member = lock(&self.member);
        let attached = member.as_ref().map(super::Member::store);
        for store in &found {
            let id = store.survey.store;
            if attached != Some(id) {
                let segments = SegmentView::of_reader(Arc::clone(&store.reader));
                self.endpoint
                    .expose(id.into(), Exposed::Sealed(Arc::new(segments)));
                let file = Arc::clone(store.reader.device());
                self.endpoint
                    .expose(file_exposure(id), Exposed::Device(file));
            }
        }
        drop(member);
        let surveys = found.iter().map(|store| store.survey.clone()).collect();
        *lock(&self.stores) = found;
        surveys
    }

    /// The stores that the last survey found.
    pub fn local_stores(&self) -> Vec<LocalStore> {
        lock(&self.stores).clone()
    }
}
