// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what is free in an archive file: extents of grains, taken and given back; and which of it the
//! file system may have.
//! Invariants: what was taken is not given out again before it was given back; runs of free space that
//! touch are one. What is free is reserved; holes are not, and are free again when they are. Nothing of it is
//! stored: it follows from the extents that are in use, and what was a hole is free in a file opened again.

use backstay_format::FormatError;
use backstay_format::archive::{DATA_OFFSET, GRAIN_BYTES};
use std::collections::BTreeMap;

/// Runs that are shorter are not worth a request to the file system.
const HOLE_BYTES_MIN: u64 = 64 << 10;

/// What of a file the file system may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Surplus {
    /// All from here on.
    End(u64),
    /// So many bytes from there on.
    Hole(u64, u64),
}

/// Free space of a file. Offsets and lengths are in bytes, multiples of the grain.
#[derive(Debug)]
pub(super) struct Space {
    /// Runs: offset, length.
    free: BTreeMap<u64, u64>,
    /// Runs whose space the file system has: offset, length.
    holes: BTreeMap<u64, u64>,
    /// Where the file ends.
    end: u64,
    /// Where the last extent ended: the next one goes on there.
    cursor: u64,
    /// A run this long is worth going to.
    long: u64,
}

fn grains(bytes: u64) -> u64 {
    bytes.next_multiple_of(GRAIN_BYTES)
}

impl Space {
    /// The space of a file of `file_bytes` besides the extents `used`: offset and bytes.
    pub(super) fn besides(
        file_bytes: u64,
        used: &mut Vec<(u64, u64)>,
        long: u64,
    ) -> Result<Self, FormatError> {
        let end = (file_bytes / GRAIN_BYTES * GRAIN_BYTES).max(DATA_OFFSET);
        let mut space = Self {
            free: BTreeMap::new(),
            holes: BTreeMap::new(),
            end,
            cursor: DATA_OFFSET,
            long,
        };
        used.sort_unstable();
        let mut at = DATA_OFFSET;
        for &(offset, bytes) in &*used {
            let refused = |expected: String| {
                FormatError::new(
                    "extent",
                    "offset",
                    offset,
                    expected,
                    format!("{bytes} bytes"),
                )
            };
            let last = offset.saturating_add(grains(bytes));
            if last > end {
                return Err(refused(format!(
                    "an extent in a file of {file_bytes} bytes"
                )));
            }
            if offset < at {
                return Err(refused(format!("no extent before byte {at}")));
            }
            space.add(at, offset - at);
            at = last;
        }
        space.add(at, end - at);
        Ok(space)
    }

    fn add(&mut self, offset: u64, bytes: u64) {
        if bytes > 0 {
            self.free.insert(offset, bytes);
        }
    }

    /// Room for `bytes`: where the last extent ended, else in a long run, else in the first that fits.
    pub(super) fn take(&mut self, bytes: u64) -> Option<u64> {
        let need = grains(bytes);
        let fits = |least: u64| move |(_, length): &(&u64, &u64)| **length >= least;
        let long = need.max(self.long);
        let onwards = self.free.range(self.cursor..);
        let found = self
            .free
            .get_key_value(&self.cursor)
            .filter(fits(need))
            .or_else(|| onwards.clone().find(fits(long)))
            .or_else(|| self.free.iter().find(fits(long)))
            .or_else(|| self.free.iter().find(fits(need)));
        let offset = found.map(|(&offset, _)| offset)?;
        self.cut(offset, need);
        self.cursor = offset + need;
        Some(offset)
    }

    /// Room for a table: the first run that fits, and not where segments go on if there is another.
    pub(super) fn take_aside(&mut self, bytes: u64) -> Option<u64> {
        let need = grains(bytes);
        let mut runs = self.free.iter().filter(|(_, length)| **length >= need);
        let first = runs.clone().find(|(offset, _)| **offset != self.cursor);
        let offset = first.or_else(|| runs.next()).map(|(&offset, _)| offset)?;
        self.cut(offset, need);
        if self.cursor == offset {
            self.cursor += need;
        }
        Some(offset)
    }

    fn cut(&mut self, offset: u64, bytes: u64) {
        if let Some(length) = self.free.remove(&offset) {
            self.add(offset + bytes, length.saturating_sub(bytes));
        }
    }

