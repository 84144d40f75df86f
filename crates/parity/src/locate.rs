// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: which checkpoints a restart can have, from which stores, and which lost stores have to be
//! made again first.
//! In: what every node found. Out: choices, newest first, and rebuilds.
//! Invariants: pure, so that every rank that decides decides the same; a choice names a source for
//! every rank of the job that took it, or the lost stores whose rebuilding would give one.
//!
//! | a store is | when |
//! |---|---|
//! | here | a node found it; of two copies the one of later age counts, and the other is set aside |
//! | unread | its root could not be read: it may be the newest, and nothing is proven; where a checkpoint was named that the other slot lists, it is here |
//! | behind | it is on a node, and has not come to the age at which its group's newest log protects it, nor to the root that the log has of it: it is of an earlier time, or its newest root is damaged |
//! | lost | a group's newest log names it as a member, and no node found it, or it is behind and no more are lost than the parity covers |
//! | to be had | it is lost, its group lost no more members than its parity or the next member has copies, and the log's root of it has the checkpoint that the log protects |
//!
//! The age of a store is the start of the job that its root was last opened in, then its newest
//! checkpoint: a node that was away may come back with checkpoints of higher numbers, which the others
//! abandoned when a later start began from an older one. A store that has come to the log's root and lacks what
//! was protected then is not behind: the job went back after that, within one start, because others could not
//! commit.

use backstay_format::agent::{Survey, SurveyedGroup, SurveyedMember};
use backstay_format::{CheckpointId, StoreId};
use std::collections::{BTreeMap, BTreeSet};

/// A store and the node that has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Here {
    /// Place of the node.
    pub node: usize,
    /// The store.
    pub store: StoreId,
    /// Bytes of its file.
    pub length_bytes: u64,
    /// Whether it is for reading only.
    pub rebuilt: bool,
}

/// A lost store that can be made again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rebuild {
    /// The store.
    pub lost: StoreId,
    /// The node that had it, by name.
    pub was_on: String,
    /// Place of the node that makes it.
    pub target: usize,
    /// Whether it becomes that node's own.
    pub own: bool,
    /// The member with the newest log.
    pub authority: StoreId,
    /// The composition of the group by which it is made.
    pub epoch: u64,
    /// The surviving members, and the nodes that have them.
    pub survivors: Vec<Here>,
}

/// A checkpoint that can be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Which.
    pub checkpoint: CheckpointId,
    /// Ranks of the job that took it.
    pub world_size: u32,
    /// By rank of then: place in `Located::here`; where it is in no store that is here, `None`.
    pub sources: Vec<Option<usize>>,
    /// What has to be made again for it.
    pub rebuilds: Vec<Rebuild>,
}

/// What there is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Located {
    /// Every store that counts.
    pub here: Vec<Here>,
    /// Stores of an earlier time, of which a newer copy is here.
    pub stale: Vec<Here>,
    /// Newest first.
    pub choices: Vec<Choice>,
    /// Lost stores, and why those that cannot be made again cannot.
    pub beyond: Vec<String>,
    /// Lost stores that were made again just now.
    pub made: usize,
    /// What could not be read, of the first of those of which something could not.
    pub unread: Option<String>,
    /// The newest checkpoint that any store or log names.
    pub newest: Option<CheckpointId>,
    /// Whether some store with checkpoints could be read: it names the newest one that was complete.
    pub is_known: bool,
}

/// A lost store and what its group's newest log says.
struct Lost<'a> {
    member: usize,
    group: &'a SurveyedGroup,
    authority: StoreId,
    /// Why it cannot be made again.
    beyond: Option<String>,
}

/// Of which time a store is; of two copies the later one counts.
type Age = (u64, Option<CheckpointId>);

fn age(survey: &Survey) -> Age {
    let newest = survey.revisions.last().map(|last| last.checkpoint);
    (survey.incarnation, newest)
}

