// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the log of a member, also where the device does not give it back.
//! In from: `NodeMember`. Out to: the log files beside the store.
//! Invariants: a log that could not be read stays where it is until a round that encodes all anew is recorded;
//! then it is moved aside, never written over or removed.

use super::log_files;
use backstay_base::clock::patiently;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::notice;
use backstay_format::{Round, StoreId};
use backstay_store::stripe_log::{LOG_FILES, StripeLog, StripeTable, Tables};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// So long a log is tried that a survey could read just now.
const AGAIN: Duration = Duration::from_secs(2);

/// The log of a member.
#[derive(Debug)]
pub(super) struct MemberLog {
    directory: PathBuf,
    store: StoreId,
    /// `None` as long as it cannot be read.
    pub(super) log: Option<StripeLog>,
    /// Epoch and round of the table that the member began with.
    began: (u64, u64),
}

/// Epoch and round.
fn of(table: &StripeTable) -> (u64, u64) {
    (table.epoch, table.round)
}

impl MemberLog {
    /// The log beside `store` and what it says. `told` is what the store's group says where that is newer, or the
    /// log cannot be read.
    pub(super) fn open(
        directory: &Path,
        store: StoreId,
        told: Option<StripeTable>,
    ) -> Result<(Self, Tables)> {
        let mut new = Self {
            directory: directory.to_owned(),
            store,
            log: None,
            began: (0, 0),
        };
        let limit = told.as_ref().map_or(AGAIN, |_| Duration::ZERO);
        let (table, former) = match patiently(limit, Error::may_pass, || new.read()) {
            Ok((mut log, (mut table, mut former))) => {
                if let Some(told) = told.filter(|told| of(told) > of(&table)) {
                    log.append(&told.whole(0), &told)?;
                    let before = std::mem::replace(&mut table, told);
                    let replaced = (1..table.epoch).contains(&before.epoch);
                    former = former.or(replaced.then_some(before));
                }
                new.log = Some(log);
                (table, former)
            }
            Err(error) if error.kind().leaves_open() => {
                let keeps = match &told {
                    Some(_) => "what the logs of its group name here is kept",
                    None => "no other node says what it names, which may be written over",
                };
                notice::warn(&format!(
                    "the stripe log cannot be read: {error}; until all is protected anew {keeps}"
                ));
                (told.unwrap_or_default(), None)
            }
            Err(error) => return Err(error),
        };
        new.began = of(&table);
        Ok((new, (table, former)))
    }

    /// The former composition protects nobody any more: what it names may be written over on return.
    pub(super) fn forget_former(&mut self) -> Result<()> {
        self.log.as_mut().map_or(Ok(()), StripeLog::forget_former)
    }

    fn read(&self) -> Result<(StripeLog, Tables)> {
        StripeLog::open_both(log_files(&self.directory)?, self.store)
    }

    /// Has space for a record, as `StripeLog::make_room`. A log that is going to be begun has none before.
    pub(super) fn make_room(
        &mut self,
        whole: bool,
        record_bytes: u64,
        table_bytes: u64,
    ) -> Result<()> {
        if self.log.is_none() && whole {
            return Ok(());
        }
        self.writable(whole)?
            .make_room(whole, record_bytes, table_bytes)
    }

    /// Appends `round`, as `StripeLog::append`.
    pub(super) fn append(&mut self, round: &Round, table: &StripeTable) -> Result<()> {
        self.writable(round.whole)?.append(round, table)
    }

    /// The log to write; one that could not be read is read again, and if that fails replaced by a new one for a
    /// record of all.
    fn writable(&mut self, whole: bool) -> Result<&mut StripeLog> {
        let log = match self.log.take() {
            Some(log) => log,
            None => match self.read() {
                // The record says all, or goes on from what the log says.
                Ok((log, (table, _))) if whole || of(&table) == self.began => log,
                Ok(_) => {
                    let context = "its stripe log is not as its group's, and was not read in time";
                    return Err(Error::new(ErrorKind::StoreIo, context));
                }
                Err(error) if whole && error.kind().leaves_open() => {
                    self.set_aside(&error)?;
                    self.read()?.0
                }
                Err(error) => return Err(error),
            },
        };
        Ok(self.log.insert(log))
    }

    /// Moves the files out of the way of a new log.
    fn set_aside(&self, why: &Error) -> Result<()> {
        notice::warn(&format!(
            "the stripe log cannot be read: {why}; its files are moved to *.unread beside it, and a new one \
             begins; remove them when they are of no use any more"
        ));
        for path in LOG_FILES.map(|name| self.directory.join(name)) {
            match std::fs::rename(&path, path.with_extension("unread")) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Error::io(format!("moving {}", path.display()), error));
                }
                _ => {}
            }
        }
        backstay_base::io::sync_folder(&self.directory)
            .map_err(|error| Error::io(format!("syncing {}", self.directory.display()), error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORE: StoreId = StoreId(*b"whose log it was");

    fn table(round: u64) -> StripeTable {
        StripeTable {
            epoch: 1,
            round,
            parity: 1,
            asked: 1,
            pieces_max: 1,
            ..StripeTable::default()
        }
    }

    /// The log that was told of could be read again when the store was attached: the newer of both counts, durably.
    #[test]
    fn of_a_log_that_can_be_read_and_what_was_told_the_newer_counts() {
        let folder = tempfile::tempdir().unwrap();
        let open = |told| {
            MemberLog::open(folder.path(), STORE, told)
                .unwrap()
                .1
                .0
                .round
        };
        assert_eq!(open(Some(table(3))), 3);
        assert_eq!(open(Some(table(2))), 3);
        assert_eq!(open(None), 3);
    }
}
