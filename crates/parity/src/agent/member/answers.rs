// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: requests of a round that wait, or that also concern stores no rank has open.
//! In from: the coordinator's requests, by `agent`. Out to: `member`, or the stripe log of a store that is not
//! attached.
//! Invariants: no lock of the member is held while somebody is waited for; a record goes to the member, or to the log
//! beside a store that nobody opens meanwhile.

use super::super::{Agent, AgentSettings, lock, peer};
use super::log_files;
use backstay_base::clock::Stopwatch;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::agent::Collected;
use backstay_format::width::index;
use backstay_format::{CheckpointId, Digest, Extent, Round, StoreId};
use backstay_net::ExposureId;
use backstay_store::control::wait_until;
use backstay_store::lock::StoreLock;
use backstay_store::stripe_log::{StripeLog, StripeTable, look_beside};
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Agent {
    /// Begins a round here once `want` is committed.
    pub(in crate::agent) fn collect(
        &self,
        (epoch, round): (u64, u64),
        known_from: u64,
        want: CheckpointId,
        within: Duration,
    ) -> Result<Collected> {
        let control = self.with_member(|member| {
            member.begin((epoch, round), known_from)?;
            member.want(want);
            Ok(member.reserve().control().clone())
        })?;
        control.set_encoding(want);
        // A little before the asker gives up.
        let limit = within.mul_f64(0.9);
        let directory = self.directory();
        let looked = std::cell::RefCell::new(Stopwatch::start());
        // What a dead application has not committed it never will.
        let dead = || {
            let due = looked.borrow().elapsed() > Duration::from_millis(50);
            due && {
                looked.replace(Stopwatch::start());
                !StoreLock::is_held(&directory)
            }
        };
        // In a later start it is there or abandoned.
        let is_due = || want.is_covered_by(control.committed()) || !control.may_commit(want);
        wait_until("the node to commit", limit, || is_due() || dead())?;
        self.with_member(|member| {
            member.check(epoch, Some(round))?;
            let (root, _) = member.reserve().reader().newest_root()?;
            if root.revisions.iter().any(|r| r.checkpoint == want) {
                return member.collect(want);
            }
            let context = format!("node {} retains checkpoint {want} no longer", self.node);
            Err(Error::new(ErrorKind::NotRetained, context))
        })
    }

    /// Takes a parity extent of this round from the member that encoded it.
    pub(in crate::agent) fn take(
        &self,
        (epoch, round): (u64, u64),
        from: u8,
        (exposure, length_bytes, digest): (ExposureId, u32, Digest),
        within: Duration,
    ) -> Result<Extent> {
        let (mut extent, offset, reserve, seat) = self.with_member(|member| {
            member.check(epoch, Some(round))?;
            let most = member.reserve().geometry().segment_bytes;
            let seat = member.seats().get(usize::from(from)).cloned();
            let Some(seat) = seat.filter(|_| (1..=most).contains(&length_bytes)) else {
                let context = format!("{length_bytes} bytes of parity from member {from}");
                return Err(Error::new(ErrorKind::InvalidArgument, context));
            };
            let (extent, offset) = member.allocate(length_bytes)?;
            Ok((extent, offset, member.reserve().clone(), seat))
        })?;
        let holder = peer(&seat);
        let mut buffer = self.buffers.take(index(length_bytes));
        let bytes = &mut buffer[..index(length_bytes)];
        let pulled = self.endpoint.pull(&holder, exposure, 0, bytes, within);
        let written = pulled.and_then(|()| {
            let pulled = Digest::of(bytes);
            if digest != Digest::default() && pulled != digest {
                let context = format!("parity from {holder}: expected {digest}, found {pulled}");
                return Err(Error::new(ErrorKind::Corrupt, context));
            }
            reserve.write_at(bytes, offset).map(|()| pulled)
        });
        self.buffers.give(buffer);
        // Until now nobody else was given its place, whatever became of the round.
        self.with_member(|member| member.arrived((epoch, round), &extent))?;
        extent.digest = written?;
        Ok(extent)
    }

    /// Records a round, or, while no store is attached, brings the log of the node's store to the
    /// state of its group.
    pub(in crate::agent) fn record(&self, round: &Round) -> Result<()> {
        // Held to the end: nobody attaches the store meanwhile, and writes the same log.
        let mut attached = lock(&self.member);
        if let Some(member) = attached.as_mut() {
            return member.record(round);
        }
        let own = self.store_of_group(round);
        let Some(store) = own.filter(|_| round.whole && !self.was_opened()) else {
            let context = format!("node {} has no store of that group", self.node);
            return Err(Error::new(ErrorKind::InvalidArgument, context));
        };
        let files = log_files(&self.directory());
        let is_old = |table: &StripeTable| (table.epoch, table.round) >= (round.epoch, round.round);
        match files.and_then(|files| StripeLog::open(files, store)) {
            Ok((_, table)) if is_old(&table) => Ok(()),
            Ok((mut log, mut table)) => {
                self.logged.fetch_add(1, Ordering::AcqRel);
                table.apply(round);
                log.append(round, &table)
            }
            Err(error) if error.kind().leaves_open() => {
                if self.told(store).is_some_and(|table| is_old(&table)) {
                    return Ok(());
                }
                // It may be newer, and is left as it is. What is told counts as long as it cannot be read.
                self.logged.fetch_add(1, Ordering::AcqRel);
                let mut table = StripeTable::default();
                table.apply(round);
                *lock(&self.told) = Some((store, table));
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// What the group of a store, whose own log could not be read, says of it.
    pub(in crate::agent) fn told(&self, store: StoreId) -> Option<StripeTable> {
        let told = lock(&self.told);
        let told = told.as_ref().filter(|(of, _)| *of == store);
        told.map(|(_, table)| table.clone())
    }

    /// The store on this node that is in the group of a record.
    fn store_of_group(&self, round: &Round) -> Option<StoreId> {
        let stores: Vec<StoreId> = round.members.iter().map(|member| member.store).collect();
        lock(&self.stores)
            .iter()
            .filter(|found| !found.survey.rebuilt)
            .map(|found| found.survey.store)
            .find(|store| stores.contains(store))
    }

    /// Whether a record is in the log already; an error for one that is not of the round under way.
    pub(in crate::agent) fn is_recorded(&self, round: &Round) -> Result<bool> {
        let attached = lock(&self.member);
        if let Some(member) = attached.as_ref() {
            member.check(round.epoch, Some(round.round))?;
            let table = member.table();
            return Ok((table.epoch, table.round) == (round.epoch, round.round));
        }
        let Some(store) = self.store_of_group(round) else {
            return Ok(false);
        };
        let known = match look_beside(&self.directory(), store) {
            Err(error) if error.kind().leaves_open() => self.told(store),
            known => known?,
        };
        drop(attached);
        Ok(known.is_some_and(|table| (table.epoch, table.round) >= (round.epoch, round.round)))
    }

    /// The settings of its work.
    pub(in crate::agent) fn settings(&self) -> &AgentSettings {
        &self.settings
    }
}
