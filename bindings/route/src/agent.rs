// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the connection to the agent, and what this process has open for writing.
//! In from: `hooks`. Out to: the agent.
//! Invariants: a connection is made when it is first needed, and is one process's: a child of fork makes its own, and a
//! child that shares this memory (vfork) changes nothing here; what is told of a file is told in order.

mod notes;

use crate::names::{self, Routed};
use crate::next;
use backstay_route::SOCKET;
use backstay_route::message::{Kind, Message};
use backstay_route::place::Places;
use notes::Notes;
use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::ffi::{CString, c_int};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};

/// Descriptors that can be routed.
const FDS: usize = 1 << 16;
/// Where the socket stands, above what programs count on.
const HIGH_FD: c_int = 700;

/// Of each descriptor, which file of this process it is; 0 is none.
static FILE_OF: [AtomicU32; FDS] = [const { AtomicU32::new(0) }; FDS];
/// How many files are open, or mapped.
static OPEN: AtomicUsize = AtomicUsize::new(0);
/// How many of them were mapped for writing.
static MAPPED: AtomicUsize = AtomicUsize::new(0);
/// How many of them several nodes write.
static SHARED_FILES: AtomicUsize = AtomicUsize::new(0);
static PID: AtomicI32 = AtomicI32::new(0);
static CONNECTION: AtomicI32 = AtomicI32::new(-1);
static SHARED: Shared = Shared {
    mutex: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
    files: UnsafeCell::new(BTreeMap::new()),
    last: UnsafeCell::new(0),
    notes: UnsafeCell::new(Notes::none()),
};

/// A file that this process has open for writing.
struct Open {
    name: Vec<u8>,
    descriptors: u32,
    /// Its inode, once it was mapped for writing.
    mapped: Option<u64>,
    failed: bool,
    /// Several nodes write it.
    is_shared: bool,
    /// It was opened to be read, too.
    reads: bool,
}

impl Open {
    /// A file that one descriptor has.
    fn once(name: Vec<u8>, is_shared: bool, reads: bool) -> Self {
        Self {
            name,
            descriptors: 1,
            mapped: None,
            failed: false,
            is_shared,
            reads,
        }
    }
}

struct Shared {
    mutex: UnsafeCell<libc::pthread_mutex_t>,
    files: UnsafeCell<BTreeMap<u32, Open>>,
    last: UnsafeCell<u32>,
    notes: UnsafeCell<Notes>,
}

// SAFETY: what is in it is reached through `Guard` alone, which has the mutex.
unsafe impl Sync for Shared {}

