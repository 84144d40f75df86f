// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: reads what the stripes of a group say its stores hold, and makes damaged extents again in
//! place from the other members' stores.
//! In: opened stores with their stripe logs. Out: damage; repaired bytes.
//! Invariants: verifying takes no lock and calls nothing damaged that a running job gave up meanwhile;
//! repairing holds the locks of all stores of its groups; a stripe that cannot be made again whole is
//! left as it is; every piece is verified before it is used, and what is made before it is written.

use super::Stores;
use super::open::OpenStore;
use super::protection::Group;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::file::FileDevice;
use backstay_base::io::{Device, ReadAt};
use backstay_format::width::{index, to_u64};
use backstay_format::{Digest, Extent, Stripe, StripePiece};
use backstay_parity::code::{Code, Piece};
use backstay_parity::remake::{on_column, pieces, remake};
use backstay_store::control::CONTROL_FILE;
use backstay_store::lock::StoreLock;
use std::collections::BTreeMap;

/// What reading a store's share of its group's stripes found.
#[derive(Debug, Clone, Default)]
pub struct VerifiedStripes {
    /// Extents read, data and parity.
    pub extents: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What is not as its stripe says.
    pub damage: Vec<StripeDamage>,
}

/// A damaged piece of a stripe.
#[derive(Debug, Clone)]
pub struct StripeDamage {
    /// The stripe.
    pub stripe: u64,
    /// Whether the piece is parity; else it is this node's own data.
    pub is_parity: bool,
    /// The segment.
    pub segment: u64,
    /// Where it begins there.
    pub offset_bytes: u32,
    /// Its length.
    pub length_bytes: u32,
    /// Where it stands in the file; `None` if no slot holds the segment.
    pub file_offset: Option<u64>,
    /// The digest it should have.
    pub expected: String,
    /// The digest it has, or why it cannot be read.
    pub found: String,
    /// Whether it can be made again.
    pub repair: Repair,
}

/// Whether a damaged piece can be made again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Repair {
    /// From the opened stores.
    FromHere,
    /// Perhaps, with the stores of these nodes, which were not given.
    Needs(Vec<String>),
    /// No: why.
    Beyond(String),
}

/// What repairing did to one store.
#[derive(Debug, Clone, Default)]
pub struct Repaired {
    /// The store, as an index into [`Stores::stores`].
    pub store: usize,
    /// Extents made again.
    pub extents: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Extents that could not be, and why.
    pub beyond: Vec<String>,
}

/// Keeps jobs away from stores until dropped.
#[derive(Debug)]
pub struct StoreLocks {
    _held: Vec<StoreLock>,
}

/// A group and the stores of it that are open.
struct Share<'a> {
    stores: &'a Stores,
    group: &'a Group,
    code: Code,
}

impl Stores {
    /// Bytes that the stripes say these stores hold.
    pub fn stripe_bytes(&self) -> u64 {
        let of = |store: usize| -> u64 {
            let mine = self.share(store).map(|(share, column)| {
                let extents = share.extents(column);
                extents.map(|(.., e)| u64::from(e.length_bytes)).sum()
            });
            mine.unwrap_or(0)
        };
        (0..self.stores.len()).map(of).sum()
    }

    /// Reads what a store holds of its group's stripes: its own data in them, and parity.
    pub(super) fn verify_stripes(
        &self,
        store: usize,
        progress: &mut dyn FnMut(u64),
    ) -> VerifiedStripes {
        let mut done = VerifiedStripes::default();
        let Some((share, column)) = self.share(store) else {
            return done;
        };
        let opened = &self.stores[store];
        let mut bad = Vec::new();
        for (stripe, piece, extent) in share.extents(column) {
            let found = digest_of(opened, extent);
            done.extents += 1;
            done.bytes += u64::from(extent.length_bytes);
            progress(u64::from(extent.length_bytes));
            if !matches!(&found, Ok(found) if *found == extent.digest) {
                bad.push((stripe, piece, extent));
            }
        }
        if !bad.is_empty() {
            share.leave_out_gone(store, &mut bad);
        }
        for (stripe, piece, extent) in bad {
            let found = digest_of(opened, extent);
            if matches!(&found, Ok(found) if *found == extent.digest) {
                continue;
            }
            done.damage.push(StripeDamage {
                stripe: stripe.id.0,
                is_parity: matches!(piece, Piece::Parity(_)),
                segment: extent.segment.0,
                offset_bytes: extent.offset_bytes,
                length_bytes: extent.length_bytes,
                file_offset: file_offset(opened, extent).ok(),
                expected: extent.digest.to_string(),
                found: found.map_or_else(|error| error.to_string(), |digest| digest.to_string()),
                repair: share.can_repair(stripe, piece),
            });
        }
        done
    }

