// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: every way in which memory changes under a tracker, tried on the running kernel.
//! Invariants: a kernel without the calls skips these tests aloud, and nothing else depends on them.

#![expect(
    clippy::single_range_in_vec_init,
    reason = "lists of ranges are what is compared"
)]

use super::*;
use libc::{MADV_DONTNEED, MADV_FREE, MADV_HUGEPAGE, MAP_ANONYMOUS, MAP_FIXED, MAP_PRIVATE};
use std::ffi::c_void;
use std::os::unix::process::CommandExt;

const MIB: usize = 1 << 20;

/// Memory mapped for a test, aligned to 2 MiB so that it may have huge pages.
struct Memory {
    whole: *mut c_void,
    base: *mut u8,
    length: usize,
}

fn map(at: *mut c_void, length: usize, flags: i32) -> *mut c_void {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = flags | MAP_ANONYMOUS;
    // SAFETY: either the kernel chooses the address or it is one the test owns.
    let base = unsafe { libc::mmap(at, length, access, flags, -1, 0) };
    assert_ne!(base, libc::MAP_FAILED);
    base
}

impl Memory {
    fn new(length: usize) -> Self {
        let whole = map(std::ptr::null_mut(), length + 2 * MIB, MAP_PRIVATE);
        let base = whole.cast::<u8>();
        // SAFETY: the offset is less than the 2 MiB asked for on top.
        let base = unsafe { base.add(base.align_offset(2 * MIB)) };
        let memory = Self {
            whole,
            base,
            length,
        };
        memory.fill(1);
        memory
    }
    fn fill(&self, value: u8) {
        // SAFETY: the test's own mapping.
        unsafe { self.base.write_bytes(value, self.length) };
    }
    fn write(&self, offset: usize) {
        assert!(offset < self.length);
        // SAFETY: the test's own mapping.
        unsafe { self.base.add(offset).write_volatile(7) };
    }
    /// Reads all of it, as hashing what was touched does: pages not present appear.
    fn read(&self) {
        for offset in (0..self.length).step_by(page()) {
            // SAFETY: the test's own mapping.
            unsafe { self.base.add(offset).read_volatile() };
        }
    }
    fn advise(&self, offset: usize, length: usize, advice: i32) {
        // SAFETY: the test's own mapping.
        let result = unsafe { libc::madvise(self.base.add(offset).cast(), length, advice) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    }
    fn remap_fixed(&self, offset: usize, length: usize, flags: i32) {
        // SAFETY: the test's own mapping.
        let at = unsafe { self.base.add(offset) };
        map(at.cast(), length, flags | MAP_FIXED);
    }
    fn unmap(&self, offset: usize, length: usize) {
        // SAFETY: the test's own mapping.
        let result = unsafe { libc::munmap(self.base.add(offset).cast(), length) };
        assert_eq!(result, 0);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the test's own mapping, not used any more.
        unsafe { libc::munmap(self.whole, self.length + 2 * MIB) };
    }
}

fn tracker() -> Option<PageTracker> {
    match PageTracker::available() {
        Ok(()) => Some(PageTracker::new().unwrap()),
        Err(reason) => {
            println!("skipped: {reason}");
            None
        }
    }
}

fn register(tracker: &mut PageTracker, address: *const u8, length: usize) -> PageRegion {
    // SAFETY: memory of the test, tracked by nobody else.
    unsafe { tracker.register(address, length) }.unwrap()
}

/// A region that was scanned twice: nothing of it is touched.
fn clean_region(tracker: &mut PageTracker, memory: &Memory) -> PageRegion {
    let mut region = register(tracker, memory.base, memory.length);
    assert_eq!(region.refusal(), None);
    assert_eq!(tracker.scan(&mut region).unwrap(), Touched::All);
    assert_eq!(ranges(tracker, &mut region), []);
    region
}

#[track_caller]
fn ranges(tracker: &PageTracker, region: &mut PageRegion) -> Vec<Range<usize>> {
    match tracker.scan(region).unwrap() {
        Touched::Ranges(ranges) => ranges,
        Touched::All => panic!("all touched: {region:?}"),
    }
}

fn page() -> usize {
    rustix::param::page_size()
}

#[test]
fn writes_are_found_once_and_nothing_else() {
    let Some(mut tracker) = tracker() else { return };
    let memory = Memory::new(4 * MIB);
    let mut region = clean_region(&mut tracker, &memory);
    memory.write(5 * page() + 3);
    memory.write(6 * page());
    memory.write(4 * MIB - 1);
    let expected = [5 * page()..7 * page(), 4 * MIB - page()..4 * MIB];
    assert_eq!(ranges(&tracker, &mut region), expected);
    assert_eq!(ranges(&tracker, &mut region), []);
    // More ranges than one call of the kernel returns.
    (0..4 * MIB / page())
        .step_by(2)
        .for_each(|number| memory.write(number * page()));
    let found = ranges(&tracker, &mut region);
    assert_eq!(found.len(), 2 * MIB / page());
    assert!(found.iter().all(|range| range.len() == page()));
    tracker.unregister(region);
    memory.fill(2);
}

#[test]
fn edges_are_always_touched_and_may_be_shared() {
    let Some(mut tracker) = tracker() else { return };
    let memory = Memory::new(MIB);
    let middle = MIB / 2 + 100;
    // SAFETY: inside the mapping.
    let (first, second) = unsafe { (memory.base.add(16), memory.base.add(middle)) };
    let mut left = register(&mut tracker, first, middle - 16);
    let mut right = register(&mut tracker, second, MIB - middle);
    assert_eq!(tracker.scan(&mut left).unwrap(), Touched::All);
    assert_eq!(tracker.scan(&mut right).unwrap(), Touched::All);
    let edge = MIB / 2 + page() - middle;
    let sides = [0..page() - 16, MIB / 2 - 16..middle - 16];
    assert_eq!(ranges(&tracker, &mut left), sides);
    assert_eq!(ranges(&tracker, &mut right), [0..edge]);
    memory.write(2 * page());
    memory.write(middle + 2 * page());
    assert_eq!(ranges(&tracker, &mut left).len(), 3);
    assert_eq!(ranges(&tracker, &mut right).len(), 2);
    // Ending one does not end the other.
    tracker.unregister(left);
    memory.write(middle + 3 * page());
    assert_eq!(ranges(&tracker, &mut right).len(), 2);
}

#[test]
fn small_shared_and_overlapping_memory_is_refused_but_safe() {
    let Some(mut tracker) = tracker() else { return };
    let memory = Memory::new(MIB);
    let mut small = register(&mut tracker, memory.base, 3 * page());
    assert!(small.refusal().unwrap().contains("small"));
    assert_eq!(tracker.scan(&mut small).unwrap(), Touched::All);
    assert_eq!(tracker.scan(&mut small).unwrap(), Touched::All);

    let mut whole = clean_region(&mut tracker, &memory);
    let mut inside = register(&mut tracker, memory.base, MIB / 2);
    assert!(inside.refusal().unwrap().contains("another variable"));
    assert_eq!(tracker.scan(&mut inside).unwrap(), Touched::All);
    memory.write(0);
    assert_eq!(tracker.scan(&mut inside).unwrap(), Touched::All);
    assert_eq!(ranges(&tracker, &mut whole), [0..page()]);
    tracker.unregister(whole);
    assert_eq!(tracker.scan(&mut inside).unwrap(), Touched::All);
    assert_eq!(inside.refusal(), None);
    assert_eq!(ranges(&tracker, &mut inside), []);
    tracker.unregister(inside);

    memory.remap_fixed(0, MIB, libc::MAP_SHARED);
    let mut shared = register(&mut tracker, memory.base, MIB);
    assert!(shared.refusal().unwrap().contains("shared"));
    assert_eq!(tracker.scan(&mut shared).unwrap(), Touched::All);
    // SAFETY: nothing is registered where nothing is mapped.
    let beyond = unsafe { tracker.register(std::ptr::without_provenance(usize::MAX - 5), 100) };
    assert_eq!(beyond.unwrap_err().kind(), ErrorKind::InvalidArgument);
    let empty = register(&mut tracker, memory.base, 0);
    assert!(empty.refusal().is_some());
}

#[test]
fn two_trackers_do_not_steal_from_each_other() {
    let (Some(mut one), Some(mut two)) = (tracker(), tracker()) else {
        return;
    };
    let memory = Memory::new(MIB);
    let mut first = clean_region(&mut one, &memory);
    let mut second = register(&mut two, memory.base, MIB);
    assert!(second.refusal().unwrap().contains("something else"));
    memory.write(3 * page());
    assert_eq!(two.scan(&mut second).unwrap(), Touched::All);
    assert_eq!(ranges(&one, &mut first), [3 * page()..4 * page()]);
    drop(one);
    assert_eq!(two.scan(&mut second).unwrap(), Touched::All);
    assert_eq!(ranges(&two, &mut second), []);
}

#[test]
fn memory_mapped_anew_at_the_same_address_is_all_touched() {
    let Some(mut tracker) = tracker() else { return };
    let memory = Memory::new(4 * MIB);
    for (offset, length) in [(0, 4 * MIB), (MIB, page()), (4 * MIB - page(), page())] {
        for unmap_first in [true, false] {
            let mut region = clean_region(&mut tracker, &memory);
            if unmap_first {
                memory.unmap(offset, length);
            }
            memory.remap_fixed(offset, length, MAP_PRIVATE);
            assert_eq!(tracker.scan(&mut region).unwrap(), Touched::All);
            // It goes on with the new memory.
            assert_eq!(region.refusal(), None);
            memory.read();
            assert_eq!(ranges(&tracker, &mut region), []);
            memory.write(MIB);
            assert_eq!(ranges(&tracker, &mut region), [MIB..MIB + page()]);
            tracker.unregister(region);
        }
    }
}

#[test]
fn memory_mapped_anew_and_registered_by_another_region_is_touched_in_both() {
    let Some(mut tracker) = tracker() else { return };
    let memory = Memory::new(MIB);
    let mut old = clean_region(&mut tracker, &memory);
    memory.remap_fixed(0, MIB, MAP_PRIVATE);
    let mut new = register(&mut tracker, memory.base, MIB);
    assert_eq!(tracker.scan(&mut new).unwrap(), Touched::All);
    assert_eq!(tracker.scan(&mut old).unwrap(), Touched::All);
    assert_eq!(tracker.scan(&mut new).unwrap(), Touched::All);
}

#[test]
fn memory_that_is_gone_is_an_error() {
    let Some(mut tracker) = tracker() else { return };
    let memory = Memory::new(MIB);
    let mut region = clean_region(&mut tracker, &memory);
    memory.unmap(5 * page(), page());
    let error = tracker.scan(&mut region).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("protect it again"), "{error}");
    memory.remap_fixed(5 * page(), page(), MAP_PRIVATE);
    assert_eq!(tracker.scan(&mut region).unwrap(), Touched::All);
    memory.unmap(0, MIB);
    tracker.unregister(region);
}

