// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what the job was told, and therefore what a restart must give back.
//! In: what ranks were told in each start; what was done to the nodes between starts. Out: what
//! `invariants` asks of a restart.
//! Invariants: it asks for no more than the scheme promises: losses add up until the next protected
//! checkpoint, whether or not they were made good meanwhile.
//!
//! | told | must come back, it or a newer one, when |
//! |---|---|
//! | archived | always |
//! | protected | not more nodes of that start are wiped, damaged, of an earlier time or left out than the smallest parity of its groups |
//! | on the nodes | none of them is, and every rank can reach its part |

use crate::invariants::{self, DONE_IS_DONE, GOES_ON, NOTHING_NEWER, Required, broken};
use crate::ledger::{Event, Finish, Outcome, Told};
use crate::scenario::{Damage, Scenario, StartPlan};
use backstay::config::Redundancy;
use backstay::{CheckpointId, ErrorKind};
use backstay_parity::group::{self, Candidate, Scheme};
use std::collections::{BTreeMap, BTreeSet};

/// Whether checkpoints of a start can be protected.
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
        let members: Vec<Candidate<'_>> = names
            .iter()
            .map(|(name, domain)| Candidate {
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

    fn required(&self, why: String, lossy: bool) -> Required {
        Required {
            id: self.id,
            step: self.step,
            why,
            lossy,
        }
    }
}

/// A start that finished, or that died while it did.
#[derive(Debug)]
struct Done {
    /// Nodes whose stores say so, where it is certain that they do.
    nodes: BTreeSet<usize>,
    /// And so does the catalog.
    archived: bool,
    /// A start has begun anew since then, and may have taken a checkpoint without anybody being told.
    begun: bool,
}

/// A checkpoint that is not restored any more unless it is named.
#[derive(Debug)]
struct Left {
    /// The nodes whose stores know: those of the start that went back behind it, or began anew, and of later ones that
    /// had one of them.
    nodes: BTreeSet<usize>,
    /// The catalog knows as well, where there is one.
    catalog: bool,
}

/// What the job knows over all its starts.
#[derive(Debug, Default)]
pub(crate) struct Model {
    node: Option<Promise>,
    protected: Option<Promise>,
    archived: Option<Promise>,
    steps: BTreeMap<CheckpointId, u64>,
    /// What starts went back behind, or left behind when they began anew.
    abandoned: BTreeMap<CheckpointId, Left>,
    has_catalog: bool,
    /// The job finished, or may have.
    done: Option<Done>,
    /// Nodes of starts that began anew behind that: their stores know of a lineage that may have no checkpoint yet.
    anew: BTreeSet<usize>,
    /// Nodes whose stores tell that there were checkpoints.
    telling: BTreeSet<usize>,
    rolled_back: bool,
    /// Nodes with damage that nobody may have seen yet: parity is read only when it is needed.
    tainted: BTreeSet<usize>,
    /// Nodes whose stores were made again of parity that damage may be in: what no round had covered yet when it came
    /// was taken as it stood.
    inheriting: BTreeSet<usize>,
    /// Damaged files were wiped since.
    passed_on: bool,
    /// Nodes whose stores are of an earlier run of the job, which are refused.
    strangers: BTreeSet<usize>,
    /// Nodes that have a store.
    stored: BTreeSet<usize>,
    /// The start in which this run began.
    run_from: usize,
    /// The last step that any start came to: no other step is computed twice.
    furthest: u64,
}

/// What is to be done after a start was judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    GoOn,
    /// More was lost than the scheme covers, and the engine said so: everything is removed.
    BeginAnew,
}

impl Model {
    pub(crate) fn steps(&self) -> &BTreeMap<CheckpointId, u64> {
        &self.steps
    }

    pub(crate) fn furthest(&self) -> u64 {
        self.furthest
    }

    /// Nodes whose files were harmed, or may be of an earlier time.
    pub(crate) fn harmed(&self) -> BTreeSet<usize> {
        let own = self.tainted.union(&self.strangers);
        own.chain(&self.inheriting).copied().collect()
    }

