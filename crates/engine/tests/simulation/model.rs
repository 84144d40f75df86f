// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what the job was told, and therefore what a restart must give back.
//! In: what ranks were told in each life; what was done to the nodes between lives. Out: what is wrong
//! with a restart.
//! Invariants: it asks for no more than the scheme promises: losses add up until the next protected
//! checkpoint, whether or not they were made good meanwhile.
//!
//! | told | must come back, it or a newer one, when |
//! |---|---|
//! | protected | not more nodes of that life are wiped, damaged, of an earlier time or left out than the smallest parity of its groups |
//! | on the nodes | none of them is, and every rank can reach its part |

use crate::scenario::{Damage, LifePlan, Scenario};
use backstay::config::Redundancy;
use backstay::redundancy::group::{self, Member, Scheme};
use backstay::{CheckpointId, ErrorKind};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

/// How a life began on one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Restored(CheckpointId, u64),
    Fresh,
    Refused(ErrorKind, String),
}

/// Whether checkpoints of a life can be protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expect {
    /// Against so many losses at least.
    Losses(usize),
    Unsupported,
}

impl Expect {
    /// What groups of these nodes can have.
    pub(crate) fn of(scenario: &Scenario, nodes: &[usize]) -> Self {
        let scheme = match scenario.redundancy {
            Redundancy::None => return Self::Unsupported,
            Redundancy::Partner => Scheme::Partner,
            Redundancy::Xor => Scheme::Xor,
            Redundancy::Rs => Scheme::ReedSolomon {
                parities: scenario.losses(),
            },
        };
        if nodes.len() < 2 {
            return Self::Unsupported;
        }
        let names: Vec<(String, String)> = nodes
            .iter()
            .map(|&node| (format!("n{node}"), format!("d{}", scenario.domains[node])))
            .collect();
        let members: Vec<Member<'_>> = names
            .iter()
            .map(|(name, domain)| Member {
                name,
                domain: Some(domain),
            })
            .collect();
        let size = usize::try_from(scenario.group_size).unwrap();
        let groups = group::form(&members, size, scheme).unwrap();
        match groups.iter().map(group::Group::parities).min() {
            Some(0) | None => Self::Unsupported,
            Some(losses) => Self::Losses(losses),
        }
    }
}

/// What the ranks of one life were told.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) outcomes: BTreeMap<usize, Outcome>,
    pub(crate) committed: Vec<(CheckpointId, u64)>,
    pub(crate) protected: Vec<(CheckpointId, u64)>,
    pub(crate) closed: bool,
    /// Step of every checkpoint that ever began.
    pub(crate) steps: BTreeMap<CheckpointId, u64>,
}

#[derive(Debug, Default)]
pub(crate) struct Ledger(Mutex<Told>);

