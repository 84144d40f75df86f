// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: damaged extents of a node's own store from the other members' pieces, in place.
//! In: the store's stripes, the pieces of the others. Out: repaired extents.
//! Invariants: what is written is what a stripe of the log says of this place while it is written: with the
//! member held, without which no segment and no parity is given back, or before anybody opened the store. A
//! request that was slow, or comes again, finds what is newer and leaves it.

use super::member::NodeMember;
use super::rebuild::Work;
use super::{Agent, lock};
use crate::code::Piece;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::Device;
use backstay_base::io::file::FileDevice;
use backstay_base::notice;
use backstay_format::agent::{Answer, Seat};
use backstay_format::width::{index, to_u64};
use backstay_format::{Digest, Extent, StoreId, Stripe};
use backstay_store::place::STORE_FILE;
use backstay_store::reader::StoreReader;
use backstay_store::reserve::Reserve;
use backstay_store::stripe_log::{StripeTable, look_beside};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

/// This node's own store, as it was when the request came.
struct Own {
    table: StripeTable,
    store: StoreId,
    column: u8,
    device: Arc<dyn Device>,
    reader: Arc<StoreReader>,
    /// It is open for writing.
    reserve: Option<Reserve>,
    /// Records that its log had taken before it was opened.
    logged: u64,
}

/// While it lives no place of the store is given to anything else.
type Held<'a> = MutexGuard<'a, Option<NodeMember>>;

#[derive(Debug, Default)]
struct Counts {
    extents: AtomicU64,
    bytes: AtomicU64,
    lost: AtomicU64,
}

impl Agent {
    /// Reads every extent of this node's stripes, and makes damaged ones again in place.
    pub(super) fn repair(&self, seats: &[Seat], within: Duration) -> Result<Answer> {
        let own = self.own_store()?;
        let work = Work::new(self, &own.table, own.column, seats, within)?;
        let counts = Counts::default();
        work.each_stripe(|stripe, piece, extent| {
            self.repair_extent(&own, &work, &counts, (stripe, piece, extent))
        })?;
        let extents = counts.extents.load(Ordering::Relaxed);
        let lost = counts.lost.load(Ordering::Relaxed);
        own.sync()?;
        if extents + lost > 0 {
            notice::warn(&format!(
                "{}: {extents} damaged extents were rebuilt from their stripes, {lost} could not be",
                own.reader.device().name()
            ));
        }
        match lock(&work.unread).take() {
            Some(error) if lost > 0 => Err(error),
            _ => Ok(Answer::Rebuilt {
                extents,
                bytes: counts.bytes.load(Ordering::Relaxed),
                lost,
            }),
        }
    }

