// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What draining takes from the application: blocking time of its checkpoints while all cores compute, and
//! speed of a stencil and of a loop beside a staging server on the other core, at several rates.

use crate::archive;
use crate::drain::{Draining, change_all};
use backstay::{Communicator, Config, Level};
use backstay_bench::field::Field;
use backstay_bench::figures::median;
use backstay_bench::job::{Job, monotonic_ns};
use backstay_bench::load::{rate, spin, stencil};
use backstay_bench::{Outcome, as_f64, size_f64};

/// The jobs of the slowdown scenario: one for each rate, with a server each.
pub(crate) const JOBS: [&str; 4] = ["free", "eighth", "quarter", "half"];

/// The scenario: a checkpoint every twice the time to drain, computing all the time between.
pub(crate) fn blocking(job: &Job, arguments: &[String]) -> Outcome<()> {
    let mib: usize = arguments.first().ok_or("no size")?.parse()?;
    let runs: usize = arguments.get(1).ok_or("no runs")?.parse()?;
    let seed = u64::from(job.comm.rank());
    let mut field = Field::new(mib << 20, 16_384, seed);
    let mut other = Field::new(mib << 20, 16_384, seed + 100);
    let mut alone = Draining::open(job, "alone", &mut field, |_| {})?;
    let open = |config: &mut Config| config.archive = Some(archive(&job.folder));
    let mut behind = Draining::open(job, "behind", &mut other, open)?;
    let mut to_drain = Vec::new();
    for _ in 0..3 {
        stencil(field.words(), 0.1);
        stencil(other.words(), 0.3);
        alone.session.checkpoint()?;
        to_drain.push(behind.archived(job)?);
    }
    let interval = 2.0 * job.most(median(&to_drain).unwrap_or(0.5))?;
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        stencil(field.words(), interval);
        without.push(job.most(alone.session.checkpoint()?.blocking_time.as_secs_f64())?);
    }
    for run in 0..=runs {
        // Half of the time the one before still drains when the next is taken.
        stencil(other.words(), interval / 4.0);
        let seconds = job.most(behind.session.checkpoint()?.blocking_time.as_secs_f64())?;
        if run > 0 {
            with.push(seconds);
        }
    }
    let base = median(&without).ok_or("no runs")?;
    for seconds in with {
        job.tell("archive.blocking", seconds / base)?;
    }
    behind.end()?;
    alone.end()
}

/// The scenario: how much slower a stencil and a loop are while a server drains a checkpoint.
pub(crate) fn slowdown(job: &Job, arguments: &[String]) -> Outcome<()> {
    let mib: usize = arguments.first().ok_or("no size")?.parse()?;
    let runs: usize = arguments.get(1).ok_or("no runs")?.parse()?;
    let mut field = Field::new(mib << 20, 16_384, u64::from(job.comm.rank()));
    let mut full = 0.0;
    for (name, share) in JOBS.into_iter().zip([0.0, 0.125, 0.25, 0.5]) {
        let open = |config: &mut Config| {
            config.archive = Some(archive(&job.folder));
            config.archive_rate_bytes = limit(full * share);
        };
        let mut behind = Draining::open(job, name, &mut field, open)?;
        let mut rates = Vec::new();
        for _ in 0..3 {
            change_all(&mut field);
            rates.push(size_f64(mib << 20) / behind.archived(job)?);
        }
        if name == "free" {
            full = median(&rates).ok_or("no rate")?;
        }
        for _ in 0..runs.min(5) {
            change_all(&mut field);
            let idle = stencil(field.words(), 0.5);
            let (slower, seconds) = beside(&mut behind, idle, || stencil(field.words(), 0.01))?;
            job.tell(&format!("archive.slowdown.stencil.{name}"), slower)?;
            let drained = size_f64(mib << 20) / seconds * 1e-6;
            job.tell(&format!("archive.rate.{name}"), drained)?;
            change_all(&mut field);
            let idle = rate(0.5, spin);
            let (slower, _) = beside(&mut behind, idle, || rate(0.01, spin))?;
            job.tell(&format!("archive.slowdown.loop.{name}"), slower)?;
        }
        behind.end()?;
    }
    Ok(())
}

/// Takes a checkpoint, and works while it drains: how much slower than `idle`, and the seconds.
fn beside(behind: &mut Draining, idle: f64, mut work: impl FnMut() -> f64) -> Outcome<(f64, f64)> {
    let handle = behind.session.checkpoint_start()?;
    behind.session.wait(handle, Level::Node)?;
    let start = monotonic_ns();
    let (mut done, mut parts) = (0.0, 0.0);
    while !behind.session.test(&handle, Level::Archive)? {
        done += work();
        parts += 1.0;
    }
    let seconds = as_f64(monotonic_ns() - start) * 1e-9;
    behind.session.wait(handle, Level::Archive)?;
    Ok((idle / (done / f64::max(parts, 1.0)), seconds))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate in bytes"
)]
fn limit(rate: f64) -> Option<u64> {
    (rate > 0.0).then_some(rate as u64)
}
