// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the kernel calls of page tracking: userfaultfd in `WP_ASYNC` mode and `PAGEMAP_SCAN`.
//! In from: `pages`. Out to: Linux 6.7 or newer; a clear reason where it cannot.
//! Invariants: structures and numbers are those of include/uapi/linux/userfaultfd.h and fs.h;
//! semantics: Documentation/admin-guide/mm/userfaultfd.rst and pagemap.rst of the kernel.
#![expect(unsafe_code, reason = "ioctls, and mapping a page to probe with")]

use backstay_base::io::open::above_standard;
use backstay_format::width::{to_u64, to_usize};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, Updater, ioctl, opcode};
use rustix::mm::{
    MapFlags, MsyncFlags, ProtFlags, UserfaultfdFlags, mmap_anonymous, msync, munmap, userfaultfd,
};
use std::ffi::c_void;
use std::ops::Range;

/// struct `uffdio_api`
#[repr(C)]
struct Handshake {
    api: u64,
    features: u64,
    ioctls: u64,
}
/// struct `uffdio_range`
#[repr(C)]
struct Span {
    start: u64,
    length: u64,
}
/// struct `uffdio_register`
#[repr(C)]
struct Register {
    span: Span,
    mode: u64,
    ioctls: u64,
}
/// struct `page_region`
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Found {
    start: u64,
    end: u64,
    categories: u64,
}
/// struct `pm_scan_arg`
#[repr(C)]
struct ScanArgument {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    found: u64,
    found_length: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

const UFFD_API: u64 = 0xAA;
/// In user mode only: what an unprivileged process may ask for. Faults that the kernel takes for the
/// program (read(2) into tracked memory) are resolved all the same, because `WP_ASYNC` hands no fault
/// to anybody.
const UFFD_USER_MODE_ONLY: u32 = 1;
const FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
const FEATURE_WP_ASYNC: u64 = 1 << 15;
const REGISTER_MODE_WP: u64 = 1 << 1;
const UFFDIO_API: Opcode = opcode::read_write::<Handshake>(0xAA, 0x3F);
const UFFDIO_REGISTER: Opcode = opcode::read_write::<Register>(0xAA, 0x00);
const UFFDIO_UNREGISTER: Opcode = opcode::read::<Span>(0xAA, 0x01);
const PAGEMAP_SCAN: Opcode = opcode::read_write::<ScanArgument>(b'f', 16);
const PAGE_IS_WPALLOWED: u64 = 1 << 0;
const PAGE_IS_WRITTEN: u64 = 1 << 1;
const PAGE_IS_PRESENT: u64 = 1 << 3;
const PM_SCAN_WP_MATCHING: u64 = 1 << 0;
const PM_SCAN_CHECK_WPASYNC: u64 = 1 << 1;
/// Ranges fetched by one call.
const FOUND_MAX: usize = 512;

/// A userfaultfd and the page map of this process.
#[derive(Debug)]
pub(super) struct Kernel {
    faults: OwnedFd,
    pagemap: OwnedFd,
}

impl Kernel {
    /// Opens both, or says why not.
    pub(super) fn open() -> Result<Self, String> {
        let flags = UserfaultfdFlags::CLOEXEC
            | UserfaultfdFlags::NONBLOCK
            | UserfaultfdFlags::from_bits_retain(UFFD_USER_MODE_ONLY);
        // SAFETY: the descriptor is used below only, with registered memory of callers that
        // promised in `PageTracker::register` that it is theirs.
        let faults = above_standard(|| Ok(unsafe { userfaultfd(flags) }?));
        let faults = faults.map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::NOSYS) => "this kernel has no userfaultfd".to_owned(),
            Some(Errno::INVAL) => "this kernel is older than Linux 6.7".to_owned(),
            Some(Errno::PERM) => {
                "userfaultfd is not permitted here (a container's filter)".to_owned()
            }
            _ => format!("userfaultfd failed: {error}"),
        })?;
        let mut handshake = Handshake {
            api: UFFD_API,
            features: FEATURE_WP_ASYNC | FEATURE_WP_UNPOPULATED,
            ioctls: 0,
        };
        // SAFETY: UFFDIO_API takes a struct uffdio_api.
        unsafe { ioctl(&faults, Updater::<UFFDIO_API, _>::new(&mut handshake)) }.map_err(
            |errno| format!("userfaultfd without WP_ASYNC: {errno} (it came with Linux 6.7)"),
        )?;
        let (path, flags) = ("/proc/self/pagemap", OFlags::RDONLY | OFlags::CLOEXEC);
        let pagemap = above_standard(|| Ok(rustix::fs::open(path, flags, Mode::empty())?))
            .map_err(|errno| format!("{path} cannot be opened: {errno}"))?;
        Ok(Self { faults, pagemap })
    }

    /// Puts the memory of `pages` under write tracking; it may be so already.
    pub(super) fn register(&self, pages: &Range<usize>) -> Result<(), Errno> {
        let mut argument = Register {
            span: span(pages),
            mode: REGISTER_MODE_WP,
            ioctls: 0,
        };
        // SAFETY: UFFDIO_REGISTER takes a struct uffdio_register; it changes no byte of memory.
        unsafe {
            ioctl(
                &self.faults,
                Updater::<UFFDIO_REGISTER, _>::new(&mut argument),
            )
        }
    }

    /// Ends write tracking of the memory of `pages`.
    pub(super) fn unregister(&self, pages: &Range<usize>) -> Result<(), Errno> {
        let mut argument = span(pages);
        // SAFETY: UFFDIO_UNREGISTER takes a struct uffdio_range; it changes no byte of memory.
        unsafe {
            ioctl(
                &self.faults,
                Updater::<UFFDIO_UNREGISTER, _>::new(&mut argument),
            )
        }
    }

    /// Calls `found` with each range of pages written since the last scan and protects it again;
    /// an error where any part is not tracked. After an error anything may be protected again.
    ///
    /// "Written" here is more than `PAGE_IS_WRITTEN`: a page that is not present counts too. Memory
    /// that `MADV_DONTNEED` dropped reads as zeros and may have no page table left that could say
    /// so; kernels without the fix of 2026 to `pagemap_scan_pte_hole` then report no write. A page
    /// never touched counts until it is read. Costs 0.18 instead of 0.05 ms for 256 MiB.
    pub(super) fn scan(
        &self,
        pages: &Range<usize>,
        mut found: impl FnMut(Range<usize>),
    ) -> Result<(), Errno> {
        let mut list = [Found::default(); FOUND_MAX];
        let end = to_u64(pages.end);
        let mut argument = ScanArgument {
            size: to_u64(size_of::<ScanArgument>()),
            flags: PM_SCAN_WP_MATCHING | PM_SCAN_CHECK_WPASYNC,
            start: to_u64(pages.start),
            end,
            walk_end: 0,
            found: to_u64(list.as_mut_ptr().addr()),
            found_length: to_u64(FOUND_MAX),
            max_pages: 0,
            category_inverted: PAGE_IS_PRESENT,
            category_mask: 0,
            category_anyof_mask: PAGE_IS_WRITTEN | PAGE_IS_PRESENT,
            return_mask: PAGE_IS_WPALLOWED,
        };
        while argument.start < end {
            // The pointer is taken anew in each round, because reading the list ends it.
            argument.found = to_u64(list.as_mut_ptr().expose_provenance());
            // SAFETY: `Scan` is PAGEMAP_SCAN with its structure, whose list is `list`.
            let count = unsafe { ioctl(self.pagemap.as_fd(), Scan(&mut argument)) }?;
            for range in list.get(..count).ok_or(Errno::RANGE)? {
                found(to_usize(range.start)..to_usize(range.end));
            }
            if argument.walk_end <= argument.start {
                return Err(Errno::RANGE);
            }
            argument.start = argument.walk_end;
        }
        Ok(())
    }
}

