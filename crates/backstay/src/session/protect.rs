// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: which variables are part of the checkpoints to come, and what is said of their changes.
//! In from: the program. Out to: `session::variable`.
//! Invariants: a call that fails leaves what was protected before.

use super::Session;
use super::registry::VariableId;
use super::variable::{Registered, Variable};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::notice;
use backstay_format::limits::NAME_BYTES_MAX;
use backstay_metrics::VariableTracking;
use backstay_store::track::pages::PageTracker;
use std::collections::BTreeMap;
use std::ops::Range;

impl Session {
    /// Protects a variable: from now on it is part of every checkpoint, and of a restore. Calling it
    /// again for a name gives the variable another address, size or type, and returns the id that it has.
    ///
    /// # Safety
    /// `address` is valid for reads and writes of all its bytes until it is protected with another
    /// address, unprotected, or the session ends; no other thread writes it during `checkpoint`,
    /// `checkpoint_start` or `restore`.
    #[expect(unsafe_code, reason = "the program's memory is reached by pointer")]
    pub unsafe fn protect(&mut self, variable: Variable, address: *mut u8) -> Result<VariableId> {
        self.process.check()?;
        self.capture_announced();
        self.files.check_name(&variable.descriptor.name)?;
        let registered = Registered::new(variable, address, &self.config)?;
        // From here on nothing fails, so that the former one is as it was if anything did.
        self.generation += 1;
        if let Some(former) = self.variables.get_mut(&registered.descriptor.name) {
            former.changes.unwatch(self.pages.as_mut());
        }
        if registered.changes.wants_pages() {
            self.open_page_tracker();
        }
        Ok(self.variables.insert(registered))
    }

    /// The variable that is protected under `name`.
    pub fn variable(&self, name: &str) -> Result<VariableId> {
        self.process.check()?;
        self.variables.id(name).ok_or_else(|| self.unknown(name))
    }

    /// The tracker of pages; without kernel support or permission none, which is said once.
    fn open_page_tracker(&mut self) {
        if self.pages.is_none() && !self.no_pages {
            match PageTracker::new() {
                Ok(tracker) => self.pages = Some(tracker),
                Err(error) => {
                    self.no_pages = true;
                    notice::info(&error.to_string());
                }
            }
        }
    }

    /// Takes a variable, or a file, out of the checkpoints to come.
    pub fn unprotect(&mut self, name: &str) -> Result<()> {
        self.process.check()?;
        self.capture_announced();
        self.generation += 1;
        match self.variables.remove(name) {
            Some(mut variable) => {
                variable.changes.unwatch(self.pages.as_mut());
                Ok(())
            }
            None if self.files.remove(name) => Ok(()),
            None => Err(self.unknown(name)),
        }
    }

    /// Says that `bytes` of a variable changed; nothing is looked up. Under [`crate::config::Tracking::Marked`] only what was
    /// marked is looked at, once marks have named all that changed; under the others it is a hint.
    pub fn mark_dirty(&mut self, variable: VariableId, bytes: Range<u64>) -> Result<()> {
        self.process.check()?;
        self.capture_announced();
        match self.variables.of_id(variable) {
            Some(variable) => variable.mark(&bytes),
            None => Err(Error::new(
                ErrorKind::InvalidArgument,
                "this variable is not protected any more, or in another session",
            )),
        }
    }

    /// How changes of each variable are found now; see [`crate::config::Tracking`].
    pub fn tracking(&self) -> BTreeMap<String, VariableTracking> {
        let variables = self.variables.values();
        variables
            .map(|variable| (variable.descriptor.name.clone(), variable.changes.now()))
            .collect()
    }

    pub(super) fn unknown(&self, name: &str) -> Error {
        let known: Vec<&str> = self.variables.names().take(8).collect();
        let name: String = name.chars().take(NAME_BYTES_MAX).collect();
        let context = format!("no variable {name:?} is protected; there are {known:?}");
        Error::new(ErrorKind::InvalidArgument, context)
    }
}