#[test]
fn memory_moved_by_mremap_is_touched_in_both_places() {
    let Some(mut tracker) = tracker() else { return };
    let (source, target) = (Memory::new(MIB), Memory::new(MIB));
    let mut from = clean_region(&mut tracker, &source);
    let mut to = clean_region(&mut tracker, &target);
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: both are mappings of the test.
    let moved = unsafe { libc::mremap(source.base.cast(), MIB, MIB, flags, target.base) };
    assert_eq!(moved, target.base.cast());
    assert_eq!(tracker.scan(&mut to).unwrap(), Touched::All);
    target.write(page());
    assert_eq!(ranges(&tracker, &mut to), [page()..2 * page()]);
    assert!(tracker.scan(&mut from).is_err());
    source.remap_fixed(0, MIB, MAP_PRIVATE);
    assert_eq!(tracker.scan(&mut from).unwrap(), Touched::All);
}

#[test]
fn dropped_pages_are_touched() {
    let Some(mut tracker) = tracker() else { return };
    let memory = Memory::new(8 * MIB);
    for huge in [false, true] {
        if huge {
            memory.advise(0, 8 * MIB, MADV_DONTNEED);
            memory.advise(0, 8 * MIB, MADV_HUGEPAGE);
            memory.fill(3);
        }
        let mut region = clean_region(&mut tracker, &memory);
        memory.advise(3 * page(), page(), MADV_DONTNEED);
        assert_eq!(ranges(&tracker, &mut region), [3 * page()..4 * page()]);
        // Still not present: touched until it is read.
        assert_eq!(ranges(&tracker, &mut region), [3 * page()..4 * page()]);
        memory.read();
        assert_eq!(ranges(&tracker, &mut region), []);
        // Whole page tables, and huge pages that were never split.
        memory.advise(2 * MIB, 4 * MIB, MADV_DONTNEED);
        assert_eq!(ranges(&tracker, &mut region), [2 * MIB..6 * MIB]);
        memory.read();
        memory.advise(7 * MIB, MIB, MADV_DONTNEED);
        // SAFETY: the test's own mapping; reading faults the page of zeros in.
        assert_eq!(unsafe { memory.base.add(7 * MIB).read_volatile() }, 0);
        assert_eq!(ranges(&tracker, &mut region), [7 * MIB..8 * MIB]);
        memory.fill(4);
        assert_eq!(ranges(&tracker, &mut region), [0..8 * MIB]);
        memory.advise(0, 4 * MIB, MADV_FREE);
        memory.write(MIB);
        let found = ranges(&tracker, &mut region);
        assert!(found.iter().any(|range| range.contains(&MIB)), "{found:?}");
        tracker.unregister(region);
    }
}

