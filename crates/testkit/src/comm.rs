// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a communicator whose ranks are threads of one process.
//! In from: tests that run a whole job in one process. Out to: other threads.
//! Invariants: no call waits longer than its limit; a rank that fails, calls something else or
//! never comes breaks the communicator, and then every call of every rank is an error.

use backstay_base::{Communicator, Error, ErrorKind, Result};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a call waits for the other ranks where nothing else is said.
pub const LIMIT: Duration = Duration::from_secs(30);

/// Kind of a collective call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Barrier,
    Allgather,
    AllreduceMax,
    /// To this rank.
    Gather(u32),
    /// So many bytes from this rank.
    Broadcast(u32, usize),
}

/// How often one rank called what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CallCounts {
    /// Calls of `barrier`.
    pub barrier: u64,
    /// Calls of `allgather`.
    pub allgather: u64,
    /// Calls of `allreduce_max`.
    pub allreduce_max: u64,
    /// Calls of `gather`.
    pub gather: u64,
    /// Calls of `broadcast`.
    pub broadcast: u64,
    /// Bytes of other ranks that they brought it.
    pub bytes: u64,
}

impl CallCounts {
    /// Calls of any kind.
    pub const fn total(self) -> u64 {
        self.barrier + self.allgather + self.allreduce_max + self.gather + self.broadcast
    }
}

#[derive(Debug, Default)]
struct RankState {
    barrier: AtomicU64,
    allgather: AtomicU64,
    allreduce_max: AtomicU64,
    gather: AtomicU64,
    broadcast: AtomicU64,
    bytes: AtomicU64,
    /// Calls still to succeed before one fails; `u64::MAX` is never.
    calls_left: AtomicU64,
}

/// What one rank brought to the meeting under way.
type Part = (Call, Vec<u8>);

#[derive(Debug)]
struct Meeting {
    /// Meetings completed.
    generation: u64,
    parts: Vec<Option<Part>>,
    /// What the last completed meeting gathered, in order of ranks.
    gathered: Arc<Vec<Vec<u8>>>,
    /// Why no call succeeds any more.
    broken: Option<String>,
}

#[derive(Debug)]
struct Shared {
    limit: Duration,
    ranks: Vec<RankState>,
    meeting: Mutex<Meeting>,
    changed: Condvar,
}

/// One rank of a communicator of threads.
#[derive(Debug)]
pub struct ThreadComm {
    rank: usize,
    shared: Arc<Shared>,
}

impl ThreadComm {
    /// A communicator of `size` ranks, one handle for each.
    pub fn new(size: usize) -> Vec<Self> {
        Self::with_limit(size, LIMIT)
    }

    /// The same, whose calls wait no longer than `limit`.
    pub fn with_limit(size: usize, limit: Duration) -> Vec<Self> {
        let ranks = (0..size).map(|_| RankState {
            calls_left: AtomicU64::new(u64::MAX),
            ..RankState::default()
        });
        let shared = Arc::new(Shared {
            limit,
            ranks: ranks.collect(),
            meeting: Mutex::new(Meeting {
                generation: 0,
                parts: vec![None; size],
                gathered: Arc::default(),
                broken: None,
            }),
            changed: Condvar::new(),
        });
        (0..size)
            .map(|rank| Self {
                rank,
                shared: Arc::clone(&shared),
            })
            .collect()
    }

    /// Runs `body` on every rank, each on its own thread, and returns the results by rank.
    ///
    /// # Panics
    /// Panics where a rank panics.
    pub fn run<T: Send>(size: usize, body: impl Fn(Self) -> T + Sync) -> Vec<T> {
        run_ranks(Self::new(size), body)
    }

    /// Lets `calls` more calls of this rank through; the one after them fails, and with it the
    /// communicator.
    pub fn fail_after(&self, calls: u64) {
        let left = &self.shared.ranks[self.rank].calls_left;
        left.store(calls, Ordering::SeqCst);
    }

