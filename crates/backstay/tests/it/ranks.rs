// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Another number of ranks at restart.

use crate::job::config;
use backstay::{Communicator, Config, ElementType, ErrorKind, Session, Variable};
use backstay_testkit::comm::{ThreadComm, run_ranks};

const ROWS: u64 = 60;
const COLUMNS: u64 = 700;

/// The part of a grid that `rank` of `ranks` has, in rows or in columns.
fn part(rank: u64, ranks: u64, by_rows: bool) -> ([u64; 2], [u64; 2]) {
    let whole = if by_rows { ROWS } else { COLUMNS };
    let (low, high) = (whole * rank / ranks, whole * (rank + 1) / ranks);
    if by_rows {
        ([low, 0], [high - low, COLUMNS])
    } else {
        ([0, low], [ROWS, high - low])
    }
}

fn run(ranks: usize, by_rows: bool, config: &Config, write: bool) {
    run_ranks(ThreadComm::new(ranks), |comm| {
        let (rank, size) = (u64::from(comm.rank()), u64::from(comm.size()));
        let mut session = Session::open(Box::new(comm), config.clone()).unwrap();
        let (start, shape) = part(rank, size, by_rows);
        let value = |index: u64| {
            let (row, column) = (start[0] + index / shape[1], start[1] + index % shape[1]);
            row * 1000 + column
        };
        let count = shape[0] * shape[1];
        let mut grid: Vec<u64> = (0..count)
            .map(|index| if write { value(index) } else { 0 })
            .collect();
        let variable =
            Variable::new("grid", ElementType::U64, &shape).slab(&[ROWS, COLUMNS], &start);
        // SAFETY: `grid` outlives the session.
        unsafe { session.protect(variable, grid.as_mut_ptr().cast()).unwrap() };
        if !write {
            session.restore().unwrap();
            let wanted: Vec<u64> = (0..count).map(value).collect();
            assert_eq!(grid, wanted);
        }
        session.checkpoint().unwrap();
        session.close().unwrap();
    });
}

#[test]
fn slabs_go_to_any_number_of_ranks_and_any_decomposition() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    run(3, true, &config, true);
    for (ranks, by_rows) in [
        (5, true),
        (5, false),
        (2, false),
        (2, true),
        (7, false),
        (1, true),
        (3, true),
    ] {
        run(ranks, by_rows, &config, false);
    }
}

#[test]
fn variables_of_a_rank_are_named_and_can_be_read_by_old_rank() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    run_ranks(ThreadComm::new(3), |comm| {
        let mut mine = [u64::from(comm.rank()) + 10; 4];
        let mut session = Session::open(Box::new(comm), config.clone()).unwrap();
        let variable = Variable::new("mine", ElementType::U64, &[4]);
        // SAFETY: `mine` outlives the session.
        unsafe { session.protect(variable, mine.as_mut_ptr().cast()).unwrap() };
        session.checkpoint().unwrap();
    });
    run_ranks(ThreadComm::new(2), |comm| {
        let mut mine = [0u64; 4];
        let mut session = Session::open(Box::new(comm), config.clone()).unwrap();
        let variable = Variable::new("mine", ElementType::U64, &[4]);
        // SAFETY: `mine` outlives the session.
        unsafe { session.protect(variable, mine.as_mut_ptr().cast()).unwrap() };
        let error = session.restore().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::VariableMismatch);
        assert!(error.to_string().contains("mine"), "{error}");
        for old in 0..3 {
            assert_eq!(session.stored_shape("mine", old).unwrap(), [4]);
            // SAFETY: `mine` has 32 bytes.
            unsafe {
                session
                    .read_rank("mine", old, mine.as_mut_ptr().cast(), 32)
                    .unwrap();
            };
            assert_eq!(mine, [u64::from(old) + 10; 4]);
        }
    });
}

#[test]
fn another_name_type_or_shape_shows_both_sides() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    let protect = |session: &mut Session, variable: Variable, memory: &mut [u64; 4]| {
        // SAFETY: `memory` outlives the use of the session in this test.
        unsafe {
            session
                .protect(variable, memory.as_mut_ptr().cast())
                .unwrap();
        };
    };
    let mut memory = [1; 4];
    let mut session = Session::open(Box::new(backstay::comm::Single), config.clone()).unwrap();
    protect(
        &mut session,
        Variable::new("a", ElementType::F64, &[2, 2]),
        &mut memory,
    );
    session.checkpoint().unwrap();
    drop(session);
    for (variable, words) in [
        (
            Variable::new("b", ElementType::F64, &[2, 2]),
            ["\"b\"", "\"a\""],
        ),
        (
            Variable::new("a", ElementType::I64, &[2, 2]),
            ["i64", "f64"],
        ),
        (
            Variable::new("a", ElementType::F64, &[4]),
            ["[4]", "[2, 2]"],
        ),
    ] {
        let mut session = Session::open(Box::new(backstay::comm::Single), config.clone()).unwrap();
        protect(&mut session, variable, &mut memory);
        let error = session.restore().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::VariableMismatch);
        for word in words {
            assert!(error.to_string().contains(word), "{error}");
        }
    }
}
