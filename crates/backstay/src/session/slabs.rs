// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: which ranks of then have parts of the slabs that this rank wants, where it cannot take its own back as it
//! was stored.
//! In from: `restore`; the stores of each node, which its leader reads. Out to: `restore`, which reads from those ranks
//! alone.
//! Invariants: every slab that is stored was read by one leader, once; a rank keeps only the numbers of the ranks that it
//! reads from; what any of them has of all at once is bounded; all ranks have the same outcome.

use super::Session;
use super::vote::vote_with;
use super::{Stores, to_i64};
use backstay_base::clock::patiently;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::width::{index, to_u64, to_usize};
use backstay_format::{CheckpointId, Decoder, Encoder, FormatError, RankEntry, VariableDescriptor};
use backstay_store::reader::StoreReader;
use backstay_store::redistribute::{Extent, SlabTable, same_array};
use backstay_store::revision::{read_part, read_ranks};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

const SAID: &str = "stored slabs";
/// Most bytes that rank 0 gathers at once, but for what one node has.
const GATHER_BYTES_MAX: usize = 32 << 20;
/// Most bytes of slabs that all ranks are told at once.
const PIECE_BYTES: usize = 4 << 20;

/// The ranks of then to read from, by variable.
#[derive(Debug, Default)]
pub(super) struct Slabs {
    /// Nothing where every rank takes its own back.
    found: Option<BTreeMap<String, Found>>,
    /// The number of this restore, where any rank has files to restore; else 0.
    token: u64,
}

/// What was stored of one variable.
#[derive(Debug, Default)]
struct Found {
    /// Who stored parts that are wanted.
    ranks: BTreeSet<u32>,
    /// One that is of another array than the wanted one.
    other: Option<VariableDescriptor>,
}

impl Slabs {
    /// The number of this restore, where any rank has files to restore; else 0.
    pub(super) fn token(&self) -> u64 {
        self.token
    }

    /// Whether it was looked who has what.
    pub(super) fn are_known(&self) -> bool {
        self.found.is_some()
    }

    /// The ranks to read the parts of `wanted` from, ascending.
    pub(super) fn ranks_of(&self, wanted: &VariableDescriptor) -> Result<BTreeSet<u32>> {
        let found = self
            .found
            .as_ref()
            .and_then(|found| found.get(&wanted.name));
        let Some(found) = found else {
            return Ok(BTreeSet::new());
        };
        match &found.other {
            Some(other) => same_array(other, wanted).map(|()| found.ranks.clone()),
            None => Ok(found.ranks.clone()),
        }
    }
}

/// The slabs of some arrays that are cut in the same way: a descriptor of each, and the table of them all.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Arrays {
    /// Each of some rank, whose own place in it does not matter.
    descriptors: Vec<VariableDescriptor>,
    table: SlabTable,
}

fn encode_descriptor(
    body: &mut Encoder,
    descriptor: &VariableDescriptor,
) -> std::result::Result<(), FormatError> {
    let bytes = VariableDescriptor::encode_list(std::slice::from_ref(descriptor))?;
    body.count(bytes.len()).raw(&bytes);
    Ok(())
}

fn decode_descriptor(
    body: &mut Decoder<'_>,
) -> std::result::Result<VariableDescriptor, FormatError> {
    let length = index(body.u32("length")?);
    let list = VariableDescriptor::decode_list(body.raw("variable", length)?, 1)?;
    let none = || body.refuse("variable", 0, "one", 0);
    list.into_iter().next().ok_or_else(none)
}

/// What a leader says: the parts that it read, by rank.
type Parts = Vec<(u32, Vec<VariableDescriptor>)>;

fn encode_parts(parts: &Parts) -> std::result::Result<Vec<u8>, FormatError> {
    let mut body = Encoder::new(SAID);
    body.count(parts.len());
    for (rank, descriptors) in parts {
        let list = VariableDescriptor::encode_list(descriptors)?;
        body.u32(*rank).count(descriptors.len());
        body.count(list.len()).raw(&list);
    }
    body.finish(parts, decode_parts)
}

fn decode_parts(bytes: &[u8]) -> std::result::Result<Parts, FormatError> {
    let mut body = Decoder::new(SAID, bytes);
    let mut parts = Parts::new();
    for _ in 0..body.u32("ranks")? {
        let (rank, count) = (body.u32("rank")?, index(body.u32("variables")?));
        let length = index(body.u32("length")?);
        let list = body.raw("variables", length)?;
        parts.push((rank, VariableDescriptor::decode_list(list, count)?));
    }
    body.end()?;
    Ok(parts)
}

