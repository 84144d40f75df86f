// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: files that several nodes write at once: each writes its part, and who reads gets all parts together.
//! In from: processes of this node, by `nodes`; `rounds` (whether parts agree). Out to: the index, other nodes, copies in
//! the agent's folder.
//! Invariants: a file is put together of parts that nobody writes, all of one state; it is removed with all of its parts,
//! or not at all.

use super::copies::{finish, open_new};
use super::{Nodes, Outcome, errno};
use crate::routing::clock::now_ns;
use crate::routing::rounds::WholeParts;
use crate::routing::state::{Holder, ProcessId, shown};
use crate::routing::talk::{About, Answer, Place, Request};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::parts::{
    Part, assemble, differ, map_of, part_name, put_together, read_map, split_part,
};
use backstay_base::notice;
use backstay_format::width::{to_u64, to_usize};
use backstay_format::{PartMap, PartStretch};
use backstay_route::NEAR;
use backstay_route::notes::{BUFFER_AT, BUFFER_BYTES};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// So often is a file looked at that is written, and so long between.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(20);

/// So often is the first agent asked for its clock: the shortest answer says most.
const LOOKS: u32 = 3;
/// And so long after, as long as parts are written; longer where there are more than a hundred agents.
const LOOK_AFTER: Duration = Duration::from_millis(100);
/// So many stretches are said at once.
const STRETCHES: usize = 4096;

/// A part: its name, where it is, whether somebody writes it.
type Parts = Vec<(Vec<u8>, Place, bool)>;

impl Nodes {
    pub(super) fn is_shared(&self, name: &[u8]) -> bool {
        self.shared.lock().is_shared(name)
    }

    pub(super) fn own_part(&self, name: &[u8]) -> Vec<u8> {
        part_name(name, self.rank())
    }

    /// The parts of a file.
    pub(super) fn parts(&self, name: &[u8]) -> Outcome<Parts> {
        let name = name.to_vec();
        match self.ask_index(Request::Parts { name })? {
            Answer::Parts(parts) => Ok(parts),
            _ => Err(Errno::IO),
        }
    }

    /// How long the file of these parts is now.
    fn length_of(&self, parts: &Parts) -> Outcome<u64> {
        let mut longest = 0;
        for (part, place, written) in parts {
            let length = if *written {
                let part = part.clone();
                match self.ask(place.owner, Request::Length { part }) {
                    Ok(Answer::Length(length)) => length,
                    // It is claimed, and not there yet.
                    Err(Errno::NOENT) => 0,
                    Err(error) => return Err(error),
                    Ok(_) => return Err(Errno::IO),
                }
            } else {
                place.about.length
            };
            longest = longest.max(length);
        }
        Ok(longest)
    }

    /// A process of this node opens a file for writing that several nodes may write.
    pub(super) fn open_part(&self, holder: Holder, name: &[u8], flags: i32) -> Outcome {
        let mut flags = OFlags::from_bits_retain(flags.cast_unsigned());
        if split_part(name).is_some() {
            return Err(Errno::INVAL);
        }
        if flags.contains(OFlags::APPEND) {
            let name = shown(name);
            self.shared.lock().say(format!(
                "routing: {name} is opened to append (O_APPEND), and several hosts write it: refused"
            ));
            return Err(Errno::OPNOTSUPP);
        }
        let part = self.own_part(name);
        let _held = self.hold(&[name, &part]);
        self.look_at_clock();
        if flags.contains(OFlags::TRUNC) && self.cut_off(name)? {
            flags.insert(OFlags::CREATE);
        }
        let request = Request::ClaimPart {
            rank: self.rank(),
            part: part.clone(),
            flags: flags.bits(),
        };
        let Answer::ClaimedPart { age, born } = self.ask_index(request)? else {
            return Err(Errno::IO);
        };
        let mut state = self.shared.lock();
        if let Some(born) = born {
            // What has its name still was removed.
            state.displaced(&part, Some(born));
        }
        let create = OFlags::CREATE.bits().cast_signed();
        let opened = state.open(holder, &part, create).and_then(|()| {
            let begun = state.begin_part(&part, age, born);
            begun.map_err(|error| {
                notice::warn(&format!(
                    "routing: the part of a file is not opened: {error}"
                ));
                state.closed(holder.process, holder.id, true);
                Errno::IO
            })
        });
        drop(state);
        if opened.is_err() {
            self.tell(&part)?;
        }
        opened
    }