/// Whether a store has not come to the age at which its group's newest log protects it: what that log says
/// stands in it does not.
pub fn is_behind(survey: &Survey, group: &SurveyedGroup) -> bool {
    let mut members = group.members.iter();
    let member = members.find(|member| member.store == survey.store);
    member.is_some_and(|member| {
        let lacks = age(survey) < (member.incarnation, Some(group.protected));
        // Roots that were written since then may say that the job went back.
        let root = (survey.incarnation, survey.sequence);
        lacks && root < (member.incarnation, member.sequence)
    })
}

/// Whether a store counts: its root was read, or the other slot lists the checkpoint that was named.
fn counts(survey: &Survey, named: Option<u64>) -> bool {
    let is_read = survey.unread.as_ref().is_none_or(|unread| !unread.root);
    let mut listed = survey.revisions.iter();
    is_read || named.is_some_and(|named| listed.any(|r| r.checkpoint.number == named))
}

/// What could not be read, and what the others say of the newest checkpoint.
fn look_for_unread(nodes: &[Vec<Survey>], names: &[String], located: &mut Located) {
    for (survey, name) in nodes
        .iter()
        .zip(names)
        .flat_map(|(found, name)| found.iter().map(move |survey| (survey, name)))
    {
        let listed = survey.revisions.last().map(|last| last.checkpoint);
        let protected = survey.group.as_ref().map(|group| group.protected);
        located.newest = located.newest.max(listed).max(protected);
        let is_read = survey.unread.as_ref().is_none_or(|unread| !unread.root);
        located.is_known |= is_read && listed.is_some();
        if let Some(unread) = &survey.unread {
            let why = || format!("node {name}: {}", unread.why);
            located.unread.get_or_insert_with(why);
        }
    }
}

/// What the nodes' surveys, by place of the node, come to. `names` are the nodes' names, `named` the checkpoint
/// that somebody wants to go on from, whatever is newer.
pub fn locate(nodes: &[Vec<Survey>], names: &[String], named: Option<u64>) -> Located {
    let mut located = Located::default();
    look_for_unread(nodes, names, &mut located);
    let counted: Vec<Vec<Survey>> = nodes
        .iter()
        .map(|found| {
            let found = found.iter().filter(|survey| counts(survey, named));
            found.cloned().collect()
        })
        .collect();
    locate_counted(&counted, names, &mut located);
    // What cannot be read is had from the others only where that is all that it can have had.
    let newest = located.newest;
    let is_same = |id: CheckpointId| Some(id) >= newest || named == Some(id.number);
    if located.unread.is_some() {
        located
            .choices
            .retain(|choice| choice.rebuilds.is_empty() || is_same(choice.checkpoint));
    }
    located
}

fn locate_counted(nodes: &[Vec<Survey>], names: &[String], located: &mut Located) {
    let mut here: BTreeMap<StoreId, (usize, &Survey)> = BTreeMap::new();
    let place = |node: usize, survey: &Survey| Here {
        node,
        store: survey.store,
        length_bytes: survey.length_bytes,
        rebuilt: survey.rebuilt,
    };
    for (node, surveys) in nodes.iter().enumerate() {
        for survey in surveys {
            let Some((other, known)) = here.get(&survey.store).copied() else {
                here.insert(survey.store, (node, survey));
                continue;
            };
            if age(survey) > age(known) {
                located.stale.push(place(other, known));
                here.insert(survey.store, (node, survey));
            } else {
                located.stale.push(place(node, survey));
            }
        }
    }
    let behind = leave_behind(&mut here);
    located.here = here
        .values()
        .map(|&(node, survey)| place(node, survey))
        .collect();
    let lost = lost_stores(&here);
    located.beyond = lost
        .values()
        .filter_map(|lost| lost.beyond.clone())
        .collect();
    let ids: BTreeSet<CheckpointId> = here
        .values()
        .flat_map(|(_, survey)| survey.revisions.iter().map(|r| r.checkpoint))
        .collect();
    for &id in ids.iter().rev() {
        located
            .choices
            .extend(choice(id, &here, &lost, &behind, nodes, names));
    }
}

/// What the newest log says of the group of each store that one names, and the store with that log.
pub fn newest_groups<'a>(
    surveys: impl IntoIterator<Item = &'a Survey>,
) -> BTreeMap<StoreId, (&'a SurveyedGroup, StoreId)> {
    let groups = groups_of_stores(surveys).into_iter();
    groups
        .filter_map(|(store, of_store)| Some((store, of_store.into_iter().next()?)))
        .collect()
}

