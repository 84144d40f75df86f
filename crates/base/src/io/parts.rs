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

/// The error of a byte that two wrote.
pub fn differ(one: &str, other: &str, at: u64) -> Error {
    let context = format!(
        "{one} and {other} wrote different bytes at {at} in one opening, too close in time to know which was later"
    );
    Error::new(ErrorKind::Corrupt, context)
}

/// Where two pieces differ first.
fn first_difference(one: &[u8], other: &[u8]) -> Option<usize> {
    one.iter().zip(other).position(|(one, other)| one != other)
}

/// Bytes, and the parts that may have written them last.
type Pieces<'a> = &'a mut dyn FnMut(Range<u64>, &[usize]) -> Result<()>;

/// Goes through all bytes that parts have, in order: those that may have written them last are all that are not known to be
/// before another one.
fn each_piece(parts: &[&[PartStretch]], take: Pieces<'_>) -> Result<()> {
    let all = parts.iter().enumerate();
    let mut all: Vec<(usize, &PartStretch)> = all
        .flat_map(|(part, own)| own.iter().map(move |stretch| (part, stretch)))
        .collect();
    all.sort_by_key(|(part, stretch)| (stretch.offset, *part));
    let mut coming = all.into_iter().peekable();
    // Of each part one at most: its own do not overlap.
    let mut there: Vec<(usize, &PartStretch)> = Vec::new();
    let (mut whole, mut last) = (0..0, Vec::new());
    let mut at = 0;
    loop {
        there.retain(|(_, stretch)| stretch.end() > at);
        while let Some(next) = coming.next_if(|(_, stretch)| stretch.offset <= at) {
            there.push(next);
        }
        let begins = coming.peek().map(|(_, stretch)| stretch.offset);
        let ends = there.iter().map(|(_, stretch)| stretch.end());
        let Some(until) = ends.chain(begins).min() else {
            break;
        };
        let is_last =
            |one: &&(usize, &PartStretch)| !there.iter().any(|(_, other)| one.1.is_before(other));
        let found: Vec<usize> = there
            .iter()
            .filter(is_last)
            .map(|(part, _)| *part)
            .collect();
        if whole.end == at && found == last {
            whole.end = until;
        } else {
            if !last.is_empty() {
                take(whole, &last)?;
            }
            (whole, last) = (at..until, found);
        }
        at = until;
    }
    if last.is_empty() {
        return Ok(());
    }
    take(whole, &last)
}

/// Gives each byte that parts have to `write_at`, as it was written last; with `only_doubtful`, those of which it is not known
/// who wrote them last. The first byte at which such parts differ ends it: which parts, by their places, and where. `read_at`
/// reads bytes of a part.
pub fn assemble(
    parts: &[&[PartStretch]],
    only_doubtful: bool,
    read_at: impl Fn(usize, &mut [u8], u64) -> Result<()>,
    mut write_at: impl FnMut(&[u8], u64) -> Result<()>,
) -> Result<Option<([usize; 2], u64)>> {
    let (mut bytes, mut others) = (Vec::new(), Vec::new());
    let mut found = None;
    each_piece(parts, &mut |piece, last| {
        let Some((first, rivals)) = last.split_first() else {
            return Ok(());
        };
        if found.is_some() || only_doubtful && rivals.is_empty() {
            return Ok(());
        }
        let mut at = piece.start;
        while at < piece.end {
            let length = self::piece(piece.end - at);
            bytes.resize(length, 0);
            read_at(*first, &mut bytes, at)?;
            for rival in rivals {
                others.resize(length, 0);
                read_at(*rival, &mut others, at)?;
                if let Some(place) = first_difference(&bytes, &others) {
                    found = Some(([*first, *rival], at + to_u64(place)));
                    return Ok(());
                }
            }
            write_at(&bytes, at)?;
            at += to_u64(length);
        }
        Ok(())
    })?;
    Ok(found)
}

