// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: two ranks with a large array of which a share changed: checkpoints and restores.

use crate::HEAP;
use backstay::config::Tracking;
use backstay::format::width::to_u64;
use backstay::{Communicator, Config, ElementType, Report, Session, Variable};
use backstay_bench::comm::ProcessComm;
use backstay_bench::field::{Field, Place};
use backstay_bench::job::{Cost, Job};
use backstay_bench::{MIB, Outcome, as_f64, baseline, heap, size_f64, syscalls};

const GRANULE: usize = 16 << 10;
/// Full checkpoints before anything is measured: after them all space is recycled.
const WARM_UP: usize = 3;

/// One rank, its array, and a second one to copy to.
struct Solver<'a> {
    job: &'a Job,
    field: Field,
    other: Vec<f64>,
    session: Option<Session>,
    /// The session's communicator: only its calls are counted here.
    calls: ProcessComm,
    heap_before: usize,
    tables_before: u64,
}

impl<'a> Solver<'a> {
    fn start(job: &'a Job, mib: usize, tracking: Tracking) -> Outcome<Self> {
        let field = Field::new(mib * MIB, GRANULE, u64::from(job.comm.rank()));
        let other = vec![1.0; mib * MIB / 8];
        let mut solver = Self {
            job,
            field,
            other,
            session: None,
            calls: job.comm.counted(),
            heap_before: 0,
            tables_before: heap::status_bytes("VmPTE"),
        };
        solver.copy()?;
        solver.heap_before = HEAP.held();
        solver.open(tracking)?;
        Ok(solver)
    }

    fn open(&mut self, tracking: Tracking) -> Outcome<()> {
        let config = Config {
            tracking,
            changed_share: 1.0,
            ..self.job.config("store")
        };
        let mut session = Session::open(Box::new(self.calls.clone()), config)?;
        protect(&mut session, &mut self.field)?;
        self.session = Some(session);
        Ok(())
    }

    fn warm_up(&mut self) -> Outcome<()> {
        for _ in 0..WARM_UP {
            self.change(1.0, 0);
            self.checkpoint()?;
        }
        Ok(())
    }

    fn change(&mut self, share: f64, seed: usize) -> Vec<usize> {
        let seed = to_u64(seed) * 64 + u64::from(self.job.comm.rank());
        let chosen = self.field.choose(share, Place::Scattered, seed);
        self.field.change(&chosen);
        chosen
    }

    fn copy(&mut self) -> Outcome<Cost> {
        let (from, to) = (self.field.words(), &mut self.other);
        let copied = self.job.measure(|| {
            baseline::copy(from, to);
            Ok(())
        });
        Ok(copied?.1)
    }

    fn checkpoint(&mut self) -> Outcome<(Report, Cost)> {
        let session = self.session.as_mut().ok_or("no session")?;
        self.job.measure(|| Ok(session.checkpoint()?))
    }

    /// A checkpoint and a copy: the ratio of their CPU times is the figure `id`.
    fn compare(&mut self, id: &str) -> Outcome<Report> {
        let copy = self.copy()?;
        let calls = self.calls.calls();
        let (report, cost) = self.checkpoint()?;
        self.job
            .tell("capture.comm_calls", as_f64(self.calls.calls() - calls))?;
        let bytes = 2.0 * size_f64(self.field.len_bytes());
        self.job.tell("baseline.memcpy", bytes / copy.cpu / 1e9)?;
        self.job.tell(id, cost.cpu / copy.cpu)?;
        Ok(report)
    }

    /// MiB a GiB protected, of the rank that holds most.
    fn tell_memory(&self, id: &str, bytes: usize) -> Outcome<()> {
        let held = size_f64(bytes) / size_f64(self.field.len_bytes()) * 1024.0;
        let most = self.job.most(held)?;
        self.job.tell(id, most)
    }
}

/// Protects a field as one variable.
#[expect(unsafe_code, reason = "protecting memory is unsafe by contract")]
fn protect(session: &mut Session, field: &mut Field) -> Outcome<()> {
    let length = to_u64(field.words().len());
    let variable = Variable::new("field", ElementType::F64, &[length]);
    // SAFETY: the field keeps its memory, and is written by this thread only, between checkpoints.
    Ok(unsafe { session.protect(variable, field.address()) }.map(drop)?)
}

/// 0, 0.1, 3 and 100 % changed, found by hash; memory held.
pub(crate) fn hash(job: &Job, arguments: &[String]) -> Outcome<()> {
    let (mib, runs) = sizes(arguments)?;
    let mut solver = Solver::start(job, mib, Tracking::Hash)?;
    solver.warm_up()?;
    for run in 0..runs {
        let report = solver.compare("capture.hash.clean")?;
        job.tell(
            "capture.manifest.0",
            job.sum(as_f64(report.bytes_manifest))?,
        )?;
        solver.change(0.001, run * 4 + 1);
        let (report, _) = solver.checkpoint()?;
        let (manifest, data) = (
            job.sum(as_f64(report.bytes_manifest))?,
            job.sum(as_f64(report.bytes_changed))?,
        );
        job.tell("capture.manifest.0_1", manifest / data)?;
        solver.change(0.03, run * 4 + 2);
        HEAP.start_peak();
        solver.compare("capture.hash.3")?;
        solver.tell_memory("memory.peak.3", HEAP.peak() - solver.heap_before)?;
        full(&mut solver, run)?;
        solver.tell_memory("memory.between", HEAP.held() - solver.heap_before)?;
        let tables = heap::status_bytes("VmPTE").saturating_sub(solver.tables_before);
        solver.tell_memory(
            "memory.page_tables",
            backstay::format::width::to_usize(tables),
        )?;
    }
    solver.session.take().ok_or("no session")?.close()?;
    Ok(())
}

