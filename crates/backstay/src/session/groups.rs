// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: who protects whom in this life, and what the job as a whole has protected.
//! In from: `session`, the words that a node's ranks share. Out to: the agents of groups' first members; the
//! retention of checkpoints.
//! Invariants: groups are formed once in a life, by rank 0, and all nodes have the same; what the job has
//! protected is the same on all ranks, retained by all, and no newer than what any group has.

use super::helper::NodeAgent;
use super::node::Node;
use super::protection::Protection;
use super::share::{share_bytes, share_parts};
use super::vote::{as_checkpoint, as_number, vote};
use super::watch::Watched;
use super::{Session, to_i64};
use crate::config::Config;
use backstay_base::error::{Error, Result};
use backstay_base::notice;
use backstay_format::agent::{Answer, Seat, Survey};
use backstay_format::width::{index, to_u64};
use backstay_format::{Decoder, Encoder, FormatError, StoreId};
use backstay_parity::agent::compose::{Composition, compose};
use backstay_parity::agent::coordinate::{GroupPlan, own_store};
use backstay_parity::group::Scheme;
use backstay_store::control::Control;
use std::time::Duration;

const GROUPS: &str = "groups";
/// Most of what all ranks are told of why less is covered than was asked for.
const WHY_CHARS_MAX: usize = 2000;

impl Protection {
    /// Forms the groups of this life of what the nodes' stores say, and has the first member of each coordinate its
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
        let parts = self.share_own_groups(comm, config, node)?;
        let formed = (comm.rank() == 0).then(|| self.compose(&parts, scheme, size));
        let formed = vote(comm, "forming groups", 0, formed.transpose())?;
        let bytes = share_bytes(comm, "sharing the groups", formed)?;
        let (composition, stores) = decode_groups(&bytes)
            .map_err(|error| Error::malformed("the groups of this life".to_owned(), error))?;
        let groups = composition.groups.iter();
        let parities = groups.map(|members| scheme.within(members.len()).parities());
        let shortfall = composition.shortfalls.join("; ");
        self.covers(parities.min().unwrap_or(0), &shortfall);
        let here = index(node.place);
        if node.leads() {
            node.control.set_one_group(composition.groups.len() == 1);
        }
        let mut groups = composition.groups.into_iter();
        let members = groups.find(|members| members.contains(&here));
        let nodes = self.nodes().iter().zip(stores);
        let plan = GroupPlan {
            seats: nodes.map(|(node, store)| node.seat(store)).collect(),
            epoch: composition.epoch,
            scheme,
            members: members.unwrap_or_default(),
        };
        let begun = self.coordinate(plan, here);
        vote(comm, "coordinating the groups", 0, begun)
    }

    /// What every node's own store says of its group, on all ranks; an agent that does not answer says nothing.
    fn share_own_groups(
        &self,
        comm: &Watched,
        config: &Config,
        node: &Node,
    ) -> Result<Vec<Vec<u8>>> {
        let what = "saying what groups there were";
        let mine = self.agent().map(|agent| {
            own_group(agent, config, node).unwrap_or_else(|error| {
                notice::warn(&format!(
                    "what group this node was in is not known: {error}"
                ));
                Vec::new()
            })
        });
        let mut width = [mine.as_ref().map_or(0, |bytes| to_i64(to_u64(bytes.len())))];
        comm.allreduce_max(what, &mut width)?;
        let width = usize::try_from(width[0]).unwrap_or(0);
        let mine = mine.map(|bytes| (index(node.place), bytes));
        share_parts(comm, what, index(node.nodes), width, mine)
    }

    /// The groups, for all ranks.
    fn compose(&self, parts: &[Vec<u8>], scheme: Scheme, size: usize) -> Result<Vec<u8>> {
        let own = decode_surveys(parts)?;
        let seats: Vec<Seat> = self.nodes().iter().map(|node| node.seat(None)).collect();
        let composition = compose(&seats, &own, scheme, size)?;
        for text in &composition.shortfalls {
            notice::warn(text);
        }
        let stores = own.iter().map(|own| own.as_ref().map(|own| own.store));
        let stores: Vec<Option<StoreId>> = stores.collect();
        encode_groups(&composition, &stores)
            .map_err(|error| Error::unwritable("the groups of this life", error))
    }
}

