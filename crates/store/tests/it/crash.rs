// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Crashes of the store: in every state the device can be left in, the store opens to the last
//! committed revision or the one being committed, and every retained revision is whole.
//!
//! The ranks of one node are driven in turn, in one thread, over a simulated device.

use backstay_base::io::shared::SharedWords;
use backstay_base::io::{Device, ReadAt};
use backstay_base::{Error, ErrorKind, Result};
use backstay_format::VariableDescriptor;
use backstay_format::{CheckpointId, ElementType, Lineage, RankEntry, StoreId, Superblock};
use backstay_store::commit::{NodeStore, Policy};
use backstay_store::control::{Control, Owner};
use backstay_store::reader::StoreReader;
use backstay_store::recover::{recover_node, recover_rank};
use backstay_store::reserve::{Reserve, ReserveSettings};
use backstay_store::revision::{Part, RankStore, read_part, read_ranks};
use backstay_store::space::Space;
use backstay_store::track::Candidates;
use backstay_store::tree::read_stream;
use backstay_testkit::bytes::SharedBytes;
use backstay_testkit::device::{EIO, ENOSPC};
use backstay_testkit::{CrashImage, CrashOptions, Operation, Oracle, SimDevice, for_each_image};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

const SLOT_CAPACITY: u64 = 64;
const SETTINGS: ReserveSettings = ReserveSettings {
    reserve_bytes_max: None,
    wait: Duration::from_secs(5),
    space_later: false,
};

/// How large a job is.
#[derive(Debug, Clone, Copy)]
struct Shape {
    ranks: u32,
    field_bytes: usize,
    changed_per_mille: u64,
}

/// One block in one rank: few enough writes for every subset of them.
const TINY: Shape = Shape {
    ranks: 1,
    field_bytes: 1024,
    changed_per_mille: 1000,
};
/// Trees of two levels in two ranks.
const SMALL: Shape = Shape {
    ranks: 2,
    field_bytes: 40 * 1024 + 100,
    changed_per_mille: 120,
};

impl Shape {
    fn oracle(self, rank: u32) -> Oracle {
        Oracle::new(rank, 0, self.field_bytes).changing(3, 1024, self.changed_per_mille)
    }

    fn descriptors() -> [VariableDescriptor; 2] {
        let variable = |name: &str, element, shape: &[u64]| VariableDescriptor {
            name: name.to_owned(),
            element,
            shape: shape.to_vec(),
            slab: None,
            file: None,
        };
        [
            variable("field", ElementType::Bytes, &[]),
            variable("step", ElementType::U64, &[]),
        ]
    }
}

/// What an image may show: the start, and the newest checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State {
    incarnation: u64,
    newest: Option<CheckpointId>,
}

/// One start of the store's ranks.
struct Start {
    shape: Shape,
    incarnation: u64,
    reserve: Reserve,
    ranks: Vec<RankStore>,
    node: NodeStore,
    policy: Policy,
}

fn policy(complete: BTreeSet<CheckpointId>) -> Policy {
    Policy {
        retained: 2,
        complete,
        pinned: BTreeSet::new(),
        protected: None,
        in_groups: BTreeSet::new(),
        archiving: None,
    }
}

fn control() -> Result<Control> {
    Control::start(
        SharedWords::heap(Control::words_for(SLOT_CAPACITY)),
        SLOT_CAPACITY,
    )
}

impl Start {
    fn create(device: &SimDevice, shape: Shape) -> Result<Self> {
        let superblock = Superblock {
            store: StoreId(*b"crash test store"),
            segment_bytes: 1 << 18,
            run: 1,
            created_unix_ns: 1,
            job: "crash".to_owned(),
            node: "node".to_owned(),
        };
        let device: Arc<dyn Device> = Arc::new(device.clone());
        let reserve = Reserve::create(device, control()?, &superblock, 2, SETTINGS)?;
        let spaces = (0..shape.ranks).map(|_| Space::new(1 << 18)).collect();
        let node = NodeStore::successor(reserve.clone(), reserve.roots()?);
        Ok(Self::new(shape, 1, reserve, spaces, node, BTreeSet::new()))
    }

    fn new(
        shape: Shape,
        incarnation: u64,
        reserve: Reserve,
        spaces: Vec<Space>,
        node: NodeStore,
        complete: BTreeSet<CheckpointId>,
    ) -> Self {
        let rank =
            |(rank, space)| RankStore::new(reserve.clone(), rank, rank, shape.ranks, 1, space);
        let ranks = (0..).zip(spaces).map(rank).collect();
        Self {
            shape,
            incarnation,
            reserve,
            ranks,
            node,
            policy: policy(complete),
        }
    }

