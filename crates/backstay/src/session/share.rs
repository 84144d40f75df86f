// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what ranks bring to rank 0, what it makes of that, and what of it all learn.
//! In from: `node`, `protection`, `groups`, `slabs`, `archive`. Out to: the communicator: two calls, three where
//! what all learn is long.
//! Invariants: every rank makes the same calls in the same order, whatever its own outcome; nobody but rank 0 has
//! more than it brings and what it is told; an error of one is the outcome of all.

use super::vote::worst;
use super::watch::Watched;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::width::index;
use backstay_format::{Decoder, Encoder, FormatError};
use backstay_net::Secret;

const TOLD: &str = "what a rank brings";
/// Most of an error's words that other ranks are told.
const WORDS_MAX: usize = 2000;

/// Brings what this rank has to rank 0, which decides of what all brought, by rank; all leave with what it says, or
/// with the worst error of any rank. Who has nothing to say brings nothing, and sends nothing. Collective.
pub(super) fn decide(
    comm: &Watched,
    what: &str,
    mine: Result<Vec<u8>>,
    decide: impl FnOnce(Vec<Vec<u8>>) -> Result<Vec<u8>>,
) -> Result<Vec<u8>> {
    let parts = comm.gather(what, &encode_brought(&mine))?;
    if comm.rank() != 0 {
        let failed = mine.err();
        return learn(comm, what, failed);
    }
    let brought = heard(parts).and_then(|outcome| match outcome {
        Ok(parts) => decide(parts).map(Ok),
        Err(failed) => Ok(Err(failed)),
    });
    tell(comm, what, brought, mine.err())
}

/// Sends the bytes that rank 0 has, or its error, to all. Collective.
pub(super) fn share_bytes(
    comm: &Watched,
    what: &str,
    mine: Option<Result<Vec<u8>>>,
) -> Result<Vec<u8>> {
    match mine.filter(|_| comm.rank() == 0) {
        Some(mine) => tell(comm, what, mine.map(Ok), None),
        None => learn(comm, what, None),
    }
}

/// A new secret of rank 0's for this start, brought to all ranks by the communicator.
pub(super) fn share_secret(comm: &Watched) -> Result<Secret> {
    let drawn = (comm.rank() == 0).then(|| Secret::draw().map(|secret| secret.bytes().to_vec()));
    let bytes = share_bytes(comm, "sharing the job secret", drawn)?;
    let bytes = bytes.as_slice().try_into();
    let none = |_| Error::new(ErrorKind::Communicator, "the job secret did not arrive");
    bytes.map(Secret::from_bytes).map_err(none)
}

/// An error of a rank, as others are told.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Failed {
    rank: u32,
    code: i32,
    second_hand: bool,
    words: String,
}

impl Failed {
    fn of(error: &Error, rank: u32) -> Self {
        Self {
            rank,
            code: error.kind().code(),
            second_hand: error.is_second_hand(),
            words: error.to_string().chars().take(WORDS_MAX).collect(),
        }
    }
    fn told(&self) -> Error {
        let kind = ErrorKind::from_code(self.code).unwrap_or(ErrorKind::Internal);
        Error::new(kind, format!("rank {}: {}", self.rank, self.words))
    }
}

/// Nothing where there is nothing to say; else whether it is an error, and it.
fn encode_brought(mine: &Result<Vec<u8>>) -> Vec<u8> {
    match mine {
        Ok(bytes) if bytes.is_empty() => Vec::new(),
        Ok(bytes) => [&[0], bytes.as_slice()].concat(),
        Err(error) => failure(&Failed::of(error, 0)),
    }
}

/// It, as it is sent; should it not be possible to say, others hear that.
fn failure(failed: &Failed) -> Vec<u8> {
    encode_failed(failed).unwrap_or_else(|_| vec![1])
}

fn encode_failed(failed: &Failed) -> std::result::Result<Vec<u8>, FormatError> {
    let mut body = Encoder::new(TOLD);
    body.u8(1)
        .u32(failed.rank)
        .u32(u32::try_from(failed.code).unwrap_or(0))
        .u8(u8::from(failed.second_hand))
        .text(&failed.words);
    body.finish(failed, decode_failed)
}