fn span(pages: &Range<usize>) -> Span {
    Span {
        start: to_u64(pages.start),
        length: to_u64(pages.len()),
    }
}

/// `PAGEMAP_SCAN`: its result is the number of ranges found.
struct Scan<'a>(&'a mut ScanArgument);

// SAFETY: the opcode is built from the structure that `as_ptr` gives, which the kernel updates.
unsafe impl Ioctl for Scan<'_> {
    type Output = usize;
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        PAGEMAP_SCAN
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self.0).cast()
    }

    unsafe fn output_from_ptr(count: IoctlOutput, _: *mut c_void) -> rustix::io::Result<usize> {
        usize::try_from(count).map_err(|_negative| Errno::RANGE)
    }
}

/// Whether every page of `pages` is mapped. An asynchronous msync looks at the list of mappings and
/// does nothing else.
pub(super) fn is_mapped(pages: &Range<usize>) -> bool {
    let address = std::ptr::with_exposed_provenance_mut(pages.start);
    // SAFETY: MS_ASYNC has no effect on memory (since Linux 2.6.19), and none on data before.
    unsafe { msync(address, pages.len(), MsyncFlags::ASYNC) }.is_ok()
}

/// Tries all of it on memory of its own: writes are seen, and only writes.
pub(super) fn probe() -> Result<(), String> {
    const PAGES: usize = 4;
    let kernel = Kernel::open()?;
    let page = rustix::param::page_size();
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address the kernel chooses.
    let base = unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            PAGES * page,
            access,
            MapFlags::PRIVATE,
        )
    }
    .map_err(|errno| format!("no memory to probe with: {errno}"))?;
    let start = base.expose_provenance();
    let pages = start..start + PAGES * page;
    let touch = |number: usize| {
        // SAFETY: the page is part of the mapping above, which nobody else knows.
        unsafe { base.cast::<u8>().add(number * page).write_volatile(1) };
    };
    let result = (|| {
        (0..PAGES).for_each(touch);
        kernel.register(&pages)?;
        kernel.scan(&pages, |_all| ())?;
        let mut clean = Vec::new();
        kernel.scan(&pages, |range| clean.push(range))?;
        touch(2);
        let mut written = Vec::new();
        kernel.scan(&pages, |range| written.push(range))?;
        Ok((clean, written))
    })();
    // SAFETY: the mapping made above, not used any more.
    let _unmapped = unsafe { munmap(base, PAGES * page) };
    let (clean, written) =
        result.map_err(|errno: Errno| format!("PAGEMAP_SCAN does not work here: {errno}"))?;
    let third = start + 2 * page..start + 3 * page;
    if clean.is_empty() && written == [third] {
        Ok(())
    } else {
        Err("PAGEMAP_SCAN does not report writes here".to_owned())
    }
}
