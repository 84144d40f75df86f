// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: this node's part of a file that several nodes write at once: what of it was written here, and in which opening.
//! In from: `nodes` (what processes wrote), `names`, `holders`. Out to: `sets`, other nodes: a file with its map behind it.
//! Invariants: a part that nobody has open has its map; one with a byte that no process told of is in no checkpoint.
//! Format: docs/format/part.md.

use super::clock::{Times, UNKNOWN, now_ns};
use super::state::{Content, FileId, ProcessId, State, shown};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::parts::{first_untold, map_of, split_part};
use backstay_format::limits::PART_STRETCHES_MAX;
use backstay_format::width::to_u64;
use backstay_format::{PartMap, PartStretch};
use backstay_route::notes::{JOINED_NS, NOTE_BYTES, NOTES, NOTES_MAX, Note, place};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// When bytes were written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    /// In which opening.
    pub(super) age: u64,
    /// Not before, and not after, in nanoseconds of the first agent's clock.
    pub(super) times: Times,
}

/// Bytes that were written: where they begin, where they end and when.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Written(BTreeMap<u64, (u64, Mark)>);

/// What is known of a part.
#[derive(Debug, Default, Clone)]
pub(super) struct Part {
    pub(super) written: Written,
    /// In which opening of the whole file it is written now.
    pub(super) age: u64,
    /// Its place among all closes when it was new: what was removed before that is another.
    pub(super) born: u64,
    /// How long its content is, once its map stands behind it.
    pub(super) sealed: Option<u64>,
}

/// What a process notes of what it writes.
#[derive(Debug)]
pub(super) struct Notes {
    pub(super) file: Arc<File>,
    /// So many were taken.
    taken: u64,
    /// The last of them, which may grow.
    last: Option<Note>,
}

impl Notes {
    /// What was noted since it was taken last, and the last before that: it may have grown.
    fn take(&mut self, is_full: bool) -> std::io::Result<Vec<Note>> {
        let mut count = [0; 8];
        self.file.read_exact_at(&mut count, 0)?;
        let count = u64::from_le_bytes(count);
        let begin = self.taken - u64::from(self.last.is_some());
        let begin = begin.max(count.saturating_sub(NOTES_MAX));
        let mut found = Vec::new();
        let mut at = begin;
        while at < count {
            // As far as the ring goes.
            let some = (count - at).min(NOTES_MAX - at % NOTES_MAX);
            let mut bytes = vec![0; NOTE_BYTES * usize::try_from(some).unwrap_or(0)];
            self.file.read_exact_at(&mut bytes, to_u64(place(at)))?;
            found.extend(bytes.as_chunks().0.iter().filter_map(Note::of));
            at += some;
        }
        self.taken = count;
        let before = self.last.take();
        self.last = found.last().filter(|_| !is_full).copied();
        if before.is_some() && found.first() == before.as_ref() {
            found.remove(0);
        }
        Ok(found)
    }
}

impl Mark {
    /// Of bytes that have this one, once others wrote them: what is told later may have been written before.
    fn under(self, other: Self) -> Self {
        if self.age != other.age {
            return if self.age > other.age { self } else { other };
        }
        let (one, two) = (self.times, other.times);
        let times = (one.0.max(two.0), one.1.max(two.1));
        Self { times, ..self }
    }

    /// The mark of both, if it says little less than each.
    fn joined(self, other: Self) -> Option<Self> {
        let (one, two) = (self.times, other.times);
        let times = (one.0.min(two.0), one.1.max(two.1));
        let shorter = (one.1 - one.0).min(two.1 - two.0);
        let is_near = times.1 - times.0 <= shorter.saturating_mul(2).saturating_add(JOINED_NS);
        let is_one = self == other || self.age == other.age && is_near;
        is_one.then_some(Self { times, ..self })
    }
}

