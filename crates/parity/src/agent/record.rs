// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: stripe log records between agents: in parts, because one may be longer than a message.
//! In from: `round`, `rebuild` (a record to send, a table to have), a restart's coordinator. Out to: other agents, and
//! `member`, which records what arrived whole.
//! Invariants: what is joined is of one epoch and round; a record is taken when its last part is here; a part
//! that comes again, or late, takes nothing away.
//! Format: docs/format/agent.md.

use super::round::unexpected;
use super::{Agent, Ask, lock, peer};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::agent::{Answer, RecordPart, Request, Seat};
use backstay_format::{Round, StoreId};
use backstay_net::Peer;
use backstay_store::stripe_log::{StripeTable, look_at_both};
use std::sync::Arc;
use std::time::Duration;

/// So often a log is read that changes while it is.
const TRIES_MAX: usize = 5;

/// Has an agent record `record`.
pub(super) fn send(agent: &dyn Ask, to: &Peer, record: &Round, within: Duration) -> Result<()> {
    for part in (0..).map_while(|number| RecordPart::of(record, number)) {
        agent.ask(to, &Request::Record(part), within)?;
    }
    Ok(())
}

/// The table that the log of `store`, which an agent has, holds of composition `epoch`.
pub(super) fn fetch(
    agent: &dyn Ask,
    from: &Peer,
    (store, epoch): (StoreId, u64),
    within: Duration,
) -> Result<StripeTable> {
    for _ in 0..TRIES_MAX {
        if let Some(record) = try_fetch(agent, from, (store, epoch), within)? {
            let mut table = StripeTable::default();
            table.apply(&record);
            return Ok(table);
        }
    }
    let context = format!("{from}: its stripe log changed while it was read, {TRIES_MAX} times");
    Err(Error::new(ErrorKind::Timeout, context))
}

/// `None` if the log changed meanwhile.
fn try_fetch(
    agent: &dyn Ask,
    from: &Peer,
    (store, epoch): (StoreId, u64),
    within: Duration,
) -> Result<Option<Round>> {
    let mut record: Option<Round> = None;
    for number in 0.. {
        let request = Request::Table {
            store,
            epoch,
            part: number,
        };
        let part = match agent.ask(from, &request, within) {
            Ok(Answer::Table(part)) if part.number == number => part,
            Ok(other) => return Err(unexpected(from, &other)),
            // It has become shorter.
            Err(error) if number > 0 && error.kind() == ErrorKind::InvalidArgument => break,
            Err(error) => return Err(error),
        };
        let last = part.last;
        match &mut record {
            None => record = Some(part.round),
            Some(known) if (known.epoch, known.round) != (part.round.epoch, part.round.round) => {
                break;
            }
            Some(known) => join(part, known, from)?,
        }
        if last {
            return Ok(record);
        }
    }
    Ok(None)
}

fn join(part: RecordPart, record: &mut Round, from: &impl std::fmt::Display) -> Result<()> {
    let joined = part.join(record);
    joined.map_err(|error| Error::malformed(format!("a stripe log record of {from}"), error))
}

/// Records of which parts have arrived: a late part of another begins one beside it.
const RECORDS_MAX: usize = 2;

/// The records whose parts have arrived, the one of the last part last.
#[derive(Debug, Default)]
pub(super) struct Arriving(Vec<Partial>);

/// A record, as far as it has arrived.
#[derive(Debug)]
struct Partial {
    record: Arc<Round>,
    /// The part that is next.
    next: u32,
    whole: bool,
}

/// What tells a record from all others of a group.
fn of(round: &Round) -> (u64, u64) {
    (round.epoch, round.round)
}

impl Arriving {
    fn knows(&self, round: &Round) -> bool {
        self.0.iter().any(|known| of(&known.record) == of(round))
    }

    /// Takes a part; the record, when all of it is here. It stays until [`Self::forget`], so that any part
    /// may come again.
    fn take(&mut self, part: &RecordPart) -> Result<Option<Arc<Round>>> {
        let place = self
            .0
            .iter()
            .position(|known| of(&known.record) == of(&part.round));
        let known = place.map(|place| self.0.remove(place));
        let (kept, taken) = match known {
            Some(known) if known.has(part) => (known, Ok(())),
            _ if part.number == 0 => (Partial::begin(part), Ok(())),
            Some(mut known) => {
                let taken = known.add(part);
                (known, taken)
            }
            None => return Err(misplaced(part)),
        };
        let whole = (kept.whole && part.last).then(|| Arc::clone(&kept.record));
        self.0.push(kept);
        let surplus = self.0.len().saturating_sub(RECORDS_MAX);
        self.0.drain(..surplus);
        taken.map(|()| whole)
    }

