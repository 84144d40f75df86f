// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: four ranks of which each changes 1 MiB, beside each writing 1 MiB over an old file.

use backstay::config::Tracking;
use backstay::{Communicator, Config, ElementType, Session, Variable};
use backstay_bench::field::{Field, Place};
use backstay_bench::job::Job;
use backstay_bench::{MIB, Outcome, baseline};
use std::fs::File;

/// Checkpoints before anything is measured.
const WARM_UP: usize = 5;

/// What each run does to the memory, before the checkpoint.
type Change<'a> = &'a mut dyn FnMut(&mut Session, usize) -> Outcome<()>;

/// Compares `runs` checkpoints after `change` with plain writes of `bytes`.
fn compare(
    job: &Job,
    id: &str,
    runs: usize,
    bytes: usize,
    session: &mut Session,
    change: Change<'_>,
) -> Outcome<()> {
    let plain = vec![7_u8; bytes];
    let file: File = baseline::write_fresh(&job.own_file("plain"), &plain)?;
    for run in 0..WARM_UP + runs {
        change(session, run)?;
        let ((), write) = job.measure(|| baseline::write_over(&file, &plain))?;
        let (_, cost) = job.measure(|| Ok(session.checkpoint()?))?;
        if run >= WARM_UP {
            if bytes == MIB {
                job.tell("baseline.recycled.1", write.wall * 1e3)?;
            }
            job.tell(id, cost.wall / write.wall)?;
        }
    }
    Ok(())
}

#[expect(unsafe_code, reason = "protecting memory is unsafe by contract")]
fn protect(session: &mut Session, variable: Variable, address: *mut u8) -> Outcome<()> {
    // SAFETY: fields keep their memory as long as the session here, and are written by this thread
    // only, between checkpoints.
    Ok(unsafe { session.protect(variable, address) }.map(drop)?)
}

/// One variable of 1 MiB, all of it changed.
pub(crate) fn one_of_one(job: &Job, arguments: &[String]) -> Outcome<()> {
    let [runs] = arguments else {
        return Err("wants runs".into());
    };
    let mut field = Field::new(MIB, 16 << 10, u64::from(job.comm.rank()));
    let config = Config {
        changed_share: 1.0,
        ..job.config("store")
    };
    let mut session = Session::open(Box::new(job.comm.counted()), config)?;
    let shape = [backstay::format::width::to_u64(field.words().len())];
    protect(
        &mut session,
        Variable::new("field", ElementType::F64, &shape),
        field.address(),
    )?;
    let all: Vec<usize> = (0..field.granules()).collect();
    compare(
        job,
        "capture.small.1of1",
        runs.parse()?,
        MIB,
        &mut session,
        &mut |_, _| {
            field.change(&all);
            Ok(())
        },
    )
}

/// Two thousand variables of 512 B, all of them changed.
pub(crate) fn variables(job: &Job, arguments: &[String]) -> Outcome<()> {
    const COUNT: usize = 2000;
    const BYTES: usize = 512;
    let [runs] = arguments else {
        return Err("wants runs".into());
    };
    let mut field = Field::new(COUNT * BYTES, BYTES, u64::from(job.comm.rank()));
    let config = Config {
        changed_share: 1.0,
        ..job.config("store")
    };
    let mut session = Session::open(Box::new(job.comm.counted()), config)?;
    for (number, words) in field.words().chunks_exact_mut(BYTES / 8).enumerate() {
        let variable = Variable::new(&format!("v{number:04}"), ElementType::F64, &[64]);
        protect(&mut session, variable, words.as_mut_ptr().cast())?;
    }
    let all: Vec<usize> = (0..field.granules()).collect();
    let id = "capture.variables.2000x512";
    compare(
        job,
        id,
        runs.parse()?,
        COUNT * BYTES,
        &mut session,
        &mut |_, _| {
            field.change(&all);
            Ok(())
        },
    )
}

/// 64 granules of 16 KiB anywhere in a large array, each marked as changed.
pub(crate) fn marked(job: &Job, arguments: &[String]) -> Outcome<()> {
    let [mib, runs] = arguments else {
        return Err("wants MiB and runs".into());
    };
    let mib: usize = mib.parse()?;
    let rank = u64::from(job.comm.rank());
    let mut field = Field::new(mib * MIB, 16 << 10, rank);
    let config = Config {
        tracking: Tracking::Marked,
        changed_share: 0.02,
        ..job.config("store")
    };
    let mut session = Session::open(Box::new(job.comm.counted()), config)?;
    let shape = [backstay::format::width::to_u64(field.words().len())];
    protect(
        &mut session,
        Variable::new("field", ElementType::F64, &shape),
        field.address(),
    )?;
    let share = 1.0 / backstay_bench::size_f64(mib);
    let id = "capture.marked.1of1024";
    compare(
        job,
        id,
        runs.parse()?,
        MIB,
        &mut session,
        &mut |session, run| {
            let seed = backstay::format::width::to_u64(run) * 64 + rank;
            let chosen = field.choose(share, Place::Scattered, seed);
            field.change(&chosen);
            for granule in chosen {
                session.mark_dirty(session.variable("field")?, field.bytes(granule))?;
            }
            Ok(())
        },
    )
}
