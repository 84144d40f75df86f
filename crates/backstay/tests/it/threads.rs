// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Variables of all sizes, captured by several threads: what comes back is what there was.

use crate::job::config;
use backstay::config::{Config, Tracking};
use backstay::{ElementType, ErrorKind, Session, Variable};
use backstay_testkit::comm::{ThreadComm, run_ranks};
use std::path::Path;

/// Small ones in numbers, some of a few blocks, two of several megabytes.
fn sizes() -> Vec<usize> {
    let small = (0..40).map(|at| at * 113 + 1);
    let middle = (0..20).map(|at| 30_000 + at * 70_001);
    small
        .chain(middle)
        .chain([5 << 20, (6 << 20) + 5])
        .collect()
}

/// What the bytes of a variable are after so many steps; most stay from step to step.
fn fill(bytes: &mut [u8], variable: usize, step: usize) {
    for (at, byte) in bytes.iter_mut().enumerate() {
        let changed = (at / 4096 + variable) % 5 < step;
        let mixed = at.wrapping_mul(31) + variable * 7 + if changed { step * 13 } else { 0 };
        *byte = mixed.to_le_bytes()[0];
    }
}

/// A session of one rank that protects one vector a size.
fn protected(comm: ThreadComm, config: &Config, kind: Tracking, memory: &mut [Vec<u8>]) -> Session {
    let mut session = Session::open(Box::new(comm), config.clone()).unwrap();
    for (at, bytes) in memory.iter_mut().enumerate() {
        let length = u64::try_from(bytes.len()).unwrap();
        let name = format!("variable {at:03}");
        let variable = Variable::new(&name, ElementType::U8, &[length]).tracking(kind);
        // SAFETY: the vectors are not moved, resized or freed while the session is open.
        unsafe { session.protect(variable, bytes.as_mut_ptr()).unwrap() };
    }
    session
}

fn with_threads(path: &Path, threads: u32) -> Config {
    Config {
        capture_threads: Some(threads),
        retained: 3,
        ..config(path)
    }
}

/// Three checkpoints by so many threads, each restored: what the checkpoints counted.
fn counted(kind: Tracking, threads: u32) -> Vec<(u64, u64)> {
    let root = tempfile::tempdir().unwrap();
    let config = with_threads(root.path(), threads);
    let mut counted = run_ranks(ThreadComm::new(1), |comm| {
        let mut memory: Vec<_> = sizes().iter().map(|&size| vec![0; size]).collect();
        let mut session = protected(comm, &config, kind, &mut memory);
        let mut counted = Vec::new();
        for step in 1..=3 {
            for (at, bytes) in memory.iter_mut().enumerate() {
                fill(bytes, at, step);
                let all = 0..u64::try_from(bytes.len()).unwrap();
                let variable = session.variable(&format!("variable {at:03}")).unwrap();
                session.mark_dirty(variable, all).unwrap();
            }
            let report = session.checkpoint().unwrap();
            counted.push((report.blocks_changed, report.bytes_changed));
        }
        for step in (1..=3).rev() {
            for bytes in &mut memory {
                bytes.fill(9);
            }
            session.restore_from(u64::try_from(step).unwrap()).unwrap();
            for (at, bytes) in memory.iter().enumerate() {
                let mut wanted = vec![0; bytes.len()];
                fill(&mut wanted, at, step);
                assert!(*bytes == wanted, "{kind:?}, {threads}, step {step}, {at}");
            }
        }
        session.close().unwrap();
        counted
    });
    counted.pop().unwrap()
}

#[test]
fn what_several_threads_capture_is_what_one_does() {
    for kind in [Tracking::Hash, Tracking::Full, Tracking::Marked] {
        let one = counted(kind, 1);
        assert!(one[1].1 > 0, "{one:?}");
        assert_eq!(counted(kind, 3), one, "{kind:?}");
    }
}

#[test]
fn a_store_that_is_full_for_several_threads_keeps_what_it_had() {
    let root = tempfile::tempdir().unwrap();
    let bytes: usize = sizes().iter().sum();
    let config = Config {
        reserve_bytes: Some(u64::try_from(bytes + bytes / 2).unwrap()),
        segment_bytes: Some(1 << 20),
        ..with_threads(root.path(), 4)
    };
    run_ranks(ThreadComm::new(1), |comm| {
        let mut memory: Vec<_> = sizes().iter().map(|&size| vec![0; size]).collect();
        let mut session = protected(comm, &config, Tracking::Hash, &mut memory);
        for (at, bytes) in memory.iter_mut().enumerate() {
            fill(bytes, at, 1);
        }
        session.checkpoint().unwrap();
        for bytes in &mut memory {
            bytes.fill(77);
        }
        let full = session.checkpoint().unwrap_err();
        assert_eq!(full.kind(), ErrorKind::StoreFull, "{full}");
        session.restore().unwrap();
        for (at, bytes) in memory.iter_mut().enumerate() {
            let mut wanted = vec![0; bytes.len()];
            fill(&mut wanted, at, 1);
            assert!(*bytes == wanted, "{at}");
        }
        // What changes little still fits.
        memory[0].fill(5);
        session.checkpoint().unwrap();
        session.close().unwrap();
    });
}

#[test]
fn what_was_announced_is_captured_by_another_thread_or_by_the_next_call() {
    let root = tempfile::tempdir().unwrap();
    let config = with_threads(root.path(), 2);
    let sizes = [1, 300_000, 9 << 20];
    run_ranks(ThreadComm::new(2), |comm| {
        let mut memory: Vec<_> = sizes.iter().map(|&size| vec![0; size]).collect();
        let mut session = protected(comm, &config, Tracking::Hash, &mut memory);
        for step in 1..=5 {
            for (at, bytes) in memory.iter_mut().enumerate() {
                fill(bytes, at, step);
            }
            let handle = session.checkpoint_announce().unwrap();
            assert!(!session.test(&handle, backstay::Level::Node).unwrap());
            match step {
                1 => std::thread::scope(|scope| {
                    let capture = scope.spawn(|| session.checkpoint_capture());
                    capture.join().unwrap().unwrap();
                }),
                // Whatever comes next has it captured first, and sees what was protected then.
                2 => session.unprotect("variable 000").unwrap(),
                3 => session
                    .mark_dirty(session.variable("variable 001").unwrap(), 0..1)
                    .unwrap(),
                4 => assert!(session.due().unwrap().is_none()),
                _ => {}
            }
            let report = session.wait(handle, backstay::Level::Node).unwrap();
            let variables = if step < 3 { 3 } else { 2 };
            let wanted: usize = sizes[3 - variables..].iter().sum();
            assert_eq!(report.bytes_total, u64::try_from(wanted).unwrap(), "{step}");
        }
        session.restore().unwrap();
        for (at, bytes) in memory.iter().enumerate().skip(1) {
            let mut wanted = vec![0; bytes.len()];
            fill(&mut wanted, at, 5);
            assert!(*bytes == wanted, "{at}");
        }
        session.close().unwrap();
    });
}