    /// Opens what an earlier start left; every revision of the root must be whole for every rank.
    fn open(device: &SimDevice, shape: Shape) -> Result<Self> {
        let device: Arc<dyn Device> = Arc::new(device.clone());
        let reserve = Reserve::open(device, control()?, SETTINGS)?;
        let roots = reserve.roots()?;
        let root = roots.state().clone();
        let control = reserve.control();
        control.set_next_segment(control.next_segment().max(root.next_segment));
        let mut spaces = Vec::new();
        for rank in 0..shape.ranks {
            let (space, found) = recover_rank(&reserve, &root, rank, Owner::Rank(rank));
            for revision in found {
                let id = revision.id();
                revision.ranks?;
                revision.part.ok_or_else(|| {
                    Error::new(ErrorKind::NotRetained, format!("rank {rank} of {id}"))
                })??;
            }
            spaces.push(space);
        }
        let complete = root
            .revisions
            .iter()
            .map(|revision| revision.checkpoint)
            .collect();
        let incarnation = root.incarnation + 1;
        let found = recover_node(&reserve, &root, &(0..shape.ranks).collect());
        let node = NodeStore::new(reserve.clone(), roots, found.tables, found.former);
        Ok(Self::new(
            shape,
            incarnation,
            reserve,
            spaces,
            node,
            complete,
        ))
    }

    fn state(&self) -> State {
        let root = self.node.root();
        State {
            incarnation: root.incarnation,
            newest: root.revisions.last().map(|revision| revision.checkpoint),
        }
    }

    /// Continues from checkpoint `id`, durably abandoning later ones.
    fn restore(&mut self, id: CheckpointId) -> Result<()> {
        for (rank, entry) in self.entries(id)?.iter().enumerate() {
            let start = self.ranks[rank].load_start(id, entry.root)?;
            self.ranks[rank].start_from(Some(start));
        }
        self.policy.complete.retain(|other| *other <= id);
        self.node
            .begin_start(lineage(self.incarnation), id, &self.policy)?;
        self.drop_unretained(CheckpointId::default(), false);
        Ok(())
    }

    fn entries(&self, id: CheckpointId) -> Result<Vec<RankEntry>> {
        let revisions = &self.node.root().revisions;
        let revision = revisions.iter().find(|revision| revision.checkpoint == id);
        let gone = || Error::new(ErrorKind::NotRetained, id.to_string());
        read_ranks(self.reserve.reader(), revision.ok_or_else(gone)?)
    }

    /// Commits checkpoint `number` with the state of `step`.
    fn checkpoint(&mut self, number: u64, step: u64) -> Result<()> {
        let id = CheckpointId::new(self.incarnation, number);
        if self.reserve.control().failed() {
            return Err(self.reserve.failed_before());
        }
        let outcome = self.try_checkpoint(id, step);
        if outcome.is_err() {
            self.ranks.iter_mut().for_each(RankStore::roll_back);
        }
        self.drop_unretained(id, outcome.is_ok());
        outcome
    }

    fn try_checkpoint(&mut self, id: CheckpointId, step: u64) -> Result<()> {
        let [mut field, counter] = Shape::descriptors();
        field.shape = vec![u64::try_from(self.shape.field_bytes).unwrap_or(0)];
        let mut pending = Vec::new();
        for (rank, store) in (0..).zip(&self.ranks) {
            let bytes = self.shape.oracle(rank).state(step);
            let step = step.to_le_bytes();
            let (bytes, step) = (bytes.as_slice(), step.as_slice());
            let part = |descriptor, source| Part {
                descriptor,
                block_bytes: 1024,
                source,
                candidates: Candidates::All,
            };
            let mut parts = [part(&field, &bytes), part(&counter, &step)];
            pending.push(store.capture(id, &mut parts, 1)?);
        }
        let posts: Vec<_> = (0..)
            .zip(&pending)
            .map(|(rank, part)| part.post(rank))
            .collect();
        self.node
            .commit(id, self.shape.ranks, &posts, &self.policy, || true)?;
        for (store, part) in self.ranks.iter_mut().zip(pending) {
            store.commit(id, part);
        }
        self.policy.complete.insert(id);
        Ok(())
    }