    /// The step up to which all that `nodes` retain is protected against what became of them.
    pub(crate) fn covered(&self, nodes: &BTreeSet<usize>) -> Option<u64> {
        let covers = |promise: &&Promise| {
            // Nothing is mended on a single node.
            nodes.len() > 1 && promise.lost_in(nodes).len() <= promise.covers
        };
        let protected = self.protected.as_ref().filter(covers);
        protected.map(|promise| promise.step)
    }

    /// What must come back in a start, and why.
    fn required(&self, scenario: &Scenario, plan: &StartPlan) -> Option<Required> {
        let nodes = plan.nodes();
        if !nodes.is_disjoint(&self.strangers) {
            return None;
        }
        let mut found: Vec<Required> = Vec::new();
        if let Some(promise) = &self.archived {
            found.push(promise.required("it was archived".to_owned(), true));
        }
        if let Some(promise) = &self.protected {
            let lost = promise.lost_in(&nodes);
            // Nothing is rebuilt on a single node: a known limit.
            if lost.len() <= promise.covers && nodes.len() > 1 {
                let why = format!(
                    "it was protected on nodes {:?} against {} losses; lost are {lost:?}",
                    promise.members, promise.covers
                );
                found.push(promise.required(why, !lost.is_empty()));
            }
        }
        if let Some(promise) = &self.node {
            let reached = (scenario.redundancy != Redundancy::None || scenario.archive.is_some())
                && nodes.len() > 1
                || promise.placement == plan.placement;
            if reached && promise.lost_in(&nodes).is_empty() {
                let why = format!(
                    "it was on nodes {:?}, all of them are well",
                    promise.members
                );
                found.push(promise.required(why, false));
            }
        }
        found.into_iter().max_by_key(|required| required.step)
    }

    /// Judges a start, and learns what it was told.
    pub(crate) fn judge(
        &mut self,
        scenario: &Scenario,
        number: usize,
        told: &Told,
    ) -> Result<Verdict, String> {
        let plan = &scenario.starts[number];
        invariants::one_outcome(told)?;
        let Some(first) = told.outcomes.values().next() else {
            // Killed before any rank was told anything.
            return self.learn(scenario, plan, told).map(|()| Verdict::GoOn);
        };
        self.has_catalog = scenario.archive.is_some();
        let required = self.required_unless_done(scenario, plan, first)?;
        let is_late = scenario.may_be_busy(number);
        let is_busy = is_late && matches!(first, Outcome::Refused(ErrorKind::StoreBusy, _));
        let disturbed = plan.is_disturbed() || is_busy || told.shaken;
        invariants::nothing_lost(first, required.as_ref(), disturbed)?;
        let verdict = match first {
            Outcome::Restored(id, step) => {
                if plan.nodes().is_disjoint(&self.strangers) {
                    self.check_restored(plan, *id, *step)?;
                } else {
                    // It may be a checkpoint of an earlier run that came back.
                    self.steps.clear();
                    self.abandoned.clear();
                }
                Verdict::GoOn
            }
            Outcome::Fresh => {
                if !self.goes_on_anew(plan, told) {
                    self.begin_anew(plan, number)?;
                }
                Verdict::GoOn
            }
            // Nothing was begun, nothing is known to be lost; what was missing may have been made again before.
            Outcome::Refused(..) if disturbed => {
                self.made_again(&plan.nodes());
                return Ok(Verdict::GoOn);
            }
            Outcome::Refused(ErrorKind::Configuration, text)
                if plan.nodes().is_disjoint(&self.strangers) =>
            {
                let text = format!("all stores are of one run: {text}");
                return Err(broken(GOES_ON, text));
            }
            Outcome::Refused(..) => {
                *self = Self {
                    run_from: number + 1,
                    furthest: self.furthest,
                    ..Self::default()
                };
                return Ok(Verdict::BeginAnew);
            }
        };
        self.learn(scenario, plan, told)?;
        Ok(verdict)
    }