fn decode_failed(bytes: &[u8]) -> std::result::Result<Failed, FormatError> {
    let mut body = Decoder::new(TOLD, bytes);
    body.u8("whether it is an error")?;
    let failed = Failed {
        rank: body.u32("rank")?,
        code: i32::try_from(body.u32("kind")?).unwrap_or(0),
        second_hand: body.u8("whether another rank has the words")? != 0,
        words: body.text("words", 4 * WORDS_MAX)?,
    };
    body.end()?;
    Ok(failed)
}

/// What all ranks brought, or the worst error of them.
fn heard(parts: Vec<Vec<u8>>) -> Result<std::result::Result<Vec<Vec<u8>>, Failed>> {
    let mut brought = Vec::with_capacity(parts.len());
    let mut failures = Vec::new();
    for (rank, mut part) in (0..).zip(parts) {
        if part.first() == Some(&1) {
            let failed = decode_failed(&part);
            let failed = failed.map_err(|error| Error::malformed("an error of a rank", error))?;
            failures.push(Failed { rank, ..failed });
        } else if !part.is_empty() {
            part.remove(0);
        }
        brought.push(part);
    }
    let worst = failures
        .into_iter()
        .max_by_key(|failed| worst(failed.code, failed.second_hand, failed.rank));
    Ok(worst.map_or(Ok(brought), Err))
}

/// Rank 0 tells all what it decided, or the error of some rank. `own` is its own.
fn tell(
    comm: &Watched,
    what: &str,
    decided: Result<std::result::Result<Vec<u8>, Failed>>,
    own: Option<Error>,
) -> Result<Vec<u8>> {
    let (said, outcome) = match decided {
        Ok(Ok(bytes)) => ([&[0], bytes.as_slice()].concat(), Ok(bytes)),
        Ok(Err(failed)) => {
            let told = own
                .filter(|_| failed.rank == comm.rank())
                .unwrap_or_else(|| failed.told());
            (failure(&failed), Err(told))
        }
        Err(error) => {
            let failed = Failed::of(&error, comm.rank());
            (failure(&failed), Err(error))
        }
    };
    comm.broadcast(what, Some(&said))?;
    outcome
}

/// What rank 0 tells; where it is an error that was this rank's, its own words.
fn learn(comm: &Watched, what: &str, own: Option<Error>) -> Result<Vec<u8>> {
    let mut said = comm.broadcast(what, None)?;
    if said.first() == Some(&0) {
        said.remove(0);
        return Ok(said);
    }
    let failed = decode_failed(&said);
    let failed =
        failed.map_err(|error| Error::malformed(format!("what rank 0 says: {what}"), error))?;
    let mine = own.filter(|_| failed.rank == comm.rank());
    Err(mine.unwrap_or_else(|| failed.told()))
}

/// Ranks in a row, as a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Run {
    /// The first of them.
    pub(super) first: u32,
    /// How many.
    pub(super) count: u32,
    /// What they have in common.
    pub(super) of: u32,
}

/// Ranks, a run after the other.
pub(super) type RankRuns = Box<dyn Iterator<Item = u32>>;

/// What each rank, from 0, has in common with others, as runs.
pub(super) fn runs_of(of: impl Iterator<Item = u32>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (rank, of) in (0..).zip(of) {
        match runs.last_mut() {
            Some(run) if run.of == of => run.count += 1,
            _ => runs.push(Run {
                first: rank,
                count: 1,
                of,
            }),
        }
    }
    runs
}

/// The run of `rank`, found by search: runs are in order.
pub(super) fn run_of(runs: &[Run], rank: u32) -> Option<&Run> {
    let after = runs.partition_point(|run| run.first <= rank);
    let run = runs.get(after.checked_sub(1)?)?;
    (rank - run.first < run.count).then_some(run)
}

pub(super) fn encode_runs(body: &mut Encoder, runs: &[Run]) {
    body.count(runs.len());
    for run in runs {
        body.u32(run.first).u32(run.count).u32(run.of);
    }
}

