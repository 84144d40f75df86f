// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: which calls of the kernel take names, or end what a name began, and how they are made.
//! In from: the kernel's interface. Out to: `filter` (which calls are told), `answer` (what they mean).
//! Invariants: a buffer has the size that the kernel writes or reads; a call that is not here is not told.

use libc::c_long;

/// `fchmodat2`, the same number everywhere; Linux 6.6.
const FCHMODAT2: c_long = 452;
/// An empty path names the descriptor itself.
const EMPTY_PATH: u32 = libc::AT_EMPTY_PATH.cast_unsigned();

/// Which arguments are a name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Name {
    /// The descriptor of the folder that a relative path is below.
    pub(crate) folder: Option<usize>,
    pub(crate) path: usize,
}

/// What is behind a pointer.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Buffer {
    /// The call writes so many bytes to argument `at`.
    Out(usize, usize),
    /// It writes as many as it says to the first argument, at most as many as the second says.
    Measured(usize, usize),
    /// It reads so many bytes.
    In(usize, usize),
    /// It reads from the first argument as many as the second says.
    Sized(usize, usize),
    /// It reads a text that ends in zero.
    Text(usize),
}

/// Where an open has its flags and its mode.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Flags {
    /// The flags; the mode follows.
    At(usize),
    /// `creat`: the mode alone.
    Creat,
    /// `openat2`: in a structure.
    How(usize),
}

/// How a call is answered where its name is routed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Shape {
    Open(Name, Flags),
    /// It is made with the place of the name.
    Place(Name, &'static [Buffer]),
    Truncate(Name),
    /// The flags of `renameat2`, if it has any.
    Rename(Name, Name, Option<usize>),
    /// The flags of `unlinkat`, if it has any.
    Remove(Name, Option<usize>),
    RemoveFolder(Name),
    /// None of these may be routed.
    Link(&'static [Name]),
    Entries,
    Close,
    CloseRange,
    /// Another descriptor takes the place of one.
    Replace,
    Map,
    /// A child begins, which has what its parent has.
    Fork,
    End,
}

/// Which of these calls are told.
#[derive(Debug, Clone, Copy)]
pub(crate) enum When {
    Always,
    /// Unless an argument has these bits.
    Unless(usize, u32),
    /// Where this argument is a descriptor that may be of a routed file, or a larger one.
    From(usize),
    /// A shared mapping of such a descriptor.
    Mapped,
}

/// A call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) number: c_long,
    pub(crate) when: When,
    pub(crate) shape: Shape,
}

const fn entry(number: c_long, when: When, shape: Shape) -> Entry {
    Entry {
        number,
        when,
        shape,
    }
}

const fn named(number: c_long, shape: Shape) -> Entry {
    entry(number, When::Always, shape)
}

const fn path(path: usize) -> Name {
    Name { folder: None, path }
}

const fn at(folder: usize) -> Name {
    Name {
        folder: Some(folder),
        path: folder + 1,
    }
}

use Buffer::{In, Measured, Out, Sized, Text};
use Shape::{
    Close, CloseRange, End, Entries, Fork, Link, Map, Open, Place, Remove, RemoveFolder, Rename,
    Replace, Truncate,
};

const STAT: usize = size_of::<libc::stat>();
const STATX: usize = size_of::<libc::statx>();
const STATFS: usize = size_of::<libc::statfs>();
const TIMES: usize = 2 * size_of::<libc::timespec>();