/// The same of each composition, the newest first: while one group of the job has not recorded a round of the newest
/// ones, the logs of the others keep the one before.
fn groups_of_stores<'a>(
    surveys: impl IntoIterator<Item = &'a Survey>,
) -> BTreeMap<StoreId, Vec<(&'a SurveyedGroup, StoreId)>> {
    let mut groups: BTreeMap<StoreId, Vec<(&SurveyedGroup, StoreId)>> = BTreeMap::new();
    for survey in surveys {
        for group in survey.group.iter().chain(&survey.former) {
            for member in &group.members {
                let of_store = groups.entry(member.store).or_default();
                let known = of_store.iter_mut().find(|(k, _)| k.epoch == group.epoch);
                match known {
                    Some((known, _)) if known.round >= group.round => {}
                    Some(known) => *known = (group, survey.store),
                    None => of_store.push((group, survey.store)),
                }
            }
        }
    }
    for of_store in groups.values_mut() {
        of_store.sort_by_key(|(group, _)| std::cmp::Reverse(group.epoch));
    }
    groups
}

/// Takes stores that are behind out of `here`, where parity can make them again: where each of them
/// is, by store.
fn leave_behind(here: &mut BTreeMap<StoreId, (usize, &Survey)>) -> BTreeMap<StoreId, usize> {
    let found: Vec<&Survey> = here.values().map(|(_, survey)| *survey).collect();
    let groups = newest_groups(found);
    let may_be_made = |member: &SurveyedMember, group: &SurveyedGroup| {
        let found = here.get(&member.store);
        member.checkpoints.contains(&group.protected)
            && found.is_some_and(|(_, survey)| is_behind(survey, group))
    };
    let mut behind = BTreeMap::new();
    for (&store, &(group, _)) in &groups {
        let of_group = group.members.iter();
        let gone = of_group.filter(|m| !here.contains_key(&m.store) || may_be_made(m, group));
        let of_store = group.members.iter().find(|member| member.store == store);
        if of_store.is_some_and(|member| may_be_made(member, group))
            && gone.count() <= usize::from(group.parity)
            && let Some(&(node, _)) = here.get(&store)
        {
            behind.insert(store, node);
        }
    }
    here.retain(|store, _| !behind.contains_key(store));
    behind
}

/// Members of groups that no node has: by the newest composition that covers the loss, or the newest of all.
fn lost_stores<'a>(here: &BTreeMap<StoreId, (usize, &'a Survey)>) -> BTreeMap<StoreId, Lost<'a>> {
    let groups = groups_of_stores(here.values().map(|(_, survey)| *survey));
    let gone = groups
        .into_iter()
        .filter(|(store, _)| !here.contains_key(store));
    gone.filter_map(|(store, of_store)| {
        let found = of_store.into_iter();
        let mut found: Vec<Lost<'a>> = found
            .filter_map(|(group, authority)| lost_of(group, authority, store, here))
            .collect();
        let covers = found.iter().position(|lost| lost.beyond.is_none());
        (!found.is_empty()).then(|| (store, found.swap_remove(covers.unwrap_or(0))))
    })
    .collect()
}

/// What one composition says of a lost store.
fn lost_of<'a>(
    group: &'a SurveyedGroup,
    authority: StoreId,
    store: StoreId,
    here: &BTreeMap<StoreId, (usize, &Survey)>,
) -> Option<Lost<'a>> {
    let gone: Vec<&str> = group
        .members
        .iter()
        .filter(|member| !here.contains_key(&member.store))
        .map(|member| &*member.node)
        .collect();
    let member = group.members.iter().position(|m| m.store == store)?;
    // A copy stands alone on the next member: the loss of others does not matter.
    let next = &group.members[(member + 1) % group.members.len()];
    let copied = (group.parity, group.pieces_max) == (1, 1) && here.contains_key(&next.store);
    let beyond = (gone.len() > usize::from(group.parity) && !copied).then(|| {
        format!(
            "nodes {gone:?} of one group are lost, more than it covers: not recoverable from the nodes, needs \
             level 3"
        )
    });
    Some(Lost {
        member,
        group,
        authority,
        beyond,
    })
}