    fn drop_unretained(&mut self, id: CheckpointId, complete: bool) {
        let keep = self.policy.keeps(None);
        self.policy.complete.retain(|id| keep.contains(id));
        for rank in &mut self.ranks {
            rank.retain(|id| keep.contains(&id));
        }
        self.node.settle(id, complete, &keep);
    }

    /// Reads every block of every retained revision; the first error.
    fn read_all(&self) -> Result<()> {
        let reader = self.reserve.reader();
        for revision in &self.node.root().revisions {
            for entry in self.entries(revision.checkpoint)? {
                let part = read_part(reader, &entry.root)?;
                for stream in &part.streams {
                    let mut bytes = vec![0; usize::try_from(stream.length_bytes).unwrap_or(0)];
                    read_stream(reader, stream, "block", &mut bytes)?;
                }
            }
        }
        Ok(())
    }

    /// Reads every retained revision and compares every word with the step it should be of.
    fn check(&self, steps: &BTreeMap<CheckpointId, u64>) -> std::result::Result<(), String> {
        for revision in &self.node.root().revisions {
            let id = revision.checkpoint;
            let step = *steps
                .get(&id)
                .ok_or_else(|| format!("{id} was never begun"))?;
            for entry in self.entries(id).map_err(|error| error.to_string())? {
                self.check_rank(&entry, step)
                    .map_err(|why| format!("{id}: {why}"))?;
            }
        }
        Ok(())
    }

    fn check_rank(&self, entry: &RankEntry, step: u64) -> std::result::Result<(), String> {
        let reader = self.reserve.reader();
        let part = read_part(reader, &entry.root).map_err(|error| error.to_string())?;
        let read = |name: &str| {
            let (_, stream) = part.find(name).ok_or("a variable is gone")?;
            let mut bytes = vec![0; usize::try_from(stream.length_bytes).unwrap_or(0)];
            let read = read_stream(reader, stream, "block", &mut bytes);
            read.map_err(|error| error.to_string())?;
            Ok::<Vec<u8>, String>(bytes)
        };
        let oracle = self.shape.oracle(entry.rank);
        oracle
            .check(&read("field")?, step)
            .map_err(|wrong| wrong.to_string())?;
        if read("step")? != step.to_le_bytes() {
            return Err(format!("rank {}: a mix of two checkpoints", entry.rank));
        }
        Ok(())
    }
}

/// A recorded history of a store, and what was acknowledged when.
struct History {
    shape: Shape,
    log: Vec<Operation>,
    initial: SharedBytes,
    /// Operations done when a state was acknowledged.
    marks: Vec<(usize, State)>,
    /// What each checkpoint holds.
    steps: BTreeMap<CheckpointId, u64>,
}

impl History {
    /// Fifteen checkpoints; the job is killed in the sixteenth, its root written and not synced. The
    /// device goes on: a start continues from the fifteenth, and takes three more.
    fn record(shape: Shape) -> Result<Self> {
        let device = SimDevice::new();
        let mut history = Self {
            shape,
            log: Vec::new(),
            initial: device.start_log(),
            marks: Vec::new(),
            steps: BTreeMap::new(),
        };
        let mut start = Start::create(&device, shape)?;
        history.mark(&device, &start);
        for number in 1..=15 {
            history.steps.insert(CheckpointId::new(1, number), number);
            start.checkpoint(number, number)?;
            history.mark(&device, &start);
        }
        history.steps.insert(CheckpointId::new(1, 16), 16);
        device.kill_at_sync(2);
        assert!(start.checkpoint(16, 16).is_err());
        device.revive();
        let mut start = Start::open(&device, shape)?;
        history.mark(&device, &start);
        assert_eq!(start.state().newest, Some(CheckpointId::new(1, 16)));
        start.restore(CheckpointId::new(1, 15))?;
        history.mark(&device, &start);
        for number in 16..=18 {
            history
                .steps
                .insert(CheckpointId::new(2, number), number + 1);
            start.checkpoint(number, number + 1)?;
            history.mark(&device, &start);
        }
        history.log = device.log();
        Ok(history)
    }

    fn mark(&mut self, device: &SimDevice, start: &Start) {
        self.marks.push((device.log_length(), start.state()));
    }

    /// The state acknowledged before the crash, and the one that was on its way.
    fn expected(&self, image: &CrashImage) -> [Option<State>; 2] {
        let due = self
            .marks
            .partition_point(|(mark, _)| *mark <= image.ops_applied);
        let state = |index: usize| self.marks.get(index).map(|(_, state)| *state);
        [due.checked_sub(1).and_then(state), state(due)]
    }

