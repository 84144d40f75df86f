// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a file that several nodes wrote, put together of their parts.
//! In from: routing agents, tools. Out to: a file.
//! Invariants: no byte is taken that a map does not name; where two nodes wrote a byte in one opening, and not the same, there
//! is no such file.
//! Format: docs/format/part.md.

use super::holes::data_of;
use crate::error::{Error, ErrorKind, Result};
use backstay_format::part::PART_TAIL_BYTES;
use backstay_format::width::{to_u64, to_usize};
use backstay_format::{PartMap, PartStretch};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Behind the name of a file, and before a number: one of its parts.
pub const PART_SUFFIX: &str = ".backstay-part.";
const BUFFER_BYTES: usize = 1 << 20;

/// A part, and what errors call it.
#[derive(Debug)]
pub struct Part {
    /// Whose it is.
    pub whose: String,
    /// Its content and its map.
    pub file: File,
    /// The map.
    pub map: PartMap,
}

/// Bytes that two parts have of one age: which parts, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Overlap {
    parts: [usize; 2],
    bytes: Range<u64>,
}

/// The name of a file, and the number of its part, of which `name` is the name.
pub fn split_part(name: &[u8]) -> Option<(&[u8], u32)> {
    let digits = name.iter().rev().take_while(|byte| byte.is_ascii_digit());
    let (rest, digits) = name.split_at(name.len() - digits.count());
    let base = rest.strip_suffix(PART_SUFFIX.as_bytes())?;
    let number = std::str::from_utf8(digits).ok()?.parse().ok()?;
    let is_plain = digits.first() != Some(&b'0') || digits.len() == 1;
    (is_plain && !base.is_empty()).then_some((base, number))
}

/// The name of a part of a file.
pub fn part_name(name: &[u8], number: u32) -> Vec<u8> {
    let mut part = name.to_vec();
    part.extend(format!("{PART_SUFFIX}{number}").into_bytes());
    part
}

/// The map of a part of `part_bytes`, which `read_at` reads; and how long its content is.
pub fn read_map(
    part_bytes: u64,
    read_at: impl Fn(&mut [u8], u64) -> Result<()>,
) -> Result<(PartMap, u64)> {
    let damaged = |error| Error::caused(ErrorKind::Corrupt, "the part of a file", error);
    let Some(at) = part_bytes.checked_sub(to_u64(PART_TAIL_BYTES)) else {
        let context = format!("the part of a file has {part_bytes} bytes, and no map");
        return Err(Error::new(ErrorKind::Corrupt, context));
    };
    let mut tail = [0; PART_TAIL_BYTES];
    read_at(&mut tail, at)?;
    let place = PartMap::place(tail, part_bytes).map_err(damaged)?;
    let length = usize::try_from(place.end - place.start).unwrap_or(usize::MAX);
    let mut bytes = vec![0; length];
    read_at(&mut bytes, place.start)?;
    let map = PartMap::decode(&bytes).map_err(damaged)?;
    Ok((map, place.start))
}

/// The same of an open file.
pub fn map_of(file: &File) -> Result<(PartMap, u64)> {
    let failed = |error| Error::io("reading the part of a file", error);
    let length = file.metadata().map_err(failed)?.len();
    read_map(length, |bytes, at| {
        file.read_exact_at(bytes, at).map_err(failed)
    })
}

/// Where parts have the same bytes of one age.
fn overlaps(maps: &[&PartMap]) -> Vec<Overlap> {
    let all = maps.iter().enumerate();
    let mut all: Vec<(usize, &PartStretch)> = all
        .flat_map(|(part, map)| map.stretches.iter().map(move |stretch| (part, stretch)))
        .collect();
    all.sort_by_key(|(part, stretch)| (stretch.age, stretch.offset, *part));
    let mut found = Vec::new();
    // Of each part one at most: its own do not overlap.
    let mut before: Vec<(usize, &PartStretch)> = Vec::new();
    for (part, stretch) in all {
        before.retain(|(_, other)| other.age == stretch.age && other.end() > stretch.offset);
        for (other_part, other) in &before {
            let end = other.end().min(stretch.end());
            found.push(Overlap {
                parts: [*other_part, part],
                bytes: stretch.offset..end,
            });
        }
        before.push((part, stretch));
    }
    found
}

/// The error of a byte that two wrote.
pub fn differ(one: &str, other: &str, at: u64) -> Error {
    let context = format!("{one} and {other} wrote different bytes at {at} in one opening");
    Error::new(ErrorKind::Corrupt, context)
}

