// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the patterns of a run as a table: which absolute paths are routed, and where their places are.
//! In from: `pattern`, the agent. Out to: the preload library, which reads it from a file.
//! Invariants: a path belongs to the first pattern that it matches; its place is that of its folder, which is the part
//! of the pattern before the first wildcard, and what follows there: no longer than the path itself.
//! Format: for each pattern its folder and the rest of it, each with a zero byte after it; before the folder a `+` where
//! several nodes write one file.

use crate::pattern::{Component, Field};

/// Before the folder of a pattern: folders begin with a `/`.
const SHARED: u8 = b'+';

/// A pattern with the folder below which its names are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    /// Which of [`Table::folders`].
    pub folder: usize,
    /// Several nodes write one file of such a name at once.
    pub shared: bool,
    rest: Vec<u8>,
    components: Vec<Component>,
}

/// All patterns of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Table {
    folders: Vec<Vec<u8>>,
    patterns: Vec<Pattern>,
}

/// Where a routed name is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found<'a> {
    /// The pattern that it matches.
    pub pattern: usize,
    /// Its folder.
    pub folder: usize,
    /// The name below that folder.
    pub rest: &'a [u8],
}

/// The folder of an absolute pattern, and the rest of it: all components before the first wildcard, but not the last.
pub fn split(pattern: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let parts: Vec<&[u8]> = pattern.split(|&byte| byte == b'/').collect();
    let parts: Vec<&[u8]> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    let is_wild = |part: &&[u8]| part.iter().any(|byte| b"*?[{\\".contains(byte));
    let wild = parts.iter().position(is_wild).unwrap_or(parts.len());
    let (folder, rest) = parts.split_at(wild.min(parts.len().saturating_sub(1)));
    let folder: Vec<u8> = folder
        .iter()
        .flat_map(|part| [b"/", *part].concat())
        .collect();
    (
        if folder.is_empty() {
            b"/".to_vec()
        } else {
            folder
        },
        rest.join(&b'/'),
    )
}

fn components(name: &[u8]) -> impl Iterator<Item = &[u8]> {
    name.split(|&byte| byte == b'/')
}

impl Table {
    /// Adds a pattern: names below `folder`, an absolute path without links, that match `rest`.
    pub fn add(&mut self, folder: &[u8], rest: &[u8]) -> Result<(), String> {
        if rest.is_empty() || [folder, rest].iter().any(|part| part.contains(&0)) {
            return Err("it names no file".to_owned());
        }
        let parts: Result<Vec<Component>, String> =
            components(rest).map(Component::parse).collect();
        let known = self.folders.iter().position(|known| known == folder);
        let at = known.unwrap_or_else(|| {
            self.folders.push(folder.to_vec());
            self.folders.len() - 1
        });
        let components = parts?;
        self.patterns.push(Pattern {
            folder: at,
            shared: false,
            rest: rest.to_vec(),
            components,
        });
        Ok(())
    }

    /// Of the pattern that was added last: several nodes write one file of such a name at once.
    pub fn share_last(&mut self) {
        if let Some(pattern) = self.patterns.last_mut() {
            pattern.shared = true;
        }
    }

    /// Whether several nodes write one file of a name at once.
    pub fn is_shared(&self, found: &Found<'_>) -> bool {
        let pattern = self.patterns.get(found.pattern);
        pattern.is_some_and(|pattern| pattern.shared)
    }

    /// The folders of all patterns.
    pub fn folders(&self) -> &[Vec<u8>] {
        &self.folders
    }

    /// The patterns, in their order.
    pub fn patterns(&self) -> &[Pattern] {
        &self.patterns
    }

    /// Whether the last component of a routed name can be `name`: what costs nothing else to know.
    pub fn may_end_in(&self, name: &[u8]) -> bool {
        let last = self
            .patterns
            .iter()
            .filter_map(|pattern| pattern.components.last());
        last.into_iter().any(|component| component.matches(name))
    }

