// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what one rank does in one start: opens, restores and checks every word, goes on, ends.
//! In: the scenario, the start's number, the world. Out: the ledger of what the job was told. What it
//! does in a step is in `deeds`.
//! Invariants: nothing that is said after the world died counts.

use crate::counts;
use crate::invariants::{self, EVERY_WORD, GOES_ON, broken};
use crate::ledger::{Event, Ledger, Outcome};
use crate::model::Expect;
use crate::scenario::{End, STEP_ELEMENTS, Scenario, StartPlan, Trouble};
use crate::staging::{SERVERS_MAX, server_name};
use crate::world::{ARCHIVE, Mortal, World, node_name};
use backstay::{
    CheckpointId, Communicator, Config, ElementType, Error, ErrorKind, Session, Variable,
};
use backstay_net::Endpoint;
use backstay_testkit::comm::ThreadComm;
use backstay_testkit::oracle::Oracle;
use backstay_testkit::seeded::Seeded;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Longest wait of the engine's own.
const TIMEOUT_MS: u64 = 4_000;

/// What a rank needs to know.
pub(crate) struct Seat {
    pub(crate) scenario: Arc<Scenario>,
    pub(crate) start: usize,
    pub(crate) world: Arc<World>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) expect: Expect,
    pub(crate) endpoint: Arc<dyn Endpoint>,
    pub(crate) rank: usize,
    /// The last step that any start came to.
    pub(crate) furthest: u64,
    /// What is in the files of one of its nodes was damaged.
    pub(crate) harmed: bool,
    /// The step up to which what earlier starts took is protected against that.
    pub(crate) covered: Option<u64>,
    /// The steps of the checkpoints of earlier starts.
    pub(crate) steps: Arc<BTreeMap<CheckpointId, u64>>,
}

pub(crate) struct Field {
    name: String,
    pub(crate) words: Vec<u64>,
}

/// The application's side of a session; the session goes first.
pub(crate) struct Program<'a> {
    pub(crate) session: Session,
    pub(crate) fields: Vec<Field>,
    pub(crate) seat: &'a Seat,
    size: usize,
    pub(crate) step: u64,
    /// The last step that was computed: going back never makes another step of one that was.
    pub(crate) furthest: u64,
    pub(crate) steps: BTreeMap<CheckpointId, u64>,
    /// The checkpoint that a restore has to give.
    pub(crate) newest: Option<CheckpointId>,
    /// One that was started, and not waited for yet.
    pub(crate) pending: Option<CheckpointId>,
    /// Collective calls so far whose outcomes are compared.
    pub(crate) calls: u64,
    /// A device failed in this start.
    pub(crate) failed: bool,
}

pub(crate) fn configuration(scenario: &Scenario, folder: &Path, node: usize) -> Config {
    let archive = scenario.archive.as_ref();
    Config {
        archive: archive.map(|_| folder.join(ARCHIVE)),
        archive_every: archive.and_then(|archive| archive.every),
        archive_retained: archive.map_or(2, |archive| archive.retained),
        aggregate_nodes: archive.and_then(|archive| archive.aggregate_nodes),
        archive_reserve_bytes: Some(8 << 20),
        job: Some("job".to_owned()),
        node: Some(node_name(node)),
        store_path: Some(folder.join(node_name(node))),
        redundancy: scenario.redundancy,
        parity: scenario.parity,
        group_size: scenario.group_size,
        failure_domain: Some(format!("d{}", scenario.domains[node])),
        block_bytes: scenario.block_bytes,
        tracking: scenario.tracking,
        retained: scenario.retained,
        reserve_bytes: scenario.reserve_bytes,
        segment_bytes: scenario.reserve_bytes.map(|_| 1 << 18),
        timeout_ms: TIMEOUT_MS,
        encode_threads: 1,
        encode_nice: 0,
        ..Config::default()
    }
}