    /// What must come back: nothing where the job is done, and nobody knows otherwise.
    fn required_unless_done(
        &self,
        scenario: &Scenario,
        plan: &StartPlan,
        first: &Outcome,
    ) -> Result<Option<Required>, String> {
        let required = self.required(scenario, plan);
        let Some(done) = &self.done else {
            return Ok(required);
        };
        let nodes = plan.nodes();
        let is_known = done.archived || !done.nodes.is_disjoint(&nodes);
        let is_of_it = |id| !done.begun || self.steps.contains_key(id);
        if let (true, Outcome::Restored(id, _)) = (is_known, first)
            && is_of_it(id)
        {
            let text = format!("{id} came back, and {done:?} knows");
            return Err(broken(DONE_IS_DONE, text));
        }
        let begins = is_known || *first == Outcome::Fresh;
        Ok(required.filter(|_| !begins))
    }

    /// Whether a start that restored nothing is one of the same run, which begins anew since the job is done: what it
    /// takes no start goes back behind.
    fn goes_on_anew(&mut self, plan: &StartPlan, told: &Told) -> bool {
        let nodes = plan.nodes();
        let known = match &self.done {
            Some(done) => {
                let mut here = done.nodes.union(&self.stored);
                done.archived || here.any(|node| nodes.contains(node))
            }
            None => !self.anew.is_disjoint(&nodes) && self.telling.is_disjoint(&nodes),
        };
        let has_begun = told.events.iter().any(|e| matches!(e, Event::Started(..)));
        if known && has_begun {
            self.leave_behind(&nodes);
        } else if let (true, Some(done)) = (known, &mut self.done) {
            done.begun = true;
        }
        known
    }

    /// A start on `nodes` began anew: no start goes back behind that.
    fn leave_behind(&mut self, nodes: &BTreeSet<usize>) {
        let done = self.done.take();
        let catalog = done.is_some_and(|done| done.archived);
        for id in std::mem::take(&mut self.steps).into_keys() {
            let nodes = nodes.clone();
            self.abandoned.insert(id, Left { nodes, catalog });
        }
        (self.node, self.protected, self.archived) = (None, None, None);
        // Until the new lineage has a checkpoint, a start begins anew again.
        self.telling.clear();
        self.anew.extend(nodes);
    }

    /// A start found nothing.
    fn begin_anew(&mut self, plan: &StartPlan, number: usize) -> Result<(), String> {
        let nodes = plan.nodes();
        let telling: Vec<_> = self.telling.intersection(&nodes).collect();
        if !telling.is_empty() {
            let text =
                format!("no checkpoint, it says, and the stores of nodes {telling:?} had some");
            return Err(broken(NOTHING_NEWER, text));
        }
        let mut strangers = std::mem::take(&mut self.strangers);
        strangers.extend(&self.stored);
        *self = Self {
            strangers: strangers.difference(&nodes).copied().collect(),
            tainted: std::mem::take(&mut self.tainted),
            run_from: number,
            furthest: self.furthest,
            ..Self::default()
        };
        Ok(())
    }

    fn check_restored(&self, plan: &StartPlan, id: CheckpointId, step: u64) -> Result<(), String> {
        invariants::one_name(id, step, self.steps.get(&id).copied())?;
        if self.rolled_back {
            return Ok(());
        }
        let nodes = plan.nodes();
        let known = self.abandoned.iter();
        let known = known.filter(|(_, left)| {
            left.catalog && self.has_catalog || !left.nodes.is_disjoint(&nodes)
        });
        invariants::never_back(id, &known.map(|(id, _)| *id).collect())
    }

