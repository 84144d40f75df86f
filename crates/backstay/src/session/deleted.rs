// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a store that somebody deletes, or moves away, under a running job: noticed at each commit, said
//! aloud, and copied from the open file to its path under the same identity.
//! In from: `checkpoint`. Out to: the node's store, its folder and its lock.
//! Invariants: all ranks are between two checkpoints while it is copied, and all go on with the copy or the
//! call fails; what is not a copy of this store is never overwritten.

use super::Session;
use super::node::{Node, open_if_there};
use super::protection::Protection;
use super::vote::vote;
use crate::config::Config;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::ReadAt;
use backstay_base::io::file::FileDevice;
use backstay_base::notice;
use backstay_format::StoreId;
use backstay_store::control::CONTROL_FILE;
use backstay_store::lock::StoreLock;
use backstay_store::memory::memory_limit;
use backstay_store::place;
use backstay_store::reader::StoreReader;
use backstay_store::reserve::is_blank;
use std::path::Path;

impl Node {
    /// Whether the store is no longer where a later start looks for it. Two requests of the file system.
    pub(super) fn store_is_gone(&self) -> bool {
        let opened = self.opened.borrow();
        let Some((device, _)) = &*opened else {
            return false;
        };
        // What cannot be asked is not known to be gone.
        !device.stands_at(&self.store_path()).unwrap_or(true)
    }

    /// The leader's part: folders, locks, the file.
    fn put_store_back(
        &self,
        config: &Config,
        store: StoreId,
        protection: &Protection,
    ) -> Result<()> {
        let opened = self.opened.borrow();
        let Some((device, home)) = &*opened else {
            return Ok(());
        };
        let path = self.store_path();
        notice::warn(&format!(
            "{} was deleted or moved while the job runs; it is copied there again",
            path.display()
        ));
        let again = |directory: &Path| {
            place::make_again(
                config.store_path.as_deref(),
                &self.job,
                &self.name,
                directory,
            )
        };
        let take = |directory: &Path, lock: &mut Option<StoreLock>| -> Result<()> {
            if lock.as_ref().is_none_or(|lock| !lock.stands_in(directory)) {
                *lock = Some(StoreLock::take(directory, &self.job)?);
            }
            Ok(())
        };
        again(&self.directory)?;
        take(&self.directory, &mut self.lock.borrow_mut())?;
        if let Some(elsewhere) = home.parent().filter(|_| *home != path) {
            again(elsewhere)?;
            take(elsewhere, &mut self.lock_elsewhere.borrow_mut())?;
            if std::fs::read_link(&path).ok().as_ref() != Some(home) {
                refuse_another(&path, store)?;
                drop(std::fs::remove_file(&path));
                std::os::unix::fs::symlink(home, &path)
                    .map_err(|error| Error::io(format!("linking {}", path.display()), error))?;
            }
        }
        let failed = |error| {
            Error::io(
                format!("copying the open store to {}", home.display()),
                error,
            )
        };
        if device.stands_at(home).map_err(failed)? {
            return Ok(());
        }
        refuse_another(home, store)?;
        check_memory(device, home)?;
        drop(std::fs::remove_file(home));
        // An agent process writes the store too: what it writes meanwhile only its own copy has.
        if protection.put_back(self, home) {
            return Ok(());
        }
        device.put_back(home).map_err(failed)
    }

    /// Every rank's part: it goes on with the copy.
    fn follow_store(&self) -> Result<()> {
        let path = self.directory.join(CONTROL_FILE);
        let opened = self.opened.borrow();
        let Some((device, home)) = &*opened else {
            return Ok(());
        };
        *self.held.borrow_mut() = Some(StoreLock::hold_place(&path)?);
        let failed = |error| Error::io(format!("opening {} again", home.display()), error);
        device.follow().map_err(failed)
    }
}

/// What is not this store, and holds something, stays.
fn refuse_another(path: &Path, store: StoreId) -> Result<()> {
    let Some(device) = open_if_there(path)? else {
        return Ok(());
    };
    if is_blank(&device) {
        return Ok(());
    }
    let found = StoreReader::open(std::sync::Arc::new(device));
    if found.is_ok_and(|found| found.superblock().store == store) {
        return Ok(());
    }
    let context = format!(
        "{} was replaced by something else while the job runs, and the checkpoints of this job are in a \
         file without a name; move what stands there away, and the next checkpoint puts them back",
        path.display()
    );
    Err(Error::new(ErrorKind::StoreBusy, context))
}

/// The copy takes its space a second time until the session ends.
fn check_memory(device: &FileDevice, home: &Path) -> Result<()> {
    let bytes = device.length_bytes().unwrap_or(0);
    let limit = memory_limit().filter(|limit| device.is_memory() && limit.free_bytes() < bytes);
    let Some(limit) = limit else { return Ok(()) };
    let context = format!(
        "{}: copying the store takes {bytes} bytes of memory, and {} leaves {}; the checkpoints of this \
         job are in a file without a name, and end with it",
        home.display(),
        limit.path.display(),
        limit.free_bytes()
    );
    Err(Error::new(ErrorKind::StoreFull, context))
}

impl Session {
    /// Puts stores back that are gone from their nodes; `gone` says that of this one. Collective, between
    /// two checkpoints.
    pub(super) fn put_stores_back(&mut self, gone: bool) -> Result<()> {
        let store = self.store.as_ref();
        let store = store.map(|store| store.rank.reserve().reader().superblock().store);
        let mine = match store {
            Some(store) if gone => self
                .node
                .put_store_back(&self.config, store, &self.protection),
            _ => Ok(()),
        };
        vote(&self.comm, "putting a deleted store back", 0, mine)?;
        let followed = self.node.follow_store();
        vote(&self.comm, "opening the store again", 0, followed)
    }
}