    fn repair_extent(
        &self,
        own: &Own,
        work: &Work<'_>,
        counts: &Counts,
        (stripe, piece, extent): (&Stripe, Piece, &Extent),
    ) -> Result<()> {
        let made = match own.place(extent) {
            Some(offset) if own.is_good(extent, offset) => return Ok(()),
            Some(offset) => work.remake(stripe, piece).map(|bytes| (bytes, offset)),
            None => Err(own.nowhere(extent)),
        };
        let Some(held) = self.hold(own, stripe, extent) else {
            return Ok(());
        };
        match made {
            Ok((bytes, offset)) => {
                write(&*own.device, &bytes, offset)?;
                let length = to_u64(bytes.len());
                counts.extents.fetch_add(1, Ordering::Relaxed);
                counts.bytes.fetch_add(length, Ordering::Relaxed);
            }
            Err(error) => {
                let segment = extent.segment.0;
                notice::warn(&format!("segment {segment} is beyond repair: {error}"));
                counts.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
        drop(held);
        Ok(())
    }

    /// Keeps the place of `extent` from being given to anything else; `None` if it is no more what `stripe`
    /// says.
    fn hold(&self, own: &Own, stripe: &Stripe, extent: &Extent) -> Option<Held<'_>> {
        let member = lock(&self.member);
        let stands = if let Some(member) = member.as_ref() {
            let table = member.table();
            member.store() == own.store
                && table.column(own.store) == Some(own.column)
                && table.stripes.get(&stripe.id) == Some(stripe)
                && own.is_in(member.reserve(), extent)
        } else {
            !self.was_opened() && self.logged.load(Ordering::Acquire) == own.logged
        };
        stands.then_some(member)
    }

    /// This node's own store with its stripes, open for writing or not yet.
    fn own_store(&self) -> Result<Own> {
        let none = || {
            let context = format!("node {} has no store to repair", self.node);
            Error::new(ErrorKind::NotRetained, context)
        };
        let member = lock(&self.member);
        let logged = self.logged.load(Ordering::Acquire);
        if let Some(member) = member.as_ref() {
            let (table, store) = (member.table().clone(), member.store());
            let reserve = member.reserve().clone();
            reserve.refresh();
            return Ok(Own {
                column: table.column(store).unwrap_or(u8::MAX),
                device: reserve.device().clone(),
                reader: reserve.shared_reader(),
                reserve: Some(reserve),
                table,
                store,
                logged,
            });
        }
        if self.was_opened() {
            return Err(none());
        }
        let own = lock(&self.stores)
            .iter()
            .find(|s| !s.survey.rebuilt)
            .cloned();
        let own = own.ok_or_else(none)?;
        let store = own.survey.store;
        let table = look_beside(&own.directory, store).or_else(|error| {
            let told = self.told(store).filter(|_| error.kind().leaves_open());
            told.map(Some).ok_or(error)
        });
        let table = table?.ok_or_else(none)?;
        drop(member);
        let path = own.directory.join(STORE_FILE);
        let device = FileDevice::open(&path, false)
            .map_err(|error| Error::io(format!("opening {}", path.display()), error))?;
        let device: Arc<dyn Device> = Arc::new(device);
        // Another one may stand there since it was surveyed.
        let reader = StoreReader::open(device.clone())?;
        if reader.superblock().store != store {
            return Err(none());
        }
        reader.read_records(|_, _, _| {})?;
        Ok(Own {
            column: table.column(store).unwrap_or(u8::MAX),
            device,
            reader: Arc::new(reader),
            reserve: None,
            table,
            store,
            logged,
        })
    }
}

impl Own {
    /// Where `extent` stands in the file.
    fn place(&self, extent: &Extent) -> Option<u64> {
        let slot = self.reader.slot_of(extent.segment)?;
        Some(self.reader.geometry().slot_offset(slot) + u64::from(extent.offset_bytes))
    }

    fn nowhere(&self, extent: &Extent) -> Error {
        let name = self.reader.device().name();
        let context = format!("{name}: no slot holds segment {}", extent.segment.0);
        Error::new(ErrorKind::Corrupt, context)
    }

    /// Whether the slot of `extent` still holds its segment, if it had one.
    fn is_in(&self, reserve: &Reserve, extent: &Extent) -> bool {
        let slot = self.reader.slot_of(extent.segment);
        slot.is_none_or(|slot| reserve.control().holds(slot, extent.segment))
    }

    fn is_good(&self, extent: &Extent, offset: u64) -> bool {
        let mut bytes = vec![0; index(extent.length_bytes)];
        let read = self.reader.device().read_at(&mut bytes, offset);
        read.is_ok() && Digest::of(&bytes) == extent.digest
    }

    /// What was written is durable; where the ranks write it too, a failure is theirs as well.
    fn sync(&self) -> Result<()> {
        if let Some(reserve) = &self.reserve {
            return reserve.sync();
        }
        let device = &self.device;
        let failed = |error| Error::io(format!("{}: syncing", device.name()), error);
        device.sync().map_err(failed)
    }
}

fn write(device: &dyn Device, bytes: &[u8], offset: u64) -> Result<()> {
    device
        .write_at(bytes, offset)
        .map_err(|error| Error::io(format!("{}: writing at {offset}", device.name()), error))
}
