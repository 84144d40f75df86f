// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: which ranks share a node, and where its leader found the store.
//! In from: `session::node`. Out to: the same.
//! Invariants: a rank keeps what its own node is; what all ranks say is on rank 0 only, and gone when all were told.

use super::share::{Run, decide, decode_runs, encode_runs, run_of, runs_of};
use super::watch::Watched;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::hash::checksum;
use backstay_format::width::index;
use backstay_format::{Decoder, Encoder, FormatError};
use backstay_store::control::check_local_ranks;
use std::collections::BTreeMap;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

const PLACES: &str = "the ranks of each node";
const DIRECTORIES: &str = "the directories of the stores";

/// The ranks of this node, how many nodes there are, and its place among them.
pub(super) struct Neighbours {
    /// Ascending.
    pub(super) ranks: Vec<u32>,
    pub(super) nodes: u32,
    pub(super) place: u32,
}

impl Neighbours {
    /// Finds them by what all ranks say, which only rank 0 has. Collective.
    pub(super) fn find(comm: &Watched, job: &str, node: &str) -> Result<Self> {
        let what = "finding the ranks of each node";
        let mut mine = vec![0; 16];
        mine[..8].copy_from_slice(&checksum(job.as_bytes()).to_le_bytes());
        mine[8..].copy_from_slice(&checksum(node.as_bytes()).to_le_bytes());
        let told = decide(comm, what, Ok(mine), |each| {
            let places = places(&each, job)?;
            let encoded = encode_places(&places);
            encoded.map_err(|error| Error::unwritable("the ranks of each node", error))
        })?;
        let places = decode_places(&told)
            .map_err(|error| Error::malformed("the ranks of each node", error))?;
        let own = run_of(&places, comm.rank()).map_or(0, |run| run.of);
        let here = places.iter().filter(|run| run.of == own);
        let ranks = here.flat_map(|run| run.first..run.first.saturating_add(run.count));
        Ok(Self {
            ranks: ranks.collect(),
            nodes: places.iter().map(|run| run.of + 1).max().unwrap_or(1),
            place: own,
        })
    }
}

/// The place of each rank's node among all, by their lowest ranks: of what each rank said, on rank 0.
fn places(each: &[Vec<u8>], job: &str) -> Result<Vec<Run>> {
    let own = checksum(job.as_bytes()).to_le_bytes();
    if let Some(other) = each.iter().position(|theirs| !theirs.starts_with(&own)) {
        let context = format!("rank {other} names another job than rank 0 ({job:?}); set job");
        return Err(Error::new(ErrorKind::Configuration, context));
    }
    let mut known: BTreeMap<&[u8], (u32, usize)> = BTreeMap::new();
    let mut of_ranks = Vec::with_capacity(each.len());
    for theirs in each {
        let next = u32::try_from(known.len()).unwrap_or(u32::MAX);
        let (place, count) = known.entry(&theirs[own.len()..]).or_insert((next, 0));
        *count += 1;
        of_ranks.push(*place);
    }
    check_local_ranks(known.values().map(|(_, count)| *count).max().unwrap_or(0))?;
    Ok(runs_of(of_ranks.into_iter()))
}

fn encode_places(places: &[Run]) -> std::result::Result<Vec<u8>, FormatError> {
    let mut body = Encoder::new(PLACES);
    encode_runs(&mut body, places);
    body.finish(places, decode_places)
}

fn decode_places(bytes: &[u8]) -> std::result::Result<Vec<Run>, FormatError> {
    let mut body = Decoder::new(PLACES, bytes);
    let places = decode_runs(&mut body)?;
    body.end()?;
    Ok(places)
}

/// The directory of a node's store, as what stands before and behind the node's name in it, if that does: so those
/// of most jobs are one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Template {
    before: Vec<u8>,
    behind: Option<Vec<u8>>,
}

impl Template {
    fn of(directory: &Path, name: &str) -> Self {
        let path = directory.as_os_str().as_bytes();
        let at = path
            .windows(name.len().max(1))
            .rposition(|window| window == name.as_bytes());
        let (before, behind) = match at {
            Some(at) => (&path[..at], Some(path[at + name.len()..].to_vec())),
            None => (path, None),
        };
        Self {
            before: before.to_vec(),
            behind,
        }
    }
    fn directory(&self, name: &str) -> PathBuf {
        let mut path = self.before.clone();
        if let Some(behind) = &self.behind {
            path.extend_from_slice(name.as_bytes());
            path.extend_from_slice(behind);
        }
        PathBuf::from(std::ffi::OsString::from_vec(path))
    }
    fn encode(&self, body: &mut Encoder) {
        body.count(self.before.len()).raw(&self.before);
        let behind = self.behind.as_deref().unwrap_or_default();
        body.u8(u8::from(self.behind.is_some()));
        body.count(behind.len()).raw(behind);
    }
    fn decode(body: &mut Decoder<'_>) -> std::result::Result<Self, FormatError> {
        let length = body.u32("length")?;
        let before = body.raw("before the name", index(length))?.to_vec();
        let is_named = body.u8("whether the name is in it")? != 0;
        let length = body.u32("length")?;
        let behind = body.raw("behind the name", index(length))?.to_vec();
        let behind = is_named.then_some(behind);
        Ok(Self { before, behind })
    }
}