    fn learn(&mut self, scenario: &Scenario, plan: &StartPlan, told: &Told) -> Result<(), String> {
        let nodes = plan.nodes();
        self.made_again(&nodes);
        self.stored.extend(&nodes);
        if nodes.len() == 1 {
            // What a job on one node writes, its stripe log does not know.
            self.tainted.extend(&nodes);
        }
        if let Some(Outcome::Restored(id, step)) = told.outcomes.values().next() {
            if self.done.take_if(|done| done.begun).is_some() && !self.steps.contains_key(id) {
                self.leave_behind(&nodes);
            }
            self.done = None;
            self.went_back(plan, *id, *step);
            self.telling.extend(&nodes);
        }
        let mut committed = 0;
        for event in &told.events {
            match *event {
                Event::Started(id, step) => {
                    self.abandoned.remove(&id);
                    self.furthest = self.furthest.max(step);
                    invariants::one_name(id, step, self.steps.insert(id, step))?;
                }
                Event::Committed(id, step) => {
                    committed += 1;
                    self.node = Some(self.promise(plan, id, step, 0));
                }
                Event::Protected(id, step) => {
                    let in_order: Vec<usize> = order(&plan.placement);
                    if let Expect::Losses(covers) = Expect::of(scenario, &in_order) {
                        self.protected = Some(self.promise(plan, id, step, covers));
                        self.telling.extend(&nodes);
                    }
                }
                Event::Archived(id, step) => {
                    for left in self.abandoned.values_mut() {
                        left.catalog = true;
                    }
                    self.archived = Some(self.promise(plan, id, step, usize::MAX));
                }
                Event::GoingBack(_, step) => {
                    // Until it is over, either may come back.
                    for promise in [&mut self.node, &mut self.protected, &mut self.archived] {
                        *promise = promise.take().filter(|known| known.step <= step);
                    }
                }
                Event::Restored(id, step) => {
                    self.check_restored(plan, id, step)?;
                    self.went_back(plan, id, step);
                }
            }
        }
        if committed > 1 || told.closed && committed > 0 {
            self.telling.extend(&nodes);
        }
        self.done = match told.finish {
            Finish::No => self.done.take(),
            Finish::Maybe => Some(Done {
                nodes: BTreeSet::new(),
                archived: false,
                begun: false,
            }),
            Finish::Yes { archived } => Some(Done {
                nodes,
                archived,
                begun: false,
            }),
        };
        Ok(())
    }

    /// What `nodes` did not have was made of what the others have, and of their parity.
    fn made_again(&mut self, nodes: &BTreeSet<usize>) {
        if self.passed_on || !self.tainted.is_subset(nodes) {
            self.inheriting.extend(nodes.difference(&self.stored));
        }
    }

    fn promise(&self, plan: &StartPlan, id: CheckpointId, step: u64, covers: usize) -> Promise {
        let nodes = plan.nodes();
        Promise {
            id,
            step,
            placement: plan.placement.clone(),
            lost: self.tainted.intersection(&nodes).copied().collect(),
            members: nodes,
            covers,
        }
    }

    /// A restore gave `id` back: what is newer is abandoned.
    fn went_back(&mut self, plan: &StartPlan, id: CheckpointId, step: u64) {
        let nodes = plan.nodes();
        // Where every store of the starts between is gone, their names are given again.
        let mut newer = self.steps.split_off(&id);
        self.steps.extend(newer.remove_entry(&id));
        for left in self.abandoned.values_mut() {
            if !left.nodes.is_disjoint(&nodes) {
                left.nodes.extend(&nodes);
            }
        }
        for id in newer.into_keys() {
            let (nodes, catalog) = (nodes.clone(), true);
            self.abandoned.insert(id, Left { nodes, catalog });
        }
        self.node = Some(self.promise(plan, id, step, 0));
        if let Some(protected) = &mut self.protected {
            if protected.step > step {
                self.protected = None;
            } else {
                // What was left out is now of an earlier time.
                protected.lost = protected.lost_in(&nodes);
            }
        }
        self.archived = self
            .archived
            .take()
            .filter(|archived| archived.step <= step);
    }

    pub(crate) fn damage(&mut self, damage: Damage) {
        let node = damage.node();
        for promise in [&mut self.node, &mut self.protected].into_iter().flatten() {
            promise.lost.insert(node);
        }
        self.telling.remove(&node);
        self.anew.remove(&node);
        if let Some(done) = &mut self.done {
            done.nodes.remove(&node);
        }
        self.rolled_back |= matches!(damage, Damage::Return(..));
        self.strangers.remove(&node);
        match damage {
            Damage::Wipe(_) => {
                self.passed_on |= self.tainted.remove(&node);
                self.inheriting.remove(&node);
                self.stored.remove(&node);
                for left in self.abandoned.values_mut() {
                    left.nodes.remove(&node);
                }
            }
            Damage::Return(_, start) if start < self.run_from => {
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
