// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: one job whose nodes are served by one staging server, drained again and again.
//! In from: `main`, a setting. Out to: it, rates and cores.
//! Invariants: the server is a process of its own, and of no node, so it reads all of them over TCP; everything
//! changes before each drain.

use crate::Found;
use backstay::config::ArchiveCodec;
use backstay::{Communicator, Config, ElementType, Level, Session, Variable};
use backstay_bench::field::Field;
use backstay_bench::job::cpu_seconds;
use backstay_bench::{Outcome, as_f64, size_f64};
use backstay_testkit::comm::{ThreadComm, run_ranks};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// What the server's process is started with.
pub(crate) const SERVER: &str = "--server";
pub(crate) const SERVER_NAME: &str = "stage0";
/// State of a node.
pub(crate) const NODE_BYTES: usize = 32 << 20;
/// Drains before those that count: files have their size then.
const WARM: usize = 3;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Setting {
    pub(crate) nodes: usize,
    pub(crate) writer_threads: u32,
    pub(crate) drains: usize,
}

/// Writes as many bytes to a file that has them, and syncs it; MB/s.
pub(crate) fn plain_write(folder: &Path, bytes: usize) -> Outcome<f64> {
    std::fs::create_dir_all(folder)?;
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(folder.join("plain"))?;
    let piece = vec![7_u8; 4 << 20];
    let begun = Instant::now();
    for offset in (0..bytes).step_by(piece.len()) {
        file.write_all_at(&piece, backstay::format::width::to_u64(offset))?;
    }
    file.sync_data()?;
    Ok(size_f64(bytes) / begun.elapsed().as_secs_f64() * 1e-6)
}

/// Seconds of CPU that a process used.
fn used(pid: u32) -> Outcome<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields: Vec<&str> = stat
        .rsplit_once(')')
        .ok_or("no name of a process")?
        .1
        .split_whitespace()
        .collect();
    let ticks = |at: usize| -> Outcome<u64> { Ok(fields.get(at).ok_or("no ticks")?.parse()?) };
    let second = as_f64(rustix::param::clock_ticks_per_second());
    Ok(as_f64(ticks(11)? + ticks(12)?) / second)
}

/// The server of one job, which ends with this.
struct Server(Child);

impl Server {
    fn start(archive: &Path, job: &str) -> Outcome<Self> {
        let child = Command::new(std::env::current_exe()?)
            .args([SERVER.as_ref(), archive.as_os_str(), job.as_ref()])
            .spawn()?;
        let server = Self(child);
        let entry = archive.join(job).join(format!("server-{SERVER_NAME}.json"));
        for _ in 0..1000 {
            if entry.exists() {
                return Ok(server);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Err(format!("no server for {job}").into())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

impl Setting {
    /// Runs the job below `folder`, and removes what it left.
    pub(crate) fn run(self, folder: &Path) -> Outcome<Found> {
        let job = format!("nodes-{}-threads-{}", self.nodes, self.writer_threads);
        let archive = folder.join("pfs");
        std::fs::create_dir_all(&archive)?;
        let server = Server::start(&archive, &job)?;
        let stores = PathBuf::from("/dev/shm").join(format!("{job}-{}", std::process::id()));
        std::fs::create_dir_all(&stores)?;
        let rank = |comm: ThreadComm| self.rank(comm, &job, (&archive, &stores), server.0.id());
        let outcomes = run_ranks(ThreadComm::new(self.nodes), rank);
        std::fs::remove_dir_all(&stores)?;
        drop(server);
        let mut all = outcomes.into_iter().collect::<Outcome<Vec<Found>>>()?;
        let files = aggregates(&archive.join(&job))?;
        std::fs::remove_dir_all(archive.join(&job))?;
        if files != 1 {
            return Err(
                format!("{job}: {files} files of aggregators instead of the server's").into(),
            );
        }
        Ok(all.swap_remove(0))
    }

    #[expect(unsafe_code, reason = "a variable is named by its address")]
    fn rank(
        self,
        comm: ThreadComm,
        job: &str,
        (archive, stores): (&Path, &Path),
        server: u32,
    ) -> Outcome<Found> {
        let rank = comm.rank();
        let config = Config {
            job: Some(job.to_owned()),
            node: Some(format!("node{rank}")),
            store_path: Some(stores.join(format!("node{rank}"))),
            archive: Some(archive.to_owned()),
            archive_codec: ArchiveCodec::Raw,
            archive_write_threads: self.writer_threads,
            changed_share: 1.0,
            listen_address: Some("127.0.0.1:0".to_owned()),
            ..Config::default()
        };
        let mut field = Field::new(NODE_BYTES, 16_384, u64::from(rank));
        let mut session = Session::open(Box::new(comm), config)?;
        let words = backstay::format::width::to_u64(field.words().len());
        let variable = Variable::new("field", ElementType::F64, &[words]);
        // SAFETY: the field outlives the session, and no other thread touches it meanwhile.
        unsafe { session.protect(variable, field.address())? };
        let mut found = Found {
            nodes: self.nodes,
            writer_threads: self.writer_threads,
            mb_per_second: Vec::new(),
            server_cores: Vec::new(),
            node_cores: Vec::new(),
        };
        let all: Vec<usize> = (0..field.granules()).collect();
        for drain in 0..WARM + self.drains {
            field.change(&all);
            let handle = session.checkpoint_start()?;
            // All nodes have committed when this returns.
            session.wait(handle, Level::Node)?;
            let (begun, ours, its) = (Instant::now(), cpu_seconds(), used(server)?);
            session.wait(handle, Level::Archive)?;
            let seconds = begun.elapsed().as_secs_f64();
            if drain >= WARM {
                let bytes = size_f64(self.nodes * NODE_BYTES);
                found.mb_per_second.push(bytes / seconds * 1e-6);
                found.server_cores.push((used(server)? - its) / seconds);
                found.node_cores.push((cpu_seconds() - ours) / seconds);
            }
        }
        session.close()?;
        Ok(found)
    }
}

/// Files with segments in the archive of a job.
fn aggregates(folder: &Path) -> Outcome<usize> {
    let mut found = 0;
    for entry in std::fs::read_dir(folder)? {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        found += usize::from(name.starts_with("aggregate") && !name.ends_with(".lock"));
    }
    Ok(found)
}
