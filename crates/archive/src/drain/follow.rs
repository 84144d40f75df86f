// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: an aggregator at work, as its coordinator follows it: it is told to begin, asked how far it is,
//! and given up when it is silent, or when nothing of it moves.
//! In from: `coordinate`. Out to: the points of the aggregators.
//! Invariants: so many threads and no more follow any number of aggregators, and send so many requests a second; who answers "at work" and does
//! nothing for `timeout_ms` is given up.

use super::point::{AT_WORK, DONE, DrainPoint};
use super::seats::AggregatorSeat;
use super::sources::unexpected;
use super::status::{AggregatorStatus, ArchiveStatus, StatusFile};
use super::{PARALLEL_MAX, lock, parallel};
use backstay_base::clock::Stopwatch;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::CheckpointId;
use backstay_format::drain::{DrainAnswer, DrainJob, DrainProgress, DrainRequest};
use backstay_net::Peer;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Between two looks at a drain that is under way: this part of the time that it took so far, within limits.
const LOOK_PART: u32 = 32;
const LOOK_MIN: Duration = Duration::from_millis(1);
const LOOK_MAX: Duration = Duration::from_millis(100);
/// Longest wait for an answer that needs no work.
const ANSWER: Duration = Duration::from_secs(10);
/// An aggregator that does not answer so often is gone.
const SILENT_MAX: u32 = 3;
/// So many bytes may be held back to keep to a rate, and nothing moves meanwhile.
const HELD_BACK_BYTES: u64 = 16 << 20;

/// Requests that a coordinator sends in a second, beyond those that it sends at once.
const REQUESTS_A_SECOND: u32 = 200;
const REQUESTS_AT_ONCE: u32 = 32;

/// Spaces the requests of a coordinator, so that its node has few to send and to answer whatever the job's size.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// When the next request is due, if none is sent early.
    due: Mutex<Option<Instant>>,
}

impl Pace {
    /// When a request that comes `now` may be sent.
    fn turn(&self, now: Instant) -> Instant {
        let gap = Duration::from_secs(1) / REQUESTS_A_SECOND;
        let mut due = lock(&self.due);
        let mine = due.map_or(now, |due| due.max(now));
        *due = Some(mine + gap);
        mine.checked_sub(gap * REQUESTS_AT_ONCE)
            .unwrap_or(now)
            .max(now)
    }

    /// Waits for the turn of a request; not where draining is told to stop.
    pub(super) fn wait(&self, stop: &AtomicBool) {
        let turn = self.turn(Instant::now());
        while !stop.load(Ordering::Acquire) {
            let left = turn.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(LOOK_MAX));
        }
    }
}

/// Why an aggregator did not drain what it was to.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) error: Error,
    /// It does not answer, or not as one of this version and this job does.
    pub(super) is_absent: bool,
    /// It drained, and told how that ended.
    drained: bool,
}

impl Failed {
    /// When it was asked.
    pub(super) fn to_answer(error: Error) -> Self {
        let is_absent = matches!(
            error.kind(),
            ErrorKind::PeerUnreachable
                | ErrorKind::Timeout
                | ErrorKind::Unsupported
                | ErrorKind::Configuration
                | ErrorKind::Corrupt
        );
        Self {
            error,
            is_absent,
            drained: false,
        }
    }

    /// While it drained.
    pub(super) fn to_drain(error: Error) -> Self {
        Self {
            error,
            is_absent: false,
            drained: true,
        }
    }

    /// Another process goes on from the file: one that was given up, or of a start that is not over yet.
    pub(super) fn was_taken_over(&self) -> bool {
        self.drained && self.error.kind() == ErrorKind::StoreBusy
    }

    /// Whether another one may do better: not where the archive is full, or the checkpoint gone.
    pub(super) fn is_its_own(&self) -> bool {
        !matches!(
            self.error.kind(),
            ErrorKind::StoreFull | ErrorKind::NotRetained
        )
    }
}

/// What an aggregator brought.
pub(super) type Outcome = std::result::Result<DrainProgress, Failed>;

/// Follows the aggregators of one checkpoint.
pub(super) struct Following<'a> {
    pub(super) point: &'a DrainPoint,
    pub(super) aggregators: &'a [AggregatorSeat],
    pub(super) pace: &'a Pace,
    pub(super) id: CheckpointId,
    /// The start that drains.
    pub(super) incarnation: u64,
    /// Longest wait for an answer, and for something to move.
    pub(super) within: Duration,
    /// Bytes a second that one aggregator may write.
    pub(super) rate_bytes: Option<u64>,
    pub(super) stop: &'a AtomicBool,
    pub(super) status: &'a StatusFile,
    pub(super) shown: &'a Mutex<ArchiveStatus>,
}

/// An aggregator at work.
struct Look {
    at: usize,
    begin: DrainRequest,
    /// Times that it did not answer, one after the other.
    silent: u32,
    /// What it had done when it was last seen to do something, and when that was.
    steps: Option<u64>,
    moved: Stopwatch,
    outcome: Option<Outcome>,
}