/// What tells arrays apart: the name, the element, the shape; without one it is no slab.
type ArrayKey = (String, u8, Option<Vec<u64>>);

fn key(descriptor: &VariableDescriptor) -> ArrayKey {
    let slab = descriptor.slab.as_ref();
    let global = slab.map(|slab| slab.global_shape.clone());
    (descriptor.name.clone(), descriptor.element.id(), global)
}

/// Puts together what leaders said: arrays by the way in which they are cut.
fn arrays(said: Vec<Parts>) -> Vec<Arrays> {
    let mut stored: BTreeMap<ArrayKey, (VariableDescriptor, Vec<(u32, Extent)>)> = BTreeMap::new();
    for (rank, descriptor) in said
        .into_iter()
        .flatten()
        .flat_map(|(rank, list)| list.into_iter().map(move |one| (rank, one)))
    {
        let extent = Extent::of(&descriptor);
        let array = stored.entry(key(&descriptor));
        let (_, slabs) = array.or_insert_with(|| (descriptor, Vec::new()));
        slabs.extend(extent.map(|extent| (rank, extent)));
    }
    let mut by_cut: BTreeMap<Vec<(u32, Extent)>, Vec<VariableDescriptor>> = BTreeMap::new();
    for (descriptor, slabs) in stored.into_values() {
        by_cut.entry(slabs).or_default().push(descriptor);
    }
    let cut = |(slabs, descriptors): (Vec<(u32, Extent)>, Vec<VariableDescriptor>)| {
        let dimensions = slabs.first().map_or(0, |(_, slab)| slab.start.len());
        Arrays {
            table: SlabTable::new(dimensions, slabs),
            descriptors,
        }
    };
    by_cut.into_iter().map(cut).collect()
}

/// What all ranks are told, in messages of about `most` bytes; the last says that it is.
fn messages(arrays: &[Arrays], most: usize) -> std::result::Result<Vec<Vec<u8>>, FormatError> {
    let mut messages: Vec<Vec<Arrays>> = vec![Vec::new()];
    let mut bytes = 0;
    for Arrays { descriptors, table } in arrays {
        let each = SlabTable::slab_bytes(table.dimensions());
        let pieces = table.pieces(most / each);
        // A table without slabs says that there is such a variable, which is none.
        let none = table.is_empty().then(|| table.clone());
        for table in pieces.chain(none) {
            let piece = table.length() * each + 64 * descriptors.len();
            if bytes > 0 && bytes + piece > most {
                messages.push(Vec::new());
                bytes = 0;
            }
            bytes += piece;
            if let Some(message) = messages.last_mut() {
                let descriptors = descriptors.clone();
                message.push(Arrays { descriptors, table });
            }
        }
    }
    let last = messages.len() - 1;
    let numbered = messages.into_iter().enumerate();
    numbered
        .map(|(at, message)| encode_message(&(at == last, message)))
        .collect()
}

/// Whether it is the last, and what it tells.
type Message = (bool, Vec<Arrays>);

fn encode_message(message: &Message) -> std::result::Result<Vec<u8>, FormatError> {
    let mut body = Encoder::new(SAID);
    body.u8(u8::from(message.0)).count(message.1.len());
    for arrays in &message.1 {
        body.count(arrays.descriptors.len());
        for descriptor in &arrays.descriptors {
            encode_descriptor(&mut body, descriptor)?;
        }
        arrays.table.put(&mut body);
    }
    body.finish(message, decode_message)
}

fn decode_message(bytes: &[u8]) -> std::result::Result<Message, FormatError> {
    let mut body = Decoder::new(SAID, bytes);
    let is_last = body.u8("whether it is the last")? != 0;
    let mut told = Vec::new();
    for _ in 0..body.u32("arrays")? {
        let count = body.u32("variables")?;
        let descriptors = (0..count).map(|_| decode_descriptor(&mut body));
        let descriptors: std::result::Result<_, _> = descriptors.collect();
        told.push(Arrays {
            descriptors: descriptors?,
            table: SlabTable::decode(&mut body)?,
        });
    }
    body.end()?;
    Ok((is_last, told))
}

/// What rank 0 knows while slabs are told: which ranks were, and what went wrong.
struct Telling {
    seen: Vec<bool>,
    wrong: Option<Error>,
}

impl Telling {
    fn new(world_size: u32) -> Self {
        Self {
            seen: vec![false; index(world_size)],
            wrong: None,
        }
    }

    /// The messages of what some leaders said.
    fn messages(&mut self, parts: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let told = self.try_messages(parts);
        told.unwrap_or_else(|error| {
            let error = Error::malformed("what leaders read of stored slabs", error);
            self.wrong.get_or_insert(error);
            // So that nobody waits for more.
            encode_message(&(true, Vec::new())).into_iter().collect()
        })
    }