/// Words of variable `at` of `rank` at `step`, where it is no slab.
fn words_at(scenario: &Scenario, at: usize, rank: usize, step: u64) -> usize {
    let plan = &scenario.variables[at];
    if !plan.resizes {
        return plan.words;
    }
    let parts = [scenario.seed, at as u64, rank as u64, step / 4];
    plan.words * (1 + Seeded::of(&parts).index(3)) / 2
}

fn oracle(scenario: &Scenario, at: usize, rank: usize, words: usize) -> Oracle {
    let plan = &scenario.variables[at];
    let (rank, at) = (u32::try_from(rank).unwrap(), u32::try_from(at).unwrap());
    Oracle::new(rank, at, words * 8).changing(
        scenario.seed,
        plan.block_bytes,
        plan.changed_per_mille,
    )
}

impl Seat {
    /// Whether the last step may have been disturbed by what others of this start came to.
    fn is_shaken(&self) -> bool {
        let last = self.plan().steps.len().saturating_sub(1);
        self.world.lost_agent() || self.world.was_stopped(last)
    }

    /// Whether what damage took of an earlier start's checkpoint is nowhere else.
    pub(crate) fn may_lack(&self, id: CheckpointId) -> bool {
        let is_beyond = |step: &u64| self.covered.is_none_or(|covered| *step > covered);
        self.harmed && self.steps.get(&id).is_some_and(is_beyond)
    }

    pub(crate) fn plan(&self) -> &StartPlan {
        &self.scenario.starts[self.start]
    }

    /// One start of this rank; what is wrong with it, if anything is.
    pub(crate) fn live(&self, comm: ThreadComm) -> Result<(), String> {
        let size = usize::try_from(comm.size()).unwrap();
        let node = self.plan().placement[self.rank];
        if self.rank == 0
            && let Some(trouble) = self.plan().opening
        {
            self.make(trouble);
        }
        let endpoint = Arc::clone(&self.endpoint);
        let config = configuration(&self.scenario, &self.world.folder, node);
        let comm = Box::new(Mortal::new(comm, Arc::clone(&self.world)));
        let session = match Session::open_on(comm, config, Some(endpoint)) {
            Ok(session) => session,
            Err(error) => return self.refused("opening", &error),
        };
        let mut program = Program {
            session,
            fields: Vec::new(),
            seat: self,
            size,
            step: 0,
            furthest: self.furthest,
            steps: (*self.steps).clone(),
            newest: None,
            pending: None,
            calls: 0,
            failed: false,
        };
        let restored = program.begin()?;
        if !restored {
            return Ok(());
        }
        for step in 0..self.plan().steps.len() {
            if self.world.is_dead() {
                return Ok(());
            }
            if !program.take_step(step)? {
                return Ok(());
            }
        }
        if self.scenario.finishes(self.start) {
            return program.finish();
        }
        if self.plan().end == End::Close && !self.world.is_dead() {
            let Program {
                session,
                fields,
                failed,
                ..
            } = program;
            let closed = session.close();
            drop(fields);
            match closed {
                Err(error) if (failed || self.is_shaken()) && !self.world.is_dead() => {
                    self.sane("closing", &error, true)?;
                }
                closed => {
                    self.ok("closing", closed)?;
                    self.ledger.closed();
                }
            }
        }
        Ok(())
    }

    /// The start ends because the engine refuses to begin it.
    fn refused(&self, what: &str, error: &Error) -> Result<(), String> {
        if self.world.is_dead() {
            return Ok(());
        }
        let late = self.scenario.may_be_busy(self.start);
        if !late || error.kind() != ErrorKind::StoreBusy {
            self.sane(what, error, self.plan().reads.is_some())?;
        }
        let text = format!("{what}: {error}");
        self.ledger
            .outcome(self.rank, Outcome::Refused(error.kind(), text));
        Ok(())
    }

    /// Some errors are never right.
    pub(crate) fn sane(&self, what: &str, error: &Error, full: bool) -> Result<(), String> {
        if self.world.is_dead() {
            return Ok(());
        }
        invariants::sane(&format!("rank {}: {what}", self.rank), error, full)
    }