impl Ledger {
    pub(crate) fn outcome(&self, rank: usize, outcome: Outcome) {
        self.0.lock().unwrap().outcomes.insert(rank, outcome);
    }
    pub(crate) fn started(&self, id: CheckpointId, step: u64) -> Result<(), String> {
        match self.0.lock().unwrap().steps.insert(id, step) {
            Some(other) if other != step => Err(format!(
                "checkpoint {id} is of step {step}, and was of step {other}"
            )),
            _ => Ok(()),
        }
    }
    pub(crate) fn committed(&self, id: CheckpointId, step: u64) {
        push(&mut self.0.lock().unwrap().committed, (id, step));
    }
    pub(crate) fn protected(&self, id: CheckpointId, step: u64) {
        push(&mut self.0.lock().unwrap().protected, (id, step));
    }
    pub(crate) fn closed(&self) {
        self.0.lock().unwrap().closed = true;
    }
    pub(crate) fn take(&self) -> Told {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

fn push(list: &mut Vec<(CheckpointId, u64)>, told: (CheckpointId, u64)) {
    if list.last() != Some(&told) {
        list.push(told);
    }
}

/// A checkpoint that must come back while its nodes are well.
#[derive(Debug, Clone)]
struct Promise {
    id: CheckpointId,
    step: u64,
    members: BTreeSet<usize>,
    placement: Vec<usize>,
    lost: BTreeSet<usize>,
    covers: usize,
}

impl Promise {
    fn lost_in(&self, nodes: &BTreeSet<usize>) -> BTreeSet<usize> {
        let absent = self.members.difference(nodes).copied();
        absent.chain(self.lost.iter().copied()).collect()
    }
}

/// What the job knows over all its lives.
#[derive(Debug, Default)]
pub(crate) struct Model {
    node: Option<Promise>,
    protected: Option<Promise>,
    steps: BTreeMap<CheckpointId, u64>,
    abandoned: BTreeSet<CheckpointId>,
    /// Nodes whose stores tell that there were checkpoints.
    telling: BTreeSet<usize>,
    rolled_back: bool,
    /// Nodes with damage that nobody may have seen yet: parity is read only when it is needed.
    tainted: BTreeSet<usize>,
    /// Nodes whose stores are of an earlier run of the job, which are refused.
    strangers: BTreeSet<usize>,
    /// Nodes that have a store.
    stored: BTreeSet<usize>,
    /// The life in which this run began.
    run_from: usize,
}

/// What is to be done after a life was judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    GoOn,
    /// More was lost than the scheme covers, and the engine said so: everything is removed.
    BeginAnew,
}

impl Model {
    /// What must come back in a life, and why.
    fn required(&self, scenario: &Scenario, plan: &LifePlan) -> Option<(&Promise, String)> {
        let nodes = plan.nodes();
        if plan.opening.is_some() || !nodes.is_disjoint(&self.strangers) {
            return None;
        }
        let mut found: Option<(&Promise, String)> = None;
        if let Some(promise) = &self.protected {
            let lost = promise.lost_in(&nodes);
            // Nothing is rebuilt on a single node: a known limit.
            if lost.len() <= promise.covers && nodes.len() > 1 {
                let why = format!(
                    "it was protected on nodes {:?} against {} losses; lost are {lost:?}",
                    promise.members, promise.covers
                );
                found = Some((promise, why));
            }
        }
        if let Some(promise) = &self.node {
            let reached = scenario.redundancy != Redundancy::None && nodes.len() > 1
                || promise.placement == plan.placement;
            if reached
                && promise.lost_in(&nodes).is_empty()
                && found
                    .as_ref()
                    .is_none_or(|(known, _)| known.step < promise.step)
            {
                let why = format!(
                    "it was on nodes {:?}, all of them are well",
                    promise.members
                );
                found = Some((promise, why));
            }
        }
        found
    }

    /// Judges a life, and learns what it was told.
    pub(crate) fn judge(
        &mut self,
        scenario: &Scenario,
        number: usize,
        told: Told,
    ) -> Result<Verdict, String> {
        let plan = &scenario.lives[number];
        let mut outcomes = told.outcomes.values();
        let Some(first) = outcomes.next() else {
            // Killed before any rank was told anything.
            return self.learn(scenario, plan, told).map(|()| Verdict::GoOn);
        };
        if !outcomes.all(|other| alike(first, other)) {
            return Err(format!("ranks differ: {:#?}", told.outcomes));
        }
        let required = self.required(scenario, plan);
        let verdict = match (first, &required) {
            (Outcome::Restored(id, step), _) => {
                if let Some((promise, why)) = &required
                    && *step < promise.step
                {
                    return Err(format!(
                        "checkpoint {id} (step {step}) was restored, and {} (step {}) can be had: {why}",
                        promise.id, promise.step
                    ));
                }
                if plan.nodes().is_disjoint(&self.strangers) {
                    self.check_restored(*id, *step)?;
                } else {
                    // It may be a checkpoint of an earlier run that came back.
                    self.steps.clear();
                    self.abandoned.clear();
                }
                Verdict::GoOn
            }
            (other, Some((promise, why))) => {
                return Err(format!(
                    "{other:?}, and checkpoint {} (step {}) can be had: {why}",
                    promise.id, promise.step
                ));
            }
            (Outcome::Fresh, None) => {
                let nodes = plan.nodes();
                let telling: Vec<_> = self.telling.intersection(&nodes).collect();
                if !telling.is_empty() {
                    return Err(format!(
                        "no checkpoint, it says, and the stores of nodes {telling:?} had some"
                    ));
                }
                let strangers = self.stored.difference(&nodes).copied();
                *self = Self {
                    strangers: strangers.collect(),
                    tainted: std::mem::take(&mut self.tainted),
                    run_from: number,
                    ..Self::default()
                };
                Verdict::GoOn
            }
            (Outcome::Refused(ErrorKind::Configuration, text), None)
                if plan.nodes().is_disjoint(&self.strangers) =>
            {
                return Err(format!("all stores are of one run: {text}"));
            }
            (Outcome::Refused(..), None) => {
                *self = Self {
                    run_from: number + 1,
                    ..Self::default()
                };
                return Ok(Verdict::BeginAnew);
            }
        };
        self.learn(scenario, plan, told)?;
        Ok(verdict)
    }

