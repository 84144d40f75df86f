// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: many files on shared storage that are only read, of which a process has some open at a time.
//! In from: whoever reads an archive back. Out to: `direct`.
//! Invariants: what is read is the file that was there first: another one of its name is an error; a bound
//! on descriptors, but for those that are being read just now.

use super::ReadAt;
use super::direct::SharedFile;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Most files that a process keeps open to read archives.
pub const OPEN_MAX: usize = 32;
/// errno of a process, and of a system, that has too many files open.
const EMFILE: i32 = 24;
const ENFILE: i32 = 23;

/// Lets this process open as many files as it may: the soft limit becomes the hard one.
pub fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = Rlimit {
            current: limit.maximum,
            ..limit
        };
        // Where it cannot be, fewer have to do.
        setrlimit(Resource::Nofile, raised).unwrap_or_default();
    }
}

/// Files that are open, the one read longest ago is closed first.
#[derive(Debug)]
pub struct OpenFiles {
    most: usize,
    open: Mutex<BTreeMap<Key, Open>>,
}

thread_local! {
    static OPENED_HERE: Cell<u64> = const { Cell::new(0) };
}

/// Files that this thread was the first to open, of those that are opened on demand: for counting.
pub fn opened_by_this_thread() -> u64 {
    OPENED_HERE.get()
}

type Key = (PathBuf, bool);

#[derive(Debug)]
struct Open {
    file: Arc<SharedFile>,
    used: u64,
}

impl OpenFiles {
    /// At most `most` at a time.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most: most.max(1),
            open: Mutex::default(),
        })
    }

    /// Those of this process.
    pub fn of_process() -> &'static Arc<Self> {
        static FILES: OnceLock<Arc<OpenFiles>> = OnceLock::new();
        FILES.get_or_init(|| Self::new(OPEN_MAX))
    }

    /// The file at `path`, read past the page cache where `direct` asks for it and it can be.
    pub fn file(self: &Arc<Self>, path: &Path, direct: bool) -> Result<FileOnDemand> {
        let key = (path.to_owned(), direct);
        let opened = self.open_file(&key)?;
        OPENED_HERE.set(OPENED_HERE.get() + 1);
        let identity = opened.identity()?;
        self.keep(&key, Arc::new(opened));
        Ok(FileOnDemand {
            files: Arc::clone(self),
            key,
            identity,
        })
    }

    /// Files open just now.
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_file(&self, (path, direct): &Key) -> Result<SharedFile> {
        let open = || SharedFile::open_read_only(path, *direct);
        match open() {
            Err(error) if matches!(error.raw_os_error(), Some(EMFILE | ENFILE)) => {
                self.lock().clear();
                open()
            }
            opened => opened,
        }
    }

    fn keep(&self, key: &Key, file: Arc<SharedFile>) {
        let mut open = self.lock();
        let used = open.values().map(|open| open.used).max().unwrap_or(0) + 1;
        open.insert(key.clone(), Open { file, used });
        while open.len() > self.most {
            let oldest = open.iter().min_by_key(|(_, open)| open.used);
            let Some(oldest) = oldest.map(|(key, _)| key.clone()) else {
                return;
            };
            open.remove(&oldest);
        }
    }

    fn kept(&self, key: &Key) -> Option<Arc<SharedFile>> {
        let mut open = self.lock();
        let used = open.values().map(|open| open.used).max().unwrap_or(0) + 1;
        let found = open.get_mut(key)?;
        found.used = used;
        Some(Arc::clone(&found.file))
    }
}

/// A file that is opened when it is read.
#[derive(Debug)]
pub struct FileOnDemand {
    files: Arc<OpenFiles>,
    key: Key,
    /// Device and inode of the file that was opened first.
    identity: (u64, u64),
}

impl FileOnDemand {
    /// What the file system says of the file.
    pub fn about(&self) -> Result<std::fs::Metadata> {
        self.file()?.about()
    }

    fn file(&self) -> Result<Arc<SharedFile>> {
        if let Some(kept) = self.files.kept(&self.key)
            && kept.identity()? == self.identity
        {
            return Ok(kept);
        }
        let opened = Arc::new(self.files.open_file(&self.key)?);
        if opened.identity()? != self.identity {
            let path = self.key.0.display();
            return Err(Error::other(format!(
                "{path} is another file than it was when it was opened first"
            )));
        }
        self.files.keep(&self.key, Arc::clone(&opened));
        Ok(opened)
    }
}

impl ReadAt for FileOnDemand {
    fn length_bytes(&self) -> Result<u64> {
        self.file()?.length_bytes()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.file()?.read_at(buffer, offset)
    }

    fn name(&self) -> String {
        self.key.0.display().to_string()
    }
}

impl Drop for FileOnDemand {
    fn drop(&mut self) {
        // Whoever else reads it opens it again.
        self.files.lock().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_files_than_may_be_open_are_read_and_another_of_the_same_name_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let files = OpenFiles::new(3);
        let path = |at: u8| folder.path().join(format!("file {at}"));
        let opened: Vec<FileOnDemand> = (0..10)
            .map(|at| {
                std::fs::write(path(at), [at; 5000]).unwrap();
                files.file(&path(at), at % 2 == 0).unwrap()
            })
            .collect();
        for _ in 0..2 {
            for (at, file) in (0..).zip(&opened) {
                let mut found = [0xff; 100];
                file.read_at(&mut found, 4900).unwrap();
                assert_eq!(found, [at; 100]);
                assert_eq!(file.length_bytes().unwrap(), 5000);
                assert!(files.count() <= 3);
            }
        }
        std::fs::remove_file(path(1)).unwrap();
        assert!(opened[1].read_at(&mut [0; 1], 0).is_err());
        std::fs::write(folder.path().join("new"), [1; 5000]).unwrap();
        std::fs::rename(folder.path().join("new"), path(2)).unwrap();
        let error = opened[2].read_at(&mut [0; 1], 0).unwrap_err();
        assert!(error.to_string().contains("another file"), "{error}");
        drop(opened);
        assert_eq!(files.count(), 0);
    }
}
