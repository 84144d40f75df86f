// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: this node's part of a file that several nodes write at once: what of it was written here, and in which opening.
//! In from: `nodes` (what processes wrote), `names`, `holders`. Out to: `sets`, other nodes: a file with its map behind it.
//! Invariants: a part that nobody has open has its map; one with a byte that no process told of is in no checkpoint.
//! Format: docs/format/part.md.

use super::state::{Content, FileId, State, shown};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::parts::{first_untold, map_of, split_part};
use backstay_format::limits::PART_STRETCHES_MAX;
use backstay_format::{PartMap, PartStretch};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Instant;

/// Bytes that were written: where they begin, where they end and in which opening.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Written(BTreeMap<u64, (u64, u64)>);

/// What is known of a part.
#[derive(Debug, Default, Clone)]
pub(super) struct Part {
    pub(super) written: Written,
    /// In which opening of the whole file it is written now.
    pub(super) age: u64,
    /// In which opening a process of this node wrote last, or was about to.
    pub(super) writes: u64,
    /// Its place among all closes when it was new: what was removed before that is another.
    pub(super) born: u64,
    /// How long its content is, once its map stands behind it.
    pub(super) sealed: Option<u64>,
}

impl Written {
    /// Bytes were written in opening `age`: they are of no other any more.
    pub(super) fn add(&mut self, begin: u64, end: u64, age: u64) {
        if begin >= end {
            return;
        }
        let (mut begin, mut end) = (begin, end);
        // What begins before the end, and ends at the beginning or behind it.
        let touched = self.0.range(..=end).rev();
        let touched = touched.take_while(|(_, (other_end, _))| *other_end >= begin);
        let touched: Vec<(u64, (u64, u64))> = touched.map(|(at, other)| (*at, *other)).collect();
        let given = begin..end;
        for (other, (other_end, other_age)) in touched {
            self.0.remove(&other);
            if other_age == age {
                begin = begin.min(other);
                end = end.max(other_end);
                continue;
            }
            if other < given.start {
                self.0.insert(other, (given.start, other_age));
            }
            if other_end > given.end {
                self.0.insert(given.end, (other_end, other_age));
            }
        }
        self.0.insert(begin, (end, age));
    }

    /// Nothing beyond `length` is there any more.
    fn cut(&mut self, length: u64) {
        drop(self.0.split_off(&length));
        if let Some(mut last) = self.0.last_entry() {
            let (end, _) = last.get_mut();
            *end = length.min(*end);
        }
    }

    fn of(map: &PartMap) -> Self {
        let stretches = map.stretches.iter();
        Self(
            stretches
                .map(|stretch| (stretch.offset, (stretch.end(), stretch.age)))
                .collect(),
        )
    }

    fn stretches(&self) -> Vec<PartStretch> {
        let all = self.0.iter().map(|(begin, (end, age))| PartStretch {
            offset: *begin,
            length_bytes: end - begin,
            age: *age,
        });
        all.collect()
    }

    fn count(&self) -> usize {
        self.0.len()
    }

    pub(super) fn age(&self) -> u64 {
        self.0.values().map(|(_, age)| *age).max().unwrap_or(0)
    }
}

impl State {
    /// Whether several nodes write one file of this name at once.
    pub(super) fn is_shared(&self, name: &[u8]) -> bool {
        self.spread
            && self
                .table()
                .find(name)
                .is_some_and(|found| self.table().is_shared(&found))
    }

