// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: requests that an agent handles late, or once more, when what they are about is another.

use super::member::tests::{OTHER, STORE, record, reserve, seat};
use super::{Agent, AgentSettings, lock};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::agent::{Answer, RecordPart, Request};
use backstay_format::width::index;
use backstay_format::{
    Address, CheckpointId, Digest, Extent, Round, SegmentClass, SegmentId, Stripe, StripeId,
    StripePiece,
};
use backstay_net::{Described, Endpoint, Exposed, ExposureId, Handler, Peer, Span};
use backstay_store::control::Owner;
use backstay_store::reserve::Reserve;
use backstay_store::space::SegmentSource;
use backstay_store::stripe_log::{LOG_FILES, StripeLog, StripeTable, look_beside};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const WITHIN: Duration = Duration::from_secs(20);
const BYTES: u32 = 1 << 16;
static OLD: [u8; BYTES as usize] = [1; BYTES as usize];
static NEW: [u8; BYTES as usize] = [2; BYTES as usize];

type Meanwhile = Box<dyn FnOnce() + Send>;

/// The way to the other member, whose parity is a copy of [`OLD`].
#[derive(Default)]
struct Other {
    /// Done before the next pull is answered.
    meanwhile: Mutex<Option<Meanwhile>>,
    /// Its store is of an earlier time, before it had that parity.
    is_behind: AtomicBool,
}

impl std::fmt::Debug for Other {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Other")
    }
}

impl Endpoint for Other {
    fn name(&self) -> String {
        "node".to_owned()
    }
    fn address(&self) -> String {
        "here".to_owned()
    }
    fn expose(&self, _id: ExposureId, _what: Exposed) {}
    fn withdraw(&self, _id: ExposureId) {}
    fn serve(&self, _handler: Arc<dyn Handler>) {}
    fn call(&self, _peer: &Peer, _request: &[u8], _within: Duration) -> Result<Vec<u8>> {
        Err(Error::new(ErrorKind::PeerUnreachable, "nobody is asked"))
    }
    fn describe(
        &self,
        _peer: &Peer,
        exposure: ExposureId,
        (spans, _): (&[Span], bool),
        _within: Duration,
    ) -> Result<Vec<Described>> {
        let each = |&span: &Span| Described {
            exposure,
            span,
            fingerprint: None,
            located: None,
            remote: None,
        };
        Ok(spans.iter().map(each).collect())
    }
    fn read(
        &self,
        _peer: &Peer,
        _range: &Described,
        into: &mut [u8],
        _within: Duration,
    ) -> Result<()> {
        let meanwhile = lock(&self.meanwhile).take();
        if let Some(meanwhile) = meanwhile {
            meanwhile();
        }
        if self.is_behind.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::InvalidArgument, "no such bytes"));
        }
        into.copy_from_slice(&OLD);
        Ok(())
    }
    fn shut_down(&self) {}
}

fn agent(folder: &Path) -> (Arc<Agent>, Arc<Other>) {
    let settings = AgentSettings {
        within: WITHIN,
        threads: 1,
        rate_bytes: None,
        cpu_set: None,
        nice: 0,
    };
    let other = Arc::new(Other::default());
    let endpoint = Arc::clone(&other) as Arc<dyn Endpoint>;
    (
        Agent::start(endpoint, settings, "node", folder, None),
        other,
    )
}

/// A store under protection.
fn store(folder: &Path) -> Reserve {
    let reserve = reserve(folder);
    reserve.control().set_redundant(true);
    reserve
}

fn ask(agent: &Agent, request: &Request) -> Result<Answer> {
    agent.answer(request, WITHIN)
}

/// Takes the store, as the first of two members.
fn attach(agent: &Agent, reserve: &Reserve, folder: &Path) {
    agent.attach(reserve, folder).unwrap();
    let join = Request::Join {
        epoch: 1,
        parity: 1,
        pieces_max: 1,
        seats: vec![seat(STORE), seat(OTHER)],
    };
    ask(agent, &join).unwrap();
}

