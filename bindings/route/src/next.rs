// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the functions of the C library, or of another preload library, that the hooks stand in front of.
//! In from: `hooks`. Out to: the dynamic linker.
//! Invariants: each is looked up once; one that this C library has not fails with ENOSYS.

#![expect(non_snake_case, reason = "names of the C library")]

use libc::{
    DIR, FILE, aiocb, dirent, gid_t, iovec, mode_t, off_t, size_t, timespec, timeval, uid_t,
    utimbuf,
};
use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// What a function returns that is not there.
trait Missing {
    const VALUE: Self;
}
impl Missing for c_int {
    const VALUE: Self = -1;
}
impl Missing for c_long {
    const VALUE: Self = -1;
}
impl Missing for isize {
    const VALUE: Self = -1;
}
impl Missing for () {
    const VALUE: Self = ();
}
impl<T> Missing for *mut T {
    const VALUE: Self = std::ptr::null_mut();
}

pub(crate) fn set_errno(value: c_int) {
    // SAFETY: the C library's own address of this thread's number.
    unsafe { *libc::__errno_location() = value }
}

pub(crate) fn errno() -> c_int {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() }
}

fn find(found: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = found.load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    let kept = errno();
    // SAFETY: a name that ends in zero.
    let function = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    set_errno(kept);
    found.store(function, Ordering::Release);
    function
}

/// Finds what is called in handlers of signals, where nothing may be looked up.
pub(crate) fn find_early() {
    let kept = errno();
    // SAFETY: they fail at once: there is no such descriptor.
    unsafe {
        read(-1, std::ptr::null_mut(), 0);
        pread(-1, std::ptr::null_mut(), 0, 0);
        write(-1, std::ptr::null(), 0);
        pwrite(-1, std::ptr::null(), 0, 0);
        lseek(-1, 0, 0);
        fstat(-1, std::ptr::null_mut());
    }
    set_errno(kept);
}

macro_rules! next {
    ($($name:ident($($argument:ident: $type:ty),* $(; $variadic:ident: $more:ty)?) -> $result:ty;)*) => { $(
        pub(crate) unsafe fn $name($($argument: $type,)* $($variadic: $more)?) -> $result {
            static FOUND: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
            const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            };
            let function = find(&FOUND, NAME);
            if function.is_null() {
                set_errno(libc::ENOSYS);
                return <$result as Missing>::VALUE;
            }
            // SAFETY: the C library's function of this name has this type.
            unsafe { next!(@call function, ($($argument: $type),*), ($($variadic: $more)?), $result) }
        }
    )* };
    (@call $function:ident, ($($argument:ident: $type:ty),*), (), $result:ty) => {
        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> $result>($function)($($argument),*)
    };
    (@call $function:ident, ($($argument:ident: $type:ty),*), ($variadic:ident: $more:ty), $result:ty) => {
        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*, ...) -> $result>($function)(
            $($argument,)* $variadic
        )
    };
}

type Path = *const c_char;
type Filter = Option<unsafe extern "C" fn(*const dirent) -> c_int>;

