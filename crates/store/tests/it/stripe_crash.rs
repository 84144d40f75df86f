// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Crashes of the stripe log: in every state its files can be left in, the log opens to the table
//! after the last append that returned, or after the one under way; and to that of the former composition of the
//! group until that is forgotten.

use Step::{Append, Forget, Killed, Recompose};
use backstay_base::Result;
use backstay_base::io::{Device, ReadAt};
use backstay_format::{
    CheckpointId, Digest, Extent, Member, Round, SegmentClass, SegmentId, StoreId, Stripe,
    StripeId, StripePiece,
};
use backstay_store::stripe_log::{LogFiles, StripeLog, StripeTable, Tables};
use backstay_testkit::bytes::SharedBytes;
use backstay_testkit::device::EIO;
use backstay_testkit::{CrashImage, CrashOptions, Operation, SimDevice, for_each_image};
use std::sync::{Arc, Mutex};

const STORE: StoreId = StoreId([7; 16]);

/// One of the files; notes in which order operations reached all.
#[derive(Debug, Clone)]
struct File {
    device: SimDevice,
    which: usize,
    order: Arc<Mutex<Vec<usize>>>,
}

impl File {
    fn note<T>(&self, done: std::io::Result<T>) -> std::io::Result<T> {
        // What a killed process does is not in the device's log.
        if done.is_ok() {
            self.order.lock().unwrap().push(self.which);
        }
        done
    }
}

impl ReadAt for File {
    fn length_bytes(&self) -> std::io::Result<u64> {
        self.device.length_bytes()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
        self.device.read_at(buffer, offset)
    }

    fn name(&self) -> String {
        format!("stripe log {}", self.which)
    }
}

impl Device for File {
    fn write_at(&self, bytes: &[u8], offset: u64) -> std::io::Result<()> {
        self.note(self.device.write_at(bytes, offset))
    }

    fn sync(&self) -> std::io::Result<()> {
        self.note(self.device.sync())
    }

    fn reserve(&self, length_bytes: u64) -> std::io::Result<()> {
        self.note(self.device.reserve(length_bytes))
    }
}

fn piece(column: u8, segment: u64) -> StripePiece {
    let extent = Extent {
        segment: SegmentId(segment),
        class: SegmentClass::Large,
        offset_bytes: 0,
        length_bytes: 16_384,
        digest: Digest::of(&segment.to_le_bytes()),
    };
    StripePiece { column, extent }
}

/// Round `number`, which adds `count` stripes, and takes those away that round `number - 1` added.
fn round(number: u64, count: u64, whole: bool, before: &StripeTable) -> Round {
    let member = |store: u8| Member {
        store: StoreId([store; 16]),
        node: format!("n{store}"),
        domain: format!("n{store}"),
        superblock: vec![store; 80],
        root: vec![u8::try_from(number % 251).unwrap(); 300],
    };
    let first = before.next_stripe().0;
    let stripe = |id| Stripe {
        id: StripeId(id),
        pieces: vec![piece(0, id), piece(1, number)],
        parity: vec![piece(2, id)],
    };
    Round {
        generation: 0,
        epoch: before.epoch.max(1),
        round: number,
        whole,
        parity: 1,
        asked: 1,
        pieces_max: 2,
        protected: CheckpointId::new(1, number),
        members: (7..10).map(member).collect(),
        removed: if whole {
            Vec::new()
        } else {
            before.stripes.keys().copied().collect()
        },
        added: (first..first + count).map(stripe).collect(),
    }
}

fn append(log: &mut StripeLog, table: &mut StripeTable, count: u64, whole: bool) -> Result<()> {
    let round = round(table.round + 1, count, whole, table);
    table.apply(&round);
    log.append(&round, table)
}

/// The first round of a new composition of the group.
fn recompose(log: &mut StripeLog, table: &mut StripeTable, count: u64) -> Result<()> {
    let mut round = round(table.round + 1, count, true, table);
    round.epoch += 1;
    table.apply(&round);
    log.append(&round, table)
}

fn files(devices: [SimDevice; 3]) -> LogFiles {
    devices.map(|device| Arc::new(device) as Arc<dyn Device>)
}

/// What was done to the files, and the table at each append that returned.
struct History {
    logs: [Vec<Operation>; 3],
    initial: [SharedBytes; 3],
    order: Vec<usize>,
    /// Operations done when a step returned, and what the log holds then; the first is the empty log.
    marks: Vec<(usize, Tables)>,
}

