// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: which routed name a path of a process is, and where it leads.
//! In from: the preload library, and who answers calls that the kernel tells (`backstay-calls`). Out to: the same.
//! Invariants: the folder of a name is found by the kernel, so that links and `..` in it are followed; its last component
//! is not; what no pattern can match makes no call of the kernel.

use crate::table::{Found, Table};
use crate::{FAR, LIVE, NEAR, PARTS};
use std::ffi::CString;

/// The longest path, with its zero byte.
pub const PATH_BYTES: usize = 4096;

/// Where the names of a run lead.
#[derive(Debug)]
pub struct Places {
    /// The agent's folder.
    pub folder: Vec<u8>,
    /// What is routed.
    pub table: Table,
    /// Where the files are.
    live: Vec<u8>,
    /// Where files of other nodes are to be seen, and to be read, if there are any.
    far: Option<[Vec<u8>; 2]>,
    /// Where this node writes its parts of files that several nodes write, and what stands behind their names.
    parts: Option<[Vec<u8>; 2]>,
}

/// A routed name.
#[derive(Debug)]
pub struct Routed {
    /// Its absolute path.
    pub name: Vec<u8>,
    /// Where it leads.
    pub live: CString,
    /// Where it is if it is on another node.
    pub far: Option<Far>,
    /// Where this node writes its part, if several nodes write the file at once. Then it is never where it leads.
    pub part: Option<CString>,
}

/// The places of a name of another node.
#[derive(Debug)]
pub struct Far {
    /// Its size and times.
    pub seen: CString,
    /// A copy of it.
    pub read: CString,
}

/// How a process sees folders, in one of its calls.
pub trait View {
    /// The path of a folder that is there, as the kernel has it.
    fn real(&self, path: &[u8]) -> Option<Vec<u8>>;
    /// The path of the folder that relative paths are below.
    fn below(&self) -> Option<Vec<u8>>;
}

fn join(folder: &[u8], name: &str) -> Vec<u8> {
    [folder, b"/", name.as_bytes()].concat()
}

impl Places {
    /// Those of an agent's folder, by its real path; `is_spread`: there are other nodes; `behind` stands behind the
    /// names of parts, where there are any.
    pub fn new(
        folder: Vec<u8>,
        table: Table,
        is_spread: impl FnOnce(&[u8]) -> bool,
        behind: Option<Vec<u8>>,
    ) -> Self {
        let far = [join(&folder, FAR), join(&folder, NEAR)];
        Self {
            live: join(&folder, LIVE),
            parts: behind.map(|behind| [join(&folder, PARTS), behind]),
            far: is_spread(&far[0]).then_some(far),
            folder,
            table,
        }
    }

    /// Whether there are other nodes.
    pub fn is_spread(&self) -> bool {
        self.far.is_some()
    }

    /// Where a name's file is, below one of the agent's folders.
    fn place(below: &[u8], folder: usize, rest: &[u8]) -> Option<CString> {
        let mut place = join(below, &folder.to_string());
        if !rest.is_empty() {
            place.push(b'/');
            place.extend(rest);
        }
        CString::new(place).ok()
    }

    /// The name of a place: what a place was made of.
    pub fn name_of(&self, place: &[u8]) -> Option<Vec<u8>> {
        let (below, behind) = match &self.parts {
            Some([parts, behind]) if place.starts_with(parts) => (parts, &behind[..]),
            _ => (&self.live, &b""[..]),
        };
        let rest = place.strip_prefix(&below[..])?.strip_prefix(b"/")?;
        let rest = rest.strip_suffix(behind)?;
        let slash = rest.iter().position(|&byte| byte == b'/')?;
        let folder = std::str::from_utf8(&rest[..slash]).ok()?.parse().ok()?;
        let name = self.table.path(folder, &rest[slash + 1..])?;
        self.table.find(&name).is_some().then_some(name)
    }

    fn places(&self, folder: usize, rest: &[u8]) -> Option<(CString, Option<Far>)> {
        let far = self.far.as_ref().and_then(|[far, near]| {
            let seen = Self::place(far, folder, rest)?;
            let read = Self::place(near, folder, rest)?;
            Some(Far { seen, read })
        });
        Some((Self::place(&self.live, folder, rest)?, far))
    }

    /// The routed name that a path is.
    pub fn file(&self, path: &[u8], view: &impl View) -> Option<Routed> {
        let (_, last) = split(path);
        if last.is_empty() || last == b"." || last == b".." || !self.table.may_end_in(last) {
            return None;
        }
        self.routed(absolute(path, view)?)
    }

