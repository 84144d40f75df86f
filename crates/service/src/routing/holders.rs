// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: who has which file open for writing, and how that ends.
//! In from: `serve`. Out to: `sets` (files that are closed).
//! Invariants: a close that was not told is a death; a file that anybody left by death is complete only when it is
//! written anew; a child that was given a descriptor and began anew without it wrote nothing.

use super::state::{Content, File, FileId, Holder, Process, ProcessId, State};
use backstay_base::process::is_running;
use rustix::fs::{Stat, stat};
use std::time::Instant;

impl State {
    pub(super) fn connected(&mut self, pid: i32) -> ProcessId {
        let id = self.draw();
        self.processes.insert(
            id,
            Process {
                pid,
                connected: true,
                leaving: None,
                bye: false,
            },
        );
        id
    }

    /// What a connection says is of another process than the one that made it: who is told its calls speaks for it.
    pub(super) fn speaks_for(&mut self, process: ProcessId, pid: i32) {
        if let Some(process) = self.processes.get_mut(&process) {
            process.pid = pid;
        }
    }

    /// The file that a process knows by a number.
    pub(super) fn held(&self, process: ProcessId, id: u32) -> Option<FileId> {
        let is_it = |holder: &Holder| holder.process == process && holder.id == id;
        let mut files = self.files.iter();
        files
            .find(|(_, file)| file.holders.iter().any(is_it))
            .map(|(id, _)| *id)
    }

    pub(super) fn release(&mut self, file: FileId, process: ProcessId, id: u32) {
        if let Some(file) = self.files.get_mut(&file) {
            file.holders
                .retain(|holder| holder.process != process || holder.id != id);
        }
    }

    /// A process closed a file.
    pub(super) fn closed(&mut self, process: ProcessId, id: u32, failed: bool) {
        let failing = self
            .processes
            .get(&process)
            .and_then(|process| process.leaving);
        if let Some(file) = self.held(process, id) {
            self.release(file, process, id);
            self.left(
                file,
                process,
                failed || failing.is_some_and(|status| status != 0),
            );
        }
    }

    /// Somebody has a file no more, by a close or by death.
    fn left(&mut self, id: FileId, process: ProcessId, by_death: bool) {
        let order = self.ordered();
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        file.voided |= by_death;
        file.closed_by = Some(process);
        if !file.holders.is_empty() {
            return;
        }
        if file.name.is_none() {
            self.files.remove(&id);
            return;
        }
        file.content = if file.voided {
            Content::Unfinished
        } else {
            Content::Closed(Instant::now())
        };
        file.order = order;
        file.moved = false;
        let is_whole = !file.voided;
        if is_whole && file.part.is_some() {
            self.seal_part(id);
        }
        if self.files.get(&id).is_some_and(|file| file.settled) && is_whole {
            self.complete(id);
        }
    }

    pub(super) fn file_named(&self, name: &[u8]) -> Option<FileId> {
        self.names.get(name)?.live
    }

    /// A child has what its parent had open.
    pub(super) fn inherited(&mut self, process: ProcessId, id: u32, name: &[u8]) {
        let holder = Holder {
            process,
            id,
            inherited: true,
        };
        if let Some(file) = self.file_named(name).and_then(|id| self.files.get_mut(&id)) {
            file.holders.push(holder);
        }
    }

    /// A process that began anew has what it had before.
    pub(super) fn taken_over(&mut self, process: ProcessId, id: u32, name: &[u8]) {
        let pid = self.processes.get(&process).map(|process| process.pid);
        let before =
            |other: &ProcessId, processes: &std::collections::BTreeMap<ProcessId, Process>| {
                *other != process && processes.get(other).map(|process| process.pid) == pid
            };
        let Some(file) = self.file_named(name) else {
            return;
        };
        let Some(File {
            holders,
            content,
            part,
            voided,
            ..
        }) = self.files.get_mut(&file)
        else {
            return;
        };
        // What it wrote before it began anew it does not know any more.
        *voided |= part.is_some();
        let processes = &self.processes;
        let known = holders
            .iter_mut()
            .find(|holder| before(&holder.process, processes));
        if let Some(holder) = known {
            (holder.process, holder.id) = (process, id);
            return;
        }
        holders.push(Holder {
            process,
            id,
            inherited: true,
        });
        if *content != Content::Revision {
            *content = Content::Unfinished;
        }
    }