    fn check_restored(&self, id: CheckpointId, step: u64) -> Result<(), String> {
        if let Some(known) = self.steps.get(&id)
            && *known != step
        {
            return Err(format!(
                "checkpoint {id} is of step {known}, step {step} came back"
            ));
        }
        if self.abandoned.contains(&id) && !self.rolled_back {
            return Err(format!("checkpoint {id} was abandoned by an earlier life"));
        }
        Ok(())
    }

    fn learn(&mut self, scenario: &Scenario, plan: &LifePlan, told: Told) -> Result<(), String> {
        let nodes = plan.nodes();
        self.stored.extend(&nodes);
        if nodes.len() == 1 {
            // What a job on one node writes, its stripe log does not know.
            self.tainted.extend(&nodes);
        }
        let doubtful: BTreeSet<usize> = self.tainted.intersection(&nodes).copied().collect();
        let promise = |(id, step): (CheckpointId, u64), covers| Promise {
            id,
            step,
            members: nodes.clone(),
            placement: plan.placement.clone(),
            lost: doubtful.clone(),
            covers,
        };
        let in_order: Vec<usize> = order(&plan.placement);
        if let Some(Outcome::Restored(id, step)) = told.outcomes.values().next() {
            // Where every store of the lives between is gone, their names are given again.
            let mut newer = self.steps.split_off(id);
            self.steps.extend(newer.remove_entry(id));
            self.abandoned.extend(newer.into_keys());
            self.node = Some(promise((*id, *step), 0));
            if let Some(protected) = &mut self.protected {
                if protected.step > *step {
                    self.protected = None;
                } else {
                    // What was left out is now of an earlier time.
                    protected.lost = protected.lost_in(&nodes);
                }
            }
            self.telling.extend(&nodes);
        }
        for (id, step) in told.steps {
            self.abandoned.remove(&id);
            if let Some(other) = self.steps.insert(id, step)
                && other != step
            {
                return Err(format!(
                    "checkpoint {id} is of step {step}, and was of step {other}"
                ));
            }
        }
        if let Some(&last) = told.committed.last() {
            self.node = Some(promise(last, 0));
        }
        if let Some(&last) = told.protected.last()
            && let Expect::Losses(covers) = Expect::of(scenario, &in_order)
        {
            self.protected = Some(promise(last, covers));
            self.telling.extend(&nodes);
        }
        if told.committed.len() > 1 || told.closed && !told.committed.is_empty() {
            self.telling.extend(&nodes);
        }
        Ok(())
    }

    pub(crate) fn damage(&mut self, damage: Damage) {
        let node = damage.node();
        for promise in [&mut self.node, &mut self.protected].into_iter().flatten() {
            promise.lost.insert(node);
        }
        self.telling.remove(&node);
        self.rolled_back |= matches!(damage, Damage::Return(..));
        self.strangers.remove(&node);
        match damage {
            Damage::Wipe(_) => {
                self.tainted.remove(&node);
                self.stored.remove(&node);
            }
            Damage::Return(_, life) if life < self.run_from => {
                self.strangers.insert(node);
                self.tainted.insert(node);
            }
            _ => {
                self.tainted.insert(node);
            }
        }
    }
}

/// The nodes in the order of their lowest ranks.
pub(crate) fn order(placement: &[usize]) -> Vec<usize> {
    let mut seen = BTreeSet::new();
    placement
        .iter()
        .copied()
        .filter(|node| seen.insert(*node))
        .collect()
}

/// Whether two ranks were told the same; the words of a refusal may differ.
fn alike(one: &Outcome, other: &Outcome) -> bool {
    match (one, other) {
        (Outcome::Refused(one, _), Outcome::Refused(other, _)) => one == other,
        (one, other) => one == other,
    }
}