    /// What a file had goes, as it is opened; whether there was anything. Where somebody wrote to it since it is open, that
    /// cannot be: it is not known on other nodes what comes before that, and what after.
    fn cut_off(&self, name: &[u8]) -> Outcome<bool> {
        for _ in 0..TRIES {
            let parts = self.parts(name)?;
            if self.length_of(&parts)? == 0 {
                return Ok(false);
            }
            match self.remove_parts(name) {
                Ok(()) => return Ok(true),
                // Another node has it open, perhaps just now, and nothing in it.
                Err(Errno::BUSY | Errno::NOENT) => std::thread::sleep(PAUSE),
                Err(error) => return Err(error),
            }
        }
        Err(Errno::BUSY)
    }

    /// A file becomes shorter, on all nodes: what is there now. What a program writes after the call that cuts it is not there
    /// yet, and what it wrote before is noted.
    pub(super) fn cut_parts(&self, name: &[u8], length: &[u8]) -> Outcome {
        let length = length.try_into().map_err(|_| Errno::INVAL)?;
        let length = u64::from_le_bytes(length);
        let _held = self.hold(&[name]);
        for (part, place, _) in self.parts(name)? {
            match self.ask(place.owner, Request::Cut { part, length }) {
                // It is claimed, and not there yet.
                Ok(_) | Err(Errno::NOENT) => {}
                Err(error) => {
                    // Some may be cut, and others not.
                    let mut state = self.shared.lock();
                    state.void_part(&self.own_part(name));
                    let name = shown(name);
                    state.say(format!(
                        "routing: {name} is in no checkpoint: it was cut on some hosts only"
                    ));
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    pub(super) fn cut_here(&self, part: &[u8], length: u64) -> Outcome {
        let mut state = self.shared.lock();
        if !state.has(part) {
            return Err(Errno::NOENT);
        }
        let cut = state.cut_part(part, length).map_err(|error| {
            state.say(format!("routing: the part of a file is not cut: {error}"));
            Errno::IO
        });
        drop(state);
        cut?;
        let _held = self.hold(&[part]);
        self.tell(part)
    }

    /// What this node has of bytes of its part.
    pub(super) fn piece_here(
        &self,
        part: &[u8],
        offset: u64,
        length: u64,
    ) -> Outcome<(Answer, Vec<u8>)> {
        let mut state = self.shared.lock();
        let end = offset.saturating_add(length.min(to_u64(BUFFER_BYTES)));
        let found = state.piece(part, offset..end, STRETCHES + 1);
        let mut found = found.ok_or(Errno::NOENT)?.map_err(|_| Errno::IO)?;
        let (whole, _) = state.length_of_part(part).ok_or(Errno::NOENT)?;
        let live = state.live(part).ok_or(Errno::NOENT)?;
        // It is one of the file as long as nobody else cuts it.
        let file = File::open(live).map_err(|error| errno(&error))?;
        let until = found.get(STRETCHES).map_or(end, |next| next.offset);
        found.truncate(STRETCHES);
        let mut bytes = Vec::new();
        for stretch in &found {
            let begin = bytes.len();
            bytes.resize(begin + to_usize(stretch.length_bytes), 0);
            match file.read_exact_at(&mut bytes[begin..], stretch.offset) {
                // Its process cuts it just now, or failed to write: what is not there is zero.
                Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {}
                read => read.map_err(|error| errno(&error))?,
            }
        }
        drop(state);
        let stretches = found.iter();
        let stretches = stretches.map(|stretch| {
            let PartStretch {
                offset,
                length_bytes,
                age,
                first_ns,
                last_ns,
            } = *stretch;
            [offset, length_bytes, age, first_ns, last_ns]
        });
        let answer = Answer::Piece {
            length: whole,
            until,
            stretches: stretches.collect(),
        };
        Ok((answer, bytes))
    }

    /// Puts bytes of a file, as they are now, where a process has its notes.
    pub(super) fn read_parts(&self, process: ProcessId, name: &[u8], bytes: &[u8]) -> Outcome {
        let notes = self
            .shared
            .lock()
            .notes
            .get(&process)
            .map(|notes| Arc::clone(&notes.file));
        let notes = notes.ok_or(Errno::INVAL)?;
        let ([offset, length], []) = bytes.as_chunks() else {
            return Err(Errno::INVAL);
        };
        let (offset, length) = (u64::from_le_bytes(*offset), u64::from_le_bytes(*length));
        let end = offset.checked_add(length).ok_or(Errno::INVAL)?;
        let found = self.read_pieces(name, offset..end)?;
        let put = notes.write_all_at(&found, to_u64(BUFFER_AT));
        let put = put.and_then(|()| notes.write_all_at(&to_u64(found.len()).to_le_bytes(), 8));
        put.map_err(|error| errno(&error))
    }

    /// Bytes of a file as they are now, as far as it goes, or fewer.
    fn read_pieces(&self, name: &[u8], bytes: Range<u64>) -> Outcome<Vec<u8>> {
        let (mut whole, mut until) = (0, bytes.end.min(bytes.start + to_u64(BUFFER_BYTES)));
        let mut found = Vec::new();
        for (part, place, _) in self.parts(name)? {
            let request = Request::Piece {
                part,
                offset: bytes.start,
                length: until - bytes.start,
            };
            let (answer, has) = match self.ask_with_bytes(place.owner, request) {
                Ok(answered) => answered,
                // It is claimed, and not there yet.
                Err(Errno::NOENT) => continue,
                Err(error) => return Err(error),
            };
            let Answer::Piece {
                length,
                until: said,
                stretches,
            } = answer
            else {
                return Err(Errno::IO);
            };
            whole = whole.max(length);
            until = until.min(said);
            found.push((place.owner, Piece::new(&stretches, has)?));
        }
        let mut read = vec![0; to_usize(until.min(whole).saturating_sub(bytes.start))];
        let stretches: Vec<&[PartStretch]> = found
            .iter()
            .map(|(_, piece)| &piece.stretches[..])
            .collect();
        let read_at = |part: usize, to: &mut [u8], at| found[part].1.read_at(to, at);
        let write_at = |from: &[u8], at: u64| {
            // What one part has beyond is not asked for.
            if let Some(to) = read.get_mut(to_usize(at - bytes.start)..) {
                let length = from.len().min(to.len());
                to[..length].copy_from_slice(&from[..length]);
            }
            Ok(())
        };
        let conflict = assemble(&stretches, false, read_at, write_at).map_err(|_| Errno::IO)?;
        // Beyond what is read not all was asked.
        let here = bytes.start..bytes.start + to_u64(read.len());
        let Some((both, at)) = conflict.filter(|(_, at)| here.contains(at)) else {
            return Ok(read);
        };
        let [one, other] = both.map(|part| self.circle.host(found[part].0));
        let (name, why) = (shown(name), differ(&one, &other, at));
        self.shared
            .lock()
            .say(format!("routing: {name} cannot be read: {why}"));
        Err(Errno::IO)
    }

    /// What this node knows of the first one's clock is of now.
    fn look_at_clock(&self) {
        if self.rank() == 0 || self.shared.lock().clock.is_fresh(now_ns()) {
            return;
        }
        for _ in 0..LOOKS {
            let asked = now_ns();
            let answered = self.circle.ask(0, &Request::Clock, self.within);
            let Ok((Answer::Clock(there), _)) = answered else {
                // Less is known, and nothing that is wrong.
                return;
            };
            self.shared.lock().clock.heard(asked, there, now_ns());
        }
    }

    /// Looks at the first agent's clock as long as parts are written here, until nobody needs it any more.
    pub(in crate::routing) fn keep_time(self: &Arc<Self>) -> std::io::Result<()> {
        let nodes = Arc::downgrade(self);
        let pause = LOOK_AFTER.max(Duration::from_millis(u64::from(self.circle.size())));
        let look = move || {
            while let Some(nodes) = nodes.upgrade() {
                let is_written = nodes.shared.lock().writes_parts();
                if is_written {
                    nodes.look_at_clock();
                }
                drop(nodes);
                std::thread::sleep(pause);
            }
        };
        let builder = std::thread::Builder::new().name("route-clock".to_owned());
        builder.stack_size(256 << 10).spawn(look).map(drop)
    }

    /// Removes a file, if nobody has it open for writing.
    pub(super) fn remove_parts(&self, name: &[u8]) -> Outcome {
        let request = Request::RemoveParts {
            name: name.to_vec(),
        };
        let Answer::PartsRemoved(parts, order) = self.ask_index(request)? else {
            return Err(Errno::IO);
        };
        let gone = Some(order);
        for (name, owner) in parts {
            self.ask(owner, Request::Displace { name, gone })?;
        }
        Ok(())
    }

    /// How long this node's part is now.
    pub(super) fn length_here(&self, part: &[u8]) -> Outcome<u64> {
        let state = self.shared.lock();
        let known = state.length_of_part(part);
        known.map(|(length, _)| length).ok_or(Errno::NOENT)
    }

    /// Shows the length of a file as it is now, on all nodes.
    pub(super) fn show_parts(&self, name: &[u8]) -> Outcome {
        let parts = self.parts(name)?;
        let Some((_, newest, _)) = newest(&parts) else {
            self.forget_copy(name);
            return Err(Errno::NOENT);
        };
        let length = self.length_of(&parts)?;
        let about = About {
            length,
            ..newest.about
        };
        let place = Place { about, ..newest };
        self.show_now(name, &place)
    }

    /// Puts a file together here, to be read; nobody may have it open for writing.
    pub(super) fn fetch_parts(&self, name: &[u8]) -> Outcome {
        let path = self.place_in(NEAR, name).ok_or(Errno::INVAL)?;
        for _ in 0..TRIES {
            let parts = self.parts(name)?;
            let Some((_, newest, _)) = newest(&parts) else {
                self.forget_copy(name);
                return Err(Errno::NOENT);
            };
            if parts.iter().any(|(_, _, written)| *written) {
                std::thread::sleep(PAUSE);
                continue;
            }
            if self.has_copy(name, newest.order, &path) {
                return Ok(());
            }
            let coming = self.beside();
            let brought = self.bring_parts((name, &parts), &newest.about, &coming);
            match brought {
                Ok(()) if self.parts(name)? == parts => {
                    return self.put_copy((name, newest.order), &coming, &path);
                }
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => {
                    // What is left of it goes with the folder.
                    drop(fs::remove_file(coming));
                    return Err(error);
                }
            }
            drop(fs::remove_file(coming));
            std::thread::sleep(PAUSE);
        }
        // It is written all the time.
        Err(Errno::BUSY)
    }

    fn bring_parts(&self, (name, parts): (&[u8], &Parts), about: &About, to: &Path) -> Outcome {
        let mut brought = Vec::new();
        let mut outcome = Ok(());
        for (part, place, _) in parts {
            let beside = self.beside();
            let one = self.bring(part, place.owner, &beside);
            brought.push((beside, place.owner));
            match one {
                Ok(true) => {}
                // Who wrote it died, or wrote what nobody knows of.
                Ok(false) => outcome = Err(Errno::IO),
                Err(error) => outcome = Err(error),
            }
            if outcome.is_err() {
                break;
            }
        }
        let outcome = outcome.and_then(|()| {
            self.join_parts(&brought, about, to).map_err(|error| {
                let name = shown(name);
                self.shared
                    .lock()
                    .say(format!("routing: {name} cannot be read: {error}"));
                Errno::IO
            })
        });
        for (path, _) in brought {
            // What cannot be removed goes with the folder.
            drop(fs::remove_file(path));
        }
        outcome
    }

    fn join_parts(&self, brought: &[(PathBuf, u32)], about: &About, to: &Path) -> Result<()> {
        let failed = |error| Error::io("putting a file together", error);
        let parts = brought.iter().map(|(path, owner)| {
            let file = File::open(path).map_err(failed)?;
            let (map, _) = map_of(&file)?;
            let whose = self.circle.host(*owner);
            Ok(Part { whose, file, map })
        });
        let parts: Vec<Part> = parts.collect::<Result<_>>()?;
        let file = open_new(to).map_err(failed)?;
        put_together(&parts, &file)?;
        finish(&file, about).map_err(failed)
    }

    /// Whether parts have the same bytes where they overlap; an error where that is not known now.
    pub(in crate::routing) fn is_sound(&self, whole: &WholeParts) -> Result<bool> {
        let maps = whole.parts.iter().map(|(part, owner, _)| {
            let length = self.read_part((part, *owner), &mut [], u64::MAX >> 1)?;
            let (map, _) = read_map(length, |bytes, at| {
                self.read_part((part, *owner), bytes, at).map(drop)
            })?;
            Ok(map)
        });
        let maps: Vec<PartMap> = maps.collect::<Result<_>>()?;
        let stretches: Vec<&[PartStretch]> = maps.iter().map(|map| &map.stretches[..]).collect();
        let read_at = |part: usize, bytes: &mut [u8], at| {
            let (part, owner, _) = &whole.parts[part];
            self.read_part((part, *owner), bytes, at).map(drop)
        };
        let conflict = assemble(&stretches, true, read_at, |_, _| Ok(()))?;
        let Some((both, at)) = conflict else {
            return Ok(true);
        };
        let [one, other] = both.map(|part| self.circle.host(whole.parts[part].1));
        let (name, why) = (shown(&whole.name), differ(&one, &other, at));
        notice::warn(&format!("routing: {name} is in no checkpoint: {why}"));
        Ok(false)
    }

    /// Reads bytes of a part; how long it is, with its map.
    fn read_part(&self, (part, owner): (&[u8], u32), bytes: &mut [u8], at: u64) -> Result<u64> {
        let failed = |error: Errno| {
            let host = self.circle.host(owner);
            Error::io(
                format!("reading {} on {host}", shown(part)),
                std::io::Error::from(error),
            )
        };
        let mut filled = 0;
        loop {
            let request = Request::Read {
                name: part.to_vec(),
                offset: at + to_u64(filled),
            };
            let (answer, found) = self.ask_with_bytes(owner, request).map_err(failed)?;
            let Answer::Bytes {
                about, at: first, ..
            } = answer
            else {
                return Err(failed(Errno::IO));
            };
            let wanted = at + to_u64(filled);
            let hole = usize::try_from(first.saturating_sub(wanted)).unwrap_or(usize::MAX);
            let hole = hole.min(bytes.len() - filled);
            bytes[filled..filled + hole].fill(0);
            filled += hole;
            let count = found.len().min(bytes.len() - filled);
            bytes[filled..filled + count].copy_from_slice(&found[..count]);
            filled += count;
            if filled == bytes.len() {
                return Ok(about.length);
            }
            if hole + count == 0 {
                let context = format!("{} ends before its map", shown(part));
                return Err(Error::new(ErrorKind::Unreadable, context));
            }
        }
    }

    /// Parts among the names of a folder as the files that they are of, with the greatest length.
    pub(super) fn gather_parts(&self, found: Vec<(Vec<u8>, Place)>) -> Vec<(Vec<u8>, Place)> {
        let state = self.shared.lock();
        let mut all: std::collections::BTreeMap<Vec<u8>, Place> = std::collections::BTreeMap::new();
        for (name, place) in found {
            let Some(whole) = state.whole_of(&name) else {
                if place.owner != self.rank() {
                    all.insert(name, place);
                }
                continue;
            };
            let known = all.entry(whole.to_vec()).or_insert_with(|| place.clone());
            let length = known.about.length.max(place.about.length);
            if place.order > known.order {
                *known = place;
            }
            known.about.length = length;
        }
        all.into_iter().collect()
    }
}

/// What a node has of some bytes.
struct Piece {
    stretches: Vec<PartStretch>,
    /// Where those of each begin.
    begins: Vec<usize>,
    bytes: Vec<u8>,
}

impl Piece {
    fn new(said: &[[u64; 5]], bytes: Vec<u8>) -> Outcome<Self> {
        let (mut stretches, mut begins) = (Vec::new(), Vec::new());
        let (mut end, mut begin) = (0, 0);
        for [offset, length_bytes, age, first_ns, last_ns] in said.iter().copied() {
            let stretch = PartStretch {
                offset,
                length_bytes,
                age,
                first_ns,
                last_ns,
            };
            if offset < end || length_bytes == 0 || length_bytes > to_u64(bytes.len() - begin) {
                return Err(Errno::IO);
            }
            end = stretch.end();
            begins.push(begin);
            begin += to_usize(length_bytes);
            stretches.push(stretch);
        }
        Ok(Self {
            stretches,
            begins,
            bytes,
        })
    }

    /// Bytes of one stretch.
    fn read_at(&self, to: &mut [u8], at: u64) -> Result<()> {
        let after = self
            .stretches
            .partition_point(|stretch| stretch.offset <= at);
        let found = after.checked_sub(1).and_then(|one| {
            let begin = self.begins[one] + to_usize(at - self.stretches[one].offset);
            self.bytes.get(begin..begin.checked_add(to.len())?)
        });
        let context = "bytes that a host did not send";
        to.copy_from_slice(found.ok_or_else(|| Error::new(ErrorKind::Internal, context))?);
        Ok(())
    }
}

fn newest(parts: &Parts) -> Option<(Vec<u8>, Place, bool)> {
    parts
        .iter()
        .max_by_key(|(_, place, _)| place.order)
        .cloned()
}