    /// The name of the whole file, if this is one of a part.
    pub(super) fn whole_of<'a>(&self, name: &'a [u8]) -> Option<&'a [u8]> {
        let (whole, _) = split_part(name)?;
        self.is_shared(whole).then_some(whole)
    }

    /// A process told what it wrote.
    pub(super) fn wrote(&mut self, file: FileId, pairs: &[u8]) {
        let Some(file) = self.files.get_mut(&file) else {
            return;
        };
        let Some(part) = &mut file.part else {
            return;
        };
        for pair in pairs.chunks_exact(16) {
            let number = |bytes: &[u8]| {
                let mut word = [0; 8];
                word.copy_from_slice(bytes);
                u64::from_le_bytes(word)
            };
            let (begin, count) = (number(&pair[..8]), number(&pair[8..]));
            part.written
                .add(begin, begin.saturating_add(count), part.age);
        }
        if part.written.count() > usize::try_from(PART_STRETCHES_MAX).unwrap_or(usize::MAX) {
            file.voided = true;
            part.written = Written::default();
            let name = file.name.clone().unwrap_or_default();
            self.say(format!(
                "{} is written in more pieces than a part of a file can have: it is in no checkpoint",
                shown(&name)
            ));
        }
    }

    /// A process is about to write to its part.
    pub(super) fn writes(&mut self, file: FileId) {
        let file = self.files.get_mut(&file);
        if let Some(part) = file.and_then(|file| file.part.as_mut()) {
            part.writes = part.age;
        }
    }

    /// Whether nothing was written to a part in opening `age` of the whole file: what it has is from before.
    pub(super) fn is_as_before(&self, name: &[u8], age: u64) -> bool {
        let file = self.file_named(name).and_then(|id| self.files.get(&id));
        let part = file.and_then(|file| file.part.as_ref());
        part.is_none_or(|part| part.writes < age)
    }

    /// In which opening a part is written, or was.
    pub(super) fn age_of_part(&self, name: &[u8]) -> Option<u64> {
        let file = self.file_named(name).and_then(|id| self.files.get(&id))?;
        file.part.as_ref().map(|part| part.age)
    }

    /// A part is no longer than `length` from now on.
    pub(super) fn cut_part(&mut self, name: &[u8], length: u64) -> Result<()> {
        let live = self.live(name).unwrap_or_default();
        let Some(id) = self.file_named(name) else {
            return Ok(());
        };
        let file = self.files.get(&id);
        let is_open = file.is_some_and(|file| !file.holders.is_empty());
        let failed = |error| Error::io(format!("cutting the part {}", live.display()), error);
        if !is_open {
            let writable = self.make_writable(id, &live, false);
            writable.map_err(|error| failed(error.into()))?;
            let age = self.age_of_part(name).unwrap_or(0);
            self.begin_part(name, age, None)?;
        }
        let cut = File::options().write(true).open(&live).and_then(|open| {
            let now = open.metadata()?.len();
            open.set_len(now.min(length))
        });
        cut.map_err(failed)?;
        let Some(file) = self.files.get_mut(&id) else {
            return Ok(());
        };
        if let Some(part) = &mut file.part {
            part.written.cut(length);
        }
        if !is_open {
            file.content = Content::Closed(Instant::now());
            file.order = None;
            self.seal_part(id);
        }
        Ok(())
    }

    /// A part is opened to be written in opening `age`: its map goes from its end.
    pub(super) fn begin_part(&mut self, name: &[u8], age: u64, born: Option<u64>) -> Result<()> {
        let live = self.live(name).unwrap_or_default();
        let file = self.file_named(name).and_then(|id| self.files.get_mut(&id));
        let Some(file) = file else {
            return Ok(());
        };
        let part = file.part.get_or_insert_default();
        part.age = age;
        part.born = born.unwrap_or(part.born);
        if let Some(length) = part.sealed {
            let failed = |error| Error::io(format!("opening the part {}", live.display()), error);
            let open = File::options().write(true).open(&live).map_err(failed)?;
            open.set_len(length).map_err(failed)?;
            part.sealed = None;
        }
        Ok(())
    }

    /// Nobody has a part open: its map comes behind it.
    pub(super) fn seal_part(&mut self, id: FileId) {
        let Some(file) = self.files.get(&id) else {
            return;
        };
        let (Some(name), Some(part), false) = (&file.name, &file.part, file.voided) else {
            return;
        };
        let live = self.live(name).unwrap_or_default();
        let sealed = seal(&live, part);
        let name = name.clone();
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        match sealed {
            Ok(length) => {
                if let Some(part) = &mut file.part {
                    part.sealed = Some(length);
                }
            }
            Err(error) => {
                file.voided = true;
                file.content = Content::Unfinished;
                let name = shown(&name);
                self.say(format!(
                    "{name} is in no checkpoint: its map cannot be written: {error}"
                ));
            }
        }
    }

    /// Whether a part has no byte but those that processes told of; where it has, it is in no checkpoint.
    pub(super) fn is_told(&mut self, id: FileId) -> bool {
        let Some(file) = self.files.get(&id) else {
            return false;
        };
        let (Some(name), Some(part)) = (&file.name, &file.part) else {
            return true;
        };
        let live = self.live(name).unwrap_or_default();
        let found = File::open(&live)
            .map_err(|error| Error::io(format!("opening {}", live.display()), error))
            .and_then(|file| {
                let (map, length) = map_of(&file)?;
                let written = cut(part.written.stretches(), length);
                if map.stretches != written || part.sealed != Some(length) {
                    let context = "its map is not that which was written";
                    return Err(Error::new(ErrorKind::Corrupt, context));
                }
                first_untold(&file, &map, length)
            });
        let name = shown(name);
        let why = match found {
            Ok(None) => return true,
            Ok(Some(at)) => format!("byte {at} was written past the C library"),
            Err(error) => error.to_string(),
        };
        if let Some(file) = self.files.get_mut(&id) {
            file.voided = true;
            file.content = Content::Unfinished;
        }
        self.say(format!("{name} is in no checkpoint: {why}"));
        false
    }

    /// What is known of a part that was restored.
    pub(super) fn load_part(&mut self, name: &[u8]) -> Result<()> {
        if self.whole_of(name).is_none() {
            return Ok(());
        }
        let live = self.live(name).unwrap_or_default();
        let failed = |error| Error::io(format!("opening {}", live.display()), error);
        let open = File::open(&live).map_err(failed)?;
        let (map, length) = map_of(&open)?;
        let part = Part {
            age: map.age(),
            writes: 0,
            born: 0,
            written: Written::of(&map),
            sealed: Some(length),
        };
        let file = self.file_named(name).and_then(|id| self.files.get_mut(&id));
        if let Some(file) = file {
            file.part = Some(part);
        }
        Ok(())
    }

    /// The length of the content of a part, as it is now; and the highest age of what was written.
    pub(super) fn length_of_part(&self, name: &[u8]) -> Option<(u64, u64)> {
        let file = self.file_named(name).and_then(|id| self.files.get(&id))?;
        let part = file.part.as_ref()?;
        let now = || std::fs::metadata(self.live(name)?).ok();
        let length = part
            .sealed
            .or_else(|| now().map(|about| about.len()))
            .unwrap_or(0);
        Some((length, part.written.age().max(part.age)))
    }
}