    /// A record that is in the log is needed no more.
    pub(super) fn forget(&mut self, round: &Round) {
        self.0.retain(|known| of(&known.record) != of(round));
    }
}

fn misplaced(part: &RecordPart) -> Error {
    let context = format!("part {} of a record before its parts", part.number);
    Error::new(ErrorKind::InvalidArgument, context)
}

impl Partial {
    fn begin(part: &RecordPart) -> Self {
        Self {
            record: Arc::new(part.round.clone()),
            next: 1,
            whole: part.last,
        }
    }

    /// Whether `part` is among those that came.
    fn has(&self, part: &RecordPart) -> bool {
        let had = || RecordPart::of(&self.record, part.number);
        part.number < self.next && had().is_some_and(|had| had.round == part.round)
    }

    /// Takes the part that is next.
    fn add(&mut self, part: &RecordPart) -> Result<()> {
        if self.whole || part.number != self.next {
            return Err(misplaced(part));
        }
        let record = Arc::make_mut(&mut self.record);
        join(part.clone(), record, &"its coordinator")?;
        self.next += 1;
        self.whole = part.last;
        Ok(())
    }
}

/// A table whose parts somebody asks for.
pub(super) type Asked = Option<(StoreId, Arc<StripeTable>)>;

impl Agent {
    /// Takes a part of a record; records it when it is whole. A part that comes again, or late, changes nothing.
    pub(super) fn take_record(&self, part: &RecordPart) -> Result<()> {
        if part.number == 0 && part.last {
            return self.record(&part.round);
        }
        // Of an attached store this also refuses what is not of the round under way.
        let begun = !self.is_attached() && lock(&self.arriving).knows(&part.round);
        if !begun && self.is_recorded(&part.round)? {
            return Ok(());
        }
        let whole = lock(&self.arriving).take(part)?;
        if let Some(record) = whole {
            self.record(&record)?;
            lock(&self.arriving).forget(&record);
        }
        Ok(())
    }

    /// Records the whole log of another member, whatever this one's has.
    pub(super) fn follow(&self, from: &Seat, epoch: u64) -> Result<()> {
        let of = (from.store, epoch);
        let table = fetch(self, &peer(from), of, self.settings().within)?;
        self.record(&table.whole(0))
    }

    fn is_attached(&self) -> bool {
        lock(&self.member).is_some()
    }

    /// A part of what the stripe log of a store on this node holds of composition `epoch`.
    pub(super) fn table_part(
        &self,
        (store, epoch): (StoreId, u64),
        number: u32,
    ) -> Result<RecordPart> {
        let none = || {
            let context = format!(
                "node {} has no stripe log of store {store} with epoch {epoch}",
                self.node
            );
            Error::new(ErrorKind::NotRetained, context)
        };
        let attached = lock(&self.member)
            .as_ref()
            .filter(|member| member.store() == store)
            .map(|member| member.table_of(epoch).map(|table| table.part(number)));
        let part = if let Some(part) = attached {
            part.ok_or_else(none)?
        } else {
            let table = self.table_beside((store, epoch), number);
            table.ok_or_else(none)?.part(number)
        };
        let beyond = || {
            let context = format!("the stripe log of store {store} has no part {number}");
            Error::new(ErrorKind::InvalidArgument, context)
        };
        part.ok_or_else(beyond)
    }

    /// The table of a store that is not attached: read once for all of its parts.
    fn table_beside(
        &self,
        (store, epoch): (StoreId, u64),
        number: u32,
    ) -> Option<Arc<StripeTable>> {
        let mut asked = lock(&self.asked);
        if let Some((of, table)) = asked.as_ref()
            && (*of, table.epoch) == (store, epoch)
            && number > 0
        {
            return Some(Arc::clone(table));
        }
        let stores = lock(&self.stores);
        let found = stores.iter().find(|found| found.survey.store == store)?;
        let (newest, former) = look_at_both(&found.directory, store).ok().flatten()?;
        let mut tables = former.into_iter().chain([newest]);
        let table = Arc::new(tables.find(|table| table.epoch == epoch)?);
        drop(stores);
        // Only one of several parts is asked for again.
        let parts = table.part(1).is_some();
        *asked = parts.then(|| (store, Arc::clone(&table)));
        Some(table)
    }
}
