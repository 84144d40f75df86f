// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a test's hold on the files of devices: what is done to one may be held up, fail, or be cut
//! short; and on processes that are none, but threads of the test.
//! In from: tests, by `watch`. Out to: every device that is a file, before each operation.
//! Invariants: in release builds nothing of this is compiled in, unless the feature `faults` says so, and no operation
//! is looked at;
//! what a mapping lends is read without being asked about.

#[cfg(not(any(debug_assertions, feature = "faults")))]
pub use off::ends;
#[cfg(not(any(debug_assertions, feature = "faults")))]
pub(super) use off::{check, cut_short};
#[cfg(any(debug_assertions, feature = "faults"))]
pub use on::ends;
#[cfg(any(debug_assertions, feature = "faults"))]
pub use on::{Attempt, Fault, Watch, end_processes_by, under_way, watch};
#[cfg(any(debug_assertions, feature = "faults"))]
pub(super) use on::{check, cut_short};

/// What is done to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// Bytes are read.
    Read,
    /// Bytes are written.
    Write,
    /// What was written is made durable.
    Sync,
    /// The file grows.
    Reserve,
}

#[cfg(not(any(debug_assertions, feature = "faults")))]
mod off {
    use super::Access;
    use std::io::Result;
    use std::path::Path;

    /// An operation that may be done, until it is.
    #[derive(Debug)]
    pub(in super::super) struct UnderWay;

    #[inline]
    #[expect(clippy::unnecessary_wraps, reason = "tests may have it fail")]
    pub(in super::super) fn check(_: &Path, _: Access, _: u64, _: u64) -> Result<UnderWay> {
        Ok(UnderWay)
    }

    #[inline]
    pub(in super::super) fn cut_short(
        _: &Path,
        _: u64,
        length: usize,
    ) -> (usize, Result<()>, UnderWay) {
        (length, Ok(()), UnderWay)
    }

    #[inline]
    /// Whether the end of a process is taken over: never.
    pub fn ends(_: i32) -> bool {
        false
    }
}

#[cfg(any(debug_assertions, feature = "faults"))]
mod on {
    use super::Access;
    use backstay_format::width::{to_u64, to_usize};
    use std::io::{Error, Result};
    use std::path::{Path, PathBuf};
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
    use std::sync::{Arc, PoisonError, RwLock};

    /// An operation that is about to begin.
    #[derive(Debug, Clone, Copy)]
    pub struct Attempt<'a> {
        /// The file, as it was opened.
        pub path: &'a Path,
        /// What is done to it.
        pub access: Access,
        /// Where; of `Reserve` 0, of `Sync` 0.
        pub offset: u64,
        /// How many bytes; of `Reserve` the new length, of `Sync` 0.
        pub length: u64,
    }

    /// What goes wrong.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Fault {
        /// Nothing is done, with this errno.
        Fails(i32),
        /// Of a write so many bytes arrive, then it ends with this errno.
        Short(u64, i32),
    }

    type End = dyn Fn(i32) -> bool + Send + Sync;
    type Hook = Arc<dyn Fn(&Attempt<'_>) -> Option<Fault> + Send + Sync>;

    struct Hooked {
        folder: PathBuf,
        number: u64,
        hook: Hook,
    }

    static HOOKS: RwLock<Vec<Hooked>> = RwLock::new(Vec::new());
    static END: RwLock<Option<Arc<End>>> = RwLock::new(None);
    static NUMBERS: AtomicU64 = AtomicU64::new(0);
    static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);

    /// An operation that may be done, until it is.
    #[derive(Debug)]
    pub(in super::super) struct UnderWay;

    impl UnderWay {
        fn new() -> Self {
            UNDER_WAY.fetch_add(1, Ordering::SeqCst);
            Self
        }
    }

    impl Drop for UnderWay {
        fn drop(&mut self) {
            UNDER_WAY.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Operations on files that are begun and not done, those that a hook holds up among them.
    pub fn under_way() -> usize {
        UNDER_WAY.load(Ordering::SeqCst)
    }

    /// Has `end` called instead of the kernel to end a process; false where it is none of the test's.
    pub fn end_processes_by(end: impl Fn(i32) -> bool + Send + Sync + 'static) {
        *END.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(end));
    }

    /// Whether process `pid` was one of the test's, and was ended.
    pub fn ends(pid: i32) -> bool {
        let end = END.read().unwrap_or_else(PoisonError::into_inner).clone();
        end.is_some_and(|end| end(pid))
    }

    /// Has a hook called until dropped.
    #[derive(Debug)]
    pub struct Watch {
        number: u64,
    }

    /// Has `hook` called before each operation on a file below `folder`, on the thread that does it; of
    /// several only the last.
    pub fn watch(
        folder: &Path,
        hook: impl Fn(&Attempt<'_>) -> Option<Fault> + Send + Sync + 'static,
    ) -> Watch {
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let mut hooks = HOOKS.write().unwrap_or_else(PoisonError::into_inner);
        hooks.push(Hooked {
            folder: folder.to_owned(),
            number,
            hook: Arc::new(hook),
        });
        Watch { number }
    }

    impl Drop for Watch {
        fn drop(&mut self) {
            let mut hooks = HOOKS.write().unwrap_or_else(PoisonError::into_inner);
            hooks.retain(|hooked| hooked.number != self.number);
        }
    }

    fn fault(attempt: &Attempt<'_>) -> Option<Fault> {
        let hook = {
            let hooks = HOOKS.read().unwrap_or_else(PoisonError::into_inner);
            let mut latest = hooks.iter().rev();
            let found = latest.find(|hooked| attempt.path.starts_with(&hooked.folder));
            found.map(|hooked| Arc::clone(&hooked.hook))
        };
        hook.and_then(|hook| hook(attempt))
    }

    /// Whether an operation may be done.
    pub(in super::super) fn check(
        path: &Path,
        access: Access,
        offset: u64,
        length: u64,
    ) -> Result<UnderWay> {
        let attempt = Attempt {
            path,
            access,
            offset,
            length,
        };
        // Counted before it is asked about, so that none passes unseen.
        let under_way = UnderWay::new();
        match fault(&attempt) {
            Some(Fault::Fails(errno) | Fault::Short(_, errno)) => {
                Err(Error::from_raw_os_error(errno))
            }
            None => Ok(under_way),
        }
    }

    /// How many bytes of a write of `length` may be done, and how it ends.
    pub(in super::super) fn cut_short(
        path: &Path,
        offset: u64,
        length: usize,
    ) -> (usize, Result<()>, UnderWay) {
        let attempt = Attempt {
            path,
            access: Access::Write,
            offset,
            length: to_u64(length),
        };
        let under_way = UnderWay::new();
        let (count, end) = match fault(&attempt) {
            Some(Fault::Fails(errno)) => (0, Err(Error::from_raw_os_error(errno))),
            Some(Fault::Short(bytes, errno)) => (
                length.min(to_usize(bytes)),
                Err(Error::from_raw_os_error(errno)),
            ),
            None => (length, Ok(())),
        };
        (count, end, under_way)
    }
}