pub(super) fn decode_runs(body: &mut Decoder<'_>) -> std::result::Result<Vec<Run>, FormatError> {
    let count = body.u32("runs")?;
    if index(count) > body.remaining() / 12 {
        return Err(body.refuse("runs", 4, "as many as follow", count));
    }
    let run = |_| {
        Ok(Run {
            first: body.u32("first rank")?,
            count: body.u32("ranks in a row")?,
            of: body.u32("what they have in common")?,
        })
    };
    (0..count).map(run).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use backstay_testkit::ThreadComm;
    use std::time::Duration;

    fn on_ranks<T: Send>(size: usize, body: impl Fn(&Watched) -> T + Sync) -> Vec<T> {
        ThreadComm::run(size, |comm| {
            body(&Watched::new(Box::new(comm), Duration::from_secs(60), None))
        })
    }

    #[test]
    fn rank_0_decides_of_what_all_bring_and_all_learn_it() {
        for long in [1, 5000] {
            let learnt = on_ranks(3, |comm| {
                let mine = vec![u8::try_from(comm.rank()).unwrap(); index(comm.rank()) * long];
                decide(comm, "testing", Ok(mine), |parts| {
                    assert!(parts[0].is_empty());
                    Ok(parts.concat())
                })
                .unwrap()
            });
            let wanted = [vec![1; long], vec![2; 2 * long]].concat();
            assert!(learnt.iter().all(|one| *one == wanted));
        }
    }

    #[test]
    fn the_worst_error_of_any_rank_is_that_of_all() {
        let said = on_ranks(4, |comm| {
            let mine = match comm.rank() {
                1 => Err(Error::new(ErrorKind::Corrupt, "bent").second_hand()),
                2 => Err(Error::new(ErrorKind::Corrupt, "broken")),
                _ => Ok(vec![7]),
            };
            let never = |_: Vec<Vec<u8>>| -> Result<Vec<u8>> { panic!("nothing is decided") };
            let error = decide(comm, "testing", mine, never).unwrap_err();
            // What comes after is in step.
            let next = decide(comm, "testing", Ok(vec![1]), |parts| Ok(parts.concat()));
            assert_eq!(next.unwrap(), [1; 4]);
            (error.kind(), error.context().to_owned())
        });
        let told = (ErrorKind::Corrupt, "rank 2: ".to_owned());
        for (rank, (kind, words)) in said.iter().enumerate() {
            assert_eq!(*kind, told.0);
            let own = rank == 2;
            assert_eq!(words == "broken", own, "{words}");
            assert_eq!(words.starts_with(&told.1), !own, "{words}");
        }
    }

    #[test]
    fn what_rank_0_cannot_decide_is_an_error_of_all() {
        let said = on_ranks(2, |comm| {
            let fails = |_: Vec<Vec<u8>>| Err(Error::new(ErrorKind::NoCheckpoint, "nothing there"));
            let error = decide(comm, "testing", Ok(Vec::new()), fails).unwrap_err();
            let shared = share_bytes(comm, "testing", Some(Ok(vec![3; 9])));
            assert_eq!(shared.unwrap(), [3; 9]);
            error.kind()
        });
        assert_eq!(said, [ErrorKind::NoCheckpoint; 2]);
    }

    #[test]
    fn a_rank_is_found_in_its_run() {
        let of = [4, 4, 4, 1, 4, 4, 9];
        let runs = runs_of(of.iter().copied());
        assert_eq!(runs.len(), 4);
        for (rank, of) in (0..).zip(of) {
            assert_eq!(run_of(&runs, rank).map(|run| run.of), Some(of));
        }
        assert_eq!(run_of(&runs, 7), None);
        assert_eq!(run_of(&[], 0), None);
        let gap = [Run {
            first: 3,
            count: 2,
            of: 1,
        }];
        assert_eq!(run_of(&gap, 2), None);
        assert_eq!(run_of(&gap, 5), None);
        let mut body = Encoder::new("test");
        encode_runs(&mut body, &runs);
        let bytes = body.finish(&runs, |bytes| decode_runs(&mut Decoder::new("test", bytes)));
        bytes.unwrap();
    }
}