fn begin(agent: &Agent, round: u64) {
    let collect = Request::Collect {
        epoch: 1,
        round,
        want: CheckpointId::default(),
        known_from: 1,
    };
    // There is no such checkpoint; the round is begun.
    let error = ask(agent, &collect).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotRetained, "{error}");
}

fn parts(round: &Round) -> Vec<RecordPart> {
    (0..)
        .map_while(|part| RecordPart::of(round, part))
        .collect()
}

fn send(agent: &Agent, part: &RecordPart) -> Result<Answer> {
    ask(agent, &Request::Record(part.clone()))
}

/// A rank fills a new segment.
fn fill(reserve: &Reserve, bytes: &[u8]) -> (u64, SegmentId) {
    let pool = reserve.pool(Owner::Rank(0));
    let (slot, segment) = pool.lease(SegmentClass::Large).unwrap();
    reserve.write(Address::new(segment, 0), bytes).unwrap();
    pool.filled(slot, BYTES);
    reserve.seal().unwrap();
    (slot, segment)
}

/// The record of `round` that protects [`OLD`] in `segment`.
fn protects(round: u64, segment: SegmentId) -> Round {
    let extent = Extent {
        segment,
        class: SegmentClass::Large,
        offset_bytes: 0,
        length_bytes: BYTES,
        digest: Digest::of(&OLD),
    };
    let piece = |column| StripePiece { column, extent };
    let stripe = Stripe {
        id: StripeId(1),
        pieces: vec![piece(0)],
        parity: vec![piece(1)],
    };
    Round {
        round,
        added: vec![stripe],
        ..record(extent)
    }
}

/// The rank gives the segment in `slot` back, the group records that, and the rank fills the slot anew.
fn reuse(agent: &Agent, reserve: &Reserve, slot: u64, segment: SegmentId) {
    reserve.pool(Owner::Rank(0)).release(slot);
    begin(agent, 2);
    let without = Round {
        whole: false,
        removed: vec![StripeId(1)],
        added: Vec::new(),
        ..protects(2, segment)
    };
    send(agent, &parts(&without)[0]).unwrap();
    let settle = Request::Settle {
        epoch: 1,
        round: 2,
        protected: CheckpointId::default(),
    };
    ask(agent, &settle).unwrap();
    let (again, _) = fill(reserve, &NEW);
    assert_eq!(again, slot, "the slot is used again");
}

fn damage(reserve: &Reserve, slot: u64) {
    let offset = reserve.geometry().slot_offset(slot);
    reserve.write_at(&[7], offset + 5).unwrap();
}

fn found(reserve: &Reserve, slot: u64) -> Vec<u8> {
    let mut bytes = vec![0; index(BYTES)];
    let offset = reserve.geometry().slot_offset(slot);
    reserve
        .reader()
        .device()
        .read_at(&mut bytes, offset)
        .unwrap();
    bytes
}

/// Extents that a repair made again, and those that it could not.
fn repair(agent: &Agent) -> Result<(u64, u64)> {
    let seats = vec![seat(STORE), seat(OTHER)];
    match ask(agent, &Request::Repair { seats })? {
        Answer::Rebuilt { extents, lost, .. } => Ok((extents, lost)),
        other => panic!("{other:?}"),
    }
}

/// A store whose first segment, in the slot that is returned, is protected and damaged.
fn damaged(folder: &Path) -> (Reserve, u64, SegmentId) {
    let reserve = store(folder);
    let (agent, _) = agent(folder);
    attach(&agent, &reserve, folder);
    let (slot, segment) = fill(&reserve, &OLD);
    begin(&agent, 1);
    send(&agent, &parts(&protects(1, segment))[0]).unwrap();
    agent.detach();
    damage(&reserve, slot);
    (reserve, slot, segment)
}