next! {
    openat(folder: c_int, path: Path, flags: c_int; mode: c_uint) -> c_int;
    fcntl(fd: c_int, command: c_int; argument: *mut c_void) -> c_int;
    fopen(path: Path, mode: Path) -> *mut FILE;
    freopen(path: Path, mode: Path, file: *mut FILE) -> *mut FILE;
    fclose(file: *mut FILE) -> c_int;
    close(fd: c_int) -> c_int;
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    dup(fd: c_int) -> c_int;
    dup2(from: c_int, to: c_int) -> c_int;
    dup3(from: c_int, to: c_int, flags: c_int) -> c_int;
    fstatat(folder: c_int, path: Path, about: *mut libc::stat, flags: c_int) -> c_int;
    stat(path: Path, about: *mut libc::stat) -> c_int;
    lstat(path: Path, about: *mut libc::stat) -> c_int;
    __xstat(version: c_int, path: Path, about: *mut libc::stat) -> c_int;
    __lxstat(version: c_int, path: Path, about: *mut libc::stat) -> c_int;
    __fxstatat(version: c_int, folder: c_int, path: Path, about: *mut libc::stat, flags: c_int) -> c_int;
    statx(folder: c_int, path: Path, flags: c_int, mask: c_uint, about: *mut libc::statx) -> c_int;
    access(path: Path, mode: c_int) -> c_int;
    euidaccess(path: Path, mode: c_int) -> c_int;
    faccessat(folder: c_int, path: Path, mode: c_int, flags: c_int) -> c_int;
    rename(from: Path, to: Path) -> c_int;
    renameat(from_folder: c_int, from: Path, to_folder: c_int, to: Path) -> c_int;
    renameat2(from_folder: c_int, from: Path, to_folder: c_int, to: Path, flags: c_uint) -> c_int;
    unlink(path: Path) -> c_int;
    unlinkat(folder: c_int, path: Path, flags: c_int) -> c_int;
    remove(path: Path) -> c_int;
    rmdir(path: Path) -> c_int;
    truncate(path: Path, length: off_t) -> c_int;
    link(from: Path, to: Path) -> c_int;
    linkat(from_folder: c_int, from: Path, to_folder: c_int, to: Path, flags: c_int) -> c_int;
    symlink(target: Path, path: Path) -> c_int;
    symlinkat(target: Path, folder: c_int, path: Path) -> c_int;
    chmod(path: Path, mode: mode_t) -> c_int;
    fchmodat(folder: c_int, path: Path, mode: mode_t, flags: c_int) -> c_int;
    utime(path: Path, times: *const utimbuf) -> c_int;
    utimes(path: Path, times: *const timeval) -> c_int;
    utimensat(folder: c_int, path: Path, times: *const timespec, flags: c_int) -> c_int;
    statfs(path: Path, about: *mut libc::statfs) -> c_int;
    statvfs(path: Path, about: *mut libc::statvfs) -> c_int;
    chown(path: Path, owner: uid_t, group: gid_t) -> c_int;
    lchown(path: Path, owner: uid_t, group: gid_t) -> c_int;
    fchownat(folder: c_int, path: Path, owner: uid_t, group: gid_t, flags: c_int) -> c_int;
    setxattr(path: Path, name: Path, value: *const c_void, length: size_t, flags: c_int) -> c_int;
    lsetxattr(path: Path, name: Path, value: *const c_void, length: size_t, flags: c_int) -> c_int;
    getxattr(path: Path, name: Path, value: *mut c_void, length: size_t) -> c_long;
    lgetxattr(path: Path, name: Path, value: *mut c_void, length: size_t) -> c_long;
    listxattr(path: Path, list: *mut c_char, length: size_t) -> c_long;
    llistxattr(path: Path, list: *mut c_char, length: size_t) -> c_long;
    readlink(path: Path, buffer: *mut c_char, length: size_t) -> c_long;
    readlinkat(folder: c_int, path: Path, buffer: *mut c_char, length: size_t) -> c_long;
    realpath(path: Path, resolved: *mut c_char) -> *mut c_char;
    opendir(path: Path) -> *mut DIR;
    fdopendir(fd: c_int) -> *mut DIR;
    readdir(folder: *mut DIR) -> *mut dirent;
    closedir(folder: *mut DIR) -> c_int;
    rewinddir(folder: *mut DIR) -> ();
    scandir(path: Path, list: *mut *mut *mut dirent, filter: Filter, compare: *mut c_void) -> c_int;
    glob(pattern: Path, flags: c_int, error: *mut c_void, found: *mut c_void) -> c_int;
    mmap(address: *mut c_void, length: size_t, access: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void;
    munmap(address: *mut c_void, length: size_t) -> c_int;
    fdopen(fd: c_int, mode: Path) -> *mut FILE;
    lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t;
    fstat(fd: c_int, about: *mut libc::stat) -> c_int;
    __fxstat(version: c_int, fd: c_int, about: *mut libc::stat) -> c_int;
    flock(fd: c_int, operation: c_int) -> c_int;
    read(fd: c_int, bytes: *mut c_void, count: size_t) -> isize;
    readv(fd: c_int, pieces: *const iovec, count: c_int) -> isize;
    pread(fd: c_int, bytes: *mut c_void, count: size_t, offset: off_t) -> isize;
    preadv(fd: c_int, pieces: *const iovec, count: c_int, offset: off_t) -> isize;
    preadv2(fd: c_int, pieces: *const iovec, count: c_int, offset: off_t, flags: c_int) -> isize;
    __read_chk(fd: c_int, bytes: *mut c_void, count: size_t, room: size_t) -> isize;
    __pread_chk(fd: c_int, bytes: *mut c_void, count: size_t, offset: off_t, room: size_t) -> isize;
    write(fd: c_int, bytes: *const c_void, count: size_t) -> isize;
    writev(fd: c_int, pieces: *const iovec, count: c_int) -> isize;
    pwrite(fd: c_int, bytes: *const c_void, count: size_t, offset: off_t) -> isize;
    pwritev(fd: c_int, pieces: *const iovec, count: c_int, offset: off_t) -> isize;
    pwritev2(fd: c_int, pieces: *const iovec, count: c_int, offset: off_t, flags: c_int) -> isize;
    aio_write(what: *mut aiocb) -> c_int;
    lio_listio(mode: c_int, list: *const *mut aiocb, count: c_int, event: *mut c_void) -> c_int;
    ftruncate(fd: c_int, length: off_t) -> c_int;
    fallocate(fd: c_int, mode: c_int, offset: off_t, length: off_t) -> c_int;
    sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> isize;
    splice(from: c_int, from_offset: *mut off_t, to: c_int, to_offset: *mut off_t, count: size_t, flags: c_uint) -> isize;
    copy_file_range(from: c_int, from_offset: *mut off_t, to: c_int, to_offset: *mut off_t, count: size_t,
        flags: c_uint) -> isize;
    exit(status: c_int) -> ();
    quick_exit(status: c_int) -> ();
    _exit(status: c_int) -> ();
    _Exit(status: c_int) -> ();
    __libc_start_main(main: *mut c_void, count: c_int, words: *mut *mut c_char, first: *mut c_void, last: *mut c_void,
        linker: *mut c_void, stack: *mut c_void) -> c_int;
}