    fn try_messages(
        &mut self,
        parts: &[Vec<u8>],
    ) -> std::result::Result<Vec<Vec<u8>>, FormatError> {
        let said = parts.iter().filter(|part| !part.is_empty());
        let said = said.map(|part| decode_parts(part));
        let mut said: Vec<Parts> = said.collect::<std::result::Result<_, _>>()?;
        for parts in &mut said {
            // Of a part that is in two stores either does.
            parts.retain(|(rank, _)| {
                let seen = self.seen.get_mut(index(*rank));
                seen.is_some_and(|seen| !std::mem::replace(seen, true))
            });
        }
        messages(&arrays(said), PIECE_BYTES)
    }

    fn verdict(self, id: CheckpointId) -> Result<()> {
        if let Some(wrong) = self.wrong {
            return Err(wrong);
        }
        match self.seen.iter().position(|seen| !seen) {
            None => Ok(()),
            Some(rank) => {
                let context = format!("rank {rank}'s part of checkpoint {id} is in no store");
                Err(Error::new(ErrorKind::NotRetained, context))
            }
        }
    }
}

impl Session {
    /// Finds out who has parts of the slabs of this rank, where any rank does not take its own back. Collective: one
    /// call where all do.
    pub(super) fn find_slabs(&self, id: CheckpointId) -> Result<Slabs> {
        let what = "looking for ranks that read slabs of others";
        let world_size = self.world_size(id);
        let needs = match &world_size {
            Ok(world_size) => self.needs_slabs_of_others(id, *world_size),
            // Said by who reads.
            Err(_) => false,
        };
        let mut any = [i64::from(needs), to_i64(self.files_token())];
        self.comm.allreduce_max(what, &mut any)?;
        let token = u64::try_from(any[1]).unwrap_or(0);
        if any[0] == 0 {
            return Ok(Slabs { found: None, token });
        }
        let what = "reading which slabs are stored";
        let said = world_size.and_then(|world| Ok((world, self.say_slabs(id)?)));
        let length = said.as_ref().map_or(0, |(_, said)| said.len());
        let mut longest = [to_i64(to_u64(length))];
        let number = to_i64(id.number);
        let (world_size, said) = vote_with(&self.comm, what, number, said, &mut longest)?;
        let longest = to_usize(u64::try_from(longest[0]).unwrap_or(0)).max(1);
        let at_once = (GATHER_BYTES_MAX / longest).clamp(1, index(self.node.nodes));
        let (mut slabs, told) = self.tell_slabs(world_size, &said, at_once)?;
        let mine = match told {
            Ok(telling) => telling.map_or(Ok(()), |telling| telling.verdict(id)),
            Err(error) => Err(error),
        };
        vote_with(&self.comm, what, number, mine, &mut [])?;
        slabs.token = token;
        Ok(slabs)
    }

    /// Whether some slab is not as this rank's own part has it.
    fn needs_slabs_of_others(&self, id: CheckpointId, world_size: u32) -> bool {
        let mut slabs = self.variables.values().map(|v| &v.descriptor);
        let mut slabs = slabs.by_ref().filter(|d| d.slab.is_some()).peekable();
        if slabs.peek().is_none() || world_size != self.comm.size() {
            return slabs.peek().is_some();
        }
        let own = self.entry(id, self.comm.rank());
        let part = own.and_then(|(reader, entry)| read_part(&reader, &entry));
        // What is wrong with it is said by who reads.
        part.is_ok_and(|part| {
            slabs.any(|wanted| {
                part.find(&wanted.name)
                    .is_none_or(|(stored, _)| stored != wanted)
            })
        })
    }

    /// What a leader reads, for the others, of the stores of its node and of its share of the archive.
    fn say_slabs(&self, id: CheckpointId) -> Result<Vec<u8>> {
        if !self.node.leads() {
            return Ok(Vec::new());
        }
        let limit = Duration::from_millis(self.config.timeout_ms);
        let may_pass = |error: &Error| error.kind() == ErrorKind::StoreIo && error.may_pass();
        let read = || -> Result<Parts> {
            let mut parts = Parts::new();
            for (reader, ranks) in self.parts_here(id)? {
                for entry in ranks {
                    let mut part = read_part(&reader, &entry.root)?;
                    part.descriptors.retain(|one| one.file.is_none());
                    parts.push((entry.rank, part.descriptors));
                }
            }
            Ok(parts)
        };
        let parts = patiently(limit, may_pass, || {
            read().inspect_err(|_| self.archive.close_readers())
        })?;
        let encoded = encode_parts(&parts);
        encoded.map_err(|error| Error::unwritable("which slabs are stored", error))
    }