/// Everything changed, beside the same bytes written to a new file.
fn full(solver: &mut Solver<'_>, run: usize) -> Outcome<()> {
    let job = solver.job;
    solver.change(1.0, run * 4 + 3);
    let path = job.own_file("plain");
    let bytes = baseline::as_bytes(solver.field.words());
    let (_, plain) = job.measure(|| baseline::write_fresh(&path, bytes))?;
    std::fs::remove_file(&path)?;
    HEAP.start_peak();
    let (_, cost) = solver.checkpoint()?;
    solver.tell_memory("memory.peak", HEAP.peak() - solver.heap_before)?;
    let copy = solver.copy()?;
    let bytes = 2.0 * size_f64(solver.field.len_bytes());
    job.tell("baseline.fresh", bytes / plain.wall / 1e9)?;
    job.tell("capture.full.100", cost.wall / plain.wall)?;
    job.tell("capture.full.100.cpu", cost.cpu / copy.cpu)
}

/// The first checkpoints of a job, each of everything, beside the same bytes written to a new file each time.
pub(crate) fn growing(job: &Job, arguments: &[String]) -> Outcome<()> {
    let (mib, runs) = sizes(arguments)?;
    let mut field = Field::new(mib * MIB, GRANULE, u64::from(job.comm.rank()));
    for run in 0..runs {
        let config = Config {
            changed_share: 1.0,
            ..job.config(&format!("growing{run}"))
        };
        let store = config.store_path.clone().ok_or("no path")?;
        let mut session = Session::open(Box::new(job.comm.clone()), config)?;
        protect(&mut session, &mut field)?;
        for (number, name) in ["first", "second", "third"].into_iter().enumerate() {
            let all: Vec<usize> = field.choose(1.0, Place::Scattered, to_u64(run * 4 + number));
            field.change(&all);
            let path = job.own_file("plain");
            let bytes = baseline::as_bytes(field.words());
            let (_, plain) = job.measure(|| baseline::write_fresh(&path, bytes))?;
            std::fs::remove_file(&path)?;
            let (_, cost) = job.measure(|| Ok(session.checkpoint()?))?;
            job.tell(&format!("capture.growing.{name}"), cost.wall / plain.wall)?;
            job.tell("capture.growing", cost.wall / plain.wall)?;
        }
        session.close()?;
        if job.comm.rank() == 0 {
            std::fs::remove_dir_all(store)?;
        }
        job.comm.barrier()?;
    }
    Ok(())
}

/// 0 and 3 % changed, found by page; what the faults cost the program.
pub(crate) fn pages(job: &Job, arguments: &[String]) -> Outcome<()> {
    let (mib, runs) = sizes(arguments)?;
    let mut solver = Solver::start(job, mib, Tracking::Pages)?;
    solver.warm_up()?;
    for run in 0..runs {
        solver.compare("capture.pages.clean")?;
        let seed = to_u64(run) * 64 + u64::from(job.comm.rank());
        let chosen = solver.field.choose(0.03, Place::Scattered, seed);
        let write = |field: &mut Field| {
            field.change(&chosen);
            Ok(())
        };
        let ((), first) = job.measure(|| write(&mut solver.field))?;
        let ((), second) = job.measure(|| write(&mut solver.field))?;
        let copy = solver.copy()?;
        job.tell(
            "capture.pages.3.faults",
            (first.cpu - second.cpu) / copy.cpu,
        )?;
        solver.compare("capture.pages.3")?;
    }
    solver.session.take().ok_or("no session")?.close()?;
    Ok(())
}

/// Restores of everything, beside reading the same bytes from a plain file.
pub(crate) fn restore(job: &Job, arguments: &[String]) -> Outcome<()> {
    let (mib, runs) = sizes(arguments)?;
    let mut solver = Solver::start(job, mib, Tracking::Hash)?;
    solver.warm_up()?;
    let bytes = baseline::as_bytes(solver.field.words());
    let expected = backstay::format::Digest::of(bytes);
    let plain = baseline::write_fresh(&job.own_file("plain"), bytes)?;
    for _ in 0..runs {
        drop(solver.session.take());
        let bytes = baseline::as_bytes_mut(solver.field.words());
        let ((), read) = job.measure(|| baseline::read(&plain, bytes))?;
        solver
            .field
            .change(&(0..solver.field.granules()).collect::<Vec<_>>());
        let ((), open) = job.measure(|| solver.open(Tracking::Hash))?;
        let session = solver.session.as_mut().ok_or("no session")?;
        let (_, cost) = job.measure(|| Ok(session.restore()?))?;
        if backstay::format::Digest::of(baseline::as_bytes(solver.field.words())) != expected {
            return Err("what was restored is not what was stored".into());
        }
        let bytes = 2.0 * size_f64(solver.field.len_bytes());
        job.tell("baseline.pread", bytes / read.wall / 1e9)?;
        job.tell("restore", cost.wall / read.wall)?;
        job.tell("restore.open", open.wall * 1e3)?;
    }
    Ok(())
}

/// Checkpoints with marks around them, for a tracer.
pub(crate) fn calls(job: &Job) -> Outcome<()> {
    let mut solver = Solver::start(job, 16, Tracking::Hash)?;
    solver.warm_up()?;
    for run in 0..7 {
        solver.change(0.03, run);
        job.comm.barrier()?;
        syscalls::mark_begin();
        solver.session.as_mut().ok_or("no session")?.checkpoint()?;
        syscalls::mark_end();
    }
    Ok(())
}

fn sizes(arguments: &[String]) -> Outcome<(usize, usize)> {
    match arguments {
        [mib, runs] => Ok((mib.parse()?, runs.parse()?)),
        _ => Err("wants MiB and runs".into()),
    }
}
