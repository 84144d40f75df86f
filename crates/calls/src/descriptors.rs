// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: calls that end what an open began: closes, mappings, the end of a process.
//! In from: `answer`. Out to: the agent, through `process`; the kernel does them all.
//! Invariants: that a file is closed is told when its process asks for it, before it is done: what the process had to write
//! is written then, and whether anybody can write still the agent asks the kernel.

use crate::answer::{Answers, Reply};
use crate::kernel::{self, Call};
use crate::proc::{
    Inode, descriptor_inode, descriptor_path, maps, number, others, process_and_umask, writers,
};
use crate::process::Process;
use rustix::fs::{CWD, FallocateFlags, Mode, OFlags, fallocate, fstat, openat};
use rustix::io::Errno;
use std::sync::Arc;

impl Answers {
    /// The process of a call, if it has, or had, routed files open for writing.
    fn known(&self, call: &Call) -> Option<Arc<Process>> {
        if !self.processes.is_any() {
            return None;
        }
        let known = self.processes.get(call.tid);
        // Another thread than its first.
        known.or_else(|| self.processes.get(process_and_umask(call.tid)?.0))
    }

    /// Another descriptor takes the place of one.
    pub(crate) fn replace(&self, call: &Call) -> Reply {
        let (by, fd) = (number(call, 0), number(call, 1));
        // By itself: then it stays.
        if by == fd {
            Reply::GoOn
        } else {
            self.close(call, fd)
        }
    }

    /// A descriptor goes.
    pub(crate) fn close(&self, call: &Call, fd: i32) -> Reply {
        let Some(process) = self.known(call) else {
            return Reply::GoOn;
        };
        let Some(inode) = descriptor_inode(call.tid, fd) else {
            return Reply::GoOn;
        };
        self.hand_on(call, &process, Some(inode));
        let mut state = process.lock();
        let Some(file) = state.files.get(&inode) else {
            return Reply::GoOn;
        };
        let is_open = writers(call.tid, inode).iter().any(|&other| other != fd);
        if is_open || file.is_mapped && maps(process.pid, inode) {
            process.linger(&mut state, inode);
        } else if kernel::is_waiting(self.listener(), call) {
            state.close(inode);
        }
        Reply::GoOn
    }

    /// Many descriptors go: what they were is looked at soon.
    pub(crate) fn close_range(&self, call: &Call) -> Reply {
        let marks_only = number(call, 2) & libc::CLOSE_RANGE_CLOEXEC.cast_signed() != 0;
        if let Some(process) = self.known(call).filter(|_| !marks_only) {
            let mut state = process.lock();
            let files: Vec<_> = state.files.keys().copied().collect();
            for file in files {
                process.linger(&mut state, file);
            }
        }
        Reply::GoOn
    }

    /// A file that is written is mapped: it gets its memory, so that a write to it is no bus error.
    pub(crate) fn map(&self, call: &Call) -> Reply {
        let Some(process) = self.known(call) else {
            return Reply::GoOn;
        };
        let fd = number(call, 4);
        let mut state = process.lock();
        let inode = descriptor_inode(call.tid, fd);
        let Some(file) = inode.and_then(|inode| state.files.get_mut(&inode)) else {
            return Reply::GoOn;
        };
        let reserved = reserve(call.tid, fd, call.arguments[1], call.arguments[5]);
        if let Err(Errno::NOSPC | Errno::FBIG) = reserved {
            return Reply::Failed(Errno::NOMEM);
        }
        file.is_mapped = true;
        Reply::GoOn
    }

    /// What a process has open its child has, too.
    pub(crate) fn fork(&self, call: &Call) -> Reply {
        if let Some(process) = self.known(call) {
            for file in process.lock().files.values_mut() {
                file.is_shared = true;
            }
        }
        Reply::GoOn
    }

    /// Who has a file of a process, since it is a child of it, is known from now on: before this process leaves that file,
    /// or all of its files.
    fn hand_on(&self, call: &Call, process: &Process, only: Option<Inode>) {
        let state = process.lock();
        let files = state.files.iter();
        let shared =
            files.filter(|(inode, file)| file.is_shared && only.is_none_or(|only| only == **inode));
        let shared: Vec<Inode> = shared.map(|(inode, _)| *inode).collect();
        drop(state);
        for inode in shared {
            let path = writers(call.tid, inode).first().copied();
            let path = path.and_then(|fd| descriptor_path(call.tid, fd));
            let Some(name) = path.and_then(|path| self.places.name_of(&path)) else {
                continue;
            };
            for other in others(process.pid, inode) {
                if let Ok(other) = self.processes.begin(other) {
                    other.inherit(inode, &name);
                }
            }
        }
    }

    /// A process ends, with a status; that it dies by a signal is not told.
    pub(crate) fn end(&self, call: &Call) -> Reply {
        if let Some(process) = self.known(call) {
            self.hand_on(call, &process, None);
            self.processes.end(&process, number(call, 0) & 0xff);
        }
        Reply::GoOn
    }
}

/// Gives what is to be mapped its memory.
fn reserve(tid: i32, fd: i32, length: u64, offset: u64) -> Result<(), Errno> {
    let link = format!("/proc/{tid}/fd/{fd}");
    let file = openat(CWD, link, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let size = u64::try_from(fstat(&file)?.st_size).unwrap_or(0);
    match length.min(size.saturating_sub(offset)) {
        0 => Ok(()),
        mapped => fallocate(&file, FallocateFlags::KEEP_SIZE, offset, mapped),
    }
}
