// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: who protects whom in this start, and what the job as a whole has protected.
//! In from: `session`, the words that a node's ranks share. Out to: the agents of groups' first members; the
//! retention of checkpoints.
//! Invariants: groups are formed once in a start, by rank 0, and a node knows of its own only; what the job has
//! protected is the same on all ranks, retained by all, and no newer than what any group has.

use super::Session;
use super::helper::NodeAgent;
use super::node::Node;
use super::protection::Protection;
use super::share::decide;
use super::vote::{as_checkpoint, as_number, vote};
use super::watch::Watched;
use crate::config::Config;
use backstay_base::error::{Error, Result};
use backstay_base::notice;
use backstay_format::agent::{Answer, Seat, Survey};
use backstay_format::limits::{ENDPOINT_BYTES_MAX, LABEL_BYTES_MAX};
use backstay_format::width::index;
use backstay_format::{Decoder, Encoder, FormatError, StoreId};
use backstay_parity::agent::compose::{Composition, compose};
use backstay_parity::agent::coordinate::{GroupPlan, own_store};
use backstay_parity::group::Scheme;
use backstay_store::control::Control;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

const GROUPS: &str = "groups";
/// Most of what all ranks are told of why less is covered than was asked for.
const WHY_CHARS_MAX: usize = 2000;

impl Protection {
    /// Forms the groups of this start of what the nodes' stores say, and has the first member of each coordinate its
    /// rounds. Collective.
    pub(super) fn form_groups(
        &mut self,
        comm: &Watched,
        config: &Config,
        node: &Node,
    ) -> Result<()> {
        let Some(scheme) = self.scheme() else {
            return Ok(());
        };
        let size = index(config.group_size);
        let what = "forming groups";
        let mine = self.say_own_group(config, node);
        let told = decide(comm, what, mine, |parts| self.compose(&parts, scheme, size))?;
        let own = self.agent().map(|_| index(node.place));
        let groups = decode_groups(&told, own)
            .map_err(|error| Error::malformed("the groups of this start", error))?;
        self.covers(groups.covered, &groups.shortfall);
        if node.leads() {
            node.control.set_one_group(groups.count == 1);
        }
        let (place, epoch) = (index(node.place), groups.epoch);
        let leads = |group: &Group| group.places.first() == Some(&place);
        let begun = match groups.own.filter(leads) {
            Some(group) => self.coordinate(GroupPlan {
                members: (0..group.places.len()).collect(),
                seats: group.seats,
                epoch,
                scheme,
            }),
            None => Ok(()),
        };
        vote(comm, "coordinating the groups", 0, begun)
    }

    /// What a leader brings: its place, and what its node's own store says of its group. An agent that does not
    /// answer says nothing.
    fn say_own_group(&self, config: &Config, node: &Node) -> Result<Vec<u8>> {
        let Some(agent) = self.agent() else {
            return Ok(Vec::new());
        };
        let own = own_group(agent, config, node).unwrap_or_else(|error| {
            notice::warn(&format!(
                "what group this node was in is not known: {error}"
            ));
            None
        });
        let said = encode_own(&(index(node.place), own));
        said.map_err(|error| Error::unwritable(format!("the group of node {}", node.name), error))
    }

    /// The groups, for all ranks; on rank 0.
    fn compose(&self, parts: &[Vec<u8>], scheme: Scheme, size: usize) -> Result<Vec<u8>> {
        let mut own: Vec<Option<Survey>> = vec![None; self.nodes().len()];
        for part in parts.iter().filter(|part| !part.is_empty()) {
            let said = decode_own(part);
            let (place, survey) =
                said.map_err(|error| Error::malformed("what a node said of its group", error))?;
            if let Some(own) = own.get_mut(place) {
                *own = survey;
            }
        }
        let seats: Vec<Seat> = self.nodes().iter().map(|node| node.seat(None)).collect();
        let composition = compose(&seats, &own, scheme, size)?;
        for text in &composition.shortfalls {
            notice::warn(text);
        }
        let stores = own.iter().map(|own| own.as_ref().map(|own| own.store));
        let nodes = self.nodes().iter().zip(stores);
        let seats: Vec<Seat> = nodes.map(|(node, store)| node.seat(store)).collect();
        let groups = composition.groups.iter();
        let parities = groups.map(|members| scheme.within(members.len()).parities());
        let encoded = encode_groups(
            &composition,
            parities.min().unwrap_or(0),
            &group_seats(&composition, &seats, &own),
        );
        encoded.map_err(|error| Error::unwritable("the groups of this start", error))
    }
}

