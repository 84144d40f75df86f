// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what this process wrote of files that several nodes write is noted where the agent sees it at any time, and bytes
//! that other nodes wrote come from there.
//! In from: `agent`, under its mutex. Out to: memory that the agent reads.
//! Invariants: a note costs no call of the kernel; who asks the agent after the call that wrote returned is told of it.
//! Format: `backstay_route::notes`.

use super::{Guard, ask_as, own_pid, tell_and_wait};
use crate::{names, next};
use backstay_route::message::{Kind, Message};
use backstay_route::notes::{
    BUFFER_AT, BUFFER_BYTES, JOINED_NS, NOTES, NOTES_MAX, Note, WORDS, place,
};
use std::ffi::{CString, c_int};
use std::sync::atomic::{AtomicU64, Ordering};

/// Where this process notes.
pub(super) struct Notes {
    /// Nothing where there is no such memory.
    memory: Option<&'static [AtomicU64]>,
    count: u64,
    /// The agent has so many for certain.
    taken: u64,
    /// The last one, if it may grow.
    last: Option<Note>,
}

impl Notes {
    pub(super) const fn none() -> Self {
        Self {
            memory: None,
            count: 0,
            taken: 0,
            last: None,
        }
    }

    /// The last note is not changed any more.
    pub(super) fn end(&mut self) {
        self.last = None;
    }

    /// The memory is the parent's.
    pub(super) fn leave(&mut self) {
        if let Some(memory) = self.memory {
            // SAFETY: mapped by `make`, and nobody has it any more. After fork nothing is looked up.
            unsafe { libc::syscall(libc::SYS_munmap, memory.as_ptr(), size_of_val(memory)) };
        }
        *self = Self::none();
    }

    fn set(&self, number: u64, word: usize, value: u64) {
        let at = place(number) / 8 + word;
        if let Some(word) = self.memory.and_then(|memory| memory.get(at)) {
            word.store(value, Ordering::Release);
        }
    }
}

fn now_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a structure that is filled.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_RAW, &raw mut now) };
    let whole = u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000;
    whole + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// Makes the memory, where there is none; an error number, 0 if it is there.
pub(super) fn make(guard: &mut Guard) -> c_int {
    if guard.notes().memory.is_some() {
        return 0;
    }
    let kept = next::errno();
    let made = map(guard);
    next::set_errno(kept);
    match made {
        Ok(memory) => {
            guard.notes().memory = Some(memory);
            0
        }
        Err(error) => error,
    }
}

fn map(guard: &mut Guard) -> Result<&'static [AtomicU64], c_int> {
    const BYTES: usize = BUFFER_AT + BUFFER_BYTES;
    let spec = names::spec().ok_or(libc::EIO)?;
    let name = format!("{}.{}", own_pid(), now_ns());
    let path = [
        &spec.folder[..],
        b"/",
        NOTES.as_bytes(),
        b"/",
        name.as_bytes(),
    ]
    .concat();
    let path = CString::new(path).map_err(|_| libc::EINVAL)?;
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC;
    let length = |bytes| libc::off_t::try_from(bytes).unwrap_or(0);
    // SAFETY: a path that ends in zero; a descriptor that is closed once; the mapping is of its length, and is unmapped by
    // `leave` alone.
    unsafe {
        let fd = next::openat(libc::AT_FDCWD, path.as_ptr(), flags, 0o600);
        if fd < 0 {
            return Err(next::errno());
        }
        // Where the notes are memory is taken now: a note must not find it full.
        let sized = next::fallocate(fd, 0, 0, length(BUFFER_AT)) == 0
            && next::ftruncate(fd, length(BYTES)) == 0;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let memory = if sized {
            next::mmap(std::ptr::null_mut(), BYTES, access, libc::MAP_SHARED, fd, 0)
        } else {
            libc::MAP_FAILED
        };
        let error = next::errno();
        next::close(fd);
        let told = if memory == libc::MAP_FAILED {
            error
        } else {
            ask_as(guard, &Message::named(Kind::Notes, 0, 0, name.as_bytes()))
        };
        if told != 0 {
            next::unlink(path.as_ptr());
            if memory != libc::MAP_FAILED {
                next::munmap(memory, BYTES);
            }
            return Err(told);
        }
        Ok(std::slice::from_raw_parts(memory.cast(), BYTES / 8))
    }
}

/// So many bytes of a file were written at `begin`.
pub(super) fn add(guard: &mut Guard, id: u32, begin: u64, count: u64) {
    // In a child there is none yet. Without one, what was written is found where the part is looked through.
    if count == 0 || make(guard) != 0 {
        return;
    }
    let (now, end) = (now_ns(), begin.saturating_add(count));
    let notes = guard.notes();
    if let Some(last) = &mut notes.last
        && (last.id, last.end) == (id, begin)
        && now.saturating_sub(last.first_ns) <= JOINED_NS
    {
        (last.last_ns, last.end) = (now, end);
        let number = notes.count - 1;
        notes.set(number, 4, now);
        notes.set(number, 2, end);
        return;
    }
    notes.last = None;
    if notes.count - notes.taken >= NOTES_MAX {
        tell_and_wait(guard, &Message::plain(Kind::Full, 0, 0));
        let notes = guard.notes();
        notes.taken = notes.count;
    }
    let notes = guard.notes();
    let note = Note {
        id,
        begin,
        end,
        first_ns: now,
        last_ns: now,
    };
    let words: [u64; WORDS] = note.words();
    for (word, value) in words.into_iter().enumerate() {
        notes.set(notes.count, word, value);
    }
    notes.count += 1;
    notes.last = Some(note);
    if let Some(count) = notes.memory.and_then(|memory| memory.first()) {
        count.store(notes.count, Ordering::Release);
    }
}

/// Reads bytes of a file, as they are now on all nodes, in pieces that `take` is given; how many, or an error number.
pub(super) fn read(
    guard: &mut Guard,
    id: u32,
    (begin, count): (u64, usize),
    mut take: impl FnMut(&[u8]),
) -> Result<usize, c_int> {
    let name = guard.files().get(&id).map(|file| file.name.clone());
    let name = name.ok_or(libc::EBADF)?;
    let made = make(guard);
    if made != 0 {
        return Err(made);
    }
    let mut read = 0;
    while read < count {
        let wanted = (count - read).min(BUFFER_BYTES);
        let numbers = [begin + read as u64, wanted as u64];
        let bytes: Vec<u8> = numbers.into_iter().flat_map(u64::to_le_bytes).collect();
        let asked = Message {
            second: &bytes,
            ..Message::named(Kind::Read, id, 0, &name)
        };
        match (ask_as(guard, &asked), read) {
            (0, _) => {}
            (error, 0) => return Err(error),
            // What was read is there.
            _ => break,
        }
        let memory = guard.notes().memory.unwrap_or_default();
        let there = memory.get(1).map_or(0, |word| word.load(Ordering::Acquire));
        let there = usize::try_from(there).unwrap_or(0).min(wanted);
        if there == 0 {
            break;
        }
        // SAFETY: the buffer is behind the notes, and the agent writes to it only when it is asked to, under this guard.
        take(unsafe {
            let buffer = memory.as_ptr().cast::<u8>().add(BUFFER_AT);
            std::slice::from_raw_parts(buffer, there)
        });
        read += there;
    }
    Ok(read)
}