    /// The parts of a checkpoint that this node's leader reads, by where they are.
    fn parts_here(&self, id: CheckpointId) -> Result<Vec<(Arc<StoreReader>, Vec<RankEntry>)>> {
        let mut here = Vec::new();
        let mut known = BTreeSet::new();
        let prefers = self.archive.is_preferred(id);
        let own = |stores: &Stores| stores.rank.reserve().shared_reader();
        // Where all of it is elsewhere too, that does.
        let is_elsewhere = self.protection.choice(id).is_some() || self.archive.has(id);
        if let (Ok(found), Ok(stores), false) = (self.found(id), self.stores(), prefers) {
            match (found.unread(), &found.ranks) {
                (Some(error), _) | (None, Err(error)) if !is_elsewhere => {
                    return Err(error.again());
                }
                (None, Ok(ranks)) => {
                    known.extend(ranks.iter().map(|entry| entry.rank));
                    here.push((own(stores), ranks.clone()));
                }
                _ => {}
            }
        }
        let elsewhere = if prefers || self.protection.choice(id).is_none() {
            let (place, nodes) = (self.node.place, self.node.nodes);
            self.archive.share_of(id, (place, nodes))
        } else {
            self.protection.sources_here(id)
        };
        for ranks in elsewhere {
            let mut ranks: BTreeSet<u32> = ranks.filter(|rank| !known.contains(rank)).collect();
            let Some(&first) = ranks.first() else {
                continue;
            };
            let reader = self.reader_elsewhere(id, first)?;
            let mut entries = ranks_in(&reader, id)?;
            entries.retain(|entry| ranks.remove(&entry.rank));
            here.push((reader, entries));
        }
        Ok(here)
    }

    /// Tells all ranks what leaders said, of `at_once` nodes at once; each keeps what it wants. On rank 0 with what it
    /// knows of the telling.
    fn tell_slabs(
        &self,
        world_size: u32,
        said: &[u8],
        at_once: usize,
    ) -> Result<(Slabs, Result<Option<Telling>>)> {
        let what = "telling which slabs are stored";
        let mut telling = (self.comm.rank() == 0).then(|| Telling::new(world_size));
        let mut found = BTreeMap::new();
        let mut wrong = None;
        for turn in 0..index(self.node.nodes).div_ceil(at_once) {
            let mine = index(self.node.place) / at_once == turn;
            let parts = self.comm.gather(what, if mine { said } else { &[] })?;
            let messages = telling.as_mut().map(|telling| telling.messages(&parts));
            let mut messages = messages.into_iter().flatten();
            loop {
                let message = self.comm.broadcast(what, messages.next().as_deref())?;
                match decode_message(&message) {
                    Ok((is_last, told)) => {
                        self.keep_wanted(&told, &mut found);
                        if is_last {
                            break;
                        }
                    }
                    Err(error) => {
                        wrong.get_or_insert(Error::malformed("what rank 0 tells", error));
                        // Whether it is the last stands first, whatever is behind it.
                        if message.first() != Some(&0) {
                            break;
                        }
                    }
                }
            }
        }
        let slabs = Slabs {
            found: Some(found),
            token: 0,
        };
        Ok((slabs, wrong.map_or(Ok(telling), Err)))
    }

    /// Of what all ranks are told, who has parts of what this one wants.
    fn keep_wanted(&self, told: &[Arrays], found: &mut BTreeMap<String, Found>) {
        for arrays in told {
            for stored in &arrays.descriptors {
                let wanted = self.variables.get(&stored.name).map(|v| &v.descriptor);
                let Some((wanted, extent)) = wanted.and_then(|w| Some((w, Extent::of(w)?))) else {
                    continue;
                };
                let of_it = found.entry(stored.name.clone()).or_default();
                if same_array(stored, wanted).is_err() {
                    of_it.other.get_or_insert_with(|| stored.clone());
                } else if extent.element_count() > 0 {
                    arrays.table.overlapping(&extent, |rank| {
                        of_it.ranks.insert(rank);
                    });
                }
            }
        }
    }
}