/// Where the members of each group are, in their order, and behind them the others of the groups that they were in
/// before, which have what protects them until they are protected anew.
fn group_seats(
    composition: &Composition,
    seats: &[Seat],
    own: &[Option<Survey>],
) -> Vec<Vec<Seat>> {
    let places = own.iter().enumerate();
    let places = places.filter_map(|(at, survey)| Some((survey.as_ref()?.store, at)));
    let places: BTreeMap<StoreId, usize> = places.collect();
    let of_group = |members: &Vec<usize>| {
        let surveys = members.iter().filter_map(|&at| own.get(at)?.as_ref());
        let logs = surveys.flat_map(|survey| survey.group.iter().chain(&survey.former));
        let named = logs.flat_map(|group| &group.members);
        let former = named.filter_map(|member| places.get(&member.store));
        let former: BTreeSet<usize> = former.copied().collect();
        let others = former.iter().filter(|at| !members.contains(at));
        let all = members.iter().chain(others);
        all.filter_map(|&at| seats.get(at).cloned()).collect()
    };
    composition.groups.iter().map(of_group).collect()
}

/// What this node's own store says of its group: no checkpoints, which are of no use here. Nothing where there is none
/// that can be read.
fn own_group(agent: &NodeAgent, config: &Config, node: &Node) -> Result<Option<Survey>> {
    let peer = backstay_net::Peer::new(node.name.clone(), agent.address());
    let within = Duration::from_millis(config.timeout_ms);
    let found = own_store(&*agent.asker(), &peer, within)?;
    let is_read = |found: &Survey| found.unread.as_ref().is_none_or(|unread| !unread.root);
    let Some(mut found) = found.filter(is_read) else {
        return Ok(None);
    };
    found.revisions.clear();
    let groups = found.group.iter_mut().chain(&mut found.former);
    for member in groups.flat_map(|group| &mut group.members) {
        member.checkpoints.clear();
    }
    Ok(Some(found))
}

fn encode_own(said: &(usize, Option<Survey>)) -> std::result::Result<Vec<u8>, FormatError> {
    let mut body = Encoder::new(GROUPS);
    body.count(said.0);
    if let Some(survey) = &said.1 {
        body.raw(&Answer::Surveys(vec![survey.clone()]).encode()?);
    }
    body.finish(said, decode_own)
}

fn decode_own(bytes: &[u8]) -> std::result::Result<(usize, Option<Survey>), FormatError> {
    let mut body = Decoder::new(GROUPS, bytes);
    let place = index(body.u32("place")?);
    let survey = match body.raw("survey", body.remaining())? {
        [] => None,
        bytes => match Answer::decode(bytes)? {
            Answer::Surveys(surveys) => surveys.into_iter().next(),
            _ => None,
        },
    };
    Ok((place, survey))
}

/// The groups of a start, as a rank is told of them.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Groups {
    shortfall: String,
    epoch: u64,
    /// Losses that every group survives.
    covered: usize,
    count: usize,
    /// That of the node that asked.
    own: Option<Group>,
}

/// A group: the places of its nodes, by column, and where they are; then where others are that were with them.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Group {
    places: Vec<usize>,
    seats: Vec<Seat>,
}