    /// Gives back an extent.
    pub(super) fn give(&mut self, offset: u64, bytes: u64) {
        let (mut start, mut length) = (offset, grains(bytes));
        if let Some((&before, &bytes)) = self.free.range(..start).next_back()
            && before + bytes == start
        {
            self.free.remove(&before);
            (start, length) = (before, length + bytes);
        }
        if let Some(bytes) = self.free.remove(&(start + length)) {
            length += bytes;
        }
        if self.cursor > start && self.cursor <= start + length {
            self.cursor = start;
        }
        self.free.insert(start, length);
    }

    /// The file is longer now.
    pub(super) fn grow(&mut self, file_bytes: u64) {
        let end = file_bytes / GRAIN_BYTES * GRAIN_BYTES;
        if end > self.end {
            let bytes = end - self.end;
            let offset = std::mem::replace(&mut self.end, end);
            self.give(offset, bytes);
        }
    }

    /// What may go, so that `keep` bytes stay free: the end of the file first, then the last runs.
    pub(super) fn surplus(&self, keep: u64) -> Vec<Surplus> {
        let mut excess = self.free_bytes().saturating_sub(keep) / GRAIN_BYTES * GRAIN_BYTES;
        let mut end = self.end;
        let mut last = self.free.iter().rev().peekable();
        let mut holes = self.holes.iter().rev().peekable();
        let mut gone = Vec::new();
        let mut rest = None;
        loop {
            let ends = |(at, bytes): &(&u64, &u64)| **at + **bytes == end;
            if let Some((&at, _)) = holes.next_if(ends) {
                end = at;
            } else if let Some((&at, &bytes)) = last.next_if(|run| excess > 0 && ends(run)) {
                let cut = bytes.min(excess);
                excess -= cut;
                end -= cut;
                if cut < bytes {
                    rest = Some((at, bytes - cut));
                }
            } else {
                break;
            }
        }
        if end < self.end {
            gone.push(Surplus::End(end));
        }
        for (at, bytes) in rest
            .into_iter()
            .chain(last.map(|(&at, &bytes)| (at, bytes)))
        {
            let cut = bytes.min(excess);
            if cut >= HOLE_BYTES_MIN {
                excess -= cut;
                gone.push(Surplus::Hole(at + bytes - cut, cut));
            }
        }
        gone
    }

    /// The file system has this of it now.
    pub(super) fn give_up(&mut self, surplus: Surplus) {
        match surplus {
            Surplus::End(end) => {
                self.holes.retain(|at, _| *at < end);
                self.free.retain(|at, _| *at < end);
                let last = self.free.iter_mut().next_back();
                if let Some((at, bytes)) = last.filter(|(at, bytes)| **at + **bytes > end) {
                    *bytes = end - at;
                }
                self.end = end;
                self.cursor = self.cursor.min(end);
            }
            Surplus::Hole(offset, bytes) => {
                let run = self.free.range(..=offset).next_back();
                if let Some((&at, &length)) = run {
                    self.free.remove(&at);
                    self.add(at, offset - at);
                    self.add(offset + bytes, (at + length).saturating_sub(offset + bytes));
                    self.holes.insert(offset, bytes);
                }
            }
        }
    }

    /// A hole that has room for `bytes`: the longest one.
    pub(super) fn hole(&self, bytes: u64) -> Option<(u64, u64)> {
        let longest = self.holes.iter().max_by_key(|(_, length)| **length);
        let longest = longest.filter(|(_, length)| **length >= grains(bytes));
        longest.map(|(&offset, &length)| (offset, length))
    }

    /// The hole at `offset` is reserved again.
    pub(super) fn refill(&mut self, offset: u64) {
        if let Some(bytes) = self.holes.remove(&offset) {
            self.give(offset, bytes);
        }
    }

