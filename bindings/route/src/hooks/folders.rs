// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: listings: what a folder has, and the routed files that would be in it.
//! In from: the program. Out to: the C library.
//! Invariants: a file of the file system whose name is routed is not listed, since it cannot be opened; the order is
//! that of the file system, then that of the memory; positions (telldir) are those of the file system.

use crate::names::{Routed, absolute_of, folder_at, path_of, spec};
use crate::{agent, next};
use backstay_route::message::Kind;
use libc::{DIR, dirent, stat};
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A folder that is read, with the place of what is routed in it.
struct Listing {
    /// Its absolute path.
    name: Vec<u8>,
    /// What is read after the folder, each a `DIR`.
    places: Vec<usize>,
    /// How many of all were read to the end.
    read: usize,
}

static COUNT: AtomicUsize = AtomicUsize::new(0);
static LISTINGS: Mutex<BTreeMap<usize, Listing>> = Mutex::new(BTreeMap::new());

fn listings() -> MutexGuard<'static, BTreeMap<usize, Listing>> {
    LISTINGS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is routed in a folder: of this node, and what others have.
fn open_places(routed: &Routed) -> Vec<usize> {
    let kept = next::errno();
    let far = agent::far(routed, Kind::List);
    let places = [Some(routed.live.as_ptr()), far].into_iter().flatten();
    // SAFETY: paths that end in zero.
    let places = places.map(|path| unsafe { next::opendir(path) });
    let places = places.filter(|place| !place.is_null());
    let places = places.map(|place| place.expose_provenance()).collect();
    next::set_errno(kept);
    places
}

/// What was opened is listed with what is routed in it.
unsafe fn listed(folder: *mut DIR) -> *mut DIR {
    if folder.is_null() || spec().is_none() {
        return folder;
    }
    let kept = next::errno();
    // SAFETY: it was just opened.
    let name = path_of(unsafe { libc::dirfd(folder) });
    next::set_errno(kept);
    let Some(routed) = name.and_then(folder_at) else {
        return folder;
    };
    let places = open_places(&routed);
    if !places.is_empty() {
        let listing = Listing {
            name: routed.name,
            places,
            read: 0,
        };
        listings().insert(folder.addr(), listing);
        COUNT.fetch_add(1, Ordering::Relaxed);
    }
    folder
}