/// Those of all machines. What is told under conditions stands first: its filter runs more often.
const COMMON: &[Entry] = &[
    entry(libc::SYS_close, When::From(0), Close),
    entry(libc::SYS_mmap, When::Mapped, Map),
    entry(libc::SYS_close_range, When::From(1), CloseRange),
    entry(libc::SYS_dup3, When::From(1), Replace),
    entry(
        libc::SYS_newfstatat,
        When::Unless(3, EMPTY_PATH),
        Place(at(0), &[Out(2, STAT)]),
    ),
    entry(
        libc::SYS_statx,
        When::Unless(2, EMPTY_PATH),
        Place(at(0), &[Out(4, STATX)]),
    ),
    entry(
        libc::SYS_clone,
        When::Unless(0, libc::CLONE_THREAD.cast_unsigned()),
        Fork,
    ),
    // It has its flags in memory, which a filter does not see.
    named(libc::SYS_clone3, Fork),
    named(libc::SYS_openat, Open(at(0), Flags::At(2))),
    named(libc::SYS_openat2, Open(at(0), Flags::How(2))),
    named(libc::SYS_faccessat, Place(at(0), &[])),
    named(libc::SYS_faccessat2, Place(at(0), &[])),
    named(libc::SYS_fchmodat, Place(at(0), &[])),
    named(FCHMODAT2, Place(at(0), &[])),
    named(libc::SYS_fchownat, Place(at(0), &[])),
    named(libc::SYS_utimensat, Place(at(0), &[In(2, TIMES)])),
    named(libc::SYS_statfs, Place(path(0), &[Out(1, STATFS)])),
    named(libc::SYS_setxattr, Place(path(0), &[Text(1), Sized(2, 3)])),
    named(libc::SYS_lsetxattr, Place(path(0), &[Text(1), Sized(2, 3)])),
    named(
        libc::SYS_getxattr,
        Place(path(0), &[Text(1), Measured(2, 3)]),
    ),
    named(
        libc::SYS_lgetxattr,
        Place(path(0), &[Text(1), Measured(2, 3)]),
    ),
    named(libc::SYS_listxattr, Place(path(0), &[Measured(1, 2)])),
    named(libc::SYS_llistxattr, Place(path(0), &[Measured(1, 2)])),
    named(libc::SYS_removexattr, Place(path(0), &[Text(1)])),
    named(libc::SYS_lremovexattr, Place(path(0), &[Text(1)])),
    named(libc::SYS_readlinkat, Place(at(0), &[Measured(2, 3)])),
    named(libc::SYS_truncate, Truncate(path(0))),
    named(libc::SYS_renameat, Rename(at(0), at(2), None)),
    named(libc::SYS_renameat2, Rename(at(0), at(2), Some(4))),
    named(libc::SYS_unlinkat, Remove(at(0), Some(2))),
    named(libc::SYS_linkat, Link(&[at(0), at(2)])),
    named(libc::SYS_symlinkat, Link(&[at(1)])),
    named(libc::SYS_getdents64, Entries),
    named(libc::SYS_exit_group, End),
];

/// Those that only old machines have.
#[cfg(target_arch = "x86_64")]
const OLD: &[Entry] = &[
    entry(libc::SYS_dup2, When::From(1), Replace),
    named(libc::SYS_fork, Fork),
    named(libc::SYS_vfork, Fork),
    named(libc::SYS_open, Open(path(0), Flags::At(1))),
    named(libc::SYS_creat, Open(path(0), Flags::Creat)),
    named(libc::SYS_stat, Place(path(0), &[Out(1, STAT)])),
    named(libc::SYS_lstat, Place(path(0), &[Out(1, STAT)])),
    named(libc::SYS_access, Place(path(0), &[])),
    named(libc::SYS_chmod, Place(path(0), &[])),
    named(libc::SYS_chown, Place(path(0), &[])),
    named(libc::SYS_lchown, Place(path(0), &[])),
    named(
        libc::SYS_utime,
        Place(path(0), &[In(1, size_of::<libc::utimbuf>())]),
    ),
    named(libc::SYS_utimes, Place(path(0), &[In(1, TIMES)])),
    named(libc::SYS_futimesat, Place(at(0), &[In(2, TIMES)])),
    named(libc::SYS_readlink, Place(path(0), &[Measured(1, 2)])),
    named(libc::SYS_rename, Rename(path(0), path(1), None)),
    named(libc::SYS_unlink, Remove(path(0), None)),
    named(libc::SYS_rmdir, RemoveFolder(path(0))),
    named(libc::SYS_link, Link(&[path(0), path(1)])),
    named(libc::SYS_symlink, Link(&[path(1)])),
];
#[cfg(not(target_arch = "x86_64"))]
const OLD: &[Entry] = &[];

/// All of them.
pub(crate) fn all() -> impl Iterator<Item = &'static Entry> {
    COMMON.iter().chain(OLD)
}

/// How a call is answered.
pub(crate) fn shape(number: c_long) -> Option<Shape> {
    all()
        .find(|entry| entry.number == number)
        .map(|entry| entry.shape)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_call_stands_once() {
        let numbers: BTreeSet<c_long> = all().map(|entry| entry.number).collect();
        assert_eq!(numbers.len(), all().count());
        assert!(matches!(shape(libc::SYS_openat), Some(Open(..))));
        assert!(shape(libc::SYS_read).is_none());
    }
}