#[test]
fn heap_memory_freed_and_allocated_again_is_tracked_or_touched() {
    let Some(mut tracker) = tracker() else { return };
    // Sizes from the heap proper and from mappings of their own.
    for length in [100_000, 3 * MIB, 40 * MIB] {
        let mut seen = 0;
        let mut region: Option<PageRegion> = None;
        for round in 0..20_u8 {
            let mut memory = vec![round; length];
            let address = memory.as_ptr();
            let same = region
                .as_ref()
                .is_some_and(|old| old.address == address.expose_provenance());
            if !same {
                if let Some(old) = region.take() {
                    tracker.unregister(old);
                }
                region = Some(register(&mut tracker, address, length));
            }
            let region = region.as_mut().unwrap();
            // All of it was written in this round, so all of it must be touched.
            match tracker.scan(region).unwrap() {
                Touched::All => (),
                Touched::Ranges(found) => assert_eq!(found, [0..length], "round {round}"),
            }
            memory[length / 2] = 99;
            if let Touched::Ranges(found) = tracker.scan(region).unwrap() {
                assert!(
                    found.iter().any(|range| range.contains(&(length / 2))),
                    "{found:?}"
                );
                seen += 1;
            }
        }
        tracker.unregister(region.unwrap());
        assert!(seen > 10, "{length} bytes: only {seen} rounds were tracked");
    }
}