    /// `None` if the world died meanwhile.
    pub(crate) fn ok<T>(
        &self,
        what: &str,
        result: backstay::Result<T>,
    ) -> Result<Option<T>, String> {
        match result {
            _ if self.world.is_dead() => Ok(None),
            Ok(value) => Ok(Some(value)),
            Err(error) => Err(broken(
                GOES_ON,
                format!("rank {}: {what}: {:?}: {error}", self.rank, error.kind()),
            )),
        }
    }

    /// Tells what all ranks are told.
    pub(crate) fn event(&self, event: Event) {
        self.ledger.event(self.rank, event);
    }

    pub(crate) fn make(&self, trouble: Trouble) {
        let network = &self.world.network;
        counts::one(match trouble {
            Trouble::Cut(..) => "links cut",
            Trouble::Isolate(_) => "nodes cut off",
            Trouble::Stall(_) => "nodes stopped",
            Trouble::StallServer(_) => "staging servers stopped",
            Trouble::EndServer(_) => "staging servers ended",
            Trouble::Random(_) => "steps with random faults of the network",
            Trouble::Heal => "mends of all that",
        });
        match trouble {
            Trouble::Cut(one, other) => {
                let others = self.world.names(other);
                for one in self.world.names(one) {
                    for other in &others {
                        network.cut(&one, other);
                    }
                }
            }
            Trouble::Isolate(node) => {
                for name in self.world.names(node) {
                    network.isolate(&name);
                }
            }
            Trouble::Stall(node) => {
                for name in self.world.names(node) {
                    network.stall(&name);
                }
            }
            Trouble::StallServer(at) => network.stall(&server_name(at)),
            Trouble::EndServer(at) => network.take_down(&server_name(at)),
            Trouble::Random(per_mille) => network.set_random_faults(per_mille, 1000),
            Trouble::Heal => {
                self.world.heal();
                for &node in &self.plan().placement {
                    network.resume(&node_name(node));
                }
                for at in 0..SERVERS_MAX {
                    network.resume(&server_name(at));
                }
            }
        }
    }
}