/// Checkpoint `id`, if all of it is here or can be made again.
fn choice(
    id: CheckpointId,
    here: &BTreeMap<StoreId, (usize, &Survey)>,
    lost: &BTreeMap<StoreId, Lost<'_>>,
    behind: &BTreeMap<StoreId, usize>,
    nodes: &[Vec<Survey>],
    names: &[String],
) -> Option<Choice> {
    let mut world_size = 0;
    let mut sources: Vec<Option<usize>> = Vec::new();
    for (at, (_, survey)) in here.values().enumerate() {
        let Some(revision) = survey.revisions.iter().find(|r| r.checkpoint == id) else {
            continue;
        };
        if world_size != 0 && world_size != revision.world_size {
            return None;
        }
        world_size = revision.world_size;
        sources.resize(backstay_format::width::index(world_size), None);
        for &rank in revision.ranks.iter() {
            if let Some(source) = sources.get_mut(backstay_format::width::index(rank)) {
                *source = Some(at);
            }
        }
    }
    let mut rebuilds = Vec::new();
    if sources.iter().any(Option::is_none) {
        let of = |lost: &Lost<'_>| lost.group.members[lost.member].checkpoints.contains(&id);
        // Others are not made again for a checkpoint that stays without some part.
        if lost.values().any(|lost| of(lost) && lost.beyond.is_some()) {
            return None;
        }
        let had = lost
            .iter()
            .filter(|(_, lost)| of(lost) && lost.group.protected >= id);
        let had = had.map(|(&store, lost)| (store, lost));
        rebuilds = assign(had, here, behind, nodes, names);
        if rebuilds.is_empty() {
            return None;
        }
    }
    (world_size > 0).then_some(Choice {
        checkpoint: id,
        world_size,
        sources,
        rebuilds,
    })
}

/// Which node makes which lost store: the one where it is behind, the node of the same name, then
/// nodes without a store, then those with the fewest, in their order.
fn assign<'a>(
    lost: impl Iterator<Item = (StoreId, &'a Lost<'a>)>,
    here: &BTreeMap<StoreId, (usize, &Survey)>,
    behind: &BTreeMap<StoreId, usize>,
    nodes: &[Vec<Survey>],
    names: &[String],
) -> Vec<Rebuild> {
    let mut load: Vec<usize> = nodes.iter().map(Vec::len).collect();
    let mut rebuilds = Vec::new();
    for (store, lost) in lost {
        let member = &lost.group.members[lost.member];
        let former = behind.get(&store).copied();
        let Some(target) = former.or_else(|| {
            (0..nodes.len()).min_by_key(|&at| {
                let namesake = load[at] == 0 && names[at] == member.node;
                (!namesake, load[at], at)
            })
        }) else {
            continue;
        };
        // One that is behind is in the place of its own, unless it was made again for reading.
        let own = match former {
            Some(node) => nodes[node].iter().any(|s| s.store == store && !s.rebuilt),
            None => load[target] == 0,
        };
        if former.is_none() {
            load[target] += 1;
        }
        let survivors = lost.group.members.iter().filter_map(|member| {
            let (node, survey) = here.get(&member.store)?;
            Some(Here {
                node: *node,
                store: member.store,
                length_bytes: survey.length_bytes,
                rebuilt: survey.rebuilt,
            })
        });
        rebuilds.push(Rebuild {
            lost: store,
            was_on: member.node.clone(),
            target,
            own,
            authority: lost.authority,
            epoch: lost.group.epoch,
            survivors: survivors.collect(),
        });
    }
    rebuilds
}

#[cfg(test)]
mod tests {
    use super::*;
    use backstay_format::agent::{SurveyedRevision, SurveyedUnread};

    fn id(number: u64) -> CheckpointId {
        CheckpointId::new(1, number)
    }