#[test]
fn realloc_of_a_tracked_array_still_works() {
    let Some(mut tracker) = tracker() else { return };
    let mut memory = vec![5_u8; 16 * MIB];
    let mut region = register(&mut tracker, memory.as_ptr(), memory.len());
    assert_eq!(tracker.scan(&mut region).unwrap(), Touched::All);
    tracker.scan(&mut region).unwrap();
    memory.resize(160 * MIB, 6);
    assert!(memory[..16 * MIB].iter().all(|&byte| byte == 5));
    let mut grown = register(&mut tracker, memory.as_ptr(), memory.len());
    assert_eq!(tracker.scan(&mut grown).unwrap(), Touched::All);
    tracker.unregister(region);
}

#[test]
fn a_forked_child_neither_sees_nor_disturbs() {
    let Some(mut tracker) = tracker() else { return };
    let memory = Memory::new(MIB);
    let mut region = clean_region(&mut tracker, &memory);
    memory.write(2 * page());
    // SAFETY: the child calls nothing that allocates or locks, and ends with _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        memory.write(9 * page());
        let all = matches!(tracker.scan(&mut region), Ok(Touched::All));
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(i32::from(!all)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child just made.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    memory.write(5 * page());
    let expected = [2 * page()..3 * page(), 5 * page()..6 * page()];
    assert_eq!(ranges(&tracker, &mut region), expected);
    // After the fork the pages were shared until written: still seen.
    memory.write(5 * page());
    assert_eq!(ranges(&tracker, &mut region), [5 * page()..6 * page()]);
}

#[test]
fn writes_that_the_kernel_does_for_the_program_are_seen() {
    let Some(mut tracker) = tracker() else { return };
    let memory = Memory::new(MIB);
    let mut region = clean_region(&mut tracker, &memory);
    let zero = std::fs::File::open("/dev/zero").unwrap();
    // SAFETY: the test's own mapping.
    let target = unsafe { std::slice::from_raw_parts_mut(memory.base.add(4 * page()), 10) };
    std::io::Read::read_exact(&mut &zero, target).unwrap();
    assert_eq!(ranges(&tracker, &mut region), [4 * page()..5 * page()]);
}

#[test]
fn memory_protected_and_unprotected_meanwhile_is_still_tracked() {
    let Some(mut tracker) = tracker() else { return };
    let memory = Memory::new(MIB);
    let mut region = clean_region(&mut tracker, &memory);
    let (read, both) = (libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE);
    for access in [read, both] {
        // SAFETY: the test's own mapping.
        let result = unsafe { libc::mprotect(memory.base.cast(), MIB / 2, access) };
        assert_eq!(result, 0);
    }
    memory.write(page());
    assert_eq!(ranges(&tracker, &mut region), [page()..2 * page()]);
}

#[test]
fn threads_that_write_during_scans_are_all_seen() {
    let Some(mut tracker) = tracker() else { return };
    let memory = Memory::new(4 * MIB);
    let mut region = clean_region(&mut tracker, &memory);
    let base = memory.base.expose_provenance();
    let pages = 4 * MIB / page();
    let writer = std::thread::spawn(move || {
        for number in (0..pages).map(|number| number * 37 % pages) {
            let place = std::ptr::with_exposed_provenance_mut::<u8>(base + number * page());
            // SAFETY: the test's own mapping, which outlives the thread.
            unsafe { place.write_volatile(8) };
        }
    });
    let mut seen = vec![false; pages];
    let mut last = false;
    loop {
        for range in ranges(&tracker, &mut region) {
            (range.start / page()..range.end / page()).for_each(|number| seen[number] = true);
        }
        if last {
            break;
        }
        last = writer.is_finished();
    }
    writer.join().unwrap();
    assert!(seen.iter().all(|&seen| seen));
}

#[test]
fn a_private_mapping_of_a_file_is_refused() {
    let Some(mut tracker) = tracker() else { return };
    let file = tempfile::tempfile().unwrap();
    file.set_len(backstay_format::width::to_u64(4 * MIB))
        .unwrap();
    let memory = Memory::new(4 * MIB);
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = MAP_PRIVATE | MAP_FIXED;
    // Also where it took the place of memory that was watched.
    let mut region = clean_region(&mut tracker, &memory);
    // SAFETY: the test's own mapping, replaced.
    let base = unsafe {
        let descriptor = std::os::fd::AsRawFd::as_raw_fd(&file);
        libc::mmap(memory.base.cast(), 4 * MIB, access, flags, descriptor, 0)
    };
    assert_ne!(base, libc::MAP_FAILED);
    for _ in 0..3 {
        memory.read();
        assert_eq!(tracker.scan(&mut region).unwrap(), Touched::All);
    }
    std::os::unix::fs::FileExt::write_all_at(&file, &[1], 123_456).unwrap();
    assert_eq!(tracker.scan(&mut region).unwrap(), Touched::All);
    assert_eq!(
        region.refusal(),
        Some("it shows a file, which may be written")
    );
}

#[test]
fn a_process_without_privileges_may_track() {
    // SAFETY: asks for the user only.
    let root = unsafe { libc::geteuid() } == 0;
    if !root || tracker().is_none() {
        return;
    }
    let name = "track::pages::tests::writes_that_the_kernel_does_for_the_program_are_seen";
    let program = std::fs::read("/proc/self/exe").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("tests");
    std::fs::write(&copy, program).unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), std::fs::Permissions::clone(&open)).unwrap();
    std::fs::set_permissions(&copy, open).unwrap();
    let output = std::process::Command::new(&copy)
        .args(["--exact", name, "--nocapture"])
        .current_dir("/")
        .uid(65_534)
        .gid(65_534)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}"
    );
    assert!(!text.contains("skipped"), "{text}");
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn milliseconds(work: impl FnOnce()) -> f64 {
    let watch = backstay_base::clock::Stopwatch::start();
    work();
    watch.seconds() * 1e3
}