/// Where two pieces differ first.
fn first_difference(one: &[u8], other: &[u8]) -> Option<usize> {
    one.iter().zip(other).position(|(one, other)| one != other)
}

/// The first byte that two parts have of one age, and not the same: which parts, by their places, and where. `read_at`
/// reads bytes of a part.
pub fn conflict(
    maps: &[&PartMap],
    read_at: impl Fn(usize, &mut [u8], u64) -> Result<()>,
) -> Result<Option<([usize; 2], u64)>> {
    let mut buffers = [vec![0; BUFFER_BYTES], vec![0; BUFFER_BYTES]];
    for Overlap { parts, bytes } in overlaps(maps) {
        let mut at = bytes.start;
        while at < bytes.end {
            let length = piece(bytes.end - at);
            for (buffer, part) in buffers.iter_mut().zip(parts) {
                read_at(part, &mut buffer[..length], at)?;
            }
            let [one, other] = &buffers;
            if let Some(place) = first_difference(&one[..length], &other[..length]) {
                return Ok(Some((parts, at + to_u64(place))));
            }
            at += to_u64(length);
        }
    }
    Ok(None)
}

/// Writes the whole file to `to`, which is new.
pub fn put_together(parts: &[Part], to: &File) -> Result<()> {
    let failed = |error| Error::io("putting the parts of a file together", error);
    let maps: Vec<&PartMap> = parts.iter().map(|part| &part.map).collect();
    let conflict = conflict(&maps, |part, bytes, at| {
        let file = &parts[part].file;
        file.read_exact_at(bytes, at).map_err(failed)
    })?;
    if let Some((both, at)) = conflict {
        let [one, other] = both.map(|part| &parts[part].whose);
        return Err(differ(one, other, at));
    }
    let length = maps.iter().map(|map| map.length_bytes).max().unwrap_or(0);
    to.set_len(length).map_err(failed)?;
    let stretches = parts.iter().flat_map(|part| {
        let own = part.map.stretches.iter();
        own.map(move |stretch| (&part.file, stretch))
    });
    let mut stretches: Vec<(&File, &PartStretch)> = stretches.collect();
    // What was written later goes over what was before.
    stretches.sort_by_key(|(_, stretch)| (stretch.age, stretch.offset));
    let mut buffer = vec![0; BUFFER_BYTES];
    for (from, stretch) in stretches {
        let mut at = stretch.offset;
        while at < stretch.end() {
            let length = piece(stretch.end() - at);
            let bytes = &mut buffer[..length];
            from.read_exact_at(bytes, at).map_err(failed)?;
            to.write_all_at(bytes, at).map_err(failed)?;
            at += to_u64(length);
        }
    }
    Ok(())
}

/// The first byte of the content of a part that is not zero, and that its map does not name.
pub fn first_untold(part: &File, map: &PartMap, content_bytes: u64) -> Result<Option<u64>> {
    let failed = |error| Error::io("reading the part of a file", error);
    let mut stretches = map.stretches.iter().peekable();
    let mut buffer = vec![0; BUFFER_BYTES];
    for data in data_of(part).map_err(failed)? {
        let (mut at, end) = (data.start, data.end.min(content_bytes));
        while at < end {
            let bytes = &mut buffer[..piece(end - at)];
            part.read_exact_at(bytes, at).map_err(failed)?;
            let until = at + to_u64(bytes.len());
            // What is told is taken out.
            while let Some(stretch) = stretches.peek().filter(|next| next.offset < until) {
                let from = stretch.offset.max(at);
                let to = stretch.end().min(until);
                if from < to {
                    bytes[to_usize(from - at)..to_usize(to - at)].fill(0);
                }
                if stretch.end() > until {
                    break;
                }
                stretches.next();
            }
            if let Some(place) = bytes.iter().position(|byte| *byte != 0) {
                return Ok(Some(at + to_u64(place)));
            }
            at = until;
        }
    }
    Ok(None)
}