/// Writes the map of a part behind its content; how long that is.
fn seal(live: &std::path::Path, part: &Part) -> Result<u64> {
    let failed = |error| Error::io(format!("writing to {}", live.display()), error);
    let file = File::options().write(true).open(live).map_err(failed)?;
    let length = file.metadata().map_err(failed)?.len();
    let map = PartMap {
        length_bytes: length,
        stretches: cut(part.written.stretches(), length),
    };
    let bytes = map
        .behind(length)
        .map_err(|error| Error::caused(ErrorKind::InvalidArgument, "the map of a part", error))?;
    let modified = file.metadata().and_then(|about| about.modified());
    let written = file.write_all_at(&bytes, length);
    if written.is_err() {
        // As it was, at least.
        file.set_len(length).map_err(failed)?;
    }
    written.map_err(failed)?;
    // The time is the program's.
    let times = modified.map(|time| std::fs::FileTimes::new().set_modified(time));
    times
        .and_then(|times| file.set_times(times))
        .map_err(failed)?;
    Ok(length)
}

/// What was to be written and was not, as an asynchronous call that failed, is not beyond the end.
fn cut(stretches: Vec<PartStretch>, length: u64) -> Vec<PartStretch> {
    let within = stretches
        .into_iter()
        .filter(|stretch| stretch.offset < length);
    within
        .map(|stretch| PartStretch {
            length_bytes: stretch.length_bytes.min(length - stretch.offset),
            ..stretch
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(stretches: &[(u64, u64, u64)]) -> Written {
        Written(
            stretches
                .iter()
                .map(|(begin, end, age)| (*begin, (*end, *age)))
                .collect(),
        )
    }

    #[test]
    fn what_touches_is_one_and_what_is_newer_goes_over() {
        let mut written = Written::default();
        written.add(10, 20, 1);
        written.add(30, 40, 1);
        written.add(20, 30, 1);
        assert_eq!(written, of(&[(10, 40, 1)]));
        written.add(15, 18, 2);
        assert_eq!(written, of(&[(10, 15, 1), (15, 18, 2), (18, 40, 1)]));
        written.add(0, 16, 3);
        assert_eq!(written, of(&[(0, 16, 3), (16, 18, 2), (18, 40, 1)]));
        written.add(40, 41, 3);
        written.add(5, 5, 9);
        assert_eq!(
            written,
            of(&[(0, 16, 3), (16, 18, 2), (18, 40, 1), (40, 41, 3)])
        );
        written.add(0, 50, 4);
        assert_eq!(written, of(&[(0, 50, 4)]));
        assert_eq!((written.age(), written.count()), (4, 1));
        written.add(60, 70, 5);
        written.cut(65);
        assert_eq!(written, of(&[(0, 50, 4), (60, 65, 5)]));
        written.cut(60);
        assert_eq!(written, of(&[(0, 50, 4)]));
        written.cut(0);
        assert_eq!(written, Written::default());
    }

    #[test]
    fn it_is_as_if_each_byte_had_its_own_age() {
        let (mut written, mut bytes) = (Written::default(), [0u64; 64]);
        let mut seed = 7u64;
        let mut draw = |most: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % most
        };
        for round in 0..2000u64 {
            let begin = draw(64);
            let end = begin + draw(65 - begin);
            let age = 1 + round / 50;
            written.add(begin, end, age);
            for byte in begin..end {
                bytes[usize::try_from(byte).expect("small")] = age;
            }
            let mut found = [0u64; 64];
            let mut last = 0;
            for (begin, (end, age)) in &written.0 {
                assert!(*begin >= last && begin < end, "{written:?}");
                last = *end;
                for byte in *begin..*end {
                    found[usize::try_from(byte).expect("small")] = *age;
                }
            }
            assert_eq!(found, bytes, "round {round}");
        }
        assert!(written.count() <= 64);
    }
}