    /// Takes the locks of all stores that stripes protect, so that no job uses them meanwhile.
    pub fn lock(&self) -> Result<StoreLocks> {
        let mut held = Vec::new();
        for (at, store) in self.stores.iter().enumerate() {
            if self.group_of(at).is_some() {
                let who = format!("{} (backstay verify --repair)", store.job());
                held.push(StoreLock::take(store.directory(), &who)?);
                StoreLock::wait_for_former_ranks(&store.directory().join(CONTROL_FILE))?;
            }
        }
        Ok(StoreLocks { _held: held })
    }

    /// Makes damaged extents again in place, from the stores that are open. They must have been opened
    /// after their locks were taken.
    pub fn repair(
        &self,
        _locks: &StoreLocks,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Vec<Repaired>> {
        let mut done: BTreeMap<usize, Repaired> = BTreeMap::new();
        for group in &self.groups {
            let share = Share::of(self, group)?;
            for stripe in group.table.stripes.values() {
                share.repair(stripe, &mut done, progress)?;
            }
        }
        for repaired in done.values_mut().filter(|repaired| repaired.extents > 0) {
            let device = writable(&self.stores[repaired.store])?;
            let failed = |error| Error::io(format!("{}: syncing", device.name()), error);
            device.sync().map_err(failed)?;
        }
        Ok(done.into_values().collect())
    }

    fn share(&self, store: usize) -> Option<(Share<'_>, u8)> {
        let group = &self.groups[self.group_of(store)?];
        let column = group.table.column(self.stores[store].id())?;
        Some((Share::of(self, group).ok()?, column))
    }
}

/// A piece of a stripe that a store holds.
type Held<'a> = (&'a Stripe, Piece, &'a Extent);

impl<'a> Share<'a> {
    fn of(stores: &'a Stores, group: &'a Group) -> Result<Self> {
        let code = Code::new(usize::from(group.losses().max(1)))?;
        Ok(Self {
            stores,
            group,
            code,
        })
    }

    /// All that a column holds.
    fn extents(&self, column: u8) -> impl Iterator<Item = Held<'a>> {
        let stripes = self.group.table.stripes.values();
        stripes.flat_map(move |stripe| on_column(stripe, column).map(move |(p, e)| (stripe, p, e)))
    }

    /// The open store of a column.
    fn store(&self, column: u8) -> Result<(usize, &'a OpenStore)> {
        let member = &self.group.members[usize::from(column)];
        let none = || {
            let context = format!("the store of node {} was not given", member.node);
            Error::new(ErrorKind::PeerUnreachable, context)
        };
        let at = member.here.ok_or_else(none)?;
        Ok((at, &self.stores.stores[at]))
    }

    /// Leaves out what a running job has given up since the log was read: its space may hold other
    /// things by now.
    fn leave_out_gone(&self, store: usize, bad: &mut Vec<Held<'_>>) {
        let members = self.group.members.iter().filter_map(|member| member.here);
        let logs = std::iter::once(store).chain(members);
        let now = logs
            .filter_map(|at| self.stores.stores[at].read_log())
            .max_by_key(|table| (table.epoch, table.round));
        let Some(now) = now else {
            // Without a log nothing is promised any more.
            bad.clear();
            return;
        };
        bad.retain(|(stripe, ..)| now.stripes.get(&stripe.id) == Some(stripe));
    }

