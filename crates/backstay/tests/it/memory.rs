// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Protected memory that is not there any more, or not as it has to be: the call fails on all ranks
//! alike, names the variable, and the program starts. In child processes, since without the look it
//! would not.

use crate::job::{Rank, config, start};
use backstay::config::Tracking;
use backstay::{ElementType, ErrorKind, Variable};
use std::ffi::c_void;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

const PAGE: usize = 4096;
const LENGTH: usize = 64 * PAGE;
const CHILD: &str = "BACKSTAY_TEST_MEMORY_CHILD";

/// Runs the test `name` in a process of its own; true in that process.
fn is_child(name: &str) -> bool {
    if std::env::var_os(CHILD).is_some() {
        return true;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("memory::{name}"), "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{}: {text}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    false
}

/// Where nothing else is mapped, so that nobody takes the place of what is unmapped.
static PLACES: AtomicUsize = AtomicUsize::new(1 << 44);

/// Memory of its own mapping.
struct Mapped(*mut u8);

impl Mapped {
    fn new() -> Self {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let hint = PLACES.fetch_add(1 << 30, Ordering::Relaxed);
        let hint = std::ptr::without_provenance_mut(hint);
        // SAFETY: a new mapping, there or where the kernel chooses.
        let base = unsafe { libc::mmap(hint, LENGTH, access, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        let mapped = Self(base.cast());
        mapped.fill(1);
        mapped
    }
    fn fill(&self, value: u8) {
        // SAFETY: the mapping of this value.
        unsafe { self.0.write_bytes(value, LENGTH) };
    }
    fn page(&self, number: usize) -> *mut c_void {
        self.0.wrapping_add(number * PAGE).cast()
    }
    fn allow(&self, pages: std::ops::Range<usize>, access: i32) {
        // SAFETY: pages of the mapping of this value.
        let done = unsafe { libc::mprotect(self.page(pages.start), pages.len() * PAGE, access) };
        assert_eq!(done, 0);
    }
    fn unmap(&self, pages: std::ops::Range<usize>) {
        // SAFETY: pages of the mapping of this value.
        let done = unsafe { libc::munmap(self.page(pages.start), pages.len() * PAGE) };
        assert_eq!(done, 0);
    }
    fn shorten(&self, pages: usize) {
        // SAFETY: the mapping of this value.
        let moved = unsafe { libc::mremap(self.page(0), LENGTH, pages * PAGE, 0) };
        assert_eq!(moved, self.page(0));
    }
    fn protect(&self, rank: &mut Rank, tracking: Tracking) {
        let length = u64::try_from(LENGTH).unwrap();
        let variable = Variable::new("grid", ElementType::U8, &[length]).tracking(tracking);
        // SAFETY: what becomes of the memory is what is tested.
        unsafe { rank.session.protect(variable, self.0).unwrap() };
    }
}

/// What is done to the memory, and what the message says of it.
type Harm = (fn(&Mapped), &'static str);
const HARMS: [Harm; 4] = [
    (|memory| memory.unmap(0..64), "is not there from"),
    (|memory| memory.unmap(30..31), "is not there from"),
    (|memory| memory.shorten(40), "is not there from"),
    (
        |memory| memory.allow(50..51, libc::PROT_NONE),
        "may not be read from",
    ),
];

#[test]
fn a_checkpoint_of_memory_that_is_gone_names_it_and_the_program_lives() {
    if !is_child("a_checkpoint_of_memory_that_is_gone_names_it_and_the_program_lives") {
        return;
    }
    for tracking in [Tracking::Hash, Tracking::Pages] {
        for (harm, says) in HARMS {
            let folder = tempfile::tempdir().unwrap();
            let config = config(folder.path());
            start(2, &config, |rank| {
                let memory = Mapped::new();
                memory.protect(rank, tracking);
                rank.compute();
                rank.session.checkpoint().unwrap();
                rank.session.checkpoint().unwrap();
                if rank.session.rank() == 1 {
                    harm(&memory);
                }
                let error = rank.session.checkpoint().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidArgument);
                let text = error.to_string();
                assert!(text.contains("\"grid\"") && text.contains(says), "{text}");
                // The next call is well once the variable is where it says.
                let other = Mapped::new();
                other.fill(7);
                other.protect(rank, tracking);
                rank.compute();
                rank.session.checkpoint().unwrap();
            });
            start(2, &config, |rank| {
                let memory = Mapped::new();
                memory.protect(rank, tracking);
                rank.session.restore().unwrap();
                assert_eq!(rank.step, 2);
                rank.check();
                // SAFETY: the mapping that was just restored into.
                let all = unsafe { std::slice::from_raw_parts(memory.0, LENGTH) };
                assert!(all.iter().all(|&byte| byte == 7));
            });
        }
    }
}

#[test]
fn a_restore_into_memory_that_may_not_be_written_names_it_and_drops_nothing() {
    if !is_child("a_restore_into_memory_that_may_not_be_written_names_it_and_drops_nothing") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    start(2, &config, |rank| {
        let memory = Mapped::new();
        memory.protect(rank, Tracking::Hash);
        rank.compute();
        rank.session.checkpoint().unwrap();
    });
    start(2, &config, |rank| {
        let memory = Mapped::new();
        memory.protect(rank, Tracking::Hash);
        memory.fill(9);
        if rank.session.rank() == 0 {
            memory.allow(3..4, libc::PROT_READ);
        }
        let error = rank.session.restore().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let text = error.to_string();
        assert!(
            text.contains("\"grid\"") && text.contains("may not be written"),
            "{text}"
        );
        if rank.session.rank() == 0 {
            // SAFETY: as below.
            let read = unsafe {
                rank.session
                    .read_rank("grid", 0, memory.0, u64::try_from(LENGTH).unwrap())
            };
            let text = read.unwrap_err().to_string();
            assert!(text.contains("the buffer for variable \"grid\""), "{text}");
        }
        memory.allow(0..64, libc::PROT_READ | libc::PROT_WRITE);
        rank.session.restore().unwrap();
        // SAFETY: the mapping that was just restored into.
        let all = unsafe { std::slice::from_raw_parts(memory.0, LENGTH) };
        assert!(all.iter().all(|&byte| byte == 1));
        // A scrub compares with memory where it finds damage: it looks first too.
        memory.unmap(0..64);
        let error = rank.session.scrub().unwrap_err();
        assert!(error.to_string().contains("\"grid\""), "{error}");
    });
}
