// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what stores and stripe logs there are on a node, for a restart to choose from.
//! In: the folder of the node's store. Out: surveys, and what was found open for reading.
//! Invariants: nothing is written; a store that is damaged is as if it were not there, and said; what cannot be
//! read is told as that, and never as absent.

use super::{Agent, lock};
use backstay_base::error::{Error, Result};
use backstay_base::io::file::FileDevice;
use backstay_base::io::two_slots::Unread;
use backstay_base::notice;
use backstay_format::agent::{
    Survey, SurveyedGroup, SurveyedMember, SurveyedRevision, SurveyedUnread,
};
use backstay_format::{Member, RootSlot, StoreId};
use backstay_net::{Exposed, file_exposure};
use backstay_store::place::{STORE_BEING_MADE, STORE_FILE};
use backstay_store::reader::StoreReader;
use backstay_store::reserve::is_blank;
use backstay_store::revision::read_ranks;
use backstay_store::stripe_log::{LOG_FILES, StripeTable, look_at_both};
use backstay_store::view::SegmentView;
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
    /// Its reading side, with all records read, unless its survey says that they could not be.
    pub reader: Arc<StoreReader>,
}

/// Most characters of why something could not be read.
const WHY_CHARS_MAX: usize = 600;

/// Every store on a node of which it is known which it is: its own first, if there is one.
pub fn stores_in(directory: &Path) -> Vec<LocalStore> {
    look_in(directory).0
}

/// The same, and what there may be besides that cannot be read.
fn look_in(directory: &Path) -> (Vec<LocalStore>, Vec<Survey>) {
    let mut unread = Vec::new();
    let mut folders = rebuilt_in(directory).unwrap_or_else(|error| {
        let failed = Error::io(format!("listing {}", directory.display()), error);
        unread.push(unknown(true, &failed));
        Vec::new()
    });
    folders.push((directory.to_owned(), false));
    folders.sort();
    let mut found = Vec::new();
    for (folder, rebuilt) in folders {
        match open(&folder, rebuilt) {
            Ok(store) => found.extend(store),
            Err(error) if error.kind().leaves_open() => unread.push(unknown(rebuilt, &error)),
            Err(error) => notice::warn(&format!("{} is not used: {error}", folder.display())),
        }
    }
    found.sort_by_key(|store| store.survey.rebuilt);
    (found, unread)
}

/// Folders of stores that were made again for reading.
fn rebuilt_in(directory: &Path) -> std::io::Result<Vec<(PathBuf, bool)>> {
    let mut folders = Vec::new();
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(folders),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_string_lossy().starts_with(REBUILT_PREFIX) {
            folders.push((entry.path(), true));
        }
    }
    Ok(folders)
}

fn told(root: bool, error: &Error) -> SurveyedUnread {
    SurveyedUnread {
        root,
        why: error.words().chars().take(WHY_CHARS_MAX).collect(),
    }
}

/// A store of which nothing could be read.
fn unknown(rebuilt: bool, error: &Error) -> Survey {
    Survey {
        store: StoreId::default(),
        run: 0,
        incarnation: 0,
        sequence: 0,
        length_bytes: 0,
        rebuilt,
        unread: Some(told(true, error)),
        revisions: Vec::new(),
        group: None,
        former: None,
    }
}

fn open(directory: &Path, rebuilt: bool) -> Result<Option<LocalStore>> {
    let path = directory.join(STORE_FILE);
    let looked = |error| Error::io(format!("looking for {}", path.display()), error);
    if !path.try_exists().map_err(looked)? {
        return Ok(None);
    }
    let device = FileDevice::open_read_only(&path)
        .map_err(|error| Error::io(format!("opening {}", path.display()), error))?;
    if is_blank(&device) {
        return Ok(None);
    }
    let reader = Arc::new(StoreReader::open(Arc::new(device))?);
    let survey = survey(&reader, directory, rebuilt)?;
    Ok(Some(LocalStore {
        survey,
        directory: directory.to_owned(),
        reader,
    }))
}