    fn visit(&self, image: &CrashImage) -> std::result::Result<(), String> {
        let [acknowledged, under_way] = self.expected(image);
        let device = image.device();
        let start = match Start::open(&device, self.shape) {
            Ok(start) => start,
            // Before it was acknowledged to exist it may be none; with a superblock it is one.
            Err(_) if acknowledged.is_none() && StoreReader::open(Arc::new(device)).is_err() => {
                return Ok(());
            }
            Err(error) => return Err(error.to_string()),
        };
        let found = Some(start.state());
        if found != acknowledged && found != under_way {
            return Err(format!(
                "{found:?} is neither {acknowledged:?} nor {under_way:?}"
            ));
        }
        start.check(&self.steps)?;
        if image.index.is_multiple_of(7) {
            self.go_on(&device, start)
                .map_err(|why| format!("going on: {why}"))?;
        }
        Ok(())
    }

    /// The job goes on from the newest checkpoint, takes three more, and is opened once again.
    fn go_on(&self, device: &SimDevice, mut start: Start) -> std::result::Result<(), String> {
        let text = |error: Error| error.to_string();
        let mut steps = self.steps.clone();
        let newest = start.state().newest;
        if let Some(newest) = newest {
            start.restore(newest).map_err(text)?;
            start.check(&steps)?;
        }
        let first = newest.map_or(1, |id| id.number + 1);
        for number in first..first + 3 {
            steps.insert(CheckpointId::new(start.incarnation, number), number + 20);
            start.checkpoint(number, number + 20).map_err(text)?;
            start.check(&steps)?;
        }
        let again = Start::open(device, self.shape).map_err(text)?;
        if again.state() != start.state() {
            return Err(format!("{:?} after {:?}", again.state(), start.state()));
        }
        again.check(&steps)
    }
}

fn survives_every_crash(shape: Shape, samples: usize, least_images: usize) {
    let history = match History::record(shape) {
        Ok(history) => history,
        Err(error) => panic!("no fault was injected: {error}"),
    };
    let options = CrashOptions {
        samples,
        ..CrashOptions::default()
    };
    let visited = for_each_image(&history.log, &history.initial, options, |image| {
        history.visit(image)
    });
    match visited {
        Ok(summary) => assert!(summary.images >= least_images, "{summary:?}"),
        Err(failure) => panic!("{shape:?}: {failure}"),
    }
}

#[test]
fn a_tiny_store_survives_every_crash() {
    survives_every_crash(TINY, 64, 4000);
}

#[test]
fn a_store_of_two_ranks_survives_every_crash() {
    survives_every_crash(SMALL, 24, 10_000);
}

/// The harness is worth what it finds: without any one of its syncs the same history must fail.
#[test]
fn a_store_that_forgets_a_sync_is_found() {
    let history = History::record(TINY).expect("no fault was injected");
    let syncs: Vec<usize> = (0..history.log.len())
        .filter(|&place| history.log[place] == Operation::Sync)
        .collect();
    let mut missed = Vec::new();
    for &place in &syncs {
        let mut log = history.log.clone();
        // A write of nothing keeps the marks where they are.
        log[place] = backstay_testkit::crash::write(0, &[]);
        let options = CrashOptions {
            samples: 200,
            ..CrashOptions::default()
        };
        let visited = for_each_image(&log, &history.initial, options, |image| {
            history.visit(image)
        });
        if visited.is_ok() {
            missed.push(place);
        }
    }
    assert_eq!(missed, Vec::<usize>::new(), "of the syncs {syncs:?}");
}