/// What this node's own store says of its group: no checkpoints, which are of no use here. Empty where there is none
/// that can be read.
fn own_group(agent: &NodeAgent, config: &Config, node: &Node) -> Result<Vec<u8>> {
    let peer = backstay_net::Peer::new(node.name.clone(), agent.address());
    let within = Duration::from_millis(config.timeout_ms);
    let found = own_store(&*agent.asker(), &peer, within)?;
    let is_read = |found: &Survey| found.unread.as_ref().is_none_or(|unread| !unread.root);
    let Some(mut found) = found.filter(is_read) else {
        return Ok(Vec::new());
    };
    found.revisions.clear();
    found.former = None;
    for member in found.group.iter_mut().flat_map(|group| &mut group.members) {
        member.checkpoints.clear();
    }
    let answer = Answer::Surveys(vec![found]).encode();
    answer.map_err(|error| Error::unwritable(format!("the group of node {}", node.name), error))
}

fn decode_surveys(parts: &[Vec<u8>]) -> Result<Vec<Option<Survey>>> {
    let survey = |bytes: &Vec<u8>| {
        if bytes.is_empty() {
            return Ok(None);
        }
        match Answer::decode(bytes) {
            Ok(Answer::Surveys(surveys)) => Ok(surveys.into_iter().next()),
            Ok(_) => Ok(None),
            Err(error) => Err(Error::malformed(
                "what a node said of its group".to_owned(),
                error,
            )),
        }
    };
    parts.iter().map(survey).collect()
}

fn encode_groups(
    composition: &Composition,
    stores: &[Option<StoreId>],
) -> std::result::Result<Vec<u8>, FormatError> {
    let why: String = composition.shortfalls.join("; ");
    let why: String = why.chars().take(WHY_CHARS_MAX).collect();
    let told = Composition {
        shortfalls: Some(why.clone())
            .filter(|why| !why.is_empty())
            .into_iter()
            .collect(),
        ..composition.clone()
    };
    let stores: Vec<Option<StoreId>> = stores.to_vec();
    let mut body = Encoder::new(GROUPS);
    body.text(&why).u64(told.epoch).count(told.groups.len());
    for members in &told.groups {
        body.count(members.len());
        for &member in members {
            body.count(member);
        }
    }
    body.count(stores.len());
    for store in &stores {
        body.raw(&store.unwrap_or_default().0);
    }
    body.finish(&(told, stores), decode_groups)
}

fn decode_groups(
    bytes: &[u8],
) -> std::result::Result<(Composition, Vec<Option<StoreId>>), FormatError> {
    let mut body = Decoder::new(GROUPS, bytes);
    let why = body.text("why less is covered", 4 * WHY_CHARS_MAX)?;
    let mut composition = Composition {
        epoch: body.u64("epoch")?,
        shortfalls: Some(why)
            .filter(|why| !why.is_empty())
            .into_iter()
            .collect(),
        ..Composition::default()
    };
    for _ in 0..body.u32("groups")? {
        let count = body.u32("members")?;
        let members = (0..count).map(|_| Ok(index(body.u32("member")?)));
        let members: std::result::Result<_, FormatError> = members.collect();
        composition.groups.push(members?);
    }
    let count = body.u32("stores")?;
    let stores = (0..count).map(|_| {
        let store = StoreId(body.array("store")?);
        Ok((store != StoreId::default()).then_some(store))
    });
    let stores: std::result::Result<_, FormatError> = stores.collect();
    let stores = stores?;
    body.end()?;
    Ok((composition, stores))
}

/// What a node tells in votes of its group's protection, so that the highest of all says the lowest: what it
/// has protected in this life, and what it encodes.
pub(super) fn told_of_group(control: &Control) -> [i64; 2] {
    let encoding = as_number(control.encoding());
    let encoding = if encoding > 0 { -encoding } else { i64::MIN };
    [-as_number(control.protected_in_group()), encoding]
}

impl Session {
    /// All groups have protected what `lowest`, of a vote over [`told_of_group`], says; the job has what of it
    /// every node retains. Not while a checkpoint is under way, which was begun by what was known before.
    pub(super) fn all_groups_have(&mut self, lowest: [i64; 2]) {
        let [protected, encoding] = lowest.map(|lowest| lowest.checked_neg().unwrap_or(0));
        self.policy.encoding = as_checkpoint(encoding);
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