    /// Whether `folders` components can be those of a routed name before its last.
    pub fn may_be_in(&self, name: &[u8]) -> bool {
        let mut own = self.patterns.iter().flat_map(|pattern| {
            let most = pattern.components.len().saturating_sub(1);
            &pattern.components[..most]
        });
        own.any(|component| component.matches(name))
    }

    /// Which pattern an absolute path matches.
    pub fn find<'a>(&self, path: &'a [u8]) -> Option<Found<'a>> {
        let mut patterns = self.patterns.iter().enumerate();
        patterns.find_map(|(at, pattern)| {
            let rest = self.below(pattern, path)?;
            let all = components(rest).count() == pattern.components.len();
            let is_it = all && pattern.begins(rest);
            is_it.then_some(Found {
                pattern: at,
                folder: pattern.folder,
                rest,
            })
        })
    }

    /// The folder that an absolute path is, if routed names can be in it, and the path below it.
    pub fn find_folder<'a>(&self, path: &'a [u8]) -> Option<(usize, &'a [u8])> {
        self.patterns.iter().find_map(|pattern| {
            if path == self.folders[pattern.folder] {
                return Some((pattern.folder, &path[path.len()..]));
            }
            let rest = self.below(pattern, path)?;
            let fewer = components(rest).count() < pattern.components.len();
            (fewer && pattern.begins(rest)).then_some((pattern.folder, rest))
        })
    }

    fn below<'a>(&self, pattern: &Pattern, path: &'a [u8]) -> Option<&'a [u8]> {
        let folder = &self.folders[pattern.folder];
        let rest = path.strip_prefix(&folder[..])?;
        let rest = if folder.ends_with(b"/") {
            rest
        } else {
            rest.strip_prefix(b"/")?
        };
        (!rest.is_empty()).then_some(rest)
    }

    /// The path of a place, which [`Table::find`] gave or can give.
    pub fn path(&self, folder: usize, rest: &[u8]) -> Option<Vec<u8>> {
        let folder = self.folders.get(folder)?;
        let slash: &[u8] = if folder.ends_with(b"/") { b"" } else { b"/" };
        Some([folder, slash, rest].concat())
    }

    /// The digits of a field of a matched name.
    pub fn field(&self, found: &Found<'_>, wanted: Field) -> Option<u64> {
        let pattern = self.patterns.get(found.pattern)?;
        let parts = components(found.rest).zip(&pattern.components);
        let mut value = None;
        for (name, component) in parts {
            component.find(name, &mut |field, from, to| {
                if field == wanted {
                    value = std::str::from_utf8(&name[from..to])
                        .ok()
                        .and_then(|text| text.parse().ok());
                }
            });
        }
        value
    }

    /// A matched name without the digits of its ranks: the same for all files of a set.
    pub fn set_of(&self, found: &Found<'_>) -> Vec<u8> {
        let mut set = Vec::new();
        let Some(pattern) = self.patterns.get(found.pattern) else {
            return set;
        };
        for (name, component) in components(found.rest).zip(&pattern.components) {
            let mut cut = None;
            component.find(name, &mut |field, from, to| {
                if field == Field::Rank {
                    cut = Some((from, to));
                }
            });
            let (from, to) = cut.unwrap_or((name.len(), name.len()));
            set.extend(&name[..from]);
            set.push(0);
            set.extend(&name[to..]);
            set.push(b'/');
        }
        set
    }

    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for pattern in &self.patterns {
            if pattern.shared {
                bytes.push(SHARED);
            }
            bytes.extend(&self.folders[pattern.folder]);
            bytes.push(0);
            bytes.extend(&pattern.rest);
            bytes.push(0);
        }
        bytes
    }

    /// Reads one; nothing where it is none.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut table = Self::default();
        let mut parts = bytes.split(|&byte| byte == 0);
        loop {
            let folder = parts.next()?;
            if folder.is_empty() {
                return parts.next().is_none().then_some(table);
            }
            let shared = folder.strip_prefix(&[SHARED]);
            table.add(shared.unwrap_or(folder), parts.next()?).ok()?;
            if shared.is_some() {
                table.share_last();
            }
        }
    }
}