impl Program<'_> {
    pub(crate) fn scenario(&self) -> &Scenario {
        &self.seat.scenario
    }

    /// The part of a global array of `words` that this rank has.
    fn slab(&self, words: usize) -> std::ops::Range<usize> {
        words * self.seat.rank / self.size..words * (self.seat.rank + 1) / self.size
    }

    /// What all variables hold at `step`.
    pub(crate) fn state(&self, step: u64) -> Vec<Vec<u64>> {
        let scenario = self.scenario();
        let fields = 0..scenario.variables.len();
        let mut state: Vec<Vec<u64>> = fields
            .map(|at| {
                let (rank, words, part) = if scenario.slabs {
                    let words = scenario.variables[at].words;
                    (0, words, self.slab(words))
                } else {
                    let words = words_at(scenario, at, self.seat.rank, step);
                    (self.seat.rank, words, 0..words)
                };
                let bytes = oracle(scenario, at, rank, words).state(step);
                let all = bytes
                    .chunks_exact(8)
                    .map(|chunk| u64::from_le_bytes(chunk.try_into().unwrap()));
                all.skip(part.start).take(part.len()).collect()
            })
            .collect();
        let steps = self.slab(usize::try_from(STEP_ELEMENTS).unwrap());
        let count = if scenario.slabs { steps.len() } else { 1 };
        state.push(vec![step; count]);
        state
    }

    /// Makes memory of these lengths known to the session.
    pub(crate) fn protect(&mut self, lengths: &[usize]) -> Result<(), String> {
        let slabs = self.scenario().slabs;
        let globals: Vec<usize> = self
            .scenario()
            .variables
            .iter()
            .map(|plan| plan.words)
            .chain([usize::try_from(STEP_ELEMENTS).unwrap()])
            .collect();
        for (at, &length) in lengths.iter().enumerate() {
            if self.fields.get(at).is_some_and(|f| f.words.len() == length) {
                continue;
            }
            let name = format!("field{at}");
            let mut words = vec![0; length];
            let mut variable = Variable::new(&name, ElementType::U64, &[length as u64]);
            if slabs {
                let start = self.slab(globals[at]).start;
                variable = variable.slab(&[globals[at] as u64], &[start as u64]);
            }
            // SAFETY: the words live in `fields`, which outlive the session and are replaced only
            // after the session was given others.
            let protected = unsafe { self.session.protect(variable, words.as_mut_ptr().cast()) };
            self.seat.ok("protecting", protected)?;
            let field = Field { name, words };
            if at < self.fields.len() {
                self.fields[at] = field;
            } else {
                self.fields.push(field);
            }
        }
        Ok(())
    }

    /// Restores what there is. False if the start is over.
    fn begin(&mut self) -> Result<bool, String> {
        let lengths: Vec<usize> = self.state(0).iter().map(Vec::len).collect();
        self.protect(&lengths)?;
        let mut outcome = None;
        for _ in 0..6 {
            if !self.scenario().slabs {
                self.take_stored_shapes()?;
            }
            match self.session.restore() {
                Err(error) if error.kind() == ErrorKind::VariableMismatch => {
                    outcome = Some(Err(error));
                }
                other => {
                    outcome = Some(other);
                    break;
                }
            }
        }
        if self.seat.world.is_dead() {
            return Ok(false);
        }
        match outcome.unwrap() {
            Ok(restored) => {
                let id = restored.checkpoint;
                self.check(id)?;
                let told = Outcome::Restored(id, self.step);
                self.seat.ledger.outcome(self.seat.rank, told);
            }
            Err(error) if error.kind() == ErrorKind::NoCheckpoint => {
                self.seat.ledger.outcome(self.seat.rank, Outcome::Fresh);
            }
            Err(error) => {
                self.seat.refused("restoring", &error)?;
                return Ok(false);
            }
        }
        if self.seat.rank == 0 && self.seat.plan().is_disturbed() {
            self.seat.make(Trouble::Heal);
        }
        Ok(true)
    }

    /// The shapes of the checkpoint that a restore would take; where they cannot be had, it tells.
    fn take_stored_shapes(&mut self) -> Result<(), String> {
        let mut lengths: Vec<usize> = self.fields.iter().map(|f| f.words.len()).collect();
        let rank = u32::try_from(self.seat.rank).unwrap();
        for (at, length) in lengths.iter_mut().enumerate() {
            let name = self.fields[at].name.clone();
            if let Ok(shape) = self.session.stored_shape(&name, rank) {
                *length = usize::try_from(shape.iter().product::<u64>()).unwrap();
            }
        }
        self.protect(&lengths)
    }

    pub(crate) fn check(&mut self, id: CheckpointId) -> Result<(), String> {
        let rank = self.seat.rank;
        let steps = self.fields.last().map_or(&[][..], |field| &field.words);
        // A rank may have no element of a short array.
        let step = steps.first().copied().unwrap_or(0);
        let wanted = self.state(step);
        for (field, wanted) in self.fields.iter().zip(&wanted) {
            if field.words != *wanted {
                let at = field.words.iter().zip(wanted).position(|(a, b)| a != b);
                let text = format!(
                    "rank {rank}: restoring {id}, step {step}: {} differs at {at:?} of {} words, \
                     expected {}",
                    field.name,
                    field.words.len(),
                    wanted.len()
                );
                return Err(broken(EVERY_WORD, text));
            }
        }
        counts::one("restores of a rank, every word compared");
        let words: usize = self.fields.iter().map(|field| field.words.len()).sum();
        counts::add("words compared", words as u64);
        self.step = step;
        self.furthest = self.furthest.max(step);
        self.steps.insert(id, step);
        self.newest = Some(id);
        Ok(())
    }
}
