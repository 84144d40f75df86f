// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What protection in the background takes from the application: blocking time of its checkpoints
//! while all cores compute, and speed of a stencil beside encoding at several rates.

use crate::times::Protected;
use backstay::config::Redundancy;
use backstay::{Communicator, Level};
use backstay_bench::Outcome;
use backstay_bench::field::Field;
use backstay_bench::figures::median;
use backstay_bench::job::{Job, monotonic_ns};
use backstay_bench::load::stencil;

/// The scenario: a checkpoint every twice the time to protect, computing all the time between.
pub(crate) fn blocking(job: &Job, arguments: &[String]) -> Outcome<()> {
    let mib: usize = arguments.first().ok_or("no size")?.parse()?;
    let runs: usize = arguments.get(1).ok_or("no runs")?.parse()?;
    let mut field = Field::new(mib << 20, 16_384, u64::from(job.comm.rank()));
    let mut alone = Protected::open(job, "alone", Redundancy::None, &mut field, None)?;
    let mut other = Field::new(mib << 20, 16_384, u64::from(job.comm.rank()) + 100);
    for (name, redundancy) in [("xor", Redundancy::Xor), ("rs", Redundancy::Rs)] {
        let mut behind = Protected::open(job, name, redundancy, &mut other, None)?;
        let mut to_protect = Vec::new();
        for _ in 0..4 {
            stencil(field.words(), 0.1);
            stencil(other.words(), 0.3);
            alone.session.checkpoint()?;
            to_protect.push(behind.checkpoint(job, Level::Protected)?.0.wall);
        }
        let interval = 2.0 * job.most(median(&to_protect).unwrap_or(0.5))?;
        let (mut without, mut with) = (Vec::new(), Vec::new());
        for _ in 0..runs {
            stencil(field.words(), interval);
            without.push(job.most(alone.session.checkpoint()?.blocking_time.as_secs_f64())?);
        }
        for run in 0..=runs {
            stencil(other.words(), interval);
            let seconds = job.most(behind.session.checkpoint()?.blocking_time.as_secs_f64())?;
            // Nothing is encoded behind the first one.
            if run > 0 {
                with.push(seconds);
            }
        }
        let base = median(&without).ok_or("no runs")?;
        for seconds in with {
            job.tell(&format!("redundancy.blocking.{name}"), seconds / base)?;
        }
        behind.end()?;
    }
    alone.end()
}

/// The scenario: how much slower the stencil is while its last checkpoint is encoded.
pub(crate) fn slowdown(job: &Job, arguments: &[String]) -> Outcome<()> {
    let mib: usize = arguments.first().ok_or("no size")?.parse()?;
    let runs: usize = arguments.get(1).ok_or("no runs")?.parse()?;
    let mut field = Field::new(mib << 20, 16_384, u64::from(job.comm.rank()));
    // What a node gathers and encodes in a second when nothing else runs.
    let mut probe = Protected::open(job, "rate", Redundancy::Xor, &mut field, None)?;
    let mut rates = Vec::new();
    for _ in 0..4 {
        stencil(field.words(), 0.2);
        let (_, seconds) = probe.checkpoint(job, Level::Protected)?;
        rates.push(backstay_bench::size_f64(mib << 20) / seconds);
    }
    probe.end()?;
    let full = job.most(median(&rates).ok_or("no rate")?)?;
    for (name, share) in [
        ("eighth", 0.125),
        ("quarter", 0.25),
        ("half", 0.5),
        ("free", 0.0),
    ] {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a rate in bytes"
        )]
        let rate = (share > 0.0).then_some((full * share) as u64);
        let job_name = format!("slow-{name}");
        let mut behind = Protected::open(job, &job_name, Redundancy::Xor, &mut field, rate)?;
        behind.checkpoint(job, Level::Protected)?;
        for _ in 0..runs.min(5) {
            let idle = stencil(field.words(), 0.5);
            let handle = behind.session.checkpoint_start()?;
            behind.session.wait(handle, Level::Node)?;
            let start = monotonic_ns();
            let (mut beside, mut parts) = (0.0, 0.0);
            while !behind.session.test(&handle, Level::Protected)? {
                beside += stencil(field.words(), 0.01);
                parts += 1.0;
            }
            let seconds = backstay_bench::as_f64(monotonic_ns() - start) * 1e-9;
            behind.session.wait(handle, Level::Protected)?;
            let slower = job.most(idle / (beside / f64::max(parts, 1.0)))?;
            job.tell(&format!("redundancy.slowdown.{name}"), slower)?;
            let rate = backstay_bench::size_f64(mib << 20) / seconds * 1e-6;
            job.tell(&format!("redundancy.rate.{name}"), rate)?;
        }
        behind.end()?;
    }
    Ok(())
}