/// What is done to a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// So many stripes are added; whether the record replaces all.
    Append(u64, bool),
    /// The group is composed anew, with so many stripes.
    Recompose(u64),
    /// The former composition is needed no longer.
    Forget,
    /// An append whose process is killed between its write and its sync; the next one writes to the file that alone
    /// is durable.
    Killed(u64, bool),
}

/// A whole record goes to the other file; so does the one after the log has grown, which is the last but one.
const APPENDS: [Step; 11] = [
    Append(2, true),
    Append(3, false),
    Append(0, false),
    Append(4, false),
    Killed(2, true),
    Append(1, true),
    Append(1, false),
    Append(6000, false),
    Append(6000, false),
    Append(3, false),
    Append(1, false),
];

/// Compositions, one after the other before the first is settled, and after it.
const COMPOSITIONS: [Step; 13] = [
    Append(2, true),
    Append(3, false),
    Recompose(2),
    Append(1, false),
    Append(2, true),
    Recompose(3),
    Append(1, false),
    Forget,
    Append(2, false),
    Append(1, true),
    Recompose(1),
    Forget,
    Append(1, false),
];

impl History {
    fn record(steps: &[Step]) -> Result<Self> {
        let order = Arc::new(Mutex::new(Vec::new()));
        let devices = [(); 3].map(|()| SimDevice::new());
        let initial = [0, 1, 2].map(|which: usize| devices[which].start_log());
        let both = [0, 1, 2].map(|which: usize| {
            Arc::new(File {
                device: devices[which].clone(),
                which,
                order: Arc::clone(&order),
            }) as Arc<dyn Device>
        });
        let (mut log, mut table) = StripeLog::open(both.clone(), STORE)?;
        let mut former: Option<StripeTable> = None;
        let mut marks = vec![(0, (table.clone(), None))];
        for step in steps {
            match *step {
                Append(count, whole) => append(&mut log, &mut table, count, whole)?,
                Recompose(count) => {
                    former = former.or(Some(table.clone()));
                    recompose(&mut log, &mut table, count)?;
                }
                Forget => {
                    former = None;
                    log.forget_former()?;
                }
                Killed(count, whole) => {
                    for device in &devices {
                        device.kill_at_sync(1);
                    }
                    assert!(append(&mut log, &mut table, count, whole).is_err());
                    devices.iter().for_each(SimDevice::revive);
                    let found = StripeLog::open(both.clone(), STORE)?;
                    assert!(found.1 == table, "what was written is read");
                    log = found.0;
                }
            }
            let holds = (table.clone(), former.clone());
            marks.push((order.lock().unwrap().len(), holds));
        }
        let order = order.lock().unwrap().clone();
        Ok(Self {
            logs: [0, 1, 2].map(|which: usize| devices[which].log()),
            initial,
            order,
            marks,
        })
    }

    /// What was acknowledged after so many operations, and what was under way.
    fn expected(&self, done: usize) -> Vec<Tables> {
        let due = self.marks.partition_point(|(mark, _)| *mark <= done);
        let before = due.checked_sub(1).and_then(|at| self.marks.get(at));
        let both = before.into_iter().chain(self.marks.get(due));
        both.map(|(_, holds)| holds.clone()).collect()
    }

    /// Every image of one file, by operations applied to it.
    fn images(&self, which: usize, seed: u64) -> Vec<Vec<CrashImage>> {
        let log = &self.logs[which];
        let mut images = vec![Vec::new(); log.len() + 1];
        let options = CrashOptions {
            seed,
            ..CrashOptions::default()
        };
        for_each_image(log, &self.initial[which], options, |image| {
            images[image.ops_applied].push(image.clone());
            Ok(())
        })
        .unwrap();
        images
    }

    /// Every state of all files, at every instant; the number of states.
    fn visit(&self, seed: u64) -> std::result::Result<usize, String> {
        let images = [0, 1, 2].map(|which| self.images(which, seed));
        let mut at = [0; 3];
        let mut visited = 0;
        for done in 0..=self.order.len() {
            if let Some(last) = done.checked_sub(1) {
                at[self.order[last]] += 1;
            }
            for first in &images[0][at[0]] {
                for second in &images[1][at[1]] {
                    for third in &images[2][at[2]] {
                        visited += 1;
                        self.check(done, [first, second, third], visited)?;
                    }
                }
            }
        }
        Ok(visited)
    }

