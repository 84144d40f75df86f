// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From the call of a checkpoint until it is protected: full ones and differential ones, under each
//! scheme, each run beside the baseline.

use crate::ring::Ring;
use backstay::config::Redundancy;
use backstay::{Communicator, Config, ElementType, Level, Session, Variable};
use backstay_bench::Outcome;
use backstay_bench::field::{Field, Place};
use backstay_bench::job::{Cost, Job, monotonic_ns};

/// A session of one scheme over a field.
pub(crate) struct Protected {
    pub(crate) session: Session,
}

impl Protected {
    /// Opens the job `name`; the field is its one variable. Collective.
    #[expect(unsafe_code, reason = "a variable is named by its address")]
    pub(crate) fn open(
        job: &Job,
        name: &str,
        redundancy: Redundancy,
        field: &mut Field,
        rate_bytes: Option<u64>,
    ) -> Outcome<Self> {
        let config = Config {
            job: Some(format!("bench-{name}")),
            node: Some(format!("node{}", job.comm.rank())),
            redundancy,
            changed_share: 1.0,
            // Each node believes that it has all processors, which four of them share.
            capture_threads: Some(1),
            encode_rate_bytes: rate_bytes,
            ..Config::default()
        };
        let mut session = Session::open(Box::new(job.comm.clone()), config)?;
        let words = backstay::format::width::to_u64(field.words().len());
        let variable = Variable::new("field", ElementType::F64, &[words]);
        // SAFETY: the field outlives the session, and no other thread touches it meanwhile.
        unsafe { session.protect(variable, field.address())? };
        Ok(Self { session })
    }

    /// One checkpoint until it is safe at `level`: its cost, and seconds from the commit on. Collective.
    pub(crate) fn checkpoint(&mut self, job: &Job, level: Level) -> Outcome<(Cost, f64)> {
        let session = &mut self.session;
        let (after, cost) = job.measure(|| {
            let handle = session.checkpoint_start()?;
            session.wait(handle, Level::Node)?;
            let committed = monotonic_ns();
            if level == Level::Protected {
                session.wait(handle, Level::Protected)?;
            }
            Ok(monotonic_ns() - committed)
        })?;
        Ok((cost, job.most(backstay_bench::as_f64(after) * 1e-9)?))
    }

    /// Ends the session and removes its store. Collective.
    pub(crate) fn end(self) -> Outcome<()> {
        let directory = self.session.directory();
        self.session.close()?;
        std::fs::remove_dir_all(directory)?;
        Ok(())
    }
}

fn change_all(field: &mut Field) {
    let all: Vec<usize> = (0..field.granules()).collect();
    field.change(&all);
}

/// The scenario: `arguments` are MiB a rank and runs.
pub(crate) fn run(job: &Job, arguments: &[String]) -> Outcome<()> {
    let mib: usize = arguments.first().ok_or("no size")?.parse()?;
    let runs: usize = arguments.get(1).ok_or("no runs")?.parse()?;
    let seed = u64::from(job.comm.rank());
    let mut field = Field::new(mib << 20, 16_384, seed);
    let mut ring = Ring::join(job, field.len_bytes())?;
    for (name, redundancy) in [
        ("none", Redundancy::None),
        ("partner", Redundancy::Partner),
        ("xor", Redundancy::Xor),
        ("rs", Redundancy::Rs),
    ] {
        let level = match redundancy {
            Redundancy::None => Level::Node,
            _ => Level::Protected,
        };
        let mut protected = Protected::open(job, name, redundancy, &mut field, None)?;
        for _ in 0..4 {
            change_all(&mut field);
            protected.checkpoint(job, level)?;
        }
        for _ in 0..runs {
            let write = Ring::write(job, field.words())?;
            let exchange = ring.exchange(job, field.words())?;
            job.tell("baseline.write", write.wall * 1e3)?;
            job.tell("baseline.ring", exchange.wall * 1e3)?;
            change_all(&mut field);
            let (full, from_commit) = protected.checkpoint(job, level)?;
            if level == Level::Node {
                job.tell("redundancy.none", full.wall * 1e3)?;
                continue;
            }
            let baseline = (write.wall + exchange.wall, write.cpu + exchange.cpu);
            job.tell(&format!("redundancy.full.{name}"), full.wall / baseline.0)?;
            job.tell(
                &format!("redundancy.full.{name}.cpu"),
                full.cpu / baseline.1,
            )?;
            job.tell(&format!("redundancy.protect.{name}"), from_commit * 1e3)?;
            if redundancy == Redundancy::Xor {
                changed(job, &mut protected, &mut field, full.wall)?;
            }
        }
        protected.end()?;
    }
    Ok(())
}

/// Checkpoints with 3 % changed, over a full one's time.
fn changed(job: &Job, protected: &mut Protected, field: &mut Field, full: f64) -> Outcome<()> {
    for seed in 0..4 {
        let chosen = field.choose(0.03, Place::Scattered, seed);
        field.change(&chosen);
        let (cost, from_commit) = protected.checkpoint(job, Level::Protected)?;
        job.tell("redundancy.changed.call", cost.wall / full)?;
        job.tell("redundancy.changed.commit", from_commit / full)?;
    }
    Ok(())
}
