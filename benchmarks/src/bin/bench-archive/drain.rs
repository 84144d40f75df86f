// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From the commit of a checkpoint until it is in the archive, beside plain writes of the same bytes.

use crate::archive;
use backstay::config::ArchiveCodec;
use backstay::{Communicator, Config, ElementType, Level, Session, Variable};
use backstay_bench::field::Field;
use backstay_bench::job::{Job, cpu_seconds, monotonic_ns};
use backstay_bench::{Outcome, as_f64, size_f64};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A session that drains a field.
pub(crate) struct Draining {
    pub(crate) session: Session,
}

impl Draining {
    /// Opens the job `name`; the field is its one variable. Collective.
    #[expect(unsafe_code, reason = "a variable is named by its address")]
    pub(crate) fn open(
        job: &Job,
        name: &str,
        field: &mut Field,
        change: impl FnOnce(&mut Config),
    ) -> Outcome<Self> {
        let mut config = Config {
            job: Some(name.to_owned()),
            node: Some("node0".to_owned()),
            changed_share: 1.0,
            listen_address: Some("127.0.0.1:0".to_owned()),
            archive_codec: ArchiveCodec::Raw,
            ..Config::default()
        };
        change(&mut config);
        let mut session = Session::open(Box::new(job.comm.clone()), config)?;
        let words = backstay::format::width::to_u64(field.words().len());
        let variable = Variable::new("field", ElementType::F64, &[words]);
        // SAFETY: the field outlives the session, and no other thread touches it meanwhile.
        unsafe { session.protect(variable, field.address())? };
        Ok(Self { session })
    }

    /// One checkpoint until it is in the archive: seconds from its commit on. Collective.
    pub(crate) fn archived(&mut self, job: &Job) -> Outcome<f64> {
        self.archived_with_cpu(job).map(|(seconds, _)| seconds)
    }

    /// The same, and this process's CPU time from the commit on.
    fn archived_with_cpu(&mut self, job: &Job) -> Outcome<(f64, f64)> {
        let handle = self.session.checkpoint_start()?;
        self.session.wait(handle, Level::Node)?;
        let (committed, cpu) = (monotonic_ns(), cpu_seconds());
        self.session.wait(handle, Level::Archive)?;
        let seconds = as_f64(monotonic_ns() - committed) * 1e-9;
        Ok((job.most(seconds)?, cpu_seconds() - cpu))
    }

    /// Ends the session and removes its store. Collective.
    pub(crate) fn end(self) -> Outcome<()> {
        let directory = self.session.directory();
        self.session.close()?;
        drop(std::fs::remove_dir_all(directory));
        Ok(())
    }
}

/// Changes everything.
pub(crate) fn change_all(field: &mut Field) {
    let all: Vec<usize> = (0..field.granules()).collect();
    field.change(&all);
}

/// Writes `words` to a file that has its size, in so many threads, and syncs it.
fn plain(path: &Path, words: &[f64], threads: usize) -> Outcome<f64> {
    let bytes = words.len() * 8;
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)?;
    let start = monotonic_ns();
    let share = words.len().div_ceil(threads);
    std::thread::scope(|scope| {
        let parts = words.chunks(share).enumerate();
        let writers: Vec<_> = parts
            .map(|(at, part)| {
                let file = &file;
                scope.spawn(move || -> std::io::Result<()> {
                    let mut buffer = Vec::with_capacity(4 << 20);
                    for (piece, chunk) in part.chunks(512 << 10).enumerate() {
                        buffer.clear();
                        buffer.extend(chunk.iter().flat_map(|word| word.to_le_bytes()));
                        let offset = (at * share + piece * (512 << 10)) * 8;
                        file.write_all_at(&buffer, backstay::format::width::to_u64(offset))?;
                    }
                    Ok(())
                })
            })
            .collect();
        writers.into_iter().try_for_each(|writer| {
            let panicked = |_| Err(std::io::Error::other("a writer panicked"));
            writer.join().unwrap_or_else(panicked)
        })
    })?;
    file.sync_data()?;
    let seconds = as_f64(monotonic_ns() - start) * 1e-9;
    debug_assert!(bytes > 0);
    Ok(seconds)
}

/// The scenario: `arguments` are MiB and runs.
pub(crate) fn run(job: &Job, arguments: &[String]) -> Outcome<()> {
    let mib: usize = arguments.first().ok_or("no size")?.parse()?;
    let runs: usize = arguments.get(1).ok_or("no runs")?.parse()?;
    let threads = [1_usize, 4, 16];
    let mut field = Field::new(mib << 20, 16_384, u64::from(job.comm.rank()));
    let bytes = size_f64(mib << 20);
    let mut jobs = Vec::new();
    for count in threads {
        let open = |config: &mut Config| {
            config.archive = Some(archive(&job.folder));
            config.archive_write_threads = u32::try_from(count).unwrap_or(1);
        };
        jobs.push(Draining::open(
            job,
            &format!("drain-{count}"),
            &mut field,
            open,
        )?);
    }
    let choosing = |config: &mut Config| {
        config.archive = Some(archive(&job.folder));
        config.archive_codec = ArchiveCodec::Auto;
    };
    let mut auto = Draining::open(job, "drain-auto", &mut field, choosing)?;
    let file = job.own_file("plain");
    // Reserved space, and files that have their blocks, on both sides.
    for _ in 0..4 {
        change_all(&mut field);
        for draining in jobs.iter_mut().chain([&mut auto]) {
            draining.archived(job)?;
        }
        plain(&file, field.words(), 1)?;
    }
    for _ in 0..runs {
        change_all(&mut field);
        let (mut drained, mut written) = (f64::MAX, f64::MAX);
        let (mut drain_cpu, mut plain_cpu, mut raw) = (0.0, 0.0, 0.0);
        for (draining, count) in jobs.iter_mut().zip(threads) {
            let before = cpu_seconds();
            let seconds = plain(&file, field.words(), count)?;
            plain_cpu += cpu_seconds() - before;
            job.tell(&format!("baseline.write.{count}"), bytes / seconds * 1e-6)?;
            written = written.min(seconds);
            let (seconds, cpu) = draining.archived_with_cpu(job)?;
            drain_cpu += cpu;
            job.tell(&format!("archive.drain.{count}"), bytes / seconds * 1e-6)?;
            drained = drained.min(seconds);
            // As many threads write where nothing is said.
            if count == threads[1] {
                raw = seconds;
            }
        }
        job.tell("archive.drain.auto", auto.archived(job)? / raw)?;
        job.tell("archive.drain.time", drained / written)?;
        job.tell("archive.drain.cpu", drain_cpu / plain_cpu)?;
    }
    jobs.into_iter().chain([auto]).try_for_each(Draining::end)
}