fn encode_groups(
    composition: &Composition,
    covered: usize,
    seats: &[Vec<Seat>],
) -> std::result::Result<Vec<u8>, FormatError> {
    let why: String = composition.shortfalls.join("; ");
    let shortfall: String = why.chars().take(WHY_CHARS_MAX).collect();
    let groups = composition.groups.iter().zip(seats);
    let groups = groups.map(|(places, seats)| Group {
        places: places.clone(),
        seats: seats.clone(),
    });
    let groups: Vec<Group> = groups.collect();
    let mut body = Encoder::new(GROUPS);
    body.text(&shortfall)
        .u64(composition.epoch)
        .count(covered)
        .count(groups.len());
    for group in &groups {
        body.count(group.places.len());
        for &place in &group.places {
            body.count(place);
        }
        let seats = encode_seats(&group.seats)?;
        body.count(seats.len()).raw(&seats);
    }
    let first = groups.first().cloned();
    let asks = first
        .as_ref()
        .and_then(|group| group.places.first().copied());
    let told = Groups {
        shortfall,
        epoch: composition.epoch,
        covered,
        count: groups.len(),
        own: first.filter(|_| asks.is_some()),
    };
    body.finish(&told, |bytes| decode_groups(bytes, asks))
}

/// `own` is the place of the node that asks, of whose group it is told more.
fn decode_groups(bytes: &[u8], own: Option<usize>) -> std::result::Result<Groups, FormatError> {
    let mut body = Decoder::new(GROUPS, bytes);
    let mut told = Groups {
        shortfall: body.text("why less is covered", 4 * WHY_CHARS_MAX)?,
        epoch: body.u64("epoch")?,
        covered: index(body.u32("losses covered")?),
        count: index(body.u32("groups")?),
        own: None,
    };
    for _ in 0..told.count {
        let count = index(body.u32("members")?);
        let places = body.raw("members", count.saturating_mul(4))?;
        let length = index(body.u32("length")?);
        let seats = body.raw("seats", length)?;
        let number = |bytes: &[u8]| {
            let mut number = [0; 4];
            number.copy_from_slice(bytes);
            index(u32::from_le_bytes(number))
        };
        let mut places = places.chunks_exact(4).map(number);
        if let Some(own) = own
            && places.clone().any(|place| place == own)
        {
            told.own = Some(Group {
                places: places.by_ref().collect(),
                seats: decode_seats(seats)?,
            });
        }
    }
    body.end()?;
    Ok(told)
}

fn encode_seats(seats: &[Seat]) -> std::result::Result<Vec<u8>, FormatError> {
    let mut body = Encoder::new(GROUPS);
    for seat in seats {
        body.raw(&seat.store.0)
            .text(&seat.node)
            .text(&seat.domain)
            .text(&seat.address);
    }
    body.finish(seats, decode_seats)
}

fn decode_seats(bytes: &[u8]) -> std::result::Result<Vec<Seat>, FormatError> {
    let mut body = Decoder::new(GROUPS, bytes);
    let mut seats = Vec::new();
    while body.remaining() > 0 {
        seats.push(Seat {
            store: StoreId(body.array("store")?),
            node: body.text("node", LABEL_BYTES_MAX)?,
            domain: body.text("domain", LABEL_BYTES_MAX)?,
            address: body.text("address", ENDPOINT_BYTES_MAX)?,
        });
    }
    Ok(seats)
}

/// What a node tells in votes of its group's protection: what it has protected in this start, negated, so that the
/// highest of all says the lowest, and as it is; and what it encodes, in the same two ways.
///
/// A group that begins to encode the newest checkpoint says so before it looks whether it is the newest yet, and
/// this looks when the next one is committed: so either it is told here, or the next one is taken instead. And what
/// is encoded is looked at first: where that is the next one, the one before is protected. Others of the same vote
/// may look when the round is over: then they tell that it is protected, and all of the group have recorded that.
pub(super) fn told_of_group(control: &Control) -> [i64; 4] {
    fence(Ordering::SeqCst);
    let encoding = control.encoding();
    let protected = control.protected_in_group();
    let encoding = as_number(
        Some(encoding)
            .filter(|id| *id > protected)
            .unwrap_or_default(),
    );
    let (lowest, highest) = match encoding {
        0 => (i64::MIN, i64::MIN),
        encoding => (-encoding, encoding),
    };
    let protected = as_number(protected);
    [-protected, protected, lowest, highest]
}

