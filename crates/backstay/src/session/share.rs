// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: sends bytes that one rank, or each node, has to all ranks, by the few collective calls that a
//! communicator must have.
//! In from: `protection`, `archive`. Out to: the communicator.
//! Invariants: every rank calls it with the same sizes.

use super::vote::vote;
use super::watch::Watched;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_net::Secret;

fn to_i64(value: usize) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Sends the bytes that rank 0 has to all.
pub(super) fn share_bytes(comm: &Watched, what: &str, mine: Option<Vec<u8>>) -> Result<Vec<u8>> {
    let mut length = [mine.as_ref().map_or(0, |bytes| to_i64(bytes.len()))];
    comm.allreduce_max(what, &mut length)?;
    let width = usize::try_from(length[0]).unwrap_or(0);
    let parts = share_parts(comm, what, 1, width, mine.map(|bytes| (0, bytes)))?;
    Ok(parts.into_iter().next().unwrap_or_default())
}

/// A new secret of rank 0's for this life, brought to all ranks by the communicator.
pub(super) fn share_secret(comm: &Watched) -> Result<Secret> {
    let drawn = if comm.rank() == 0 {
        Secret::draw().map(Some)
    } else {
        Ok(None)
    };
    let drawn = vote(comm, "drawing the job secret", 0, drawn)?;
    let mine = drawn.map(|secret| (0, secret.bytes().to_vec()));
    let parts = share_parts(comm, "sharing the job secret", 1, Secret::BYTES, mine)?;
    let bytes = parts
        .first()
        .and_then(|bytes| bytes.as_slice().try_into().ok());
    let none = || Error::new(ErrorKind::Communicator, "the job secret did not arrive");
    bytes.map(Secret::from_bytes).ok_or_else(none)
}

/// Sends the parts that some ranks have to all: `count` parts of at most `width` bytes, by a maximum
/// over words.
pub(super) fn share_parts(
    comm: &Watched,
    what: &str,
    count: usize,
    width: usize,
    mine: Option<(usize, Vec<u8>)>,
) -> Result<Vec<Vec<u8>>> {
    let words = width.div_ceil(7) + 1;
    let mut values = vec![i64::MIN; words * count];
    if let Some((place, bytes)) = mine {
        let part = &mut values[place * words..(place + 1) * words];
        part[0] = to_i64(bytes.len().min(width));
        for (word, chunk) in part[1..].iter_mut().zip(bytes.chunks(7)) {
            let mut value = [0; 8];
            value[..chunk.len()].copy_from_slice(chunk);
            *word = i64::from_le_bytes(value);
        }
    }
    comm.allreduce_max(what, &mut values)?;
    let parts = values.chunks(words.max(1)).map(|part| {
        let length = usize::try_from(part[0]).unwrap_or(0);
        let mut bytes = Vec::with_capacity(words * 7);
        for word in &part[1..] {
            bytes.extend_from_slice(&word.max(&0).to_le_bytes()[..7]);
        }
        bytes.truncate(length);
        bytes
    });
    Ok(parts.collect())
}