impl Written {
    /// Bytes were written.
    pub(super) fn add(&mut self, begin: u64, end: u64, mark: Mark) {
        if begin >= end {
            return;
        }
        // What begins before the end, and ends behind the beginning.
        let touched = self.0.range(..end).rev();
        let touched = touched.take_while(|(_, (other_end, _))| *other_end > begin);
        let mut touched: Vec<(u64, (u64, Mark))> =
            touched.map(|(at, other)| (*at, *other)).collect();
        touched.reverse();
        let mut at = begin;
        for (other, (other_end, known)) in touched {
            self.0.remove(&other);
            if other < begin {
                self.0.insert(other, (begin, known));
            }
            self.put(at, other, mark);
            at = other_end.min(end);
            self.put(other.max(begin), at, known.under(mark));
            if other_end > end {
                self.0.insert(end, (other_end, known));
            }
        }
        self.put(at, end, mark);
        if let Some((next_end, next)) = self.0.remove(&end) {
            self.put(end, next_end, next);
        }
    }

    /// Puts where nothing is, with what ends there where both can be one.
    fn put(&mut self, begin: u64, end: u64, mark: Mark) {
        if begin >= end {
            return;
        }
        let before = self.0.range_mut(..begin).next_back();
        if let Some((_, (before_end, known))) = before
            && *before_end == begin
            && let Some(joined) = known.joined(mark)
        {
            (*before_end, *known) = (end, joined);
            return;
        }
        self.0.insert(begin, (end, mark));
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
        let mark = |stretch: &PartStretch| Mark {
            age: stretch.age,
            times: (stretch.first_ns, stretch.last_ns),
        };
        Self(
            stretches
                .map(|stretch| (stretch.offset, (stretch.end(), mark(stretch))))
                .collect(),
        )
    }