#[test]
fn a_repair_that_comes_again_leaves_what_was_written_since() {
    let folder = tempfile::tempdir().unwrap();
    let (reserve, slot, segment) = damaged(folder.path());
    let (agent, _) = agent(folder.path());
    attach(&agent, &reserve, folder.path());
    assert_eq!(repair(&agent).unwrap(), (1, 0));
    assert_eq!(found(&reserve, slot), OLD);
    reuse(&agent, &reserve, slot, segment);
    assert_eq!(repair(&agent).unwrap(), (0, 0));
    assert!(found(&reserve, slot) == NEW);
}

/// What is beyond repair keeps nothing else from being protected: no store has what was lost, which is known.
#[test]
fn a_repair_knows_what_a_store_of_an_earlier_time_does_not_have() {
    let folder = tempfile::tempdir().unwrap();
    let (reserve, _, _) = damaged(folder.path());
    let (agent, other) = agent(folder.path());
    other.is_behind.store(true, Ordering::Relaxed);
    attach(&agent, &reserve, folder.path());
    assert_eq!(repair(&agent).unwrap(), (0, 1));
}

/// The store was brought back from an earlier time, and its log, or what the group told of it, was not.
#[test]
fn what_a_store_of_an_earlier_time_writes_is_not_what_its_log_names() {
    let folder = tempfile::tempdir().unwrap();
    let (_, _, segment) = damaged(folder.path());
    let earlier = store(folder.path());
    let (agent, _) = agent(folder.path());
    attach(&agent, &earlier, folder.path());
    let (slot, written) = fill(&earlier, &NEW);
    assert_ne!(written, segment);
    assert_eq!(repair(&agent).unwrap(), (0, 1));
    assert!(found(&earlier, slot) == NEW);
}

/// It waits for the bytes of the others while the ranks go on: the store is open when it begins, or is not.
#[test]
fn a_repair_that_is_slow_leaves_what_was_written_since() {
    for attached in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let (reserve, slot, segment) = damaged(folder.path());
        let (agent, other) = agent(folder.path());
        if attached {
            attach(&agent, &reserve, folder.path());
        } else {
            agent.survey();
        }
        let (of_ranks, store) = (Arc::clone(&agent), reserve.clone());
        let path = folder.path().to_owned();
        *lock(&other.meanwhile) = Some(Box::new(move || {
            attach(&of_ranks, &store, &path);
            reuse(&of_ranks, &store, slot, segment);
        }));
        assert_eq!(repair(&agent).unwrap(), (0, 0), "attached: {attached}");
        assert!(found(&reserve, slot) == NEW, "attached: {attached}");
    }
}

/// An agent process has let go of it, and a later start writes it.
#[test]
fn a_repair_that_is_slow_leaves_a_store_that_was_let_go() {
    for before in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let (reserve, slot, _) = damaged(folder.path());
        let (agent, other) = agent(folder.path());
        agent.survey();
        let (of_ranks, store) = (Arc::clone(&agent), reserve.clone());
        let path = folder.path().to_owned();
        let write = move || {
            attach(&of_ranks, &store, &path);
            of_ranks.detach();
            store.control().free_slot(slot);
            assert_eq!(fill(&store, &NEW).0, slot);
        };
        if before {
            write();
        } else {
            *lock(&other.meanwhile) = Some(Box::new(write));
        }
        drop(repair(&agent));
        assert!(found(&reserve, slot) == NEW, "before it began: {before}");
    }
}

#[test]
fn a_repair_before_the_store_is_open_mends_it() {
    let folder = tempfile::tempdir().unwrap();
    let (reserve, slot, _) = damaged(folder.path());
    let (agent, _) = agent(folder.path());
    agent.survey();
    assert_eq!(repair(&agent).unwrap(), (1, 0));
    assert_eq!(found(&reserve, slot), OLD);
    assert_eq!(repair(&agent).unwrap(), (0, 0));
}