    fn check(
        &self,
        done: usize,
        images: [&CrashImage; 3],
        number: usize,
    ) -> std::result::Result<(), String> {
        let devices = images.map(CrashImage::device);
        let open = || StripeLog::open_both(files(devices.clone()), STORE);
        let (mut log, found) = open().map_err(|error| error.to_string())?;
        let expected = self.expected(done);
        let is_expected = expected.contains(&found);
        let (mut table, _) = found;
        if !is_expected {
            let rounds: Vec<u64> = expected.iter().map(|(table, _)| table.round).collect();
            let described = images.map(|image| image.description.as_str());
            return Err(format!(
                "after {done} operations the log is at round {}, not one of {rounds:?}: {described:?}",
                table.round
            ));
        }
        if number.is_multiple_of(5) {
            // The log goes on: one record behind what was torn, one that goes to the other file.
            for whole in [false, true, false] {
                append(&mut log, &mut table, 2, whole).map_err(|error| error.to_string())?;
                let (_, (again, _)) = open().map_err(|error| error.to_string())?;
                if again != table {
                    return Err(format!(
                        "after {done} operations, going on: {}",
                        again.round
                    ));
                }
            }
        }
        Ok(())
    }
}

#[test]
fn a_stripe_log_survives_every_crash() {
    let history = History::record(&APPENDS).unwrap();
    let writes_to = |which: usize| {
        let log = history.logs[which].iter();
        log.filter(|done| matches!(done, Operation::Write { offset: 0, .. }))
            .count()
    };
    assert_eq!(
        [writes_to(0), writes_to(1)],
        [2, 2],
        "the log changes its file by a whole record, and when it has grown"
    );
    // An append is one write: what differs between seeds is where it is torn.
    let mut visited = 0;
    for seed in 1..=12 {
        match history.visit(seed) {
            Ok(states) => visited += states,
            Err(failure) => panic!("{failure}"),
        }
    }
    assert!(visited > 1200, "only {visited} states");
}

/// The former composition is there, whole, at every instant until it is forgotten.
#[test]
fn the_former_composition_survives_every_crash_until_it_is_forgotten() {
    let history = History::record(&COMPOSITIONS).unwrap();
    let kept = history
        .marks
        .iter()
        .filter(|(_, (_, former))| former.is_some());
    assert_eq!(kept.count(), 6);
    let mut visited = 0;
    for seed in 1..=12 {
        visited += history
            .visit(seed)
            .unwrap_or_else(|failure| panic!("{failure}"));
    }
    assert!(visited > 400, "only {visited} states");
}

/// The test is worth what it finds: without any one of the log's syncs it must fail.
#[test]
fn a_stripe_log_that_forgets_a_sync_is_found() {
    forgets_a_sync(&APPENDS);
    forgets_a_sync(&COMPOSITIONS);
}

fn forgets_a_sync(steps: &[Step]) {
    let mut history = History::record(steps).unwrap();
    let mut missed = Vec::new();
    let mut tried = 0;
    for which in 0..3 {
        for place in 0..history.logs[which].len() {
            if history.logs[which][place] != Operation::Sync {
                continue;
            }
            tried += 1;
            // A write of nothing keeps the order where it is.
            history.logs[which][place] = backstay_testkit::crash::write(0, &[]);
            if history.visit(1).is_ok() {
                missed.push((which, place));
            }
            history.logs[which][place] = Operation::Sync;
        }
    }
    assert!(tried >= steps.len());
    assert_eq!(missed, Vec::new());
}

/// After an append that failed, whatever of it reached the files, the next one is what is read.
#[test]
fn an_append_that_fails_does_not_hide_the_next() {
    for whole in [false, true] {
        for fails in ["write", "sync"] {
            let devices = [(); 3].map(|()| SimDevice::new());
            let (mut log, mut table) = StripeLog::open(files(devices.clone()), STORE).unwrap();
            append(&mut log, &mut table, 2, true).unwrap();
            append(&mut log, &mut table, 2, false).unwrap();
            let good = table.clone();
            for device in &devices {
                match fails {
                    "write" => device.fail_write(1, EIO),
                    _ => device.fail_sync(1, EIO),
                }
            }
            append(&mut log, &mut table, 9, whole).unwrap_err();
            table = good;
            // The fault that is left is the other file's.
            let mut tries = 0;
            while append(&mut log, &mut table.clone(), 3, false).is_err() {
                tries += 1;
                assert!(tries < 3, "{fails}, {whole}");
            }
            let round = round(table.round + 1, 3, false, &table);
            table.apply(&round);
            let (_, again) = StripeLog::open(files(devices), STORE).unwrap();
            assert!(again == table, "{fails}, {whole}: {}", again.round);
        }
    }
}
