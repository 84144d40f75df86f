// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: before a restart opens any store: looks what all nodes have, and makes lost stores again
//! where the newest checkpoint that can be had needs them.
//! In from: `session`, on the node of rank 0, with what each node's leader said that it has. Out to: the agents of
//! nodes where something is to be done, and of no others. The decisions are `restart::locate`'s.
//! Invariants: a store is set aside only where a newer copy of it is here; logs of one group agree
//! before anybody writes; what is proven to be lost is left out, and the next choice is tried.

use super::coordinate::NodeSeat;
use super::round::each;
use super::{Ask, SLOWEST_BYTES_A_SECOND};
use crate::locate::{Choice, Here, Located, Rebuild, is_behind, locate, newest_groups};
use backstay_base::clock::{Backoff, Stopwatch};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::notice;
use backstay_format::agent::{Answer, Request, Seat, Survey};
use backstay_format::{CheckpointId, StoreId};
use backstay_net::Peer;
use std::collections::BTreeSet;
use std::time::Duration;

/// So often lost stores are made again before what is here has to do.
const TRIES_MAX: usize = 3;

/// What all nodes said that they have, by their places.
#[derive(Debug, Default)]
pub struct Surveys {
    nodes: Vec<Vec<Survey>>,
    /// Nodes that did not say, or where it is not so any more.
    changed: BTreeSet<usize>,
}

impl Surveys {
    /// Of what each node said, where it did.
    pub fn new(said: Vec<Option<Vec<Survey>>>) -> Self {
        let changed = said.iter().enumerate().filter(|(_, said)| said.is_none());
        Self {
            changed: changed.map(|(node, _)| node).collect(),
            nodes: said.into_iter().map(Option::unwrap_or_default).collect(),
        }
    }

    /// Asks the nodes of which it is not known.
    fn renew(&mut self, agent: &dyn Ask, nodes: &[NodeSeat], within: Duration) -> Result<()> {
        let changed: Vec<usize> = self.changed.iter().copied().collect();
        let asked = each(&changed, |_, &node| {
            own_surveys(agent, &nodes[node].peer(), within)
        });
        for (node, surveys) in changed.into_iter().zip(asked) {
            self.nodes[node] = surveys?;
            self.changed.remove(&node);
        }
        Ok(())
    }

    /// Nodes of which something could not be read are asked again; whether there are any.
    fn forget_unread(&mut self) -> bool {
        let unread = self.nodes.iter().enumerate();
        let unread = unread.filter(|(_, found)| found.iter().any(|s| s.unread.is_some()));
        let before = self.changed.len();
        self.changed.extend(unread.map(|(node, _)| node));
        self.changed.len() > before
    }
}

/// What stores an agent finds on its node.
pub fn own_surveys(agent: &dyn Ask, of: &Peer, within: Duration) -> Result<Vec<Survey>> {
    match agent.ask(of, &Request::Survey, within)? {
        Answer::Surveys(surveys) => Ok(surveys),
        other => Err(Error::new(
            ErrorKind::PeerUnreachable,
            format!("{of} was asked what it has: {other:?}"),
        )),
    }
}

