// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what the ranks of one start were told, in the order in which they were.
//! In from: ranks. Out to: the model, which judges it.
//! Invariants: an event of all ranks stands once: each of them is told the same ones, one after the other,
//! and of two ranks one may be ahead.

use crate::counts;
use backstay::{CheckpointId, ErrorKind};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// How a start began on one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Restored(CheckpointId, u64),
    Fresh,
    Refused(ErrorKind, String),
}

/// What a start was told of a checkpoint and the step that it is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    Started(CheckpointId, u64),
    Committed(CheckpointId, u64),
    Protected(CheckpointId, u64),
    Archived(CheckpointId, u64),
    /// A restore of it began, later than at the beginning.
    GoingBack(CheckpointId, u64),
    /// And is over.
    Restored(CheckpointId, u64),
}

/// Whether a job is finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Finish {
    #[default]
    No,
    /// Some nodes may say so.
    Maybe,
    Yes {
        /// And so does the archive.
        archived: bool,
    },
}

/// What the ranks of one start were told.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) outcomes: BTreeMap<usize, Outcome>,
    pub(crate) events: Vec<Event>,
    /// How many of them each rank was told.
    places: BTreeMap<usize, usize>,
    /// Two ranks were told different ones.
    pub(crate) diverged: Option<String>,
    /// By the number of the call: what each rank was told.
    pub(crate) calls: BTreeMap<u64, BTreeMap<usize, String>>,
    pub(crate) closed: bool,
    /// The program said that it is done.
    pub(crate) finish: Finish,
    /// A device failed in this start: what it left may be less than it would have been.
    pub(crate) faults: bool,
    /// An agent died in it while the ranks went on, or all of it was stopped for a while.
    pub(crate) shaken: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Ledger(Mutex<Told>);

impl Ledger {
    pub(crate) fn outcome(&self, rank: usize, outcome: Outcome) {
        if rank == 0 {
            counts::one(match outcome {
                Outcome::Restored(..) => "starts that restored",
                Outcome::Fresh => "starts that began anew",
                Outcome::Refused(..) => "starts that were refused, with an error",
            });
        }
        self.0.lock().unwrap().outcomes.insert(rank, outcome);
    }
    /// The next event of `rank`.
    pub(crate) fn event(&self, rank: usize, event: Event) {
        let mut told = self.0.lock().unwrap();
        let place = told.places.entry(rank).or_default();
        let at = *place;
        *place += 1;
        match told.events.get(at) {
            None => {
                told.events.push(event);
                counts::one(match event {
                    Event::Started(..) => "checkpoints started",
                    Event::Committed(..) => "checkpoints committed",
                    Event::Protected(..) => "checkpoints waited for until protected",
                    Event::Archived(..) => "checkpoints waited for until archived",
                    Event::GoingBack(..) => "restores begun in a running session",
                    Event::Restored(..) => "restores done in a running session",
                });
            }
            Some(known) if *known == event => {}
            Some(known) => {
                let text = format!("rank {rank} was told {event:?}, another {known:?}");
                told.diverged = Some(text);
            }
        }
    }
    /// What `rank` was told by its collective call `number`.
    pub(crate) fn call(&self, number: u64, rank: usize, told: String) {
        let mut all = self.0.lock().unwrap();
        all.calls.entry(number).or_default().insert(rank, told);
    }
    pub(crate) fn faults(&self) {
        self.0.lock().unwrap().faults = true;
    }
    /// The checkpoint that was committed last, where nothing went back behind it and nothing failed.
    pub(crate) fn committed(&self) -> Option<(CheckpointId, u64)> {
        let told = self.0.lock().unwrap();
        let last = told.events.iter().rev().find_map(|event| match *event {
            Event::Started(..) => None,
            Event::Committed(id, step) | Event::Protected(id, step) => Some(Some((id, step))),
            _ => Some(None),
        });
        last.flatten().filter(|_| !told.faults && !told.shaken)
    }
    /// It was protected when no rank was left to be told.
    pub(crate) fn protected(&self, id: CheckpointId, step: u64) {
        self.0
            .lock()
            .unwrap()
            .events
            .push(Event::Protected(id, step));
    }
    /// Whether any checkpoint was started.
    pub(crate) fn started(&self) -> bool {
        let told = self.0.lock().unwrap();
        let mut events = told.events.iter();
        events.any(|event| matches!(event, Event::Started(..)))
    }
    pub(crate) fn is_closed(&self) -> bool {
        self.0.lock().unwrap().closed
    }
    pub(crate) fn shaken(&self) {
        self.0.lock().unwrap().shaken = true;
    }
    pub(crate) fn closed(&self) {
        self.0.lock().unwrap().closed = true;
    }
    /// A rank says that the program is done.
    pub(crate) fn finishing(&self) {
        let mut told = self.0.lock().unwrap();
        if told.finish == Finish::No {
            told.finish = Finish::Maybe;
        }
    }
    /// It was told that the job is finished, in the archive as well where it is `archived` and this is rank 0.
    pub(crate) fn finished(&self, rank: usize, archived: bool) {
        if rank == 0 {
            counts::one("jobs that finished");
        }
        let mut told = self.0.lock().unwrap();
        let archived = archived && rank == 0 && !told.faults;
        let known = matches!(told.finish, Finish::Yes { archived: true });
        told.finish = Finish::Yes {
            archived: archived || known,
        };
        told.closed = true;
    }
    pub(crate) fn take(&self) -> Told {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}