    /// What was written of these bytes.
    fn within(&self, bytes: std::ops::Range<u64>) -> impl Iterator<Item = PartStretch> + '_ {
        let first = self.0.range(..=bytes.start).next_back();
        let from = first.map_or(bytes.start, |(begin, _)| *begin);
        let all = self.0.range(from..bytes.end.max(from));
        let all = all.filter(move |(_, (end, _))| *end > bytes.start);
        all.map(move |(begin, (end, mark))| {
            let (begin, end) = (bytes.start.max(*begin), bytes.end.min(*end));
            PartStretch {
                offset: begin,
                length_bytes: end - begin,
                age: mark.age,
                first_ns: mark.times.0,
                last_ns: mark.times.1,
            }
        })
    }

    fn count(&self) -> usize {
        self.0.len()
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

    /// A process has a file for what it writes of parts.
    pub(super) fn notes_at(&mut self, process: ProcessId, name: &[u8]) -> std::io::Result<()> {
        let name = Path::new(OsStr::from_bytes(name)).file_name();
        let path = self.folder.join(NOTES).join(name.unwrap_or_default());
        let file = File::options().read(true).write(true).open(&path)?;
        std::fs::remove_file(path)?;
        let notes = Notes {
            file: Arc::new(file),
            taken: 0,
            last: None,
        };
        self.notes.insert(process, notes);
        Ok(())
    }

    /// Takes what all processes noted.
    pub(super) fn take_all_notes(&mut self) {
        let all: Vec<ProcessId> = self.notes.keys().copied().collect();
        for process in all {
            self.take_notes(process, false);
        }
    }

    /// Takes what a process noted; `is_full`: it does not change its last note any more.
    pub(super) fn take_notes(&mut self, process: ProcessId, is_full: bool) {
        let Some(notes) = self.notes.get_mut(&process) else {
            return;
        };
        let Ok(found) = notes.take(is_full) else {
            // What it wrote then is found where parts are looked through.
            return;
        };
        let now = now_ns();
        let mut last: Option<(u32, FileId)> = None;
        for note in found {
            let known = last.filter(|(id, _)| *id == note.id);
            let file = known.map(|(_, file)| file);
            let Some(file) = file.or_else(|| self.held(process, note.id)) else {
                continue;
            };
            last = Some((note.id, file));
            let times = if note.last_ns > now {
                // It has another clock.
                UNKNOWN
            } else if self.rank == 0 {
                (note.first_ns, note.last_ns)
            } else {
                (
                    self.clock.there(note.first_ns).0,
                    self.clock.there(note.last_ns).1,
                )
            };
            self.wrote(file, (note.begin, note.end), times);
        }
    }

    /// Bytes of a part were written.
    pub(super) fn wrote(&mut self, file: FileId, (begin, end): (u64, u64), times: Times) {
        let Some(file) = self.files.get_mut(&file) else {
            return;
        };
        let Some(part) = &mut file.part else {
            return;
        };
        let age = part.age;
        part.written.add(begin, end, Mark { age, times });
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

    /// What this node has of these bytes of a part, so many stretches at most; nothing where there is no such part.
    pub(super) fn piece(
        &mut self,
        name: &[u8],
        bytes: std::ops::Range<u64>,
        most: usize,
    ) -> Option<Result<Vec<PartStretch>>> {
        self.take_all_notes();
        let file = self.file_named(name).and_then(|id| self.files.get(&id))?;
        let part = file.part.as_ref()?;
        if file.voided {
            let context = "a part of which it is not known what was written";
            return Some(Err(Error::new(ErrorKind::Corrupt, context)));
        }
        Some(Ok(part.written.within(bytes).take(most).collect()))
    }

    /// Whether parts are open here.
    pub(super) fn writes_parts(&self) -> bool {
        let mut files = self.files.values();
        files.any(|file| file.part.is_some() && !file.holders.is_empty())
    }

    /// A part is not what it should be: it is in no checkpoint.
    pub(super) fn void_part(&mut self, name: &[u8]) {
        let file = self.file_named(name).and_then(|id| self.files.get_mut(&id));
        if let Some(file) = file {
            file.voided = true;
        }
    }

    /// A part is no longer than `length` from now on.
    pub(super) fn cut_part(&mut self, name: &[u8], length: u64) -> Result<()> {
        // What is not noted yet is written after it.
        self.take_all_notes();
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
            let part = self.files.get(&id).and_then(|file| file.part.as_ref());
            let age = part.map_or(0, |part| part.age);
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
                let written: Vec<PartStretch> = part.written.within(0..length).collect();
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
        Some((length, part.age))
    }
}

/// Writes the map of a part behind its content; how long that is.
fn seal(live: &Path, part: &Part) -> Result<u64> {
    let failed = |error| Error::io(format!("writing to {}", live.display()), error);
    let file = File::options().write(true).open(live).map_err(failed)?;
    let length = file.metadata().map_err(failed)?.len();
    // What was to be written and was not, as an asynchronous call that failed, is not beyond the end.
    let map = PartMap {
        length_bytes: length,
        stretches: part.written.within(0..length).collect(),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of an age, and of no time.
    fn mark(age: u64) -> Mark {
        Mark { age, times: (0, 0) }
    }

    fn at(times: Times) -> Mark {
        Mark { age: 1, times }
    }

    fn of(stretches: &[(u64, u64, u64)]) -> Written {
        Written(
            stretches
                .iter()
                .map(|(begin, end, age)| (*begin, (*end, mark(*age))))
                .collect(),
        )
    }

    #[test]
    fn what_touches_is_one_and_what_is_newer_goes_over() {
        let mut written = Written::default();
        written.add(10, 20, mark(1));
        written.add(30, 40, mark(1));
        written.add(20, 30, mark(1));
        assert_eq!(written, of(&[(10, 40, 1)]));
        written.add(15, 18, mark(2));
        assert_eq!(written, of(&[(10, 15, 1), (15, 18, 2), (18, 40, 1)]));
        written.add(0, 16, mark(3));
        assert_eq!(written, of(&[(0, 16, 3), (16, 18, 2), (18, 40, 1)]));
        written.add(40, 41, mark(3));
        written.add(5, 5, mark(9));
        assert_eq!(
            written,
            of(&[(0, 16, 3), (16, 18, 2), (18, 40, 1), (40, 41, 3)])
        );
        let part = |bytes: std::ops::Range<u64>| -> Vec<(u64, u64)> {
            let found = written.within(bytes);
            found.map(|found| (found.offset, found.end())).collect()
        };
        assert_eq!(part(17..19), [(17, 18), (18, 19)]);
        assert_eq!(part(0..2), [(0, 2)]);
        assert_eq!(part(40..90), [(40, 41)]);
        assert_eq!(part(41..90), []);
        written.add(0, 50, mark(4));
        assert_eq!(written, of(&[(0, 50, 4)]));
        assert_eq!(written.count(), 1);
        written.add(60, 70, mark(5));
        written.cut(65);
        assert_eq!(written, of(&[(0, 50, 4), (60, 65, 5)]));
        written.cut(60);
        assert_eq!(written, of(&[(0, 50, 4)]));
        written.cut(0);
        assert_eq!(written, Written::default());
    }

    #[test]
    fn what_was_written_much_later_stays_apart() {
        let mut written = Written::default();
        written.add(0, 10, at((1_000, 2_000)));
        written.add(10, 20, at((50_000, 51_000)));
        assert_eq!(written.0, [(0, (20, at((1_000, 51_000))))].into());
        written.add(20, 30, at((200_000, 201_000)));
        assert_eq!(written.count(), 2);
        // Over both, and near to the second alone.
        written.add(15, 25, at((150_000, 150_500)));
        let wanted = [
            (0, (15, at((1_000, 51_000)))),
            (15, (30, at((150_000, 201_000)))),
        ];
        assert_eq!(written.0, wanted.into());
        // Of unknown time, and joined with nothing that is known.
        written.add(30, 40, at(UNKNOWN));
        written.add(40, 50, at(UNKNOWN));
        assert_eq!(written.0[&30], (50, at(UNKNOWN)));
        assert_eq!(written.count(), 3);
    }

    #[test]
    fn it_is_as_if_each_byte_had_its_own_mark() {
        let (mut written, mut bytes) = (Written::default(), [None::<Mark>; 64]);
        let mut seed = 7u64;
        let mut draw = |most: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % most
        };
        for round in 0..2000u64 {
            let begin = draw(64);
            let end = begin + draw(65 - begin);
            let age = 1 + round / 50;
            let first = round * 20_000 + draw(1_000_000);
            let times = (first, first + draw(1000));
            written.add(begin, end, Mark { age, times });
            for byte in begin..end {
                let known = &mut bytes[usize::try_from(byte).expect("small")];
                let added = Mark { age, times };
                *known = Some(known.map_or(added, |known| known.under(added)));
            }
            let mut found = [None::<Mark>; 64];
            let mut last = 0;
            for (begin, (end, mark)) in &written.0 {
                assert!(*begin >= last && begin < end, "{written:?}");
                last = *end;
                for byte in *begin..*end {
                    found[usize::try_from(byte).expect("small")] = Some(*mark);
                }
            }
            for (found, wanted) in found.iter().zip(&bytes) {
                // It says the same, or a little less.
                let is_it = match (found, wanted) {
                    (Some(found), Some(wanted)) => {
                        let (one, two) = (found.times, wanted.times);
                        let is_near = one.1 - one.0 <= 10 * (JOINED_NS + 1000);
                        found.age == wanted.age && one.0 <= two.0 && one.1 >= two.1 && is_near
                    }
                    (None, None) => true,
                    _ => false,
                };
                assert!(is_it, "round {round}: {found:?} for {wanted:?}");
            }
        }
        assert!(written.count() <= 64);
    }
}