    /// A process begins to end: what a failing one closed just now, on its way out, is not complete.
    pub(super) fn leaving(&mut self, process: ProcessId, status: i32) {
        if let Some(process) = self.processes.get_mut(&process) {
            process.leaving = Some(status);
        }
        if status == 0 {
            return;
        }
        self.judge_closed(process, false);
    }

    /// What a process closed just now: it may have been about to open it again. One that ends well was not.
    fn judge_closed(&mut self, process: ProcessId, is_orderly: bool) {
        let quiet = self.quiet;
        for file in self.files.values_mut() {
            let Content::Closed(since) = file.content else {
                continue;
            };
            if file.closed_by != Some(process) || file.settled {
                continue;
            }
            if is_orderly {
                file.settled = true;
            } else if since.elapsed() < quiet {
                file.content = Content::Unfinished;
                file.voided = true;
            }
        }
    }

    pub(super) fn bye(&mut self, process: ProcessId, status: i32) {
        self.leaving(process, status);
        if let Some(process) = self.processes.get_mut(&process) {
            process.bye = true;
        }
    }

    /// A connection ended.
    pub(super) fn disconnected(&mut self, process: ProcessId) {
        self.take_notes(process, true);
        self.notes.remove(&process);
        if let Some(process) = self.processes.get_mut(&process) {
            process.connected = false;
        }
        self.look_after(process);
    }

    /// Those that ended, or began anew, without a word: what they have open still, and what not.
    pub(super) fn look_after_all(&mut self) {
        let ended = self
            .processes
            .iter()
            .filter(|(_, process)| !process.connected);
        let ended: Vec<ProcessId> = ended.map(|(id, _)| *id).collect();
        for process in ended {
            self.look_after(process);
        }
    }

    fn look_after(&mut self, process: ProcessId) {
        let Some(&Process {
            pid, bye, leaving, ..
        }) = self.processes.get(&process)
        else {
            return;
        };
        let holders = self.files.iter().flat_map(|(file, state)| {
            let own = state
                .holders
                .iter()
                .filter(move |holder| holder.process == process);
            own.map(|holder| (*file, *holder))
        });
        let holders: Vec<(FileId, Holder)> = holders.collect();
        let is_orderly = bye && leaving == Some(0);
        let mut waits = false;
        for (file, holder) in holders {
            if !bye && self.has_open(pid, file) {
                waits = true;
                continue;
            }
            self.release(file, process, holder.id);
            let began_anew = holder.inherited && !bye && is_running(pid);
            self.left(file, process, !is_orderly && !began_anew);
        }
        if !waits {
            self.processes.remove(&process);
            if is_orderly || !is_running(pid) {
                self.judge_closed(process, is_orderly);
            }
        }
    }

    /// Whether a process has a file open.
    fn has_open(&self, pid: i32, file: FileId) -> bool {
        let name = self.files.get(&file).and_then(|file| file.name.as_ref());
        let Some(wanted) = name
            .and_then(|name| self.live(name))
            .and_then(|live| stat(live).ok())
        else {
            return false;
        };
        let is_it = |about: Stat| (about.st_dev, about.st_ino) == (wanted.st_dev, wanted.st_ino);
        let entries = std::fs::read_dir(format!("/proc/{pid}/fd"))
            .into_iter()
            .flatten()
            .flatten();
        let mut open = entries.filter_map(|entry| stat(entry.path()).ok());
        open.any(is_it)
    }
}