/// Writes the whole file to `to`, which is new.
pub fn put_together(parts: &[Part], to: &File) -> Result<()> {
    let failed = |error| Error::io("putting the parts of a file together", error);
    let lengths = parts.iter().map(|part| part.map.length_bytes);
    to.set_len(lengths.max().unwrap_or(0)).map_err(failed)?;
    let stretches: Vec<&[PartStretch]> = parts.iter().map(|part| &part.map.stretches[..]).collect();
    let read_at = |part: usize, bytes: &mut [u8], at| {
        let file = &parts[part].file;
        file.read_exact_at(bytes, at).map_err(failed)
    };
    let write_at = |bytes: &[u8], at| to.write_all_at(bytes, at).map_err(failed);
    let Some((both, at)) = assemble(&stretches, false, read_at, write_at)? else {
        return Ok(());
    };
    let [one, other] = both.map(|part| &parts[part].whose);
    Err(differ(one, other, at))
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

    /// A part that has these texts at these places, of an age, all of unknown times.
    fn part(folder: &TempDir, whose: &str, length: u64, texts: &[(u64, &str, u64)]) -> Part {
        let texts = texts.iter();
        let texts: Vec<_> = texts
            .map(|(at, text, age)| (*at, *text, *age, 0..=u64::MAX))
            .collect();
        timed(folder, whose, length, &texts)
    }

    type Timed<'a> = (u64, &'a str, u64, std::ops::RangeInclusive<u64>);

    fn timed(folder: &TempDir, whose: &str, length: u64, texts: &[Timed<'_>]) -> Part {
        let path = folder.path().join(whose);
        let file = File::options()
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .open(path)
            .unwrap();
        let stretches = texts.iter().map(|(at, text, age, times)| {
            file.write_all_at(text.as_bytes(), *at).unwrap();
            PartStretch {
                offset: *at,
                length_bytes: to_u64(text.len()),
                age: *age,
                first_ns: *times.start(),
                last_ns: *times.end(),
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
    fn within_an_opening_the_times_say_who_was_later() {
        let folder = TempDir::new().unwrap();
        let parts = [
            timed(
                &folder,
                "a",
                9,
                &[(0, "aaaa", 3, 10..=20), (6, "a", 3, 90..=91)],
            ),
            timed(&folder, "b", 9, &[(2, "bbbbbb", 3, 21..=30)]),
            timed(
                &folder,
                "c",
                9,
                &[(3, "c", 3, 31..=40), (8, "c", 2, 99..=99)],
            ),
        ];
        assert_eq!(whole(&folder, &parts).unwrap(), "aabcbbabc");
        let turned = parts.into_iter().rev().collect::<Vec<_>>();
        assert_eq!(whole(&folder, &turned).unwrap(), "aabcbbabc");
    }

    #[test]
    fn what_is_not_known_to_be_later_is_the_same_or_refused() {
        let folder = TempDir::new().unwrap();
        let one = || timed(&folder, "a", 4, &[(0, "head", 3, 10..=20)]);
        let (early, late) = (
            |folder| timed(folder, "b", 4, &[(2, "xd", 3, 20..=25)]),
            |folder| timed(folder, "c", 4, &[(1, "EAD", 3, 26..=26)]),
        );
        let error = whole(&folder, &[one(), early(&folder)]).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("a and b wrote different bytes at 2"),
            "{error}"
        );
        // What one wrote after both is what counts.
        for parts in [
            [one(), early(&folder), late(&folder)],
            [late(&folder), early(&folder), one()],
        ] {
            assert_eq!(whole(&folder, &parts).unwrap(), "hEAD");
        }
        // Of what is after one and not after the other both are looked at.
        let wide = timed(&folder, "d", 4, &[(0, "h", 3, 15..=30)]);
        let same = timed(&folder, "e", 4, &[(0, "h", 3, 21..=22)]);
        assert_eq!(whole(&folder, &[one(), wide, same]).unwrap(), "head");
    }

    #[test]
    fn it_is_as_if_each_byte_were_looked_at_alone() {
        let folder = TempDir::new().unwrap();
        let mut seed = 11u64;
        let mut draw = |most: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % most
        };
        for round in 0..200 {
            let parts: Vec<Part> = (0..4)
                .map(|part| {
                    let (mut at, mut texts) = (0, Vec::new());
                    while at < 60 {
                        at += draw(9);
                        let (length, first) = (1 + draw(7), draw(50));
                        let text = ["AAAAAAA", "BBBBBBB"][usize::try_from(draw(2)).unwrap()];
                        let text = &text[..usize::try_from(length).unwrap()];
                        texts.push((at, text, draw(3), first..=first + draw(9)));
                        at += length;
                    }
                    timed(&folder, &format!("{round}.{part}"), 90, &texts)
                })
                .collect();
            let byte = |at: u64| -> Option<u8> {
                let here = parts.iter().flat_map(|part| {
                    let own = part.map.stretches.iter();
                    own.filter(move |own| (own.offset..own.end()).contains(&at))
                        .map(move |own| (part, own))
                });
                let here: Vec<_> = here.collect();
                let is_last =
                    |own: &PartStretch| !here.iter().any(|(_, other)| own.is_before(other));
                let last = here.iter().filter(|(_, own)| is_last(own));
                let mut found = last.map(|(part, _)| {
                    let mut byte = [0];
                    part.file.read_exact_at(&mut byte, at).unwrap();
                    byte[0]
                });
                let first = found.next().unwrap_or(0);
                found.all(|other| other == first).then_some(first)
            };
            let wanted: Option<Vec<u8>> = (0..90).map(byte).collect();
            let found = whole(&folder, &parts).ok().map(String::into_bytes);
            assert_eq!(found, wanted, "round {round}");
        }
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
            first_ns: 0,
            last_ns: 0,
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