/// Not a test: `cargo test --release -- --ignored --nocapture speed_of_tracking`.
#[test]
#[ignore = "a measurement, for an idle machine"]
fn speed_of_tracking() {
    let Some(mut tracker) = tracker() else { return };
    let (memory, copy) = (Memory::new(256 * MIB), Memory::new(256 * MIB));
    for huge in [false, true] {
        if huge {
            memory.advise(0, memory.length, MADV_DONTNEED);
            memory.advise(0, memory.length, MADV_HUGEPAGE);
            memory.fill(3);
        }
        // SAFETY: two mappings of the test.
        let copy_all = || unsafe {
            copy.base
                .copy_from_nonoverlapping(memory.base, memory.length);
        };
        let memcpy = median((0..7).map(|_run| milliseconds(copy_all)).collect());
        let sweep = || {
            (0..memory.length)
                .step_by(64)
                .for_each(|at| memory.write(at));
        };
        let before = median((0..5).map(|_run| milliseconds(sweep)).collect());
        let mut region = register(&mut tracker, memory.base, memory.length);
        let first = milliseconds(|| drop(tracker.scan(&mut region)));
        let mut clean = Vec::new();
        let (mut written, mut plain, mut faulted) = (Vec::new(), Vec::new(), Vec::new());
        for run in 0..7 {
            clean.push(milliseconds(|| {
                assert!(ranges(&tracker, &mut region).is_empty());
            }));
            let granules: Vec<usize> = (0..491)
                .map(|number| (number * 7919 + run * 31) % 16_384 * 16_384)
                .collect();
            let write = || {
                for &granule in &granules {
                    (0..16_384)
                        .step_by(64)
                        .for_each(|at| memory.write(granule + at));
                }
            };
            faulted.push(milliseconds(write));
            plain.push(milliseconds(write));
            written.push(milliseconds(|| {
                assert!(!ranges(&tracker, &mut region).is_empty());
            }));
        }
        let full = milliseconds(sweep);
        let everything = milliseconds(|| drop(ranges(&tracker, &mut region)));
        ranges(&tracker, &mut region);
        tracker.unregister(region);
        let after = median((0..5).map(|_run| milliseconds(sweep)).collect());
        let (clean, written) = (median(clean), median(written));
        let fault = (median(faulted) - median(plain)) * 1e3 / (491.0 * 4.0);
        println!("huge pages {huge}: memcpy {memcpy:.2} ms, first scan {first:.2} ms");
        println!("  clean {clean:.3} ms ({:.4} x memcpy)", clean / memcpy);
        println!(
            "  3 % {written:.3} ms ({:.4} x memcpy), {fault:.2} us a fault",
            written / memcpy
        );
        println!("  100 %: writing {full:.1} ms (untracked {before:.1}), scan {everything:.2} ms");
        println!("  writing after tracking ended: {after:.1} ms");
    }
}