    fn fetch(&self, piece: &StripePiece) -> Result<(Vec<u8>, Digest)> {
        let (_, store) = self.store(piece.column)?;
        let bytes = read(store, &piece.extent)?;
        let digest = Digest::of(&bytes);
        Ok((bytes, digest))
    }

    fn remake(&self, stripe: &Stripe, lost: Piece) -> Result<Vec<u8>> {
        let members = &self.group.table.members;
        remake(&self.code, members, stripe, lost, |p| self.fetch(p))
    }

    fn can_repair(&self, stripe: &Stripe, lost: Piece) -> Repair {
        let Err(error) = self.remake(stripe, lost) else {
            return Repair::FromHere;
        };
        let (mut good, mut absent) = (0, Vec::new());
        for (which, piece) in pieces(stripe).filter(|(which, _)| *which != lost) {
            match self.store(piece.column) {
                Err(_) => absent.push(self.group.members[usize::from(piece.column)].node.clone()),
                Ok((_, store)) => {
                    let found = digest_of(store, &piece.extent);
                    let is_good = found.is_ok_and(|found| found == piece.extent.digest);
                    good += usize::from(is_good && which != lost);
                }
            }
        }
        if good + absent.len() >= stripe.pieces.len() && !absent.is_empty() {
            return Repair::Needs(absent);
        }
        Repair::Beyond(error.to_string())
    }

    /// Makes the damaged pieces of one stripe again: all that are here, or none.
    fn repair(
        &self,
        stripe: &Stripe,
        done: &mut BTreeMap<usize, Repaired>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let mut made = Vec::new();
        for (which, piece) in pieces(stripe) {
            let Ok((at, store)) = self.store(piece.column) else {
                continue;
            };
            let extent = &piece.extent;
            let entry = done.entry(at).or_default();
            entry.store = at;
            progress(u64::from(extent.length_bytes));
            if digest_of(store, extent).is_ok_and(|found| found == extent.digest) {
                continue;
            }
            let bytes = file_offset(store, extent).and_then(|offset| {
                let bytes = self.remake(stripe, which)?;
                Ok((at, offset, bytes))
            });
            match bytes {
                Ok(bytes) => made.push(bytes),
                Err(error) => entry.beyond.push(format!(
                    "segment {}, {} bytes from {}: {error}",
                    extent.segment.0, extent.length_bytes, extent.offset_bytes
                )),
            }
        }
        for (at, offset, bytes) in made {
            let device = writable(&self.stores.stores[at])?;
            let failed =
                |error| Error::io(format!("{}: writing at {offset}", device.name()), error);
            device.write_at(&bytes, offset).map_err(failed)?;
            let entry = done.entry(at).or_default();
            entry.extents += 1;
            entry.bytes += to_u64(bytes.len());
        }
        Ok(())
    }
}

fn file_offset(store: &OpenStore, extent: &Extent) -> Result<u64> {
    let reader = store.reader();
    let end = u64::from(extent.offset_bytes) + u64::from(extent.length_bytes);
    let fits = end <= u64::from(store.segment_bytes());
    match reader.slot_of(extent.segment).filter(|_| fits) {
        Some(slot) => Ok(reader.geometry().slot_offset(slot) + u64::from(extent.offset_bytes)),
        None => Err(Error::new(
            ErrorKind::Corrupt,
            format!("no slot holds segment {}", extent.segment.0),
        )),
    }
}

fn read(store: &OpenStore, extent: &Extent) -> Result<Vec<u8>> {
    let offset = file_offset(store, extent)?;
    let mut bytes = vec![0; index(extent.length_bytes)];
    let device = store.reader().device();
    let failed = |error| Error::io(format!("{}: reading at {offset}", device.name()), error);
    device.read_at(&mut bytes, offset).map_err(failed)?;
    Ok(bytes)
}

fn digest_of(store: &OpenStore, extent: &Extent) -> Result<Digest> {
    read(store, extent).map(|bytes| Digest::of(&bytes))
}

fn writable(store: &OpenStore) -> Result<FileDevice> {
    FileDevice::open(store.path(), false)
        .map_err(|error| Error::io(format!("opening {}", store.path().display()), error))
}