/// More stripes than three parts of a record hold, of round 1.
fn large() -> Round {
    let extent = |segment| Extent {
        segment: SegmentId(segment),
        class: SegmentClass::Large,
        offset_bytes: 0,
        length_bytes: BYTES,
        digest: Digest::of(&OLD),
    };
    let piece = |column, number| StripePiece {
        column,
        extent: extent(1_000_000 + number),
    };
    let stripe = |number| Stripe {
        id: StripeId(number),
        pieces: vec![piece(1, number)],
        parity: vec![piece(0, number)],
    };
    let stripes = u64::try_from(3 * RecordPart::STRIPES_MAX + 5).unwrap();
    Round {
        added: (1..=stripes).map(stripe).collect(),
        ..record(extent(1))
    }
}

/// An agent in round 1 of epoch 1, attached or about to be.
fn in_round(folder: &Path, attached: bool) -> Arc<Agent> {
    let reserve = store(folder);
    let (agent, _) = agent(folder);
    if attached {
        attach(&agent, &reserve, folder);
        begin(&agent, 1);
    } else {
        agent.survey();
    }
    agent
}

/// What the log of the store says.
fn logged(folder: &Path) -> (u64, u64, usize) {
    let table = look_beside(folder, STORE).unwrap().unwrap();
    (table.epoch, table.round, table.stripes.len())
}

/// Each part again at each place behind it, also behind the last.
#[test]
fn a_part_of_a_record_that_comes_again_changes_nothing() {
    let round = large();
    let parts = parts(&round);
    assert_eq!(parts.len(), 4);
    for attached in [true, false] {
        for repeated in 0..parts.len() {
            for behind in repeated..parts.len() {
                let folder = tempfile::tempdir().unwrap();
                let agent = in_round(folder.path(), attached);
                let again = || {
                    let case = format!("attached {attached}: part {repeated} behind part {behind}");
                    send(&agent, &parts[repeated]).expect(&case)
                };
                for (number, part) in parts.iter().enumerate() {
                    send(&agent, part).unwrap();
                    if number == behind {
                        again();
                    }
                }
                assert_eq!(logged(folder.path()), (1, 1, round.added.len()));
                again();
                assert_eq!(logged(folder.path()), (1, 1, round.added.len()));
            }
        }
    }
}

/// A coordinator that did not hear that all had arrived sends all parts once more.
#[test]
fn a_record_whose_parts_all_come_again_is_kept_as_it_is() {
    let round = large();
    for attached in [true, false] {
        for until in 0..=4 {
            let folder = tempfile::tempdir().unwrap();
            let agent = in_round(folder.path(), attached);
            let parts = parts(&round);
            for part in parts[..until].iter().chain(&parts).chain(&parts) {
                send(&agent, part).unwrap();
            }
            assert_eq!(logged(folder.path()), (1, 1, round.added.len()));
        }
    }
}

/// Parts of an earlier record, and of one in a single part, between those of a later one.
#[test]
fn parts_of_an_older_record_take_nothing_from_a_newer_one() {
    let older = large();
    let newer = Round {
        round: 2,
        ..large()
    };
    let small = Round {
        added: Vec::new(),
        ..large()
    };
    let mut late = parts(&older);
    late.extend(parts(&small));
    for attached in [true, false] {
        for one in &late {
            let folder = tempfile::tempdir().unwrap();
            let agent = in_round(folder.path(), attached);
            if attached {
                begin(&agent, 2);
            }
            for part in parts(&newer) {
                send(&agent, &part).unwrap();
                let answer = send(&agent, one);
                assert!(answer.is_err() || !attached, "it is not of this round");
            }
            assert_eq!(logged(folder.path()), (1, 2, newer.added.len()));
        }
    }
}

#[test]
fn a_record_without_its_first_parts_is_refused() {
    for attached in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let agent = in_round(folder.path(), attached);
        let parts = parts(&large());
        for order in [&[1][..], &[0, 2], &[0, 1, 3], &[3]] {
            let (last, before) = order.split_last().unwrap();
            for part in before {
                send(&agent, &parts[*part]).unwrap();
            }
            let error = send(&agent, &parts[*last]).unwrap_err();
            assert_eq!(
                error.kind(),
                ErrorKind::InvalidArgument,
                "{order:?}: {error}"
            );
            lock(&agent.arriving).forget(&large());
        }
    }
}