impl Pattern {
    /// What it is below its folder.
    pub fn rest(&self) -> &[u8] {
        &self.rest
    }

    /// Whether it has such a field.
    pub fn has(&self, field: Field) -> bool {
        self.components.iter().any(|component| component.has(field))
    }

    fn begins(&self, rest: &[u8]) -> bool {
        let mut parts = components(rest).zip(&self.components);
        parts.all(|(name, component)| component.matches(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(patterns: &[&str]) -> Table {
        let mut table = Table::default();
        for pattern in patterns {
            let (folder, rest) = split(pattern.as_bytes());
            table.add(&folder, &rest).expect(pattern);
        }
        table
    }

    #[test]
    fn a_path_has_one_place() {
        let table = table(&[
            "/a/out/restart.*",
            "/a/out/s.{step}/r.{rank}",
            "/a/out/last",
        ]);
        assert_eq!(table.folders(), [b"/a/out".to_vec()]);
        for (path, expected) in [
            ("/a/out/restart.5", Some((0, "restart.5"))),
            ("/a/out/s.1/r.2", Some((1, "s.1/r.2"))),
            ("/a/out/last", Some((2, "last"))),
            ("/a/out/s.1", None),
            ("/a/outrestart.5", None),
            ("/a/out/x/restart.5", None),
            ("/a/out/", None),
            ("/b", None),
        ] {
            let found = table.find(path.as_bytes());
            let expected = expected.map(|(pattern, rest): (usize, &str)| Found {
                pattern,
                folder: 0,
                rest: rest.as_bytes(),
            });
            assert_eq!(found, expected, "{path}");
        }
        assert_eq!(
            table.path(0, b"restart.5"),
            Some(b"/a/out/restart.5".to_vec())
        );
        assert_eq!(table.find_folder(b"/a/out/s.7"), Some((0, &b"s.7"[..])));
        assert_eq!(table.find_folder(b"/a/out"), Some((0, &b""[..])));
        assert_eq!(table.find_folder(b"/a/out/x"), None);
        assert_eq!(table.find_folder(b"/a"), None);
        assert!(table.may_end_in(b"last") && table.may_end_in(b"r.1") && !table.may_end_in(b"s.1"));
        assert!(table.may_be_in(b"s.1") && !table.may_be_in(b"last"));
        assert_eq!(Table::decode(&table.encode()), Some(table));
    }

    #[test]
    fn files_of_a_set_are_known_by_what_they_share() {
        let table = table(&["/o/s.{step}/r.{rank}.h5"]);
        let of = |path: &'static str| table.find(path.as_bytes()).expect(path);
        let (one, two, three) = (
            of("/o/s.10/r.0.h5"),
            of("/o/s.10/r.31.h5"),
            of("/o/s.1/r.0.h5"),
        );
        assert_eq!(table.set_of(&one), table.set_of(&two));
        assert_ne!(table.set_of(&one), table.set_of(&three));
        assert_eq!(table.field(&two, Field::Rank), Some(31));
        assert_eq!(table.field(&two, Field::Step), Some(10));
    }

    #[test]
    fn the_root_and_names_of_bytes_have_places() {
        let table = table(&["/*.x"]);
        assert_eq!(table.folders(), [b"/".to_vec()]);
        let found = table.find(b"/\xff.x").expect("found");
        assert_eq!(
            table.path(found.folder, found.rest),
            Some(b"/\xff.x".to_vec())
        );
        assert_eq!(Table::decode(b"/a\0b"), None);
        assert_eq!(Table::decode(b""), Some(Table::default()));
        let mut table = Table::default();
        assert!(table.add(b"/a", b"").is_err() && table.add(b"/a", b"[").is_err());
    }
}
