// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a file of results that appears under its name only when it is whole.
//! In: what is written to it. Out: the file, or none: not after an error, nor after a signal.

use crate::interrupt;
use crate::output::Failure;
use backstay::{Error, ErrorKind};
use backstay_inspect::Array;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// A file under another name until it is whole.
pub(crate) struct Draft {
    path: PathBuf,
    partial: PathBuf,
    kept: bool,
}

impl Draft {
    /// Begins the file beside its place.
    pub(crate) fn begin(path: &Path) -> Result<(Self, BufWriter<File>), Failure> {
        let Some(name) = path.file_name() else {
            return Err(Failure::usage(format!(
                "{} is no name for a file",
                path.display()
            )));
        };
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}.partial", std::process::id()));
        let partial = path.with_file_name(hidden);
        let mut options = OpenOptions::new();
        let file = options
            .write(true)
            .create_new(true)
            .open(&partial)
            .map_err(|error| {
                Failure::output(
                    &format!("making {} (give another -o)", path.display()),
                    &error,
                )
            })?;
        let draft = Self {
            path: path.to_owned(),
            partial,
            kept: false,
        };
        Ok((draft, BufWriter::with_capacity(1 << 20, file)))
    }

    /// Gives the whole file its name.
    pub(crate) fn keep(mut self, file: &File) -> Result<(), Failure> {
        let renamed = file
            .sync_all()
            .and_then(|()| interrupt::check())
            .and_then(|()| std::fs::rename(&self.partial, &self.path));
        renamed.map_err(|error| self.failed(&error))?;
        self.kept = true;
        Ok(())
    }

    /// What is told of an error of writing, or of a signal that ended it.
    pub(crate) fn failed(&self, error: &std::io::Error) -> Failure {
        if let Some(signal) = interrupt::came() {
            let message = format!("interrupted: {} was not written", self.path.display());
            return Failure::interrupted(signal, message);
        }
        Failure::output(&format!("writing {}", self.path.display()), error)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.kept {
            // What was begun is of no use; that it cannot be removed is not the error to tell.
            drop(std::fs::remove_file(&self.partial));
        }
    }
}

/// Writes the bytes of an array, until a signal comes. What the file refuses comes back as the inner error.
pub(crate) fn copy(
    array: &Array<'_>,
    file: &mut impl Write,
    progress: &mut dyn FnMut(u64),
) -> Result<std::io::Result<()>, Error> {
    let mut refused = Ok(());
    let read = array.read(&mut |bytes| {
        refused = interrupt::check().and_then(|()| file.write_all(bytes));
        progress(u64::try_from(bytes.len()).unwrap_or(0));
        if refused.is_err() {
            // Ends the reading; the reason is in `refused`.
            return Err(Error::new(ErrorKind::StoreIo, "the output file"));
        }
        Ok(())
    });
    if refused.is_err() {
        Ok(refused)
    } else {
        read.map(Ok)
    }
}
