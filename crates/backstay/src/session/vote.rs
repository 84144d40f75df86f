// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: one status for all ranks: each rank brings its own, all leave with the worst.
//! In from: `session`. Out to: the communicator: one call if all is well, two if not.
//! Invariants: every rank makes the same calls in the same order, whatever its own outcome.

use super::watch::Watched;
use backstay_base::error::{Error, ErrorKind, Result};
use std::collections::BTreeSet;

/// Words of the message that the failing rank sends to all.
const MESSAGE_WORDS: usize = 64;
const BYTES_A_WORD: usize = 7;

/// All ranks' outcome: `mine` where every rank is well, else the error of the rank with the worst; of
/// equal ones that of a rank which does not only repeat another's.
/// `same` must be equal on all ranks (the number of the checkpoint, say).
pub(super) fn vote<T>(comm: &Watched, what: &str, same: i64, mine: Result<T>) -> Result<T> {
    vote_with(comm, what, same, mine, &mut [])
}

/// As [`vote`]; `highest` leaves with the highest of all ranks' values.
pub(super) fn vote_with<T>(
    comm: &Watched,
    what: &str,
    same: i64,
    mine: Result<T>,
    highest: &mut [i64],
) -> Result<T> {
    let status = mine.as_ref().err().map_or(i64::from(comm.rank()), |error| {
        worst(error.kind().code(), error.is_second_hand(), comm.rank())
    });
    let mut values = vec![status, same, -same];
    values.extend_from_slice(highest);
    comm.allreduce_max(what, &mut values)?;
    highest.copy_from_slice(&values[3..]);
    let (code, rank) = (values[0] >> 33, values[0] & 0xffff_ffff);
    if code == 0 {
        if values[1] != -values[2] {
            let context = format!(
                "{what}: ranks are not at the same step: {} and {}; every rank makes the same \
                 calls in the same order",
                -values[2], values[1]
            );
            return Err(Error::new(ErrorKind::InvalidArgument, context));
        }
        return mine;
    }
    let text = mine
        .as_ref()
        .err()
        .map(ToString::to_string)
        .unwrap_or_default();
    let failing = rank == i64::from(comm.rank());
    let message = share_message(comm, what, failing.then_some(&*text))?;
    match mine {
        Err(error) if failing => Err(error),
        _ => {
            let kind = i32::try_from(code).ok().and_then(ErrorKind::from_code);
            let context = format!("rank {rank}: {message}");
            Err(Error::new(kind.unwrap_or(ErrorKind::Internal), context))
        }
    }
}

/// Orders the errors of ranks: the highest is that of all.
pub(super) fn worst(code: i32, second_hand: bool, rank: u32) -> i64 {
    let status = (i64::from(code) << 1) | i64::from(!second_hand);
    (status << 32) | i64::from(rank)
}

/// Sends the text of the one rank that has it to all, by a maximum over words.
fn share_message(comm: &Watched, what: &str, mine: Option<&str>) -> Result<String> {
    let [message] = share_messages(comm, what, [mine])?;
    Ok(message)
}

/// Sends texts to all, each from the ranks that have it, which have the same.
pub(super) fn share_messages<const N: usize>(
    comm: &Watched,
    what: &str,
    mine: [Option<&str>; N],
) -> Result<[String; N]> {
    let mut words = [[i64::MIN; MESSAGE_WORDS]; N];
    for (words, text) in words.iter_mut().zip(mine) {
        let Some(text) = text else { continue };
        let mut chunks = text.as_bytes().chunks(BYTES_A_WORD);
        for word in words {
            let chunk = chunks.next().unwrap_or_default();
            *word = (0..BYTES_A_WORD)
                .map(|byte| i64::from(chunk.get(byte).copied().unwrap_or(0)))
                .fold(0, |sum, byte| (sum << 8) | byte);
        }
    }
    comm.allreduce_max(what, words.as_flattened_mut())?;
    Ok(words.map(|words| {
        let mut bytes = Vec::with_capacity(MESSAGE_WORDS * BYTES_A_WORD);
        for word in words {
            let word = word.max(0).to_le_bytes();
            bytes.extend(word[..BYTES_A_WORD].iter().rev());
        }
        let end = bytes
            .iter()
            .position(|&byte| byte == 0)
            .unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    }))
}

/// The checkpoint as one number that orders as checkpoints do.
pub(super) fn as_number(id: backstay_format::CheckpointId) -> i64 {
    let (number, incarnation) = (id.number.min(1 << 42), id.incarnation.min((1 << 20) - 1));
    i64::try_from((number << 20) | incarnation).unwrap_or(i64::MAX)
}

/// The checkpoint of such a number; `None` for 0.
pub(super) fn as_checkpoint(number: i64) -> Option<backstay_format::CheckpointId> {
    let number = u64::try_from(number).ok().filter(|number| *number > 0)?;
    let incarnation = number & ((1 << 20) - 1);
    Some(backstay_format::CheckpointId::new(
        incarnation,
        number >> 20,
    ))
}

/// The newest of `mine` (ascending) that every rank has, then the next, and so on: ascending.
pub(super) fn agree(
    comm: &Watched,
    mine: &[backstay_format::CheckpointId],
) -> Result<Vec<backstay_format::CheckpointId>> {
    let mut agreed = Vec::new();
    let mut bound = i64::MAX;
    loop {
        let candidate = mine.iter().rev().find(|&&id| as_number(id) <= bound);
        let number = candidate.map_or(-1, |&id| as_number(id));
        // The lowest proposal of all ranks, and whether all proposed the same.
        let mut values = [-number, number];
        comm.allreduce_max("agreeing on a checkpoint", &mut values)?;
        let lowest = -values[0];
        if lowest < 0 {
            agreed.reverse();
            return Ok(agreed);
        }
        if values[1] == lowest {
            agreed.extend(candidate);
            bound = lowest - 1;
        } else {
            bound = lowest;
        }
    }
}

/// Which of `ids`, which all ranks have, are among those of any rank.
pub(super) fn united(
    comm: &Watched,
    what: &str,
    ids: &[backstay_format::CheckpointId],
    mine: &BTreeSet<backstay_format::CheckpointId>,
) -> Result<BTreeSet<backstay_format::CheckpointId>> {
    if ids.is_empty() {
        return Ok(BTreeSet::new());
    }
    let mut among: Vec<i64> = ids.iter().map(|id| i64::from(mine.contains(id))).collect();
    comm.allreduce_max(what, &mut among)?;
    let united = ids.iter().zip(among).filter(|&(_, among)| among > 0);
    Ok(united.map(|(&id, _)| id).collect())
}