    /// Node `n` of four, one rank each, which has checkpoints 4 and `newest`; 4 is protected by XOR.
    fn survey(n: u8, newest: u64) -> Survey {
        let revision = |number| SurveyedRevision {
            checkpoint: id(number),
            complete: true,
            world_size: 4,
            ranks: [u32::from(n)].into(),
        };
        let member = |n: u8| SurveyedMember {
            store: StoreId([n + 1; 16]),
            node: format!("n{n}"),
            domain: format!("n{n}"),
            incarnation: 1,
            sequence: 4,
            checkpoints: vec![id(4)],
        };
        Survey {
            store: StoreId([n + 1; 16]),
            run: 1,
            incarnation: 1,
            sequence: newest,
            length_bytes: 1 << 20,
            rebuilt: false,
            unread: None,
            revisions: vec![revision(4), revision(newest)],
            group: Some(SurveyedGroup {
                epoch: 1,
                round: 3,
                parity: 1,
                pieces_max: 3,
                protected: id(4),
                members: (0..4).map(member).collect(),
            }),
            former: None,
        }
    }

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|n| format!("n{n}")).collect()
    }

    #[test]
    fn without_losses_the_newest_on_all_nodes_is_first() {
        let nodes: Vec<_> = (0..4).map(|n| vec![survey(n, 5)]).collect();
        let located = locate(&nodes, &names(4), None);
        let ids: Vec<_> = located.choices.iter().map(|c| c.checkpoint).collect();
        assert_eq!(ids, [id(5), id(4)]);
        assert!(located.choices.iter().all(|c| c.rebuilds.is_empty()));
        let all: Vec<_> = (0..4).map(Some).collect();
        assert_eq!(located.choices[0].sources, all);
    }

    #[test]
    fn a_lost_store_is_made_again_on_the_spare_from_what_is_protected() {
        let mut nodes: Vec<_> = (0..4).map(|n| vec![survey(n, 5)]).collect();
        nodes[2].clear();
        let located = locate(&nodes, &names(4), None);
        assert_eq!(located.choices.len(), 1, "5 is gone with node 2");
        let choice = &located.choices[0];
        assert_eq!(choice.checkpoint, id(4));
        let [rebuild] = &choice.rebuilds[..] else {
            panic!("{choice:?}");
        };
        assert_eq!((rebuild.target, rebuild.own), (2, true));
        assert_eq!(rebuild.lost, StoreId([3; 16]));
        assert_eq!(rebuild.survivors.len(), 3);
    }

    #[test]
    fn without_a_spare_a_survivor_makes_it_for_reading() {
        let nodes: Vec<_> = [0, 1, 3].map(|n| vec![survey(n, 5)]).into();
        let located = locate(&nodes, &names(3), None);
        let rebuild = &located.choices[0].rebuilds[0];
        assert_eq!((rebuild.target, rebuild.own), (0, false));
    }

    #[test]
    fn more_losses_than_parity_are_said_to_be_beyond_it() {
        let nodes: Vec<_> = [0, 3].map(|n| vec![survey(n, 5)]).into();
        let located = locate(&nodes, &names(2), None);
        assert!(located.choices.is_empty());
        assert!(
            located.beyond[0].contains("level 3"),
            "{:?}",
            located.beyond
        );
    }

    #[test]
    fn copies_survive_losses_that_are_not_adjacent() {
        let mut nodes: Vec<_> = (0..4).map(|n| vec![survey(n, 5)]).collect();
        for group in nodes.iter_mut().filter_map(|node| node[0].group.as_mut()) {
            group.pieces_max = 1;
        }
        let mut apart = nodes.clone();
        apart[0].clear();
        apart[2].clear();
        let located = locate(&apart, &names(4), None);
        assert_eq!(located.choices[0].rebuilds.len(), 2);
        assert!(located.beyond.is_empty(), "{:?}", located.beyond);
        nodes[1].clear();
        nodes[2].clear();
        let located = locate(&nodes, &names(4), None);
        assert!(located.choices.is_empty());
        assert_eq!(located.beyond.len(), 1, "the copies of node 1 are gone");
    }

    #[test]
    fn a_store_that_was_made_again_elsewhere_replaces_the_one_that_came_back() {
        let mut nodes: Vec<_> = (0..4).map(|n| vec![survey(n, 6)]).collect();
        nodes.push(vec![survey(1, 5)]);
        let located = locate(&nodes, &names(5), None);
        assert_eq!(located.stale.len(), 1);
        assert_eq!(located.stale[0].node, 4);
        assert_eq!(located.choices[0].checkpoint, id(6));
    }

    /// Node 1 was lost with an unprotected (1,13), its store was made again on node 4, and start 2 began
    /// from 10.
    fn came_back(newest: Option<u64>) -> Vec<Vec<Survey>> {
        let mut nodes: Vec<_> = (0..4).map(|n| vec![survey(n, 10)]).collect();
        let good = std::mem::take(&mut nodes[1]);
        nodes.push(good);
        for survey in nodes.iter_mut().flatten() {
            survey.incarnation = 2;
            let mut later = survey.revisions[1].clone();
            if let Some(number) = newest {
                later.checkpoint = CheckpointId::new(2, number);
                survey.revisions.push(later);
                let group = survey.group.as_mut().unwrap();
                group.protected = CheckpointId::new(2, number);
                group.round += 1;
                for member in &mut group.members {
                    member.incarnation = 2;
                    member.checkpoints = vec![id(10), group.protected];
                }
            }
        }
        nodes[1] = vec![survey(1, 13)];
        nodes
    }

    #[test]
    fn a_node_that_was_away_does_not_beat_the_later_start_by_a_higher_number() {
        let nodes = came_back(Some(12));
        let located = locate(&nodes, &names(5), None);
        assert_eq!(located.stale.len(), 1);
        assert_eq!(located.stale[0].node, 1);
        assert_eq!(located.choices[0].checkpoint, CheckpointId::new(2, 12));
        assert!(located.choices[0].rebuilds.is_empty());
    }

    #[test]
    fn nor_a_later_start_that_has_no_checkpoint_yet() {
        let located = locate(&came_back(None), &names(5), None);
        assert_eq!(located.stale.len(), 1);
        assert_eq!(located.stale[0].node, 1);
        assert_eq!(located.choices[0].checkpoint, id(10));
    }

    #[test]
    fn a_higher_number_of_an_earlier_start_is_behind_what_a_later_one_protects() {
        let mut nodes = came_back(Some(12));
        // The good copy is lost too: what came back does not stand for it.
        nodes[4].clear();
        let located = locate(&nodes, &names(5), None);
        let choice = &located.choices[0];
        assert_eq!(choice.checkpoint, CheckpointId::new(2, 12));
        let [rebuild] = &choice.rebuilds[..] else {
            panic!("{choice:?}");
        };
        assert_eq!((rebuild.lost, rebuild.target), (StoreId([2; 16]), 1));
        assert!(rebuild.own);
    }

    #[test]
    fn a_store_that_is_behind_is_made_again_where_it_is() {
        let mut nodes: Vec<_> = (0..4).map(|n| vec![survey(n, 5)]).collect();
        nodes[2][0].revisions.truncate(1);
        nodes[2][0].revisions[0].checkpoint = id(2);
        nodes[2][0].sequence = 2;
        let located = locate(&nodes, &names(4), None);
        let choice = &located.choices[0];
        assert_eq!(choice.checkpoint, id(4));
        let [rebuild] = &choice.rebuilds[..] else {
            panic!("{choice:?}");
        };
        assert_eq!((rebuild.target, rebuild.own), (2, true));
        // Two are more than XOR covers: what they have is all there is.
        nodes[1][0].revisions = nodes[2][0].revisions.clone();
        nodes[1][0].sequence = 2;
        let located = locate(&nodes, &names(4), None);
        assert_eq!(located.here.len(), 4);
        assert!(
            located
                .choices
                .iter()
                .all(|choice| choice.rebuilds.is_empty())
        );
    }

    #[test]
    fn who_went_back_with_the_whole_job_is_not_behind() {
        let mut nodes: Vec<_> = (0..4).map(|n| vec![survey(n, 5)]).collect();
        for survey in nodes.iter_mut().flatten() {
            // The group recorded 6, another group could not commit it, and all went back to 5.
            survey.sequence = 7;
            let group = survey.group.as_mut().unwrap();
            group.protected = id(6);
            for member in &mut group.members {
                member.sequence = 6;
                member.checkpoints = vec![id(4), id(5), id(6)];
            }
        }
        let located = locate(&nodes, &names(4), None);
        assert!(located.choices[0].rebuilds.is_empty());
        // One copy is of an earlier time: what was protected of it is there.
        nodes[2][0].revisions.truncate(1);
        nodes[2][0].revisions[0].checkpoint = id(3);
        nodes[2][0].sequence = 3;
        let located = locate(&nodes, &names(4), None);
        let choice = &located.choices[0];
        assert_eq!(choice.checkpoint, id(5));
        let [rebuild] = &choice.rebuilds[..] else {
            panic!("{choice:?}");
        };
        assert_eq!((rebuild.target, rebuild.own), (2, true));
    }

    #[test]
    fn what_the_group_does_not_protect_is_no_choice() {
        let mut nodes: Vec<_> = (0..4).map(|n| vec![survey(n, 5)]).collect();
        nodes[0].clear();
        for survey in nodes.iter_mut().flatten() {
            if let Some(group) = &mut survey.group {
                group.protected = id(3);
            }
        }
        assert!(locate(&nodes, &names(4), None).choices.is_empty());
    }

    fn unread(mut survey: Survey, root: bool) -> Survey {
        survey.unread = Some(SurveyedUnread {
            root,
            why: "reading root".to_owned(),
        });
        survey
    }

    #[test]
    fn what_cannot_be_read_is_made_again_only_for_the_newest_that_the_others_name() {
        let mut nodes: Vec<_> = (0..4).map(|n| vec![survey(n, 5)]).collect();
        // It may list less than it has.
        let mut other_slot = survey(2, 5);
        other_slot.revisions.truncate(1);
        nodes[2] = vec![unread(other_slot, true)];
        let located = locate(&nodes, &names(4), None);
        assert!(located.choices.is_empty(), "5 is there, and not protected");
        let why = located.unread.unwrap();
        assert!(why.contains("n2") && why.contains("reading"), "{why}");
        assert_eq!((located.newest, located.is_known), (Some(id(5)), true));
        // Who names 4 has it from the slot that can be read.
        let located = locate(&nodes, &names(4), Some(4));
        let choice = &located.choices[0];
        assert_eq!((choice.checkpoint, choice.rebuilds.len()), (id(4), 0));
        // Nothing of it can be read: then by parity, for who names it, or where it is the newest of all.
        nodes[2][0].revisions.clear();
        nodes[2][0].store = StoreId::default();
        let located = locate(&nodes, &names(4), Some(4));
        let rebuild = &located.choices[0].rebuilds[0];
        assert_eq!((rebuild.target, rebuild.own), (2, true));
        assert!(locate(&nodes, &names(4), None).choices.is_empty());
        for found in nodes.iter_mut().flatten() {
            found.revisions.truncate(1);
        }
        let located = locate(&nodes, &names(4), None);
        let choice = &located.choices[0];
        assert_eq!((choice.checkpoint, choice.rebuilds.len()), (id(4), 1));
        // What the log of another protects counts as well.
        if let Some(group) = &mut nodes[0][0].group {
            group.protected = id(6);
        }
        assert!(locate(&nodes, &names(4), None).choices.is_empty());
    }

    #[test]
    fn a_table_that_cannot_be_read_leaves_the_store_where_it_is() {
        let mut nodes: Vec<_> = (0..4).map(|n| vec![survey(n, 5)]).collect();
        nodes[2] = vec![unread(survey(2, 5), false)];
        nodes[2][0].revisions[1].ranks = [].into();
        let located = locate(&nodes, &names(4), None);
        assert_eq!(located.here.len(), 4);
        let ids: Vec<_> = located.choices.iter().map(|c| c.checkpoint).collect();
        assert_eq!(ids, [id(4)]);
        assert_eq!(located.newest, Some(id(5)), "so that 4 is in doubt");
        assert!(located.unread.is_some());
    }
}
