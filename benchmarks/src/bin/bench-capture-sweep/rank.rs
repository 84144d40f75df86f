// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what a rank of the sweep does: checkpoints after changes of many kinds, for one setting.
//! Out to: `main` (costs by step). Ids are `SETTING.STEP.QUANTITY`.

use backstay::{Communicator, Config, ElementType, Session, Variable};
use backstay_bench::field::{Field, Place};
use backstay_bench::job::{Cost, Job};
use backstay_bench::{MIB, Outcome, as_f64, baseline, size_f64};

/// Bytes that change together: a page of a solver's tile.
const GRANULE: usize = 4 << 10;
const WARM_UP: usize = 3;

/// A share of the array that changes, and where.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Step {
    pub(crate) place: Place,
    pub(crate) percent: f64,
}

impl Step {
    /// `s3` is 3 % scattered, `c3` is 3 % side by side.
    pub(crate) fn name(&self) -> String {
        let letter = if self.place == Place::Scattered {
            's'
        } else {
            'c'
        };
        format!("{letter}{}", self.percent)
    }

    fn parse(name: &str) -> Outcome<Self> {
        let (place, percent) = match name.split_at_checked(1) {
            Some(("s", percent)) => (Place::Scattered, percent),
            Some(("c", percent)) => (Place::Contiguous, percent),
            _ => return Err(format!("no step {name:?}").into()),
        };
        Ok(Self {
            place,
            percent: percent.parse()?,
        })
    }
}

/// Words: MiB, runs, KiB of a block, threads, name of the setting, steps.
#[expect(unsafe_code, reason = "protecting memory is unsafe by contract")]
pub(crate) fn blocks(job: &Job, arguments: &[String]) -> Outcome<()> {
    let [mib, runs, block_kib, threads, setting, steps @ ..] = arguments else {
        return Err("wants MiB, runs, KiB, threads, setting, steps".into());
    };
    let (mib, runs): (usize, u64) = (mib.parse()?, runs.parse()?);
    let config = Config {
        block_bytes: block_kib.parse::<u32>()? << 10,
        capture_threads: Some(threads.parse()?),
        changed_share: 1.0,
        ..job.config("store")
    };
    let rank = u64::from(job.comm.rank());
    let mut field = Field::new(mib * MIB, GRANULE, rank);
    let mut other = vec![1.0; mib * MIB / 8];
    let mut session = Session::open(Box::new(job.comm.counted()), config)?;
    let shape = [backstay::format::width::to_u64(field.words().len())];
    let variable = Variable::new("field", ElementType::F64, &shape);
    // SAFETY: the field outlives the session and is written between checkpoints only.
    unsafe { session.protect(variable, field.address()) }?;
    let all: Vec<usize> = (0..field.granules()).collect();
    let plain = baseline::write_fresh(&job.own_file("plain"), baseline::as_bytes(field.words()))?;
    for _ in 0..WARM_UP {
        field.change(&all);
        session.checkpoint()?;
    }
    job.tell(&format!("{setting}.mib"), size_f64(mib))?;
    for run in 0..runs {
        // After everything changed the store cleans up for a while; that is no cost of what follows.
        for _ in 0..WARM_UP {
            session.checkpoint()?;
        }
        let words = field.words();
        let ((), copy) = job.measure(|| {
            baseline::copy(words, &mut other);
            Ok(())
        })?;
        tell(job, setting, "copy", copy)?;
        let bytes = baseline::as_bytes(words);
        let ((), write) = job.measure(|| baseline::write_over(&plain, bytes))?;
        tell(job, setting, "write", write)?;
        for (number, name) in (1..).zip(steps) {
            let step = Step::parse(name)?;
            let chosen = field.choose(
                step.percent / 100.0,
                step.place,
                run << 16 | number << 8 | rank,
            );
            field.change(&chosen);
            let (report, cost) = job.measure(|| Ok(session.checkpoint()?))?;
            tell(job, setting, name, cost)?;
            let share = job.sum(as_f64(report.bytes_changed) / as_f64(report.bytes_total))? / 2.0;
            job.tell(&format!("{setting}.{name}.written"), share)?;
            let share = job.sum(as_f64(report.bytes_manifest) / as_f64(report.bytes_total))? / 2.0;
            job.tell(&format!("{setting}.{name}.manifest"), share)?;
        }
    }
    Ok(())
}

/// Words: number of variables, their bytes, runs, name of the setting.
#[expect(unsafe_code, reason = "protecting memory is unsafe by contract")]
pub(crate) fn variables(job: &Job, arguments: &[String]) -> Outcome<()> {
    let [count, bytes, runs, setting] = arguments else {
        return Err("wants count, bytes, runs, setting".into());
    };
    let (count, bytes, runs): (usize, usize, usize) =
        (count.parse()?, bytes.parse()?, runs.parse()?);
    let config = Config {
        changed_share: 1.0,
        ..job.config("store")
    };
    let mut field = Field::new(count * bytes, bytes, u64::from(job.comm.rank()));
    let mut session = Session::open(Box::new(job.comm.counted()), config)?;
    let shape = [backstay::format::width::to_u64(bytes / 8)];
    for (number, words) in field.words().chunks_exact_mut(bytes / 8).enumerate() {
        let variable = Variable::new(&format!("v{number:05}"), ElementType::F64, &shape);
        // SAFETY: the field outlives the session and is written between checkpoints only.
        unsafe { session.protect(variable, words.as_mut_ptr().cast()) }?;
    }
    let all: Vec<usize> = (0..field.granules()).collect();
    let plain = baseline::write_fresh(&job.own_file("plain"), baseline::as_bytes(field.words()))?;
    for run in 0..WARM_UP + runs {
        field.change(&all);
        let bytes = baseline::as_bytes(field.words());
        let ((), write) = job.measure(|| baseline::write_over(&plain, bytes))?;
        let (report, all_changed) = job.measure(|| Ok(session.checkpoint()?))?;
        let (_, none_changed) = job.measure(|| Ok(session.checkpoint()?))?;
        if run >= WARM_UP {
            tell(job, setting, "write", write)?;
            tell(job, setting, "all", all_changed)?;
            tell(job, setting, "none", none_changed)?;
            let manifest = as_f64(report.bytes_manifest) / size_f64(count);
            job.tell(&format!("{setting}.manifest"), manifest)?;
        }
    }
    Ok(())
}

fn tell(job: &Job, setting: &str, step: &str, cost: Cost) -> Outcome<()> {
    job.tell(&format!("{setting}.{step}.cpu"), cost.cpu)?;
    job.tell(&format!("{setting}.{step}.wall"), cost.wall)
}
