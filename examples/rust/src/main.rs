// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts to 20, and goes on where it was when it is killed.

use backstay::comm::Single;
use backstay::{Config, ElementType, ErrorKind, Session, Variable};

fn main() -> backstay::Result<()> {
    let mut config = Config::from_environment()?;
    config.job.get_or_insert_with(|| "counting".to_owned());
    let mut session = Session::open(Box::new(Single), config)?;

    let mut cells = vec![0.0_f64; 10_000];
    let mut step = 0_i64;
    let cells_at = cells.as_mut_ptr();
    let step_at = &raw mut step;
    // SAFETY: both stay where they are until the session is closed, and no other thread writes them.
    unsafe {
        session.protect(
            Variable::new("cells", ElementType::F64, &[10_000]),
            cells_at.cast(),
        )?;
        session.protect(Variable::new("step", ElementType::I64, &[]), step_at.cast())?;
    }
    match session.restore() {
        Ok(restored) => println!("resuming from checkpoint {}", restored.checkpoint.number),
        Err(error) if error.kind() == ErrorKind::NoCheckpoint => println!("from the beginning"),
        Err(error) => return Err(error),
    }
    while step < 20 {
        for cell in &mut cells {
            *cell += 1.0;
        }
        step += 1;
        if step % 5 == 0 {
            let report = session.checkpoint()?;
            println!(
                "{} of {} blocks changed",
                report.blocks_changed, report.blocks_total
            );
        }
    }
    println!("step {step}: every cell is {}", cells[0]);
    // It is done: the next start begins anew. One that is to go on later calls `close`.
    session.finish().map(|_| ())
}
