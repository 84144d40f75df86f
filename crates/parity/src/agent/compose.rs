// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: which nodes are a group in a start of the job: those that the logs know and whose members are all here,
//! and new ones of the other nodes; all anew where that covers more.
//! In from: `session` on rank 0, with what every node's own store says of its group. Out to: each group's
//! `coordinate`.
//! Invariants: pure; every node is in exactly one group; groups that are kept keep their columns.

use super::round::numbers;
use crate::group::{self, Scheme};
use crate::locate::newest_groups;
use backstay_base::error::Result;
use backstay_format::StoreId;
use backstay_format::agent::{Seat, Survey, SurveyedGroup};
use std::collections::{BTreeMap, BTreeSet};

/// The groups of a start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Composition {
    /// Above that of every log: the epoch of groups that are new.
    pub epoch: u64,
    /// Places of nodes, by column.
    pub groups: Vec<Vec<usize>>,
    /// Why some have less than was asked for.
    pub shortfalls: Vec<String>,
}

/// A group of a log that is as it was: what that says, the places of its members, and of the one with the log.
pub(super) struct Kept<'a> {
    pub(super) group: &'a SurveyedGroup,
    pub(super) members: Vec<usize>,
    pub(super) authority: usize,
}

/// Groups of the nodes `seats`, of about `size` members; `own` is what each node's own store says, where it has one
/// that can be read.
pub fn compose(
    seats: &[Seat],
    own: &[Option<Survey>],
    scheme: Scheme,
    size: usize,
) -> Result<Composition> {
    let known: Vec<(usize, &Survey)> = own
        .iter()
        .enumerate()
        .filter_map(|(at, survey)| Some((at, survey.as_ref()?)))
        .collect();
    let logs = known.iter().filter_map(|(_, survey)| survey.group.as_ref());
    let epoch = 1 + logs.map(|group| group.epoch).max().unwrap_or(0);
    let kept = kept(seats, &known, scheme);
    let taken: BTreeSet<usize> = kept
        .iter()
        .flat_map(|kept| &kept.members)
        .copied()
        .collect();
    let everybody: Vec<usize> = (0..seats.len()).collect();
    let rest: Vec<usize> = everybody
        .iter()
        .copied()
        .filter(|at| !taken.contains(at))
        .collect();
    let form = |places: &[usize]| group::form(&members(seats, places), size, scheme);
    let least = |groups: &[group::Group]| {
        let parities = groups.iter().map(group::Group::parities);
        parities.min().unwrap_or(scheme.parities())
    };
    let mut composition = Composition {
        epoch,
        ..Composition::default()
    };
    let mut formed = (form(&rest)?, rest);
    if formed.1.len() < everybody.len() {
        let anew = form(&everybody)?;
        if least(&formed.0) < least(&anew) {
            formed = (anew, everybody);
        } else {
            composition.groups = kept.into_iter().map(|kept| kept.members).collect();
        }
    }
    let (groups, places) = formed;
    for group in groups {
        let of = group.members.iter().map(|&at| places[at]);
        composition.groups.push(of.collect());
        composition.shortfalls.extend(group.shortfall);
    }
    Ok(composition)
}

fn members<'a>(seats: &'a [Seat], places: &[usize]) -> Vec<group::Candidate<'a>> {
    let member = |&at: &usize| group::Candidate {
        name: &seats[at].node,
        domain: Some(&seats[at].domain),
    };
    places.iter().map(member).collect()
}

/// The groups of the logs that are as they were.
pub(super) fn kept<'a>(
    seats: &[Seat],
    own: &[(usize, &'a Survey)],
    scheme: Scheme,
) -> Vec<Kept<'a>> {
    let found: BTreeMap<StoreId, (usize, &Survey)> = own
        .iter()
        .map(|&(at, survey)| (survey.store, (at, survey)))
        .collect();
    let newest = newest_groups(own.iter().map(|&(_, survey)| survey));
    let mut kept: Vec<Kept<'a>> = Vec::new();
    let mut taken = BTreeSet::new();
    for &(group, authority) in newest.values() {
        let is_it = |of: &SurveyedGroup| (of.epoch, of.round) == (group.epoch, group.round);
        // One whose log is behind was left so: its store is not as the group's log has it.
        let is_whole = |store: &StoreId, survey: &Survey| {
            newest.get(store).is_some_and(|(of, _)| is_it(of))
                && survey.group.as_ref().is_some_and(is_it)
        };
        let members: Option<Vec<usize>> = group
            .members
            .iter()
            .map(|member| {
                let (at, survey) = found.get(&member.store)?;
                is_whole(&member.store, survey).then_some(*at)
            })
            .collect();
        let (Some(members), Some((authority, _))) = (members, found.get(&authority)) else {
            continue;
        };
        if members.first().is_none_or(|first| taken.contains(first))
            || !is_as_asked(seats, &members, group, scheme)
        {
            continue;
        }
        taken.extend(members.iter().copied());
        kept.push(Kept {
            group,
            members,
            authority: *authority,
        });
    }
    kept
}

/// Whether a group is what would be formed today: the scheme that was asked for, and no two members in one
/// failure domain.
fn is_as_asked(seats: &[Seat], members: &[usize], group: &SurveyedGroup, asked: Scheme) -> bool {
    let domains: BTreeSet<&str> = members.iter().map(|&at| &*seats[at].domain).collect();
    let scheme = asked.within(members.len());
    domains.len() == members.len()
        && scheme == asked
        && numbers(scheme, members.len()) == (group.parity, group.pieces_max)
}
