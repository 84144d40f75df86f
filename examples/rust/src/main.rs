// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts to 20, and goes on where it was when it is killed.

use backstay::comm::Single;
use backstay::{Config, Restartable, State, Variables};

struct Counting {
    cells: Vec<f64>,
    step: i64,
}

impl State for Counting {
    fn variables<'a>(&'a mut self, variables: &mut Variables<'a>) {
        variables.array("cells", &mut self.cells);
        variables.value("step", &mut self.step);
    }
}

fn main() -> backstay::Result<()> {
    let mut config = Config::from_environment()?;
    config.job.get_or_insert_with(|| "counting".to_owned());
    let state = Counting {
        cells: vec![0.0; 10_000],
        step: 0,
    };
    let mut state = Restartable::open(Box::new(Single), config, state)?;
    match state.restore()? {
        Some(restored) => println!("resuming from checkpoint {}", restored.checkpoint.number),
        None => println!("from the beginning"),
    }
    while state.step < 20 {
        for cell in &mut state.cells {
            *cell += 1.0;
        }
        state.step += 1;
        if state.step % 5 == 0 {
            let report = state.checkpoint()?;
            println!(
                "{} of {} blocks changed",
                report.blocks_changed, report.blocks_total
            );
        }
    }
    println!("step {}: every cell is {}", state.step, state.cells[0]);
    // It is done: the next start begins anew. One that is to go on later calls `close`.
    state.finish().map(drop)
}