/// Each write of a checkpoint in turn fails: the checkpoint is given up, the last one stays, and
/// the job goes on.
#[test]
fn a_write_that_fails_costs_one_checkpoint() {
    for errno in [EIO, ENOSPC] {
        let mut nth = 1;
        loop {
            let device = SimDevice::new();
            let mut start = Start::create(&device, SMALL).unwrap();
            let mut steps = BTreeMap::new();
            for number in 1..=4 {
                steps.insert(CheckpointId::new(1, number), number);
                start.checkpoint(number, number).unwrap();
            }
            let before = device.write_count();
            device.fail_write(nth, errno);
            steps.insert(CheckpointId::new(1, 5), 5);
            let outcome = start.checkpoint(5, 5);
            if device.write_count() - before < nth {
                assert!(outcome.is_ok() && nth > 8, "only {nth} writes were tried");
                break;
            }
            let kind = outcome.expect_err("a write failed").kind();
            let wanted = if errno == EIO {
                ErrorKind::StoreIo
            } else {
                ErrorKind::StoreFull
            };
            assert_eq!(kind, wanted, "write {nth}");
            start.check(&steps).unwrap();
            Start::open(&device, SMALL).unwrap().check(&steps).unwrap();
            steps.insert(CheckpointId::new(1, 6), 6);
            start.checkpoint(6, 6).unwrap();
            let again = Start::open(&device, SMALL).unwrap();
            again.check(&steps).unwrap();
            assert_eq!(
                again.state().newest,
                Some(CheckpointId::new(1, 6)),
                "write {nth}"
            );
            nth += 1;
        }
    }
}

/// A sync that fails ends the writing of this start; whatever of it reached the device, the state is
/// the last committed one or the one being committed, for good.
#[test]
fn a_sync_that_fails_ends_the_start_and_loses_nothing() {
    for nth in 1..=2 {
        let device = SimDevice::new();
        let mut start = Start::create(&device, TINY).unwrap();
        let mut steps = BTreeMap::new();
        for number in 1..=3 {
            steps.insert(CheckpointId::new(1, number), number);
            start.checkpoint(number, number).unwrap();
        }
        let initial = device.start_log();
        let acknowledged = start.state();
        device.fail_sync(nth, EIO);
        steps.insert(CheckpointId::new(1, 4), 4);
        let error = start.checkpoint(4, 4).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StoreFailed, "{error}");
        let before = device.log_length();
        assert!(start.checkpoint(5, 5).is_err());
        let later = &device.log()[before..];
        assert!(
            !later.contains(&Operation::Sync),
            "nothing is committed after it"
        );

        let log = device.log();
        for_each_image(&log, &initial, CrashOptions::default(), |image| {
            let start = Start::open(&image.device(), TINY).map_err(|error| error.to_string())?;
            let newest = start.state().newest;
            let under_way = Some(CheckpointId::new(1, 4));
            if newest != acknowledged.newest && newest != under_way {
                return Err(format!("{newest:?}"));
            }
            start.check(&steps)
        })
        .unwrap_or_else(|failure| panic!("sync {nth}: {failure}"));
    }
}

/// Full device: the checkpoint fails, the last one stays, and with more room the job goes on.
#[test]
fn a_full_device_keeps_the_last_checkpoint() {
    let device = SimDevice::new();
    let mut start = Start::create(&device, SMALL).unwrap();
    device.set_quota(device.length_bytes().unwrap());
    let error = start.checkpoint(1, 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StoreFull, "{error}");
    assert!(error.to_string().contains("os error 122"), "{error}");
    assert_eq!(start.state().newest, None);
    device.set_unlimited();
    let steps = BTreeMap::from([(CheckpointId::new(1, 2), 2)]);
    start.checkpoint(2, 2).unwrap();
    Start::open(&device, SMALL).unwrap().check(&steps).unwrap();
}

/// What cannot be read is never taken for what was read and is damaged, wherever it stands: only damage
/// may send a job to an older checkpoint.
#[test]
fn a_dead_sector_is_never_taken_for_damage() {
    let device = SimDevice::new();
    let mut start = Start::create(&device, SMALL).unwrap();
    for number in 1..=3 {
        start.checkpoint(number, number).unwrap();
    }
    drop(start);
    let (sector, length) = (512, device.length_bytes().unwrap());
    let mut unread = 0;
    for start in (0..length).step_by(4096) {
        for range in [start..start + 4096, start..start + sector] {
            device.make_unreadable(range.clone(), EIO);
            let read = Start::open(&device, SMALL).and_then(|start| start.read_all());
            if let Err(error) = read {
                assert!(error.kind().leaves_open(), "{range:?}: {error}");
                assert!(error.to_string().contains("os error 5"), "{error}");
                unread += 1;
            }
        }
    }
    assert!(unread > 20, "{unread} sectors are read");
    device.make_readable();
    Start::open(&device, SMALL).unwrap().read_all().unwrap();
}

/// The lineage as start `start` of the job has it, which the first began.
fn lineage(start: u64) -> Lineage {
    Lineage {
        began: 1,
        start,
        ..Lineage::default()
    }
}