    /// Where the file ends.
    pub(super) fn end(&self) -> u64 {
        self.end
    }
    /// Bytes that are free.
    pub(super) fn free_bytes(&self) -> u64 {
        self.free.values().sum()
    }
    /// Bytes of the extents.
    pub(super) fn used_bytes(&self) -> u64 {
        self.end
            .saturating_sub(DATA_OFFSET + self.free_bytes() + self.hole_bytes())
    }
    /// Bytes of holes.
    pub(super) fn hole_bytes(&self) -> u64 {
        self.holes.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const G: u64 = GRAIN_BYTES;

    fn space(grains: u64) -> Space {
        Space::besides(DATA_OFFSET + grains * G, &mut Vec::new(), 8 * G).unwrap()
    }

    #[test]
    fn extents_follow_each_other_and_long_runs_come_first() {
        let mut space = space(100);
        let offsets: Vec<u64> = (0..10).map(|_| space.take(2 * G).unwrap()).collect();
        let wanted: Vec<u64> = (0..10).map(|n| DATA_OFFSET + n * 2 * G).collect();
        assert_eq!(offsets, wanted);
        // A short hole is left alone as long as there is a long run.
        space.give(offsets[3], 2 * G);
        assert_eq!(space.take(G), Some(DATA_OFFSET + 20 * G));
        assert_eq!(space.take_aside(2 * G), Some(offsets[3]));
        assert_eq!(space.take(79 * G), Some(DATA_OFFSET + 21 * G));
        assert_eq!(space.take(1), None);
        space.give(offsets[5], 2 * G);
        assert_eq!(space.take(1), Some(offsets[5]), "what is left, at last");
    }

    #[test]
    fn extents_that_overlap_or_end_beyond_the_file_are_refused() {
        let at = |grain: u64| DATA_OFFSET + grain * G;
        let file = at(10);
        let of = |mut used: Vec<(u64, u64)>| Space::besides(file, &mut used, G);
        assert!(of(vec![(at(2), G), (at(0), 2 * G)]).is_ok());
        assert!(of(vec![(at(2), 1), (at(1), G + 1)]).is_err());
        assert!(of(vec![(at(1), G), (at(1), G)]).is_err());
        assert!(of(vec![(at(9), G + 1)]).is_err());
        assert!(of(vec![(at(9), u64::MAX / 2)]).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever is taken and given back: no two extents overlap, and none is lost.
        #[test]
        fn nothing_is_given_out_twice(
            steps in proptest::collection::vec((0..6u8, 1..40u64, any::<proptest::sample::Index>()), 1..200)
        ) {
            let mut space = space(64);
            let mut live: Vec<(u64, u64)> = Vec::new();
            for (step, size, which) in steps {
                let taken = match step {
                    0 => space.take(size * 1000),
                    1 => space.take_aside(size * 1000),
                    2 if !live.is_empty() => {
                        let (offset, bytes) = live.swap_remove(which.index(live.len()));
                        space.give(offset, bytes);
                        None
                    }
                    3 if size == 1 => {
                        space.grow(space.end() + 16 * G);
                        None
                    }
                    4 => {
                        let (before, keep) = (space.free_bytes(), size * 3 * G);
                        let gone = space.surplus(keep);
                        for surplus in gone {
                            space.give_up(surplus);
                        }
                        prop_assert!(space.free_bytes() >= keep.min(before));
                        let runs = space.free.values().copied();
                        let worth: u64 = runs.filter(|bytes| *bytes >= HOLE_BYTES_MIN).sum();
                        prop_assert!(worth <= keep + HOLE_BYTES_MIN, "{worth} kept of {keep}");
                        let last = space.holes.iter().next_back();
                        prop_assert!(last.is_none_or(|(at, bytes)| at + bytes < space.end()));
                        None
                    }
                    5 => {
                        if let Some((offset, bytes)) = space.hole(size * 1000) {
                            prop_assert!(bytes >= size * 1000);
                            space.refill(offset);
                        }
                        None
                    }
                    _ => None,
                };
                if let Some(offset) = taken {
                    live.push((offset, size * 1000));
                }
                let mut used = live.clone();
                let again = Space::besides(space.end(), &mut used, G).unwrap();
                // Holes and free runs together are what is not used, each byte once.
                let mut both = Space::besides(space.end(), &mut Vec::new(), G).unwrap();
                both.free.clear();
                for (&at, &bytes) in space.free.iter().chain(&space.holes) {
                    both.give(at, bytes);
                }
                prop_assert_eq!(&again.free, &both.free);
                prop_assert_eq!(again.free_bytes(), space.free_bytes() + space.hole_bytes());
            }
        }
    }
}