/// Where the stores are: templates, and which of them is whose, by runs of nodes.
type Directories = (Vec<Template>, Vec<Run>);

/// What a leader brings: its place, and the template of its directory.
fn encode_own_directory(own: &(u32, Template)) -> std::result::Result<Vec<u8>, FormatError> {
    let mut body = Encoder::new(DIRECTORIES);
    own.1.encode(body.u32(own.0));
    body.finish(own, decode_own_directory)
}

fn decode_own_directory(bytes: &[u8]) -> std::result::Result<(u32, Template), FormatError> {
    let mut body = Decoder::new(DIRECTORIES, bytes);
    let own = (body.u32("place")?, Template::decode(&mut body)?);
    body.end()?;
    Ok(own)
}

fn encode_directories(all: &Directories) -> std::result::Result<Vec<u8>, FormatError> {
    let mut body = Encoder::new(DIRECTORIES);
    body.count(all.0.len());
    for template in &all.0 {
        template.encode(&mut body);
    }
    encode_runs(&mut body, &all.1);
    body.finish(all, decode_directories)
}

fn decode_directories(bytes: &[u8]) -> std::result::Result<Directories, FormatError> {
    let mut body = Decoder::new(DIRECTORIES, bytes);
    let templates = (0..body.u32("directories")?).map(|_| Template::decode(&mut body));
    let templates: std::result::Result<_, _> = templates.collect();
    let runs = decode_runs(&mut body)?;
    body.end()?;
    Ok((templates?, runs))
}

/// What all leaders brought, on rank 0.
fn directories(parts: &[Vec<u8>]) -> std::result::Result<Vec<u8>, FormatError> {
    let led = parts.iter().filter(|part| !part.is_empty());
    let own = led.map(|part| decode_own_directory(part));
    let mut own: Vec<(u32, Template)> = own.collect::<std::result::Result<_, _>>()?;
    own.sort();
    let mut templates: Vec<Template> = Vec::new();
    let mut known: BTreeMap<Template, u32> = BTreeMap::new();
    let mut of_nodes = Vec::with_capacity(own.len());
    for (_, template) in own {
        let next = u32::try_from(templates.len()).unwrap_or(u32::MAX);
        of_nodes.push(*known.entry(template.clone()).or_insert_with(|| {
            templates.push(template);
            next
        }));
    }
    encode_directories(&(templates, runs_of(of_nodes.into_iter())))
}

/// Every rank learns its leader's directory, or why one of them has none. Collective.
pub(super) fn share_directory(
    comm: &Watched,
    mine: Result<Option<PathBuf>>,
    (place, name): (u32, &str),
) -> Result<PathBuf> {
    let mine = mine.and_then(|directory| match directory {
        Some(directory) => encode_own_directory(&(place, Template::of(&directory, name)))
            .map_err(|error| Error::unwritable("the store's directory", error)),
        None => Ok(Vec::new()),
    });
    let wrong = |error| Error::malformed("the directories of the stores", error);
    let told = decide(comm, "opening the store", mine, |parts| {
        directories(&parts).map_err(wrong)
    })?;
    let (templates, runs) = decode_directories(&told).map_err(wrong)?;
    let own = run_of(&runs, place).and_then(|run| templates.get(index(run.of)));
    let none = || {
        let context = format!("nobody named the directory of the store of node {name}");
        Error::new(ErrorKind::Internal, context)
    };
    Ok(own.ok_or_else(none)?.directory(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn brought(job: &str, nodes: &[&str]) -> Vec<Vec<u8>> {
        let of = |node: &&str| {
            let sums = [job, node].map(|text| checksum(text.as_bytes()).to_le_bytes());
            sums.concat()
        };
        nodes.iter().map(of).collect()
    }

    #[test]
    fn nodes_are_placed_by_their_lowest_ranks() {
        let each = brought("job", &["b", "b", "a", "b", "c"]);
        let found = places(&each, "job").unwrap();
        let of: Vec<_> = (0..5)
            .map(|rank| run_of(&found, rank).unwrap().of)
            .collect();
        assert_eq!(of, [0, 0, 1, 0, 2]);
        encode_places(&found).unwrap();
        let error = places(&each, "another").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration);
    }

    #[test]
    fn a_directory_is_told_once_for_all_nodes_whose_names_stand_in_it() {
        let own = |place: u32, path: &str, name: &str| {
            let template = Template::of(Path::new(path), name);
            assert_eq!(template.directory(name), Path::new(path));
            encode_own_directory(&(place, template)).unwrap()
        };
        let parts = [
            own(0, "/fast/n0/job/n0", "n0"),
            Vec::new(),
            own(2, "/elsewhere", "n2"),
            own(1, "/fast/n0/job/n1", "n1"),
            own(3, "/fast/n0/job/n3", "n3"),
        ];
        let told = directories(&parts).unwrap();
        let (templates, runs) = decode_directories(&told).unwrap();
        assert_eq!(templates.len(), 2);
        let of = |place: u32| {
            let run = run_of(&runs, place).unwrap();
            templates[index(run.of)].directory(&format!("n{place}"))
        };
        assert_eq!(of(0), Path::new("/fast/n0/job/n0"));
        assert_eq!(of(1), Path::new("/fast/n0/job/n1"));
        assert_eq!(of(2), Path::new("/elsewhere"));
        assert_eq!(of(3), Path::new("/fast/n0/job/n3"));
    }
}