/// What all nodes have after lost stores were made again, of what they said before; `surveys` leaves as it is then.
/// `named` is the checkpoint that somebody wants to go on from, whatever is newer.
pub fn prepare(
    agent: &dyn Ask,
    nodes: &[NodeSeat],
    surveys: &mut Surveys,
    named: Option<u64>,
    within: Duration,
) -> Result<Located> {
    let mut given_up: Vec<StoreId> = Vec::new();
    let mut count = 0;
    let mut again = Backoff::within(within);
    for _ in 0..TRIES_MAX {
        let located = look(agent, nodes, surveys, named, (within, &mut again))?;
        let is_named = |choice: &&Choice| named == Some(choice.checkpoint.number);
        let wanted = located.choices.iter().find(is_named);
        let choice = wanted
            .into_iter()
            .chain(&located.choices)
            .find(|choice| !choice.rebuilds.iter().any(|r| given_up.contains(&r.lost)));
        let Some(choice) = choice.filter(|choice| !choice.rebuilds.is_empty()) else {
            return Ok(only_here(located, count));
        };
        let watch = Stopwatch::start();
        let targets = choice.rebuilds.iter().map(|rebuild| rebuild.target);
        surveys.changed.extend(targets);
        let made = each(&choice.rebuilds, |_, rebuild| {
            let named = is_named(&choice);
            make(agent, nodes, rebuild, (choice.checkpoint, named), within)
        });
        let mut open = None;
        for (outcome, rebuild) in made.iter().zip(&choice.rebuilds) {
            if let Err(error) = outcome {
                if !error.kind().proves_loss() {
                    open.get_or_insert_with(|| not_made(rebuild, error));
                }
                notice::warn(&format!(
                    "the store of node {} cannot be rebuilt for checkpoint {}: {error}",
                    rebuild.was_on, choice.checkpoint
                ));
                given_up.push(rebuild.lost);
            }
        }
        count += made.iter().filter(|made| made.is_ok()).count();
        if open.is_some() {
            // Nothing older takes its place.
            let mut located = only_here(
                look(agent, nodes, surveys, named, (within, &mut again))?,
                count,
            );
            located.unread = located.unread.or(open);
            return Ok(located);
        }
        if made.iter().all(Result::is_ok) {
            notice::info(&format!(
                "{} lost stores were rebuilt for checkpoint {} in {:.3} s",
                made.len(),
                choice.checkpoint,
                watch.seconds()
            ));
        }
    }
    let located = look(agent, nodes, surveys, named, (within, &mut again))?;
    Ok(only_here(located, count))
}

fn not_made(rebuild: &Rebuild, error: &Error) -> String {
    let was_on = &rebuild.was_on;
    format!("the store of node {was_on} cannot be rebuilt: {error}")
}

/// Asks again where something could not be read, or is not as it was said, sets aside what is stale, and brings the
/// logs of each group to one state.
fn look(
    agent: &dyn Ask,
    nodes: &[NodeSeat],
    surveys: &mut Surveys,
    named: Option<u64>,
    (within, again): (Duration, &mut Backoff),
) -> Result<Located> {
    let names: Vec<String> = nodes.iter().map(|node| node.name.clone()).collect();
    surveys.renew(agent, nodes, within)?;
    while surveys.forget_unread() && again.pause() {
        surveys.renew(agent, nodes, within)?;
    }
    // What could not be read stays so.
    surveys.changed.clear();
    let located = locate(&surveys.nodes, &names, named);
    for stale in &located.stale {
        let request = Request::SetAside { store: stale.store };
        surveys.changed.insert(stale.node);
        agent.ask(&nodes[stale.node].peer(), &request, within)?;
    }
    let Surveys {
        nodes: found,
        changed,
    } = surveys;
    align_logs(agent, nodes, (found, changed), &located, within)?;
    Ok(located)
}