#[unsafe(no_mangle)]
unsafe extern "C" fn opendir(path: *const c_char) -> *mut DIR {
    // SAFETY: the program's promise.
    unsafe {
        let folder = next::opendir(path);
        if folder.is_null() && next::errno() == libc::ENOENT && spec().is_some() {
            // A folder that was made before the job came to these files.
            let routed = absolute_of(libc::AT_FDCWD, path).and_then(folder_at);
            return routed.map_or(folder, |routed| next::opendir(routed.live.as_ptr()));
        }
        listed(folder)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fdopendir(fd: c_int) -> *mut DIR {
    // SAFETY: the program's promise.
    unsafe { listed(next::fdopendir(fd)) }
}

/// Whether an entry of the file system is not shown.
unsafe fn is_hidden(listing: &Listing, entry: *const dirent) -> bool {
    // SAFETY: an entry that was just read.
    let (name, kind) = unsafe {
        (
            CStr::from_ptr((*entry).d_name.as_ptr()).to_bytes(),
            (*entry).d_type,
        )
    };
    let path = [&listing.name[..], b"/", name].concat();
    kind != libc::DT_DIR && spec().is_some_and(|spec| spec.table.find(&path).is_some())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn readdir(folder: *mut DIR) -> *mut dirent {
    // SAFETY: the program's promise; a place is open as long as its folder.
    unsafe {
        if COUNT.load(Ordering::Relaxed) == 0 {
            return next::readdir(folder);
        }
        let mut listings = listings();
        let Some(listing) = listings.get_mut(&folder.addr()) else {
            return next::readdir(folder);
        };
        while listing.read == 0 {
            let kept = next::errno();
            next::set_errno(0);
            let entry = next::readdir(folder);
            if entry.is_null() && next::errno() != 0 {
                return entry;
            }
            next::set_errno(kept);
            if entry.is_null() {
                listing.read = 1;
            } else if !is_hidden(listing, entry) {
                return entry;
            }
        }
        while let Some(&place) = listing.places.get(listing.read - 1) {
            let entry = next::readdir(std::ptr::with_exposed_provenance_mut(place));
            if entry.is_null() {
                listing.read += 1;
            } else if (*entry).d_type != libc::DT_DIR {
                // Folders are those of the file system.
                return entry;
            }
        }
        std::ptr::null_mut()
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn readdir64(folder: *mut DIR) -> *mut dirent {
    // SAFETY: the program's promise.
    unsafe { readdir(folder) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rewinddir(folder: *mut DIR) {
    // SAFETY: the program's promise.
    unsafe {
        next::rewinddir(folder);
        if COUNT.load(Ordering::Relaxed) > 0
            && let Some(listing) = listings().get_mut(&folder.addr())
        {
            listing.read = 0;
            for &place in &listing.places {
                next::rewinddir(std::ptr::with_exposed_provenance_mut(place));
            }
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn closedir(folder: *mut DIR) -> c_int {
    // SAFETY: the program's promise.
    unsafe {
        if COUNT.load(Ordering::Relaxed) > 0
            && let Some(listing) = listings().remove(&folder.addr())
        {
            COUNT.fetch_sub(1, Ordering::Relaxed);
            for place in listing.places {
                next::closedir(std::ptr::with_exposed_provenance_mut(place));
            }
        }
        next::closedir(folder)
    }
}

type Filter = Option<unsafe extern "C" fn(*const dirent) -> c_int>;

/// The entries that the filter takes, each in memory of its own.
unsafe fn entries(path: *const c_char, filter: Filter) -> Option<Vec<*mut dirent>> {
    // SAFETY: the program's promise; an entry has the length that it says.
    unsafe {
        let folder = opendir(path);
        if folder.is_null() {
            return None;
        }
        let mut found = Vec::new();
        loop {
            let entry = readdir(folder);
            if entry.is_null() {
                break;
            }
            if filter.is_some_and(|filter| filter(entry) == 0) {
                continue;
            }
            let length = usize::from((*entry).d_reclen);
            let copy = libc::malloc(length);
            if copy.is_null() {
                break;
            }
            std::ptr::copy_nonoverlapping(entry.cast::<u8>(), copy.cast::<u8>(), length);
            found.push(copy.cast::<dirent>());
        }
        closedir(folder);
        Some(found)
    }
}

type Compare = unsafe extern "C" fn(*const c_void, *const c_void) -> c_int;

#[unsafe(no_mangle)]
unsafe extern "C" fn scandir(
    path: *const c_char,
    list: *mut *mut *mut dirent,
    filter: Filter,
    compare: *mut c_void,
) -> c_int {
    // SAFETY: the program's promise.
    unsafe {
        if spec().is_none() {
            return next::scandir(path, list, filter, compare);
        }
        let Some(found) = entries(path, filter) else {
            return -1;
        };
        let bytes = size_of::<*mut dirent>();
        let memory = libc::malloc((found.len() + 1) * bytes).cast::<*mut dirent>();
        let count = c_int::try_from(found.len()).unwrap_or(-1);
        if memory.is_null() || count < 0 {
            for entry in found {
                libc::free(entry.cast());
            }
            next::set_errno(libc::ENOMEM);
            return -1;
        }
        std::ptr::copy_nonoverlapping(found.as_ptr(), memory, found.len());
        if !compare.is_null() {
            let compare = std::mem::transmute::<*mut c_void, Compare>(compare);
            libc::qsort(memory.cast(), found.len(), bytes, Some(compare));
        }
        *list = memory;
        count
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn scandir64(
    path: *const c_char,
    list: *mut *mut *mut dirent,
    filter: Filter,
    compare: *mut c_void,
) -> c_int {
    // SAFETY: the program's promise.
    unsafe { scandir(path, list, filter, compare) }
}

/// The C library's `glob_t`, with the functions that it may be given.
#[repr(C)]
struct Glob {
    count: usize,
    paths: *mut *mut c_char,
    reserved: usize,
    flags: c_int,
    close: Option<unsafe extern "C" fn(*mut c_void)>,
    read: Option<unsafe extern "C" fn(*mut c_void) -> *mut dirent>,
    open: Option<unsafe extern "C" fn(*const c_char) -> *mut c_void>,
    lstat: Option<unsafe extern "C" fn(*const c_char, *mut stat) -> c_int>,
    stat: Option<unsafe extern "C" fn(*const c_char, *mut stat) -> c_int>,
}

/// `GLOB_ALTDIRFUNC`: it shall use the functions that it is given.
const WITH_FUNCTIONS: c_int = 1 << 6;

unsafe extern "C" fn glob_close(folder: *mut c_void) {
    // SAFETY: what `glob_open` gave.
    unsafe { closedir(folder.cast()) };
}

unsafe extern "C" fn glob_read(folder: *mut c_void) -> *mut dirent {
    // SAFETY: what `glob_open` gave.
    unsafe { readdir(folder.cast()) }
}

unsafe extern "C" fn glob_open(path: *const c_char) -> *mut c_void {
    // SAFETY: a path of glob's.
    unsafe { opendir(path).cast() }
}

unsafe extern "C" fn glob_lstat(path: *const c_char, about: *mut stat) -> c_int {
    // SAFETY: what glob gave; the hook, not the C library's.
    unsafe { libc::fstatat(libc::AT_FDCWD, path, about, libc::AT_SYMLINK_NOFOLLOW) }
}

unsafe extern "C" fn glob_stat(path: *const c_char, about: *mut stat) -> c_int {
    // SAFETY: as above.
    unsafe { libc::fstatat(libc::AT_FDCWD, path, about, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn glob(
    pattern: *const c_char,
    flags: c_int,
    error: *mut c_void,
    found: *mut c_void,
) -> c_int {
    // SAFETY: the program's promise: `found` is a glob_t.
    unsafe {
        if flags & WITH_FUNCTIONS != 0 || spec().is_none() {
            return next::glob(pattern, flags, error, found);
        }
        let glob = found.cast::<Glob>();
        (*glob).close = Some(glob_close);
        (*glob).read = Some(glob_read);
        (*glob).open = Some(glob_open);
        (*glob).lstat = Some(glob_lstat);
        (*glob).stat = Some(glob_stat);
        next::glob(pattern, flags | WITH_FUNCTIONS, error, found)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn glob64(
    pattern: *const c_char,
    flags: c_int,
    error: *mut c_void,
    found: *mut c_void,
) -> c_int {
    // SAFETY: the program's promise.
    unsafe { glob(pattern, flags, error, found) }
}