/// The log had no room for it: that the last part comes again is enough.
#[test]
fn a_record_that_could_not_be_kept_is_kept_when_its_last_part_comes_again() {
    let folder = tempfile::tempdir().unwrap();
    let agent = in_round(folder.path(), true);
    let parts = parts(&large());
    let log = lock(&agent.member).as_mut().unwrap().lose_log();
    for part in &parts[..3] {
        send(&agent, part).unwrap();
    }
    let error = send(&agent, &parts[3]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StoreFull, "{error}");
    lock(&agent.member).as_mut().unwrap().set_log(log);
    send(&agent, &parts[3]).unwrap();
    send(&agent, &parts[3]).unwrap();
}

/// Of a store whose log cannot be read only what was told counts.
#[test]
fn a_record_of_a_log_that_cannot_be_read_is_not_replaced_by_an_older_one() {
    let folder = tempfile::tempdir().unwrap();
    drop(store(folder.path()));
    for name in LOG_FILES {
        std::fs::create_dir(folder.path().join(name)).unwrap();
    }
    let (agent, _) = agent(folder.path());
    agent.survey();
    let newer = Round {
        round: 2,
        ..large()
    };
    for round in [newer, large()] {
        for part in parts(&round).iter().flat_map(|part| [part, part]) {
            send(&agent, part).unwrap();
        }
        assert_eq!(agent.told(STORE).map(|table| table.round), Some(2));
    }
}

/// A node that came back has not what the others restored: that is not protected, and the next one is.
#[test]
fn a_report_of_an_older_checkpoint_says_nothing_of_the_one_that_is_committed() {
    let folder = tempfile::tempdir().unwrap();
    let reserve = store(folder.path());
    let (agent, _) = agent(folder.path());
    attach(&agent, &reserve, folder.path());
    let control = reserve.control();
    let (older, newer) = (CheckpointId::new(2, 4), CheckpointId::new(3, 5));
    control.set_committed(newer);
    let before = control.round();
    let kind = ErrorKind::NotRetained.code();
    let report = |checkpoint| Request::Report {
        round: before.0 + 1,
        checkpoint,
        kind,
        text: "it is retained no longer".to_owned(),
    };
    ask(&agent, &report(older)).unwrap();
    assert_eq!(control.round(), before);
    ask(&agent, &report(newer)).unwrap();
    let told = (before.0 + 1, u64::try_from(kind).unwrap());
    assert_eq!(control.round(), told);
}

/// What it was attached with counts, though its log can be read since: who coordinates asks it for that.
#[test]
fn a_survey_says_of_an_attached_store_what_its_member_knows() {
    let folder = tempfile::tempdir().unwrap();
    let reserve = store(folder.path());
    let files = super::member::log_files(folder.path()).unwrap();
    let round = record(Extent {
        segment: SegmentId(7),
        class: SegmentClass::Large,
        offset_bytes: 0,
        length_bytes: BYTES,
        digest: Digest::of(&OLD),
    });
    let mut table = StripeTable::default();
    table.apply(&round);
    StripeLog::open(files, STORE)
        .unwrap()
        .0
        .append(&round, &table)
        .unwrap();
    let (agent, _) = agent(folder.path());
    let epoch = || agent.survey()[0].group.as_ref().map(|group| group.epoch);
    assert_eq!(epoch(), Some(1));
    // Nobody can read a folder.
    let aside = folder.path().join("aside");
    std::fs::rename(folder.path().join(LOG_FILES[1]), &aside).unwrap();
    std::fs::create_dir(folder.path().join(LOG_FILES[1])).unwrap();
    agent.attach(&reserve, folder.path()).unwrap();
    std::fs::remove_dir(folder.path().join(LOG_FILES[1])).unwrap();
    std::fs::rename(&aside, folder.path().join(LOG_FILES[1])).unwrap();
    assert_eq!(epoch(), None);
}
