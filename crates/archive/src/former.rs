// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the space of a file that another one goes on from, given back as far as no store needs it.
//! In from: `drain::thin`. Out to: files that this process does not write.
//! Invariants: its head and the table of its newest root stay, so that who opens it finds what is needed there; the
//! caller has found that the catalog names who goes on from it, and that nobody goes on from that catalog: so nobody
//! needs more of it than the stores that are listed.

use super::Place;
use super::head;
use super::make::HEAD_BYTES;
use super::space::{Space, Surplus};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::ReadAt;
use backstay_format::archive::{DATA_OFFSET, GRAIN_BYTES};

/// Less than this is not worth a word.
const WORTH_BYTES: u64 = 64 << 10;

/// What of a file nobody needs.
#[derive(Debug)]
struct Idle {
    parts: Vec<Surplus>,
    /// What the file system would have back, as far as can be told before.
    bytes: u64,
}

/// Gives back what of the file `name` is besides the extents `used` (offset and bytes).
pub fn give_back(place: &dyn Place, name: &str, used: Vec<(u64, u64)>) -> Result<()> {
    let idle = idle(&*place.open(name)?, used)?;
    if idle.parts.is_empty() {
        return Ok(());
    }
    let device = place.open_to_mark(name)?;
    for part in idle.parts {
        let done = match part {
            Surplus::End(end) => device.shrink(end).map(drop),
            Surplus::Hole(offset, bytes) => device.discard(offset, bytes),
        };
        done.map_err(|error| Error::io(format!("{}: giving back space", device.name()), error))?;
    }
    Ok(())
}

/// Bytes that [`give_back`] would give back; 0 where it is not worth it, or where the file system does not tell.
pub fn idle_bytes(place: &dyn Place, name: &str, used: Vec<(u64, u64)>) -> Result<u64> {
    let idle = idle(&*place.open(name)?, used)?;
    Ok(if idle.bytes > WORTH_BYTES {
        idle.bytes
    } else {
        0
    })
}

fn idle(device: &dyn ReadAt, mut used: Vec<(u64, u64)>) -> Result<Idle> {
    let failed = |error| Error::io(format!("{}: asking for its size", device.name()), error);
    let length = device.length_bytes().map_err(failed)?;
    let allocated = device.allocated_bytes().map_err(failed)?;
    used.extend(own_table(device)?);
    let mut used = joined(used);
    let space = Space::besides(length, &mut used, 0)
        .map_err(|error| Error::malformed(format!("{}: extents", device.name()), error))?;
    let parts = space.surplus(0);
    let bytes = |part: &Surplus| match *part {
        Surplus::End(end) => length.saturating_sub(end),
        Surplus::Hole(_, bytes) => bytes,
    };
    let gone: u64 = parts.iter().map(bytes).sum();
    let stays = (HEAD_BYTES + length).saturating_sub(DATA_OFFSET + gone);
    // The gap of the head is a hole, where the file system has holes.
    let tells_holes = allocated + DATA_OFFSET / 2 <= length;
    let bytes = if tells_holes {
        allocated.saturating_sub(stays)
    } else {
        let ends = parts.iter().filter(|part| matches!(part, Surplus::End(_)));
        ends.map(bytes).sum()
    };
    Ok(Idle { parts, bytes })
}

/// The extent of the table of the file's newest root. What is damaged is nobody's.
fn own_table(device: &dyn ReadAt) -> Result<Option<(u64, u64)>> {
    let state = head::superblock(device).and_then(|found| head::state(device, found.store));
    match state {
        Ok(state) => {
            let table = state.root.table;
            let is_there = !table.is_none();
            Ok(is_there.then_some((table.offset, u64::from(table.length_bytes))))
        }
        Err(error) if error.kind() == ErrorKind::Corrupt => Ok(None),
        Err(error) => Err(error),
    }
}

/// Extents in order, in grains, those that touch or overlap as one.
fn joined(mut extents: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    extents.sort_unstable();
    let mut all: Vec<(u64, u64)> = Vec::with_capacity(extents.len());
    for (offset, bytes) in extents {
        let end = offset.saturating_add(bytes.next_multiple_of(GRAIN_BYTES));
        match all.last_mut() {
            Some((start, length)) if *start + *length >= offset => {
                *length = (*length).max(end - *start);
            }
            _ => all.push((offset, end - offset)),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_of_several_stores_are_joined() {
        let grain = GRAIN_BYTES;
        let extents = vec![
            (8 * grain, 1),
            (0, 5),
            (grain, grain),
            (8 * grain, grain + 1),
            (20 * grain, grain),
        ];
        assert_eq!(
            joined(extents),
            [(0, 2 * grain), (8 * grain, 2 * grain), (20 * grain, grain)]
        );
    }
}