    /// As where the process of this rank dies: whoever waits for it in a call, or would, gets an error.
    pub fn die(&self) {
        let mut meeting = lock(&self.shared.meeting);
        if meeting.broken.is_none() {
            meeting.broken = Some(format!("rank {} died", self.rank));
        }
        self.shared.changed.notify_all();
    }

    /// Calls that `rank` made so far.
    pub fn counts(&self, rank: usize) -> CallCounts {
        let state = &self.shared.ranks[rank];
        CallCounts {
            barrier: state.barrier.load(Ordering::SeqCst),
            allgather: state.allgather.load(Ordering::SeqCst),
            allreduce_max: state.allreduce_max.load(Ordering::SeqCst),
            gather: state.gather.load(Ordering::SeqCst),
            broadcast: state.broadcast.load(Ordering::SeqCst),
            bytes: state.bytes.load(Ordering::SeqCst),
        }
    }

    /// Counts the calls of this rank, also when its handle has gone into a session.
    pub fn counter(&self) -> impl Fn() -> CallCounts + Send + Sync + use<> {
        let (rank, shared) = (self.rank, Arc::clone(&self.shared));
        move || {
            Self {
                rank,
                shared: Arc::clone(&shared),
            }
            .counts(rank)
        }
    }

    fn count(&self, call: Call) {
        let state = &self.shared.ranks[self.rank];
        let counter = match call {
            Call::Barrier => &state.barrier,
            Call::Allgather => &state.allgather,
            Call::AllreduceMax => &state.allreduce_max,
            Call::Gather(_) => &state.gather,
            Call::Broadcast(..) => &state.broadcast,
        };
        counter.fetch_add(1, Ordering::SeqCst);
    }

    fn count_bytes(&self, bytes: usize) {
        let counter = &self.shared.ranks[self.rank].bytes;
        counter.fetch_add(backstay_format::width::to_u64(bytes), Ordering::SeqCst);
    }

    fn check_root(&self, root: u32) -> Result<()> {
        if root < self.size() {
            return Ok(());
        }
        let context = format!("rank {root} is the root of {} ranks", self.size());
        Err(Error::new(ErrorKind::InvalidArgument, context))
    }

    fn error(&self, call: Call, why: &str) -> Error {
        let context = format!("{call:?} on rank {}: {why}", self.rank);
        Error::new(ErrorKind::Communicator, context)
    }

    /// Brings `mine` and returns what all ranks brought.
    fn meet(&self, call: Call, mine: &[u8]) -> Result<Arc<Vec<Vec<u8>>>> {
        self.count(call);
        let mut meeting = lock(&self.shared.meeting);
        if let Some(why) = &meeting.broken {
            return Err(self.error(call, why));
        }
        if self.is_failure_due() {
            return Err(self.break_down(meeting, call, "failure on demand"));
        }
        meeting.parts[self.rank] = Some((call, mine.to_vec()));
        if meeting.parts.iter().all(Option::is_some) {
            return self.complete(meeting, call);
        }
        self.wait(meeting, call)
    }

    fn is_failure_due(&self) -> bool {
        let left = &self.shared.ranks[self.rank].calls_left;
        match left.load(Ordering::SeqCst) {
            0 => true,
            u64::MAX => false,
            calls => {
                left.store(calls - 1, Ordering::SeqCst);
                false
            }
        }
    }

    fn break_down(&self, mut meeting: MutexGuard<'_, Meeting>, call: Call, why: &str) -> Error {
        meeting.broken = Some(format!("broken by rank {}: {why}", self.rank));
        self.shared.changed.notify_all();
        self.error(call, why)
    }

    fn complete(
        &self,
        mut meeting: MutexGuard<'_, Meeting>,
        call: Call,
    ) -> Result<Arc<Vec<Vec<u8>>>> {
        let parts: Vec<Part> = meeting.parts.iter_mut().filter_map(Option::take).collect();
        let any_length = matches!(call, Call::Gather(_) | Call::Broadcast(..));
        let same = |part: &Part| part.0 == call && (any_length || part.1.len() == parts[0].1.len());
        if !parts.iter().all(same) {
            let calls: Vec<String> = parts
                .iter()
                .map(|(call, bytes)| format!("{call:?} of {} bytes", bytes.len()))
                .collect();
            let why = format!("ranks made different calls: {}", calls.join(", "));
            return Err(self.break_down(meeting, call, &why));
        }
        meeting.generation += 1;
        meeting.gathered = Arc::new(parts.into_iter().map(|(_, bytes)| bytes).collect());
        self.shared.changed.notify_all();
        Ok(Arc::clone(&meeting.gathered))
    }

