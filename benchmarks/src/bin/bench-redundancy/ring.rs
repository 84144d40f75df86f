// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The baseline: each rank writes its bytes to a new file in memory, then sends them to the next rank
//! and receives those of the one before, over one TCP connection each.

use backstay::Communicator;
use backstay_bench::Outcome;
use backstay_bench::baseline::as_bytes;
use backstay_bench::job::{Cost, Job};
use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;

/// Bytes of one write to the file or the socket.
const CHUNK_BYTES: usize = 1 << 20;

/// The connections of one rank.
pub(crate) struct Ring {
    to: TcpStream,
    from: TcpStream,
    received: Vec<u8>,
}

impl Ring {
    /// Connects each rank to the next. Collective.
    pub(crate) fn join(job: &Job, bytes: usize) -> Outcome<Self> {
        let listener = TcpListener::bind(("0.0.0.0", 0))?;
        let host = backstay_net::announced_host(None)?;
        let size = backstay::format::width::index(job.comm.size());
        let me = backstay::format::width::index(job.comm.rank());
        let mut mine = [0; 64];
        let address = format!("{host}:{}", listener.local_addr()?.port());
        mine[..address.len()].copy_from_slice(address.as_bytes());
        let mut all = vec![0; 64 * size];
        job.comm.allgather(&mine, &mut all)?;
        let next = &all[(me + 1) % size * 64..][..64];
        let next = std::str::from_utf8(next)?.trim_end_matches('\0');
        let to = TcpStream::connect(next)?;
        let (from, _) = listener.accept()?;
        to.set_nodelay(true)?;
        Ok(Self {
            to,
            from,
            received: vec![1; bytes],
        })
    }

    /// Writes `words` to a new file in memory; the cost. Collective.
    pub(crate) fn write(job: &Job, words: &[f64]) -> Outcome<Cost> {
        let path = format!("/dev/shm/bench-fresh-{}", job.comm.rank());
        let bytes = as_bytes(words);
        let (file, cost) = job.measure(|| {
            let mut options = OpenOptions::new();
            let file = options.write(true).create_new(true).open(&path)?;
            for (at, chunk) in bytes.chunks(CHUNK_BYTES).enumerate() {
                let offset = backstay::format::width::to_u64(at * CHUNK_BYTES);
                file.write_all_at(chunk, offset)?;
            }
            Ok(file)
        })?;
        drop(file);
        std::fs::remove_file(&path)?;
        Ok(cost)
    }

    /// Sends `words` to the next rank and receives as many bytes; the cost. Collective.
    pub(crate) fn exchange(&mut self, job: &Job, words: &[f64]) -> Outcome<Cost> {
        let bytes = as_bytes(words);
        let (to, from, received) = (&mut self.to, &mut self.from, &mut self.received);
        let ((), cost) = job.measure(|| {
            std::thread::scope(|scope| {
                let sent = scope.spawn(|| -> std::io::Result<()> {
                    bytes
                        .chunks(CHUNK_BYTES)
                        .try_for_each(|chunk| to.write_all(chunk))
                });
                for chunk in received.chunks_mut(CHUNK_BYTES) {
                    from.read_exact(chunk)?;
                }
                sent.join().map_err(|_panic| "sending panicked")??;
                Ok(())
            })
        })?;
        Ok(cost)
    }
}