/// A member that missed its group's last record does not know what parity it keeps: it is told before
/// anybody writes there. Of a store that is behind it is not true.
fn align_logs(
    agent: &dyn Ask,
    nodes: &[NodeSeat],
    (surveys, changed): (&[Vec<Survey>], &mut BTreeSet<usize>),
    located: &Located,
    within: Duration,
) -> Result<()> {
    // What cannot be read and does not count is not written either.
    let is_written = |node: usize, survey: &Survey| {
        let is_here = |here: &Here| (here.node, here.store) == (node, survey.store);
        let is_read = survey.unread.as_ref().is_none_or(|unread| !unread.root);
        is_read || located.here.iter().any(is_here)
    };
    let stale = &located.stale;
    let own = || {
        let each = surveys.iter().enumerate();
        let own = each.filter_map(|(node, found)| {
            let mut own = found.iter().filter(|survey| !survey.rebuilt);
            Some((node, own.find(|survey| is_written(node, survey))?))
        });
        // What was set aside just now is there no longer.
        own.filter(|(node, survey)| {
            let mut stale = stale.iter();
            !stale.any(|stale| stale.node == *node && stale.store == survey.store)
        })
    };
    let newest = newest_groups(own().map(|(_, survey)| survey));
    let mut behind = Vec::new();
    for (node, survey) in own() {
        let Some(&(group, authority)) = newest.get(&survey.store) else {
            continue;
        };
        if is_behind(survey, group) {
            continue;
        }
        let known = survey.group.as_ref().map_or((0, 0), |g| (g.epoch, g.round));
        let has = own().find(|(_, survey)| survey.store == authority);
        let Some((has, newest)) = has.filter(|_| known < (group.epoch, group.round)) else {
            continue;
        };
        changed.insert(node);
        let from = nodes[has].seat(Some(authority));
        // A log is no longer than what it is of.
        let patience = Duration::from_secs(newest.length_bytes / SLOWEST_BYTES_A_SECOND);
        let epoch = group.epoch;
        behind.push((node, Request::Follow { from, epoch }, within + patience));
    }
    // The tables go from one member to the other: no node has those of all groups.
    let told = each(&behind, |_, (node, request, within)| {
        agent.ask(&nodes[*node].peer(), request, *within)
    });
    told.into_iter().try_for_each(|told| told.map(drop))
}

fn make(
    agent: &dyn Ask,
    nodes: &[NodeSeat],
    rebuild: &Rebuild,
    (checkpoint, named): (CheckpointId, bool),
    within: Duration,
) -> Result<()> {
    let target = &nodes[rebuild.target];
    let request = Request::Rebuild {
        lost: rebuild.lost,
        authority: rebuild.authority,
        epoch: rebuild.epoch,
        checkpoint,
        own: rebuild.own,
        named,
        seats: seats(nodes, &rebuild.survivors),
    };
    notice::info(&format!(
        "the store of node {} is being rebuilt on node {}",
        rebuild.was_on, target.name
    ));
    // The lost store was about as long as the others.
    let longest = rebuild.survivors.iter().map(|here| here.length_bytes).max();
    let patience = Duration::from_secs(longest.unwrap_or(0) / SLOWEST_BYTES_A_SECOND);
    agent
        .ask(&target.peer(), &request, within + patience)
        .map(|_| ())
}

fn seats(nodes: &[NodeSeat], here: &[Here]) -> Vec<Seat> {
    let seat = |here: &Here| Seat {
        store: here.store,
        node: nodes[here.node].name.clone(),
        domain: nodes[here.node].domain.clone(),
        address: nodes[here.node].address.clone(),
    };
    here.iter().map(seat).collect()
}

/// Leaves out what would need a rebuild.
fn only_here(mut located: Located, made: usize) -> Located {
    located.choices.retain(|choice| choice.rebuilds.is_empty());
    located.made = made;
    located
}

/// Has an agent read what the stripes of its node's own store say it holds, and make damaged extents again from the
/// other members; `seat` says where a store is.
pub fn repair_own(
    agent: &dyn Ask,
    own: &Peer,
    seat: impl Fn(StoreId) -> Option<Seat>,
    within: Duration,
) -> Result<()> {
    let surveys = own_surveys(agent, own, within)?;
    let Some(survey) = surveys.iter().find(|survey| !survey.rebuilt) else {
        return Ok(());
    };
    // Damage is mended by the newest log; who was with it before is in none of its stripes.
    let members = survey.group.iter().flat_map(|group| &group.members);
    let seats = members.filter_map(|member| seat(member.store)).collect();
    match agent.ask(own, &Request::Repair { seats }, within) {
        // It protects nothing.
        Err(error) if error.kind() != ErrorKind::NotRetained => Err(error),
        _ => Ok(()),
    }
}