impl Session {
    /// All groups have protected what a vote over [`told_of_group`] says; the job has what of it
    /// every node retains. Not while a checkpoint is under way, which was begun by what was known before.
    pub(super) fn all_groups_have(&mut self, [protected, newest, lowest, highest]: [i64; 4]) {
        let lowest = lowest.checked_neg().unwrap_or(0);
        self.policy.in_groups = [newest, lowest, highest]
            .into_iter()
            .filter_map(as_checkpoint)
            .collect();
        let protected = protected.checked_neg().unwrap_or(0);
        let Some(covered) = as_checkpoint(protected) else {
            return;
        };
        let control = &self.node.control;
        control.set_all_recorded();
        let mut complete = self.policy.complete.iter().rev();
        let Some(&newest) = complete.find(|id| id.is_covered_by(covered)) else {
            return;
        };
        self.policy.protected = self.policy.protected.max(Some(newest));
        if control.protected() < newest {
            control.set_protected(newest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use backstay_format::agent::{SurveyedGroup, SurveyedMember};

    fn store(n: usize) -> StoreId {
        StoreId([u8::try_from(n + 1).unwrap(); 16])
    }

    fn seats(count: usize) -> Vec<Seat> {
        let seat = |n| Seat {
            store: store(n),
            node: format!("n{n}"),
            domain: format!("d{n}"),
            address: format!("sim:n{n}"),
        };
        (0..count).map(seat).collect()
    }

    /// What node `n` says, which was in a group with `group`, and before that with `former`.
    fn own(n: usize, group: &[usize], former: &[usize]) -> Survey {
        let of = |members: &[usize]| SurveyedGroup {
            epoch: 1,
            round: 1,
            parity: 1,
            pieces_max: 3,
            protected: backstay_format::CheckpointId::default(),
            members: members
                .iter()
                .map(|&member| SurveyedMember {
                    store: store(member),
                    node: format!("n{member}"),
                    domain: String::new(),
                    incarnation: 1,
                    sequence: 1,
                    checkpoints: Vec::new(),
                })
                .collect(),
        };
        Survey {
            store: store(n),
            run: 1,
            incarnation: 1,
            sequence: 1,
            length_bytes: 1,
            rebuilt: false,
            unread: None,
            revisions: Vec::new(),
            group: Some(of(group)),
            former: (!former.is_empty()).then(|| of(former)),
        }
    }

    #[test]
    fn a_node_is_told_of_its_own_group_and_of_those_that_protected_its_members_before() {
        let composition = Composition {
            epoch: 7,
            groups: vec![vec![2, 0], vec![3, 1, 4]],
            shortfalls: vec!["too few".to_owned()],
        };
        let surveys = [
            Some(own(0, &[0, 1], &[0, 5])),
            Some(own(1, &[0, 1], &[])),
            Some(own(2, &[2, 3], &[])),
            // It has no store.
            None,
            Some(own(4, &[4, 9], &[])),
            Some(own(5, &[], &[])),
        ];
        let seats = seats(6);
        let of_groups = group_seats(&composition, &seats, &surveys);
        let names = |seats: &[Seat]| seats.iter().map(|s| s.node.clone()).collect::<Vec<_>>();
        // Node 3 is not known by its store, which is in no survey.
        assert_eq!(names(&of_groups[0]), ["n2", "n0", "n1", "n5"]);
        assert_eq!(names(&of_groups[1]), ["n3", "n1", "n4", "n0"]);
        let told = encode_groups(&composition, 1, &of_groups).unwrap();
        for (place, group) in [(2, 0), (0, 0), (3, 1), (4, 1)] {
            let groups = decode_groups(&told, Some(place)).unwrap();
            assert_eq!((groups.epoch, groups.covered, groups.count), (7, 1, 2));
            assert_eq!(groups.shortfall, "too few");
            let own = groups.own.unwrap();
            assert_eq!(own.places, composition.groups[group]);
            assert_eq!(own.seats, of_groups[group]);
        }
        assert_eq!(decode_groups(&told, None).unwrap().own, None);
        assert_eq!(decode_groups(&told, Some(5)).unwrap().own, None);
    }

    #[test]
    fn what_a_node_says_of_its_group_arrives() {
        for survey in [Some(own(3, &[3, 4], &[1])), None] {
            let said = (3, survey);
            assert_eq!(decode_own(&encode_own(&said).unwrap()).unwrap(), said);
        }
    }
}