impl Following<'_> {
    /// Has the aggregators do `jobs`, and waits until each has, or is given up.
    pub(super) fn all(&self, jobs: Vec<DrainJob>) -> Result<Vec<Outcome>> {
        let looks = jobs.into_iter().enumerate().map(|(at, job)| Look {
            at,
            begin: DrainRequest::Begin(job),
            silent: 0,
            steps: None,
            moved: Stopwatch::start(),
            outcome: None,
        });
        let looks: Vec<Mutex<Look>> = looks.map(Mutex::new).collect();
        parallel(&looks, PARALLEL_MAX, |look| {
            let mut look = lock(look);
            if let Err(error) = self.begin(&look) {
                look.outcome = Some(Err(error));
            }
            Ok(())
        })?;
        let share = looks.len().div_ceil(PARALLEL_MAX).max(1);
        let shares: Vec<&[Mutex<Look>]> = looks.chunks(share).collect();
        parallel(&shares, PARALLEL_MAX, |share| {
            self.share(share);
            Ok(())
        })?;
        let unknown = || {
            let error = Error::new(ErrorKind::Internal, "an aggregator that nobody followed");
            Failed::to_drain(error)
        };
        let looks = looks.into_iter().map(Mutex::into_inner);
        let outcome = |look: std::result::Result<Look, _>| {
            let look = look.unwrap_or_else(std::sync::PoisonError::into_inner);
            look.outcome.unwrap_or_else(|| Err(unknown()))
        };
        Ok(looks.map(outcome).collect())
    }

    /// Looks at some, one after the other, until all are at their end.
    fn share(&self, looks: &[Mutex<Look>]) {
        let watch = Stopwatch::start();
        loop {
            let mut is_over = true;
            for look in looks {
                let mut look = lock(look);
                if look.outcome.is_none() {
                    look.outcome = self.look(&mut look).transpose();
                    is_over &= look.outcome.is_some();
                }
            }
            if is_over {
                return;
            }
            std::thread::sleep((watch.elapsed() / LOOK_PART).clamp(LOOK_MIN, LOOK_MAX));
        }
    }

    fn begin(&self, look: &Look) -> std::result::Result<(), Failed> {
        let peer = &self.aggregators[look.at].peer;
        self.pace.wait(self.stop);
        let begun = self.point.ask(peer, &look.begin, self.within);
        begun.map(|_| ()).map_err(Failed::to_answer)
    }

    fn cancel(&self, peer: &Peer) {
        let request = DrainRequest::Cancel {
            incarnation: self.incarnation,
        };
        drop(self.point.ask(peer, &request, self.within.min(ANSWER)));
    }

    /// Asks one how far it is; what it brought, once it is at its end.
    fn look(&self, look: &mut Look) -> std::result::Result<Option<DrainProgress>, Failed> {
        let peer = &self.aggregators[look.at].peer;
        if self.stop.load(Ordering::Acquire) {
            self.cancel(peer);
            let told = Error::new(ErrorKind::Timeout, "draining was told to stop");
            return Err(Failed::to_drain(told));
        }
        self.pace.wait(self.stop);
        let request = DrainRequest::Progress;
        let progress = match self.point.ask(peer, &request, self.within.min(ANSWER)) {
            Ok(DrainAnswer::Progress(progress)) => progress,
            Ok(other) => return Err(Failed::to_answer(unexpected(peer, &other))),
            Err(error) if look.silent + 1 >= SILENT_MAX => return Err(Failed::to_answer(error)),
            Err(_) => {
                look.silent += 1;
                return Ok(None);
            }
        };
        look.silent = 0;
        let mut status = lock(self.shown);
        status.show(look.at, AggregatorStatus::of(&peer.name, &progress));
        self.status.write_when_due(&status);
        drop(status);
        if progress.checkpoint != self.id {
            // It was started again, and knows nothing of this drain.
            self.begin(look)?;
            return self.moves(look, &progress).map(|()| None);
        }
        match progress.state {
            DONE => Ok(Some(progress)),
            AT_WORK => self.moves(look, &progress).map(|()| None),
            _ => {
                let kind = i32::try_from(progress.kind).ok();
                let kind = kind.and_then(ErrorKind::from_code);
                let kind = kind.unwrap_or(ErrorKind::Internal);
                let error = Error::new(kind, format!("{peer}: {}", progress.text));
                Err(Failed::to_drain(error))
            }
        }
    }

    /// That something was done since not too long ago.
    fn moves(&self, look: &mut Look, progress: &DrainProgress) -> std::result::Result<(), Failed> {
        if look.steps != Some(progress.steps) {
            look.steps = Some(progress.steps);
            look.moved = Stopwatch::start();
            return Ok(());
        }
        let held_back = self
            .rate_bytes
            .map_or(0, |rate| HELD_BACK_BYTES / rate.max(1));
        let most = self.within + Duration::from_secs(held_back);
        if look.moved.elapsed() < most {
            return Ok(());
        }
        let peer = &self.aggregators[look.at].peer;
        self.cancel(peer);
        let context = format!(
            "{peer} answers that it drains checkpoint {}, and did nothing for {} ms: its file system or \
             one of its nodes hangs",
            self.id,
            most.as_millis()
        );
        Err(Failed::to_answer(Error::new(ErrorKind::Timeout, context)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever comes at once, and however long nothing came before.
    #[test]
    fn a_coordinator_sends_few_requests_in_any_second() {
        let pace = Pace::default();
        let mut now = Instant::now();
        let mut turns = Vec::new();
        for (pause, count) in [(0, 3000), (0, 10), (100, 40), (3, 1000)] {
            now += Duration::from_secs(pause);
            turns.extend((0..count).map(|_| pace.turn(now)));
        }
        assert!(turns.is_sorted());
        let second = Duration::from_secs(1);
        let within = |from: Instant| move |at: &&Instant| (from..from + second).contains(*at);
        let most = turns
            .iter()
            .map(|from| turns.iter().filter(within(*from)).count())
            .max();
        assert_eq!(
            most,
            Some(usize::try_from(REQUESTS_A_SECOND + REQUESTS_AT_ONCE).unwrap())
        );
    }
}