    fn wait(&self, mut meeting: MutexGuard<'_, Meeting>, call: Call) -> Result<Arc<Vec<Vec<u8>>>> {
        let deadline = Instant::now() + self.shared.limit;
        let generation = meeting.generation;
        loop {
            // The next meeting cannot complete without this rank, so `gathered` is still ours.
            if meeting.generation != generation {
                return Ok(Arc::clone(&meeting.gathered));
            }
            if let Some(why) = &meeting.broken {
                return Err(self.error(call, why));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let missing: Vec<usize> = (0..meeting.parts.len())
                    .filter(|&rank| meeting.parts[rank].is_none())
                    .collect();
                let why = format!(
                    "ranks {missing:?} did not come within {:?}",
                    self.shared.limit
                );
                return Err(self.break_down(meeting, call, &why));
            }
            meeting = match self.shared.changed.wait_timeout(meeting, left) {
                Ok((meeting, _)) => meeting,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }
}

impl Communicator for ThreadComm {
    fn rank(&self) -> u32 {
        u32::try_from(self.rank).unwrap_or(u32::MAX)
    }

    fn size(&self) -> u32 {
        u32::try_from(self.shared.ranks.len()).unwrap_or(u32::MAX)
    }

    fn allgather(&self, mine: &[u8], all: &mut [u8]) -> Result<()> {
        let wanted = mine.len() * self.shared.ranks.len();
        if all.len() != wanted {
            let context = format!("allgather into {} bytes, not {wanted}", all.len());
            return Err(Error::new(ErrorKind::InvalidArgument, context));
        }
        let gathered = self.meet(Call::Allgather, mine)?;
        self.count_bytes(wanted - mine.len());
        let mut rest = all;
        for part in gathered.iter() {
            let (place, after) = rest.split_at_mut(part.len());
            place.copy_from_slice(part);
            rest = after;
        }
        Ok(())
    }

    fn allreduce_max(&self, values: &mut [i64]) -> Result<()> {
        let mine: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let gathered = self.meet(Call::AllreduceMax, &mine)?;
        self.count_bytes(mine.len());
        for part in gathered.iter() {
            for (value, bytes) in values.iter_mut().zip(part.chunks_exact(8)) {
                let mut word = [0; 8];
                word.copy_from_slice(bytes);
                *value = (*value).max(i64::from_le_bytes(word));
            }
        }
        Ok(())
    }

    fn barrier(&self) -> Result<()> {
        self.meet(Call::Barrier, &[]).map(|_| ())
    }

    fn gather(&self, mine: &[u8], root: u32) -> Result<Vec<Vec<u8>>> {
        self.check_root(root)?;
        let gathered = self.meet(Call::Gather(root), mine)?;
        if self.rank() != root {
            return Ok(Vec::new());
        }
        let all: usize = gathered.iter().map(Vec::len).sum();
        self.count_bytes(all - mine.len());
        Ok(gathered.to_vec())
    }

    fn broadcast(&self, bytes: &mut [u8], root: u32) -> Result<()> {
        self.check_root(root)?;
        let is_root = self.rank() == root;
        let mine: &[u8] = if is_root { bytes } else { &[] };
        let gathered = self.meet(Call::Broadcast(root, bytes.len()), mine)?;
        if !is_root {
            bytes.copy_from_slice(&gathered[backstay_format::width::index(root)]);
            self.count_bytes(bytes.len());
        }
        Ok(())
    }
}

/// Runs `body` on each of `ranks`, each on its own thread, and returns the results by rank.
///
/// # Panics
/// Panics where a rank panics.
pub fn run_ranks<C: Send, T: Send>(ranks: Vec<C>, body: impl Fn(C) -> T + Sync) -> Vec<T> {
    let body = &body;
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks
            .into_iter()
            .map(|rank| scope.spawn(move || body(rank)))
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, T>| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        threads.into_iter().map(join).collect()
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(100);

    fn kind<T: std::fmt::Debug>(result: Result<T>) -> (ErrorKind, String) {
        let error = result.expect_err("the communicator is broken");
        (error.kind(), error.to_string())
    }

    #[test]
    fn a_rank_that_never_comes_is_named_and_nobody_hangs() {
        let ranks = ThreadComm::with_limit(3, SHORT);
        let begun = Instant::now();
        let results = run_ranks(ranks, |comm| {
            (comm.rank() != 1).then(|| kind(comm.barrier()))
        });
        assert!(begun.elapsed() >= SHORT);
        assert!(begun.elapsed() < Duration::from_secs(10));
        for (kind, text) in results.into_iter().flatten() {
            assert_eq!(kind, ErrorKind::Communicator);
            assert!(text.contains("ranks [1] did not come"), "{text}");
        }
    }

    #[test]
    fn a_failure_on_demand_comes_when_asked_and_reaches_all_ranks() {
        let results = ThreadComm::run(2, |comm| {
            if comm.rank() == 1 {
                comm.fail_after(2);
            }
            let good = (0..2).all(|_| comm.barrier().is_ok());
            (
                good,
                kind(comm.barrier()),
                kind(comm.allreduce_max(&mut [0])),
            )
        });
        for (good, (first, text), (second, _)) in results {
            assert!(good, "two calls before it succeed");
            assert_eq!(
                (first, second),
                (ErrorKind::Communicator, ErrorKind::Communicator)
            );
            assert!(text.contains("failure on demand"), "{text}");
        }
    }

    #[test]
    fn who_waits_for_a_rank_that_dies_does_not_wait_for_the_limit() {
        let ranks = ThreadComm::with_limit(2, Duration::from_secs(60));
        let begun = Instant::now();
        let results = run_ranks(ranks, |comm| {
            if comm.rank() == 1 {
                std::thread::sleep(SHORT);
                comm.die();
                return None;
            }
            Some(kind(comm.barrier()))
        });
        assert!(begun.elapsed() < Duration::from_secs(30));
        let told = results.into_iter().flatten().collect::<Vec<_>>();
        assert!(told[0].1.contains("rank 1 died"), "{told:?}");
    }

    #[test]
    fn different_calls_are_an_error_on_all_ranks() {
        let results = ThreadComm::run(2, |comm| match comm.rank() {
            0 => kind(comm.barrier()),
            _ => kind(comm.allreduce_max(&mut [])),
        });
        for (kind, text) in results {
            assert_eq!(kind, ErrorKind::Communicator);
            assert!(text.contains("different calls"), "{text}");
        }
        let results = ThreadComm::run(2, |comm| {
            let mine = vec![0; 1 + usize::try_from(comm.rank()).unwrap()];
            kind(comm.allgather(&mine, &mut vec![0; 2 * mine.len()])).0
        });
        assert_eq!(results, [ErrorKind::Communicator; 2]);
    }

    #[test]
    fn calls_are_counted_by_rank_and_kind() {
        let results = ThreadComm::run(2, |comm| {
            comm.barrier().unwrap();
            comm.allgather(&[1], &mut [0; 2]).unwrap();
            comm.allgather(&[1], &mut [0; 2]).unwrap();
            comm.gather(&[7; 5], 1).unwrap();
            comm.broadcast(&mut [0; 9], 1).unwrap();
            comm.barrier().unwrap();
            (comm.counts(0), comm.counts(1))
        });
        let of = |bytes| CallCounts {
            barrier: 2,
            allgather: 2,
            allreduce_max: 0,
            gather: 1,
            broadcast: 1,
            bytes,
        };
        assert_eq!(results, [(of(2 + 9), of(2 + 5)); 2]);
        assert_eq!(of(0).total(), 6);
    }
}
