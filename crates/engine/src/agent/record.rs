// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: stripe log records between agents: in parts, because one may be longer than a message.
//! In from: `round`, `restart`, `rebuild` (a record to send, a table to have). Out to: other agents, and
//! `member`, which records what arrived whole.
//! Invariants: what is joined is of one epoch and round; a record is taken when its last part is here.
//! Format: docs/format/agent.md.

use super::round::unexpected;
use super::{Agent, Ask, lock};
use crate::error::{Error, ErrorKind, Result};
use crate::store::stripe_log::{StripeTable, read_beside};
use crate::transport::Peer;
use backstay_format::agent::{Answer, RecordPart, Request};
use backstay_format::{Round, StoreId};
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

/// The table of the log of `store`, which an agent has.
pub(super) fn fetch(
    agent: &dyn Ask,
    from: &Peer,
    store: StoreId,
    within: Duration,
) -> Result<StripeTable> {
    for _ in 0..TRIES_MAX {
        if let Some(record) = try_fetch(agent, from, store, within)? {
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
    store: StoreId,
    within: Duration,
) -> Result<Option<Round>> {
    let mut record: Option<Round> = None;
    for number in 0.. {
        let request = Request::Table {
            store,
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

/// The parts of a record that have arrived.
#[derive(Debug, Default)]
pub(super) struct Arriving {
    record: Option<Round>,
    /// The part that is next.
    next: u32,
}

impl Arriving {
    /// Takes a part; the record, when that was the last one.
    fn take(&mut self, part: &RecordPart) -> Result<Option<Round>> {
        let of = |round: &Round| (round.epoch, round.round);
        let known = self.record.as_ref().map(of) == Some(of(&part.round));
        if part.number == 0 {
            self.record = Some(part.round.clone());
            self.next = 0;
        } else if known && part.number < self.next {
            return Ok(None);
        } else if known && part.number == self.next {
            if let Some(record) = &mut self.record {
                join(part.clone(), record, &"its coordinator")?;
            }
        } else {
            let context = format!("part {} of a record before its parts", part.number);
            return Err(Error::new(ErrorKind::InvalidArgument, context));
        }
        self.next += 1;
        Ok(if part.last { self.record.take() } else { None })
    }
}

/// A table whose parts somebody asks for.
pub(super) type Asked = Option<(StoreId, Arc<StripeTable>)>;

impl Agent {
    /// Takes a part of a record; records it when it is whole.
    pub(super) fn take_record(&self, part: &RecordPart) -> Result<()> {
        let whole = lock(&self.arriving).take(part)?;
        whole.map_or(Ok(()), |record| self.record(&record))
    }

    /// A part of the whole stripe log of a store on this node.
    pub(super) fn table_part(&self, store: StoreId, number: u32) -> Result<RecordPart> {
        let none = || {
            let context = format!("node {} has no stripe log of store {store}", self.node);
            Error::new(ErrorKind::NotRetained, context)
        };
        let attached = lock(&self.member)
            .as_ref()
            .filter(|member| member.store() == store)
            .map(|member| member.table().part(number));
        let part = if let Some(part) = attached {
            part
        } else {
            let table = self.table_beside(store, number);
            table.ok_or_else(none)?.part(number)
        };
        let beyond = || {
            let context = format!("the stripe log of store {store} has no part {number}");
            Error::new(ErrorKind::InvalidArgument, context)
        };
        part.ok_or_else(beyond)
    }

    /// The table of a store that is not attached: read once for all of its parts.
    fn table_beside(&self, store: StoreId, number: u32) -> Option<Arc<StripeTable>> {
        let mut asked = lock(&self.asked);
        if let Some((of, table)) = asked.as_ref()
            && *of == store
            && number > 0
        {
            return Some(Arc::clone(table));
        }
        let stores = lock(&self.stores);
        let found = stores.iter().find(|found| found.survey.store == store)?;
        let table = Arc::new(read_beside(&found.directory, store)?);
        drop(stores);
        // Only one of several parts is asked for again.
        let parts = table.part(1).is_some();
        *asked = parts.then(|| (store, Arc::clone(&table)));
        Some(table)
    }
}