/// The table of ranks of checkpoint `id` in a store.
pub(super) fn ranks_in(reader: &StoreReader, id: CheckpointId) -> Result<Vec<RankEntry>> {
    let (root, _) = reader.newest_root()?;
    let mut revisions = root.revisions.iter();
    match revisions.find(|revision| revision.checkpoint == id) {
        Some(revision) => read_ranks(reader, revision),
        None => Ok(Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use backstay_format::{ElementType, Slab};

    fn slab(name: &str, (start, shape): (&[u64], &[u64]), global: &[u64]) -> VariableDescriptor {
        VariableDescriptor {
            name: name.to_owned(),
            element: ElementType::F64,
            shape: shape.to_vec(),
            slab: Some(Slab {
                global_shape: global.to_vec(),
                start: start.to_vec(),
            }),
            file: None,
        }
    }

    fn own(name: &str) -> VariableDescriptor {
        VariableDescriptor {
            name: name.to_owned(),
            element: ElementType::F64,
            shape: vec![3],
            slab: None,
            file: None,
        }
    }

    /// Ranks of which each has 10 rows of two arrays, two rows of a third, and a variable of its own.
    fn said(ranks: std::ops::Range<u32>, all: u32) -> Parts {
        let part = |rank: u32| {
            let (first, all) = (u64::from(rank), u64::from(all));
            let rows = |each: u64| ([each * first, 0], [each, 4], [each * all, 4]);
            let of = |name, each| {
                let (start, shape, global) = rows(each);
                slab(name, (&start, &shape), &global)
            };
            let list = vec![of("a", 10), of("b", 10), of("c", 2), own("d")];
            (rank, list)
        };
        ranks.map(part).collect()
    }

    #[test]
    fn arrays_that_are_cut_alike_are_told_once() {
        let arrays = arrays(vec![said(2..5, 5), said(0..2, 5)]);
        let names = arrays.iter().map(|arrays| {
            let names = arrays.descriptors.iter().map(|d| &*d.name);
            (names.collect::<Vec<_>>().join(" "), arrays.table.length())
        });
        let mut names: Vec<_> = names.collect();
        names.sort();
        let wanted = [("a b", 5), ("c", 5), ("d", 0)];
        assert_eq!(
            names,
            wanted.map(|(names, count)| (names.to_owned(), count))
        );
    }

    #[test]
    fn what_is_long_is_told_in_messages_of_which_the_last_says_so() {
        let arrays = arrays(vec![said(0..50, 50)]);
        for most in [1, 500, 1 << 20] {
            let told = messages(&arrays, most).unwrap();
            assert_eq!(told.len() == 1, most == 1 << 20);
            let decoded: Vec<Message> = told
                .iter()
                .map(|message| decode_message(message).unwrap())
                .collect();
            let last = decoded.iter().filter(|(is_last, _)| *is_last).count();
            assert!(last == 1 && decoded.last().unwrap().0);
            let mut found: BTreeMap<String, Vec<u32>> = BTreeMap::new();
            let wanted = Extent {
                start: vec![295, 1],
                shape: vec![17, 2],
            };
            for arrays in decoded.iter().flat_map(|(_, arrays)| arrays) {
                for descriptor in &arrays.descriptors {
                    let of_it = found.entry(descriptor.name.clone()).or_default();
                    if descriptor.name == "a" || descriptor.name == "b" {
                        arrays.table.overlapping(&wanted, |rank| of_it.push(rank));
                    }
                }
            }
            assert_eq!(found["a"], [29, 30, 31], "at most {most} bytes");
            assert_eq!(found["b"], found["a"]);
            assert!(found.contains_key("c") && found.contains_key("d"));
        }
    }

    #[test]
    fn a_rank_whose_part_nobody_read_is_named() {
        let id = CheckpointId::new(1, 4);
        let encoded = |parts: Parts| encode_parts(&parts).unwrap();
        let mut telling = Telling::new(5);
        telling.messages(&[encoded(said(0..2, 5)), Vec::new(), encoded(said(1..4, 5))]);
        let error = telling.verdict(id).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotRetained);
        assert!(error.to_string().contains("rank 4's part"), "{error}");
        let mut telling = Telling::new(5);
        // Of rank 1, which two read, and of rank 7, which there is not, nothing comes twice or at all.
        let told = telling.messages(&[encoded(said(0..2, 8)), encoded(said(1..8, 8))]);
        let (_, arrays) = decode_message(&told[0]).unwrap();
        let a = arrays.iter().find(|a| a.descriptors[0].name == "a");
        assert_eq!(a.unwrap().table.length(), 5);
        assert!(telling.verdict(id).is_ok());
        let mut telling = Telling::new(1);
        let told = telling.messages(&[vec![9; 9]]);
        assert_eq!(decode_message(&told[0]).unwrap(), (true, Vec::new()));
        assert_eq!(telling.verdict(id).unwrap_err().kind(), ErrorKind::Corrupt);
    }
}