/// Has the mutex, which is the C library's, since fork has to take it and give it back in the child.
struct Guard(&'static Shared);

impl Guard {
    fn take() -> Self {
        // SAFETY: initialized, and never moved.
        unsafe { libc::pthread_mutex_lock(SHARED.mutex.get()) };
        Self(&SHARED)
    }
    fn files(&mut self) -> &mut BTreeMap<u32, Open> {
        // SAFETY: this guard has the mutex.
        unsafe { &mut *self.0.files.get() }
    }
    fn draw(&mut self) -> u32 {
        // SAFETY: this guard has the mutex.
        let last = unsafe { &mut *self.0.last.get() };
        *last = last.wrapping_add(1).max(1);
        *last
    }
    fn notes(&mut self) -> &mut Notes {
        // SAFETY: this guard has the mutex.
        unsafe { &mut *self.0.notes.get() }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // SAFETY: `take` locked it.
        unsafe { libc::pthread_mutex_unlock(self.0.mutex.get()) };
    }
}

fn own_pid() -> c_int {
    // SAFETY: it always succeeds.
    unsafe { libc::getpid() }
}

/// Whether this process is the one that the state is of.
fn is_own() -> bool {
    PID.load(Ordering::Relaxed) == own_pid()
}

/// Whether any file is open for writing: else no descriptor is looked at.
pub(crate) fn has_open() -> bool {
    OPEN.load(Ordering::Relaxed) > 0
}

fn connect(spec: &Places) -> Option<c_int> {
    let folder = CString::new(&spec.folder[..]).ok()?;
    // SAFETY: paths that end in zero, an address of the length that is named.
    unsafe {
        let at = next::openat(
            libc::AT_FDCWD,
            folder.as_ptr(),
            libc::O_PATH | libc::O_CLOEXEC,
            0,
        );
        if at < 0 {
            return None;
        }
        // The whole path can be longer than an address.
        let path = format!("/proc/self/fd/{at}/{SOCKET}");
        let mut address: libc::sockaddr_un = std::mem::zeroed();
        address.sun_family = libc::sa_family_t::try_from(libc::AF_UNIX).unwrap_or(1);
        for (to, from) in address.sun_path.iter_mut().zip(path.bytes()) {
            *to = std::ffi::c_char::from_le_bytes([from]);
        }
        let length = libc::socklen_t::try_from(size_of::<libc::sockaddr_un>()).unwrap_or(110);
        let low = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
        let connected = low >= 0 && libc::connect(low, (&raw const address).cast(), length) == 0;
        next::close(at);
        if !connected {
            next::close(low);
            return None;
        }
        let high = next::fcntl(
            low,
            libc::F_DUPFD_CLOEXEC,
            std::ptr::without_provenance_mut(HIGH_FD as usize),
        );
        if high < 0 {
            return Some(low);
        }
        next::close(low);
        Some(high)
    }
}

fn send(socket: c_int, message: &Message<'_>) -> bool {
    let bytes = message.encode();
    loop {
        // SAFETY: a buffer of the length that is named.
        let sent = unsafe {
            libc::send(
                socket,
                bytes.as_ptr().cast(),
                bytes.len(),
                libc::MSG_NOSIGNAL,
            )
        };
        if sent >= 0 || next::errno() != libc::EINTR {
            return sent >= 0;
        }
    }
}

fn answer(socket: c_int) -> c_int {
    let mut bytes = [0u8; 4];
    loop {
        // SAFETY: a buffer of the length that is named.
        let read = unsafe { libc::recv(socket, bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        if read == 4 {
            return i32::from_le_bytes(bytes);
        }
        if read >= 0 || next::errno() != libc::EINTR {
            // There is no agent any more: nothing is written past it.
            return libc::EIO;
        }
    }
}

/// The connection of this process, made where there is none. The guard shows that nobody else makes one.
fn connection(_guard: &mut Guard) -> Option<c_int> {
    let known = CONNECTION.load(Ordering::Relaxed);
    if known >= 0 {
        return Some(known);
    }
    let made = connect(names::spec()?)?;
    CONNECTION.store(made, Ordering::Relaxed);
    Some(made)
}

/// Tells the agent, where there is a connection; whether it was sent.
fn tell(guard: &mut Guard, message: &Message<'_>) -> bool {
    let kept = next::errno();
    let sent = connection(guard).is_some_and(|socket| send(socket, message));
    next::set_errno(kept);
    sent
}

/// Tells the agent, and waits until it has done what that means; whether it has: of one that is gone nothing more is completed.
fn tell_and_wait(guard: &mut Guard, message: &Message<'_>) -> bool {
    let kept = next::errno();
    let done = ask_as(guard, message) == 0;
    next::set_errno(kept);
    done
}

fn ask_as(guard: &mut Guard, message: &Message<'_>) -> c_int {
    match connection(guard) {
        Some(socket) if send(socket, message) => answer(socket),
        _ => libc::EIO,
    }
}

/// Asks the agent; an error number, 0 if all is well.
pub(crate) fn ask(message: &Message<'_>) -> c_int {
    let kept = next::errno();
    let answered = if is_own() {
        ask_as(&mut Guard::take(), message)
    } else {
        // The memory is another process's (vfork): what it opens becomes known when it begins anew.
        match names::spec().and_then(connect) {
            Some(socket) => {
                let answered = if send(socket, message) {
                    answer(socket)
                } else {
                    libc::EIO
                };
                // Of what is opened it is held until the process begins anew: then it is asked what is open.
                if message.kind != Kind::Open || answered != 0 {
                    // SAFETY: made above.
                    unsafe { next::close(socket) };
                }
                answered
            }
            None => libc::EIO,
        }
    };
    next::set_errno(kept);
    answered
}

/// Where a file of another node is, once the agent did what `kind` asks; nothing, with `errno`, where there is none.
pub(crate) fn far(routed: &Routed, kind: Kind) -> Option<*const std::ffi::c_char> {
    let far = routed.far.as_ref()?;
    let message = Message {
        kind,
        id: 0,
        value: 0,
        first: &routed.name,
        second: &[],
    };
    let answered = ask(&message);
    if answered == 0 {
        let place = if kind == Kind::Fetch {
            &far.read
        } else {
            &far.seen
        };
        return Some(place.as_ptr());
    }
    next::set_errno(answered);
    None
}

/// Opens a routed file for writing: the agent first, then `open`, which gives what it opened and its descriptor.
pub(crate) fn open<T>(
    routed: &Routed,
    flags: c_int,
    open: impl FnOnce() -> Option<(T, c_int)>,
) -> Option<T> {
    let id = if is_own() {
        Guard::take().draw()
    } else {
        u32::MAX
    };
    let is_shared = routed.part.is_some();
    let asked = Message::named(Kind::Open, id, flags, &routed.name);
    let mut answered = 0;
    if is_shared && is_own() {
        answered = notes::make(&mut Guard::take());
    }
    if answered == 0 {
        answered = ask(&asked);
    }
    if answered != 0 {
        next::set_errno(answered);
        return None;
    }
    let opened = open();
    if !is_own() {
        return opened.map(|(opened, _)| opened);
    }
    let mut guard = Guard::take();
    let place = opened
        .as_ref()
        .and_then(|(_, fd)| FILE_OF.get(usize::try_from(*fd).ok()?));
    let Some(place) = place else {
        // Nothing was opened, or beyond what is watched: then it is never complete by a close.
        if opened.is_none() {
            tell(&mut guard, &Message::plain(Kind::NotOpened, id, 0));
        }
        return opened.map(|(opened, _)| opened);
    };
    let reads = flags & libc::O_ACCMODE != libc::O_WRONLY;
    let file = Open::once(routed.name.clone(), is_shared, reads);
    guard.files().insert(id, file);
    OPEN.fetch_add(1, Ordering::Relaxed);
    SHARED_FILES.fetch_add(usize::from(is_shared), Ordering::Relaxed);
    place.store(id, Ordering::Relaxed);
    opened.map(|(opened, _)| opened)
}

/// Which file a descriptor is; it is this file's no more.
pub(crate) fn take(fd: c_int) -> u32 {
    if !has_open() || !is_own() {
        return 0;
    }
    let place = usize::try_from(fd).ok().and_then(|fd| FILE_OF.get(fd));
    place.map_or(0, |place| place.swap(0, Ordering::Relaxed))
}

/// A descriptor of the file was closed, well or not; whether the agent knows, if it was the last one.
pub(crate) fn closed(id: u32, well: bool) -> bool {
    if id == 0 {
        return true;
    }
    let mut guard = Guard::take();
    let Some(file) = guard.files().get_mut(&id) else {
        return true;
    };
    file.descriptors = file.descriptors.saturating_sub(1);
    file.failed |= !well;
    tell_if_closed(&mut guard, id)
}

fn tell_if_closed(guard: &mut Guard, id: u32) -> bool {
    let Some(file) = guard.files().get(&id) else {
        return true;
    };
    if file.descriptors > 0 || file.mapped.is_some() {
        return true;
    }
    let failed = c_int::from(file.failed);
    let former = guard.files().remove(&id);
    OPEN.fetch_sub(1, Ordering::Relaxed);
    if former.is_some_and(|file| file.is_shared) {
        SHARED_FILES.fetch_sub(1, Ordering::Relaxed);
    }
    let message = Message::plain(Kind::Closed, id, failed);
    if names::spec().is_some_and(Places::is_spread) {
        // Other nodes see it before this process goes on.
        tell_and_wait(guard, &message)
    } else {
        tell(guard, &message)
    }
}

/// The file of a descriptor, if several nodes write it at once; 0 if not.
pub(crate) fn shared(fd: c_int) -> u32 {
    shared_that(fd, |_| true)
}

/// The same of a descriptor that was opened to be read, too.
pub(crate) fn shared_to_read(fd: c_int) -> u32 {
    shared_that(fd, |file| file.reads)
}

fn shared_that(fd: c_int, is_it: impl FnOnce(&Open) -> bool) -> u32 {
    if SHARED_FILES.load(Ordering::Relaxed) == 0 || !is_own() {
        return 0;
    }
    let place = usize::try_from(fd).ok().and_then(|fd| FILE_OF.get(fd));
    let id = place.map_or(0, |place| place.load(Ordering::Relaxed));
    if id == 0 {
        return 0;
    }
    let mut guard = Guard::take();
    let file = guard.files().get(&id);
    if file.is_some_and(|file| file.is_shared && is_it(file)) {
        id
    } else {
        0
    }
}

/// The name of a file.
pub(crate) fn name_of(id: u32) -> Option<Vec<u8>> {
    let mut guard = Guard::take();
    guard.files().get(&id).map(|file| file.name.clone())
}

/// Cuts a file that several nodes write on all of them; an error number, 0 if all is well.
pub(crate) fn cut(id: u32, length: i64) -> c_int {
    let (Some(name), Ok(length)) = (name_of(id), u64::try_from(length)) else {
        return libc::EINVAL;
    };
    Guard::take().notes().end();
    ask(&Message {
        kind: Kind::Cut,
        id,
        value: 0,
        first: &name,
        second: &length.to_le_bytes(),
    })
}

/// So many bytes of a file that several nodes write were written at `begin`.
pub(crate) fn wrote(id: u32, begin: u64, count: u64) {
    notes::add(&mut Guard::take(), id, begin, count);
}

/// Writes by `write` where the descriptor stands; nobody of this process moves it meanwhile.
pub(crate) fn write_in_turn(id: u32, fd: c_int, write: impl FnOnce() -> isize) -> isize {
    let mut guard = Guard::take();
    // SAFETY: any descriptor.
    let begin = unsafe { next::lseek(fd, 0, libc::SEEK_CUR) };
    let written = write();
    if let (Ok(begin), Ok(count)) = (u64::try_from(begin), u64::try_from(written)) {
        notes::add(&mut guard, id, begin, count);
    }
    written
}

/// Reads so many bytes of a file that several nodes write, at `begin`, as they are now on all of them; how many were given to
/// `take`, or an error number.
pub(crate) fn read(
    id: u32,
    begin: u64,
    count: usize,
    take: impl FnMut(&[u8]),
) -> Result<usize, c_int> {
    notes::read(&mut Guard::take(), id, (begin, count), take)
}

/// The same where the descriptor stands.
pub(crate) fn read_in_turn(
    id: u32,
    fd: c_int,
    count: usize,
    take: impl FnMut(&[u8]),
) -> Result<usize, c_int> {
    let mut guard = Guard::take();
    // SAFETY: any descriptor.
    let begin = unsafe { next::lseek(fd, 0, libc::SEEK_CUR) };
    let begin = u64::try_from(begin).map_err(|_| next::errno())?;
    let read = notes::read(&mut guard, id, (begin, count), take)?;
    let moved = libc::off_t::try_from(read).unwrap_or(0);
    // SAFETY: as above.
    unsafe { next::lseek(fd, moved, libc::SEEK_CUR) };
    Ok(read)
}

/// `to` is the file that `from` is, too.
pub(crate) fn copied(from: c_int, to: c_int) {
    if !has_open() || !is_own() || to < 0 || from == to {
        return;
    }
    let of = |fd: c_int| usize::try_from(fd).ok().and_then(|fd| FILE_OF.get(fd));
    let id = of(from).map_or(0, |place| place.load(Ordering::Relaxed));
    if let (true, Some(place)) = (id != 0, of(to)) {
        let mut guard = Guard::take();
        if let Some(file) = guard.files().get_mut(&id) {
            file.descriptors += 1;
            place.store(id, Ordering::Relaxed);
        }
    }
}

/// Whether a descriptor is a file that is open for writing.
pub(crate) fn is_open(fd: c_int) -> bool {
    let place = usize::try_from(fd).ok().and_then(|fd| FILE_OF.get(fd));
    has_open() && place.is_some_and(|place| place.load(Ordering::Relaxed) != 0)
}

/// Whether a descriptor is the connection: programs that close all that they do not know leave it.
pub(crate) fn is_connection(fd: c_int) -> bool {
    fd >= 0 && fd == CONNECTION.load(Ordering::Relaxed) && is_own()
}

/// A descriptor was mapped, shared.
pub(crate) fn mapped(fd: c_int, inode: u64) {
    let place = usize::try_from(fd).ok().and_then(|fd| FILE_OF.get(fd));
    let id = place.map_or(0, |place| place.load(Ordering::Relaxed));
    let mut guard = Guard::take();
    if let Some(file) = guard.files().get_mut(&id)
        && file.mapped.replace(inode).is_none()
    {
        MAPPED.fetch_add(1, Ordering::Relaxed);
    }
}

/// Whether there can be mappings of files that are open for writing.
pub(crate) fn has_mapped() -> bool {
    MAPPED.load(Ordering::Relaxed) > 0
}

/// Something was unmapped: files that are no longer mapped may be closed.
pub(crate) fn unmapped(still: impl Fn(u64) -> bool) {
    if !is_own() {
        return;
    }
    let mut guard = Guard::take();
    let mut gone = Vec::new();
    for (&id, file) in guard.files().iter_mut() {
        if file.mapped.is_some_and(|inode| !still(inode)) {
            file.mapped = None;
            MAPPED.fetch_sub(1, Ordering::Relaxed);
            gone.push(id);
        }
    }
    for id in gone {
        tell_if_closed(&mut guard, id);
    }
}

/// Says that this process ends, if the agent knows it.
pub(crate) fn tell_end(kind: Kind, status: c_int) {
    if CONNECTION.load(Ordering::Relaxed) >= 0 && is_own() {
        tell(&mut Guard::take(), &Message::plain(kind, 0, status));
    }
}

/// Whether the agent knows this process.
pub(crate) fn is_known() -> bool {
    CONNECTION.load(Ordering::Relaxed) >= 0 && is_own()
}

/// This program begins: what it has open of routed files, it has of the one before it in this process, or of its parent.
pub(crate) fn begin() {
    PID.store(own_pid(), Ordering::Relaxed);
    let Some(spec) = names::spec() else {
        return;
    };
    // SAFETY: a path that ends in zero; entries are read before the next call, and the folder is closed once.
    unsafe {
        let folder = next::opendir(c"/proc/self/fd".as_ptr());
        if folder.is_null() {
            return;
        }
        loop {
            let entry = next::readdir(folder);
            if entry.is_null() {
                break;
            }
            let name = std::ffi::CStr::from_ptr((*entry).d_name.as_ptr());
            if let Some(fd) = name.to_str().ok().and_then(|name| name.parse().ok()) {
                take_over(spec, fd);
            }
        }
        next::closedir(folder);
    }
}

fn take_over(spec: &Places, fd: c_int) {
    let name = names::path_of(fd).and_then(|path| spec.name_of(&path));
    // SAFETY: it takes no argument.
    let flags = unsafe { next::fcntl(fd, libc::F_GETFL, std::ptr::null_mut()) };
    let place = usize::try_from(fd).ok().and_then(|fd| FILE_OF.get(fd));
    let (Some(name), Some(place), true) = (
        name,
        place,
        flags >= 0 && flags & libc::O_ACCMODE != libc::O_RDONLY,
    ) else {
        return;
    };
    let mut guard = Guard::take();
    let known = guard.files().iter_mut().find(|(_, file)| file.name == name);
    let id = if let Some((&id, file)) = known {
        file.descriptors += 1;
        id
    } else {
        let id = guard.draw();
        let message = Message::named(Kind::TakenOver, id, 0, &name);
        tell(&mut guard, &message);
        // Of one that several nodes write the agent knows that not all was told.
        guard.files().insert(id, Open::once(name, false, false));
        OPEN.fetch_add(1, Ordering::Relaxed);
        id
    };
    place.store(id, Ordering::Relaxed);
}

/// Before fork: nobody else changes anything until it is over.
pub(crate) extern "C" fn before_fork() {
    // SAFETY: initialized, and never moved; what is called after fork unlocks it.
    unsafe { libc::pthread_mutex_lock(SHARED.mutex.get()) };
}

/// After fork, in the parent.
pub(crate) extern "C" fn after_fork() {
    drop(Guard(&SHARED));
}

/// After fork, in the child: it has a connection of its own, and the files of its parent.
pub(crate) extern "C" fn in_child() {
    PID.store(own_pid(), Ordering::Relaxed);
    let inherited = CONNECTION.swap(-1, Ordering::Relaxed);
    if inherited >= 0 {
        // SAFETY: the copy of the parent's, which nobody here uses.
        unsafe { next::close(inherited) };
    }
    let mut guard = Guard(&SHARED);
    guard.notes().leave();
    let files: Vec<(u32, Vec<u8>)> = guard
        .files()
        .iter()
        .map(|(id, file)| (*id, file.name.clone()))
        .collect();
    for (id, name) in files {
        tell(&mut guard, &Message::named(Kind::Inherited, id, 0, &name));
    }
}