fn piece(left: u64) -> usize {
    usize::try_from(left)
        .unwrap_or(usize::MAX)
        .min(BUFFER_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    /// A part that has these texts at these places.
    fn part(folder: &TempDir, whose: &str, length: u64, texts: &[(u64, &str, u64)]) -> Part {
        let path = folder.path().join(whose);
        let file = File::options()
            .create_new(true)
            .read(true)
            .write(true)
            .open(path)
            .unwrap();
        let stretches = texts.iter().map(|(at, text, age)| {
            file.write_all_at(text.as_bytes(), *at).unwrap();
            PartStretch {
                offset: *at,
                length_bytes: to_u64(text.len()),
                age: *age,
            }
        });
        let map = PartMap {
            length_bytes: length,
            stretches: stretches.collect(),
        };
        file.write_all_at(&map.behind(length).unwrap(), length)
            .unwrap();
        assert_eq!(map_of(&file).unwrap(), (map.clone(), length));
        Part {
            whose: whose.to_owned(),
            file,
            map,
        }
    }

    fn whole(folder: &TempDir, parts: &[Part]) -> Result<String> {
        let path = folder.path().join("whole");
        let file = File::create(&path).unwrap();
        put_together(parts, &file)?;
        Ok(String::from_utf8(std::fs::read(path).unwrap()).unwrap())
    }

    #[test]
    fn each_byte_is_that_of_who_wrote_it_last() {
        let folder = TempDir::new().unwrap();
        let parts = [
            part(&folder, "a", 9, &[(0, "ab", 1), (4, "cd", 1)]),
            part(&folder, "b", 8, &[(1, "XY", 2), (6, "z", 1)]),
        ];
        assert_eq!(whole(&folder, &parts).unwrap(), "aXY\0cdz\0\0");
        let turned = parts.into_iter().rev().collect::<Vec<_>>();
        assert_eq!(whole(&folder, &turned).unwrap(), "aXY\0cdz\0\0");
    }

    #[test]
    fn what_two_wrote_in_one_opening_is_the_same_or_refused() {
        let folder = TempDir::new().unwrap();
        let same = [
            part(&folder, "a", 4, &[(0, "head", 3)]),
            part(&folder, "b", 4, &[(1, "ea", 3)]),
        ];
        assert_eq!(whole(&folder, &same).unwrap(), "head");
        let [a, _] = same;
        let other = part(&folder, "c", 4, &[(2, "A", 3)]);
        let error = whole(&folder, &[a, other]).unwrap_err().to_string();
        assert!(
            error.contains("a and c wrote different bytes at 2"),
            "{error}"
        );
    }

    #[test]
    fn what_no_map_names_is_found() {
        let folder = TempDir::new().unwrap();
        let length = to_u64(BUFFER_BYTES) * 2 + 5;
        let part = part(
            &folder,
            "a",
            length,
            &[(10, "head", 3), (length - 2, "zz", 3)],
        );
        let long = PartStretch {
            offset: 100,
            length_bytes: to_u64(BUFFER_BYTES) + 50,
            age: 1,
        };
        let mut map = part.map.clone();
        map.stretches.insert(1, long);
        part.file
            .write_all_at(&vec![7; BUFFER_BYTES + 50], 100)
            .unwrap();
        assert_eq!(first_untold(&part.file, &map, length).unwrap(), None);
        for at in [9, 14, 99, 150 + to_u64(BUFFER_BYTES), length - 3] {
            part.file.write_all_at(b"x", at).unwrap();
            assert_eq!(first_untold(&part.file, &map, length).unwrap(), Some(at));
            part.file.write_all_at(b"\0", at).unwrap();
        }
    }

    #[test]
    fn damage_is_found() {
        let folder = TempDir::new().unwrap();
        let part = part(&folder, "a", 4, &[(0, "head", 3)]);
        let length = part.file.metadata().unwrap().len();
        for at in 4..length {
            let mut byte = [0];
            part.file.read_exact_at(&mut byte, at).unwrap();
            part.file.write_all_at(&[byte[0] ^ 1], at).unwrap();
            assert!(map_of(&part.file).is_err(), "{at}");
            part.file.write_all_at(&byte, at).unwrap();
        }
        for short in 0..length {
            part.file.set_len(short).unwrap();
            assert!(map_of(&part.file).is_err(), "{short}");
        }
    }

    #[test]
    fn names_of_parts_are_told_from_others() {
        assert_eq!(part_name(b"/a/b", 12), b"/a/b.backstay-part.12");
        for (name, found) in [
            (&b"/a/b.backstay-part.12"[..], Some((&b"/a/b"[..], 12))),
            (b"/a/b.backstay-part.0", Some((b"/a/b", 0))),
            (b"/a/b.backstay-part.012", None),
            (b"/a/b.backstay-part.", None),
            (b"/a/b.backstay-part.99999999999", None),
            (b".backstay-part.1", None),
            (b"/a/b", None),
        ] {
            assert_eq!(split_part(name), found, "{}", name.escape_ascii());
        }
    }
}