    /// An absolute path, if it is a routed name.
    pub fn routed(&self, name: Vec<u8>) -> Option<Routed> {
        let found = self.table.find(&name)?;
        let Found { folder, rest, .. } = found;
        let (live, far) = self.places(folder, rest)?;
        let parts = self.parts.as_ref().filter(|_| self.table.is_shared(&found));
        let part = parts
            .and_then(|[parts, behind]| Self::place(parts, folder, &[rest, &behind[..]].concat()));
        Some(Routed {
            name,
            live,
            far,
            part,
        })
    }

    /// The place of a folder that routed names can be in, and its own path; `path` need not be there.
    pub fn folder(&self, mut path: &[u8], view: &impl View) -> Option<Routed> {
        while path.len() > 1 && path.ends_with(b"/") {
            path = &path[..path.len() - 1];
        }
        if !self.table.may_be_in(split(path).1) {
            return None;
        }
        self.folder_at(absolute(path, view)?)
    }

    /// The same of an absolute path, and of folders before the first wildcard.
    pub fn folder_at(&self, name: Vec<u8>) -> Option<Routed> {
        let (folder, rest) = self.table.find_folder(&name)?;
        let (live, far) = self.places(folder, rest)?;
        Some(Routed {
            name,
            live,
            far,
            part: None,
        })
    }
}

/// The folder of a path, and its last component.
pub fn split(path: &[u8]) -> (Option<&[u8]>, &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(0) => (Some(b"/"), &path[1..]),
        Some(at) => (Some(&path[..at]), &path[at + 1..]),
        None => (None, path),
    }
}

/// The absolute path of a name, which need not be there.
pub fn absolute(path: &[u8], view: &impl View) -> Option<Vec<u8>> {
    let (parent, last) = split(path);
    let parent = match parent {
        Some(parent) => view.real(parent).or_else(|| plain(parent, view)),
        None => view.below(),
    };
    let mut name = parent?;
    if !name.ends_with(b"/") {
        name.push(b'/');
    }
    name.extend(last);
    Some(name)
}

/// A path whose folder is not there, by its letters.
fn plain(path: &[u8], view: &impl View) -> Option<Vec<u8>> {
    let mut parts: Vec<Vec<u8>> = Vec::new();
    let base = if path.starts_with(b"/") {
        Vec::new()
    } else {
        view.below()?
    };
    for part in base
        .split(|&byte| byte == b'/')
        .chain(path.split(|&byte| byte == b'/'))
    {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()),
            other => parts.push(other.to_vec()),
        }
    }
    let joined: Vec<u8> = parts
        .iter()
        .flat_map(|part| [b"/", &part[..]].concat())
        .collect();
    Some(if joined.is_empty() {
        b"/".to_vec()
    } else {
        joined
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table;

    /// A process in /a, where /a/link leads to /a/out.
    struct Here;

    impl View for Here {
        fn real(&self, path: &[u8]) -> Option<Vec<u8>> {
            match path {
                b"out" | b"link" | b"/a/out" | b"../a/link" => Some(b"/a/out".to_vec()),
                _ => None,
            }
        }
        fn below(&self) -> Option<Vec<u8>> {
            Some(b"/a".to_vec())
        }
    }

    fn places() -> Places {
        let mut table = Table::default();
        for pattern in ["/a/out/r.*", "/a/s.{step}/p.*", "/a/new/deep/x"] {
            let (folder, rest) = table::split(pattern.as_bytes());
            table.add(&folder, &rest).expect(pattern);
        }
        Places::new(b"/shm/route".to_vec(), table, |_| false, None)
    }

    #[test]
    fn a_name_has_one_place_by_whatever_path() {
        let places = places();
        for path in ["out/r.1", "link/r.1", "/a/out/r.1", "../a/link/r.1"] {
            let routed = places.file(path.as_bytes(), &Here).expect(path);
            assert_eq!(routed.name, b"/a/out/r.1");
            assert_eq!(routed.live.as_bytes(), b"/shm/route/live/0/r.1");
            let back = places.name_of(routed.live.as_bytes());
            assert_eq!(back.as_deref(), Some(&b"/a/out/r.1"[..]));
        }
        // A folder that is not there is known by its letters.
        assert!(places.file(b"./x/../new/deep/x", &Here).is_some());
        for path in ["out/q.1", "r.1", "out/", "out/..", "", "out/r.1/y"] {
            assert!(places.file(path.as_bytes(), &Here).is_none(), "{path}");
        }
        assert_eq!(places.name_of(b"/shm/route/live/0/q"), None);
        assert_eq!(places.name_of(b"/shm/route/live/9/r.1"), None);
    }

    #[test]
    fn folders_of_names_have_places() {
        let places = places();
        let found = places.folder(b"s.3//", &Here).expect("s.3");
        assert_eq!(found.live.as_bytes(), b"/shm/route/live/1/s.3");
        assert!(places.folder(b"out", &Here).is_none());
        let found = places.folder_at(b"/a/out".to_vec()).expect("out");
        assert_eq!(found.live.as_bytes(), b"/shm/route/live/0");
    }
}