fn survey(reader: &StoreReader, directory: &Path, rebuilt: bool) -> Result<Survey> {
    let mut unread = None;
    let mut open = |root: bool, error: Error| {
        if !error.kind().leaves_open() {
            return Err(error);
        }
        if unread
            .as_ref()
            .is_none_or(|known: &SurveyedUnread| root && !known.root)
        {
            unread = Some(told(root, &error));
        }
        Ok(())
    };
    if let Err(error) = reader.read_records(|_, _, _| {}) {
        open(true, error)?;
    }
    let root = match reader.newest_root() {
        Ok((root, _)) => Some(root),
        Err(error) => {
            open(true, error)?;
            other_root(reader)
        }
    };
    let superblock = reader.superblock();
    let mut revisions = Vec::new();
    for revision in root.iter().flat_map(|root| &root.revisions) {
        let ranks = read_ranks(reader, revision).or_else(|error| {
            // What is damaged is not there.
            if error.kind().leaves_open() {
                open(false, error)?;
            }
            Ok(Vec::new())
        })?;
        revisions.push(SurveyedRevision {
            checkpoint: revision.checkpoint,
            complete: revision.complete,
            world_size: revision.world_size,
            ranks: ranks.iter().map(|entry| entry.rank).collect(),
        });
    }
    let log = look_at_both(directory, superblock.store).or_else(|error| {
        if error.kind().leaves_open() {
            open(false, error)?;
        }
        Ok(None)
    })?;
    let (group, former) = log.unzip();
    let group = group.as_ref().map(surveyed_group);
    let former = former.flatten().as_ref().map(surveyed_group);
    let length = reader.device().length_bytes();
    Ok(Survey {
        store: superblock.store,
        run: superblock.run,
        incarnation: root.as_ref().map_or(0, |root| root.incarnation),
        sequence: root.as_ref().map_or(0, |root| root.sequence),
        length_bytes: length.map_err(|error| Error::io(reader.device().name(), error))?,
        rebuilt,
        unread,
        revisions,
        group: group.filter(|group| group.epoch > 0),
        former,
    })
}

/// The root that the other slot holds, where one cannot be read.
fn other_root(reader: &StoreReader) -> Option<RootSlot> {
    let format = reader.root_slots();
    let found = reader.roots().found_as(&format, Unread::GivenUp).ok()?;
    found.states.into_iter().next().map(|(root, _)| root)
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
            sequence: root.as_ref().map_or(0, |root| root.sequence),
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

/// Removes a stripe log that is of no use any more: this start protects nothing.
pub fn remove_log(directory: &Path) {
    for name in LOG_FILES {
        drop(std::fs::remove_file(directory.join(name)));
    }
}

/// Removes stores that were made again for reading only, and what was left of one that was not made to the end.
pub fn remove_rebuilt(directory: &Path) {
    drop(std::fs::remove_file(directory.join(STORE_BEING_MADE)));
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
        // What was found last stays: of two surveys the later, and no store that is set aside meanwhile.
        let _looking = lock(&self.looking);
        let (mut found, unread) = look_in(&self.directory());
        // Held meanwhile: a store that is being attached must not be exposed as it was before.
        let member = lock(&self.member);
        for store in &mut found {
            let id = store.survey.store;
            if let Some(member) = member.as_ref().filter(|member| member.store() == id) {
                // Its log may have been unreadable when it was attached, and may be read now: what the member
                // knows counts.
                let (table, former) = member.tables();
                store.survey.group = Some(surveyed_group(table)).filter(|group| group.epoch > 0);
                store.survey.former = former.map(surveyed_group);
            } else {
                let segments = SegmentView::of_reader(Arc::clone(&store.reader));
                self.endpoint
                    .expose(id.into(), Exposed::Sealed(Arc::new(segments)));
                let file = Arc::clone(store.reader.device());
                self.endpoint
                    .expose(file_exposure(id), Exposed::Device(file));
            }
        }
        drop(member);
        let surveys = found.iter().map(|store| store.survey.clone());
        let surveys = surveys.chain(unread).collect();
        *lock(&self.stores) = found;
        surveys
    }

    /// The stores that the last survey found.
    pub fn local_stores(&self) -> Vec<LocalStore> {
        lock(&self.stores).clone()
    }
}
