// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A state with its session: protected where it is, without `unsafe`, and what is wrong with it is told on all ranks.

use crate::job::config;
use backstay::comm::Single;
use backstay::config::Tracking;
use backstay::{
    Communicator, Config, ElementType, ErrorKind, Restartable, State, Variable, Variables,
};
use backstay_testkit::comm::{ThreadComm, run_ranks};

/// Particles come and go; of the grid each rank has some rows.
#[derive(Debug, Default, Clone, PartialEq)]
struct Gas {
    particles: Vec<[f64; 2]>,
    grid: Vec<u32>,
    extra: Option<Vec<i16>>,
    step: u64,
    /// Whether the grid is said to have a row more than it has.
    is_wrong: bool,
    rank: u64,
}

const RANKS: usize = 3;
const COLUMNS: u64 = 5000;

impl State for Gas {
    fn variables<'a>(&'a mut self, variables: &mut Variables<'a>) {
        variables.vec("particles", &mut self.particles);
        let rows = 2 + u64::from(self.is_wrong);
        let grid = Variable::new("grid", ElementType::U32, &[rows, COLUMNS]);
        let whole = [2 * u64::try_from(RANKS).unwrap() + 1, COLUMNS];
        let grid = grid.slab(&whole, &[2 * self.rank, 0]);
        variables.variable(grid.tracking(Tracking::Hash), &mut self.grid);
        if let Some(extra) = &mut self.extra {
            variables.array("extra", extra);
        }
        variables.value("step", &mut self.step);
    }
}

impl Gas {
    fn new(rank: u32) -> Self {
        let rank = u64::from(rank);
        let grid = vec![0; usize::try_from(2 * COLUMNS).unwrap()];
        Self {
            grid,
            rank,
            ..Self::default()
        }
    }

    fn compute(&mut self) {
        self.step += 1;
        let number = u32::try_from(self.step).unwrap();
        for _ in 0..1000 * self.step {
            self.particles
                .push([f64::from(number), f64::from(number) / 3.0]);
        }
        if self.step.is_multiple_of(3) {
            self.particles = self.particles.split_off(2500);
        }
        let at = usize::try_from(self.step * 100 + self.rank).unwrap();
        self.grid[at] = number;
        self.extra = (self.step < 4).then(|| vec![7; 300]);
    }
}

fn opened(comm: ThreadComm, config: &Config) -> Restartable<Gas> {
    let rank = comm.rank();
    Restartable::open(Box::new(comm), config.clone(), Gas::new(rank)).unwrap()
}

#[test]
fn a_state_that_moves_and_grows_comes_back_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    let starts = [4, 7, 9];
    for (start, until) in starts.into_iter().enumerate() {
        run_ranks(ThreadComm::new(RANKS), |comm| {
            let mut expected = Gas::new(comm.rank());
            let mut gas = opened(comm, &config);
            let restored = gas.restore().unwrap();
            assert_eq!(restored.is_some(), start > 0);
            while expected.step < gas.step {
                expected.compute();
            }
            expected.extra = None;
            assert!(*gas == expected, "step {} of {}", gas.step, expected.step);
            while gas.step < until {
                gas.compute();
                if gas.step.is_multiple_of(2) {
                    let handle = gas.checkpoint_start().unwrap();
                    // What was captured is not touched by what follows.
                    let after = gas.clone();
                    gas.particles = vec![[-1.0; 2]; 10];
                    gas.wait(handle, backstay::Level::Node).unwrap();
                    *gas = after;
                } else {
                    gas.checkpoint().unwrap();
                }
            }
            // Abandoned, as by a death.
            drop(gas);
        });
    }
}

#[test]
fn what_is_wrong_with_one_state_fails_the_call_on_all_ranks_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    run_ranks(ThreadComm::new(RANKS), |comm| {
        let mut gas = opened(comm, &config);
        assert!(gas.restore().unwrap().is_none());
        gas.compute();
        gas.checkpoint().unwrap();
        gas.is_wrong = gas.rank == 1;
        for _ in 0..2 {
            let error = gas.checkpoint().unwrap_err();
            let told = error.to_string();
            assert!(
                told.contains("variable \"grid\" is declared as u32"),
                "{told}"
            );
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        }
        let error = gas.restore().unwrap_err();
        assert!(error.to_string().contains("\"grid\""), "{error}");
        gas.is_wrong = false;
        gas.compute();
        let number = gas.checkpoint().unwrap().checkpoint.number;
        let (state, finished) = gas.finish().unwrap();
        assert_eq!(
            (state.step, finished.report.checkpoint.number),
            (2, number + 1)
        );
    });
    run_ranks(ThreadComm::new(RANKS), |comm| {
        let mut gas = opened(comm, &config);
        assert!(
            gas.restore().unwrap().is_none(),
            "a finished job begins anew"
        );
        let last = gas.session().earlier_checkpoints().pop().unwrap().number;
        assert_eq!(
            gas.restore_from(last).unwrap_err().kind(),
            ErrorKind::VariableMismatch
        );
        gas.particles = vec![[0.0; 2]; 3000];
        assert_eq!(gas.restore_from(last).unwrap().checkpoint.number, last);
        assert_eq!(gas.step, 2);
        gas.close().unwrap();
    });
}

/// Two variables of one name.
struct Twice(Vec<u8>, Vec<u8>);

impl State for Twice {
    fn variables<'a>(&'a mut self, variables: &mut Variables<'a>) {
        variables.array("same", &mut self.0);
        variables.array("same", &mut self.1);
    }
}

#[test]
fn two_variables_of_one_name_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let state = Twice(vec![1; 10], vec![2; 10]);
    let config = config(folder.path());
    let mut twice = Restartable::open(Box::new(Single), config, state).unwrap();
    let error = twice.checkpoint().unwrap_err();
    assert!(
        error
            .to_string()
            .contains("two variables are named \"same\""),
        "{error}"
    );
}

/// One large array, whose changes are told.
struct Marked(Vec<u64>);

impl State for Marked {
    fn variables<'a>(&'a mut self, variables: &mut Variables<'a>) {
        let shape = [u64::try_from(self.0.len()).unwrap()];
        let cells = Variable::new("cells", ElementType::U64, &shape);
        variables.variable(cells.tracking(Tracking::Marked), &mut self.0);
    }
}

#[test]
fn marks_are_of_elements() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    let state = Marked(vec![0; 1 << 20]);
    let mut marked = Restartable::open(Box::new(Single), config, state).unwrap();
    marked.checkpoint().unwrap();
    let at = 777_777;
    marked.0[at] = 5;
    marked.mark_dirty("cells", 777_777..777_778).unwrap();
    let report = marked.checkpoint().unwrap();
    assert_eq!(report.blocks_changed, 1);
    let mut again = marked.close().unwrap();
    again.0[at] = 6;
}
