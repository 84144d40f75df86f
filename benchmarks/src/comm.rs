// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a communicator whose ranks are processes of one machine, joined by Unix sockets.
//! In from: `job`, and the sessions it opens. Out to: rank 0, which gathers and sends to all.
//! Invariants: a rank that waits sleeps in the kernel and costs no CPU time; a rank that ends makes
//! the calls of all others fail; no call waits longer than `LIMIT`.

use crate::Outcome;
use backstay::{Communicator, Error, ErrorKind, Result};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Longest wait for another rank.
const LIMIT: Duration = Duration::from_secs(300);

/// The sockets of one rank.
#[derive(Debug)]
enum Links {
    /// Rank 0 to each other rank, in their order.
    Hub(Vec<UnixStream>),
    /// Another rank to rank 0.
    Spoke(UnixStream),
}

/// A communicator between processes. Clones share the sockets and are used one call at a time.
#[derive(Debug, Clone)]
pub struct ProcessComm {
    rank: u32,
    size: u32,
    links: Arc<Mutex<Links>>,
    calls: Arc<AtomicU64>,
}

impl ProcessComm {
    /// Joins the ranks that meet at the socket `path`; rank 0 makes it. Collective.
    pub fn join(rank: u32, size: u32, path: &Path) -> Outcome<Self> {
        let links = if rank == 0 {
            let listener = UnixListener::bind(path)?;
            let mut spokes: Vec<Option<UnixStream>> = (1..size).map(|_rank| None).collect();
            for _ in 1..size {
                let (mut stream, _) = listener.accept()?;
                stream.set_read_timeout(Some(LIMIT))?;
                let mut name = [0; 4];
                stream.read_exact(&mut name)?;
                let index = backstay::format::width::index(u32::from_le_bytes(name)) - 1;
                *spokes.get_mut(index).ok_or("a rank beyond the size")? = Some(stream);
            }
            Links::Hub(spokes.into_iter().flatten().collect())
        } else {
            let mut stream = connect(path)?;
            stream.set_read_timeout(Some(LIMIT))?;
            stream.write_all(&rank.to_le_bytes())?;
            Links::Spoke(stream)
        };
        Ok(Self {
            rank,
            size,
            links: Arc::new(Mutex::new(links)),
            calls: Arc::default(),
        })
    }

    /// The same ranks, with a count of calls of its own.
    #[must_use]
    pub fn counted(&self) -> Self {
        Self {
            calls: Arc::default(),
            ..self.clone()
        }
    }

    /// Collective calls made through this handle and its clones.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    fn exchange(&self, mine: &[u8], all: &mut [u8]) -> Result<()> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if all.len() != mine.len() * backstay::format::width::index(self.size) {
            let context = format!("allgather of {} into {} bytes", mine.len(), all.len());
            return Err(Error::new(ErrorKind::InvalidArgument, context));
        }
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let met = match &mut *links {
            Links::Hub(spokes) => gather(spokes, mine, all),
            Links::Spoke(hub) => hub.write_all(mine).and_then(|()| hub.read_exact(all)),
        };
        met.map_err(|error| Error::caused(ErrorKind::Communicator, "another rank is gone", error))
    }
}

fn gather(spokes: &mut [UnixStream], mine: &[u8], all: &mut [u8]) -> std::io::Result<()> {
    let (own, others) = all.split_at_mut(mine.len());
    own.copy_from_slice(mine);
    if !mine.is_empty() {
        for (spoke, theirs) in spokes.iter_mut().zip(others.chunks_exact_mut(mine.len())) {
            spoke.read_exact(theirs)?;
        }
    }
    spokes.iter_mut().try_for_each(|spoke| spoke.write_all(all))
}

fn connect(path: &Path) -> Outcome<UnixStream> {
    let begin = Instant::now();
    loop {
        match UnixStream::connect(path) {
            Ok(stream) => return Ok(stream),
            Err(error) if begin.elapsed() > Duration::from_secs(30) => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

impl Communicator for ProcessComm {
    fn rank(&self) -> u32 {
        self.rank
    }
    fn size(&self) -> u32 {
        self.size
    }
    fn allgather(&self, mine: &[u8], all: &mut [u8]) -> Result<()> {
        self.exchange(mine, all)
    }
    fn allreduce_max(&self, values: &mut [i64]) -> Result<()> {
        let mine: Vec<u8> = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        let mut all = vec![0; mine.len() * backstay::format::width::index(self.size)];
        self.exchange(&mine, &mut all)?;
        for (index, bytes) in all.chunks_exact(8).enumerate() {
            let mut word = [0; 8];
            word.copy_from_slice(bytes);
            let value = &mut values[index % (mine.len() / 8)];
            *value = (*value).max(i64::from_le_bytes(word));
        }
        Ok(())
    }
    fn barrier(&self) -> Result<()> {
        let mut all = vec![0; backstay::format::width::index(self.size)];
        self.exchange(&[0], &mut all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_gather_reduce_and_notice_that_one_is_gone() {
        let path = std::env::temp_dir().join(format!("backstay-comm-{}", std::process::id()));
        std::thread::scope(|scope| {
            for rank in 0..3 {
                let path = &path;
                scope.spawn(move || {
                    let comm = ProcessComm::join(rank, 3, path).unwrap();
                    let mut all = [0; 6];
                    let own = u8::try_from(rank).unwrap();
                    comm.allgather(&[own, 9], &mut all).unwrap();
                    assert_eq!(all, [0, 9, 1, 9, 2, 9]);
                    let mut values = [i64::from(rank), -i64::from(rank)];
                    comm.allreduce_max(&mut values).unwrap();
                    assert_eq!(values, [2, 0]);
                    comm.barrier().unwrap();
                    assert_eq!(comm.calls(), 3);
                    if rank != 1 {
                        let error = comm.barrier().unwrap_err();
                        assert_eq!(error.kind(), ErrorKind::Communicator);
                    }
                });
            }
        });
        std::fs::remove_file(&path).unwrap();
    }
}
