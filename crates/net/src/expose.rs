// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the table of what peers may read of this endpoint.
//! In from: `expose` and `withdraw` of an endpoint. Out to: the side of a read that owns the bytes.
//! Invariants: a range is checked against the length before a byte is read; what was looked up stays
//! alive until its reader is done, withdrawn or not; a fingerprint is of sealed bytes, and of these computed
//! once, unless somebody says that other bytes arrived.

use super::one_sided::{Offer, OneSided};
use super::{ExposureId, Span, same_node};
use backstay_base::clock::Deadline;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::ReadAt;
use backstay_base::io::sealed::SealedView;
use backstay_format::width::{to_u64, to_usize};
use backstay_format::wire::{Description, Fabric};
use backstay_format::{Fingerprint, FingerprintKey};
use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Fingerprints kept of one exposure: those of all extents of a store of 256 GiB.
const KNOWN_MAX: usize = 1 << 16;

/// What peers may read.
#[derive(Clone)]
pub enum Exposed {
    /// The bytes of a device: a store. They are copied when they are sent, because they may be written
    /// meanwhile.
    Device(Arc<dyn ReadAt>),
    /// The same of a device that knows which of them nobody writes: those are read from where they stand.
    Sealed(Arc<dyn SealedView>),
    /// Bytes in memory.
    Memory(Arc<Vec<u8>>),
}

impl Exposed {
    /// Bytes there are.
    pub fn length_bytes(&self) -> Result<u64> {
        match self {
            Self::Memory(bytes) => Ok(to_u64(bytes.len())),
            Self::Device(device) => {
                let length = device.length_bytes();
                length.map_err(|error| Error::io(device.name(), error))
            }
            Self::Sealed(view) => {
                let length = view.length_bytes();
                length.map_err(|error| Error::io(view.name(), error))
            }
        }
    }

    /// That `length` bytes at `offset` are there.
    pub fn check_range(&self, offset: u64, length: u64) -> Result<()> {
        let there = self.length_bytes()?;
        let end = offset.checked_add(length);
        if end.is_some_and(|end| end <= there) {
            return Ok(());
        }
        let context = format!("{length} bytes at {offset} of {there} are asked for");
        Err(Error::new(ErrorKind::InvalidArgument, context))
    }

    /// The bytes of a range that was checked where they stand, if nobody writes them.
    pub fn sealed(&self, span: Span) -> Option<&[u8]> {
        let (start, length) = (to_usize(span.offset), to_usize(span.length));
        match self {
            Self::Device(_) => None,
            Self::Sealed(view) => view.lend_sealed(span.offset, length),
            Self::Memory(bytes) => bytes.get(start..start.checked_add(length)?),
        }
    }

    /// Where the memory begins in which bytes stand that were lent, and its length: it stays there for as long
    /// as this does.
    pub fn around(&self, lent: &[u8]) -> Option<(usize, usize)> {
        match self {
            Self::Device(_) => None,
            Self::Sealed(view) => {
                let mapping = view.mapping(lent)?;
                Some((mapping.start, mapping.length))
            }
            Self::Memory(bytes) => Some((bytes.as_ptr().expose_provenance(), bytes.len())),
        }
    }

    /// Fills `buffer` from `offset`: a range that was checked.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        match self {
            Self::Device(device) => device
                .read_at(buffer, offset)
                .map_err(|error| Error::io(device.name(), error)),
            Self::Sealed(view) => view
                .read_at(buffer, offset)
                .map_err(|error| Error::io(view.name(), error)),
            Self::Memory(bytes) => {
                let start = to_usize(offset);
                let end = start.checked_add(buffer.len());
                let found = end.and_then(|end| bytes.get(start..end));
                let found = found.ok_or_else(|| {
                    Error::new(ErrorKind::Internal, "a range that was checked is gone")
                })?;
                buffer.copy_from_slice(found);
                Ok(())
            }
        }
    }
}

impl Debug for Exposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(device) => write!(f, "Device({})", device.name()),
            Self::Sealed(view) => write!(f, "Sealed({})", view.name()),
            Self::Memory(bytes) => write!(f, "Memory({} bytes)", bytes.len()),
        }
    }
}

/// What was found out of one exposure.
#[derive(Default)]
struct Findings {
    fingerprints: BTreeMap<Span, Fingerprint>,
    /// Of whom asked last: of the present start of the job.
    key: Option<FingerprintKey>,
    /// What keeps its memory readable for peers.
    offers: Vec<Offer>,
}

impl Debug for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (known, offered) = (self.fingerprints.len(), self.offers.len());
        write!(f, "Findings({known} fingerprints, {offered} offers)")
    }
}

type Known = Arc<Mutex<Findings>>;

/// Who asks for a description.
#[derive(Debug, Clone, Copy)]
pub struct Asker<'a> {
    /// Whether a file will do.
    pub same_machine: bool,
    /// By what else it can read, if both sides can.
    pub one_sided: Option<&'a dyn OneSided>,
    /// The key by which it compares what it reads.
    pub key: FingerprintKey,
}

/// What one endpoint exposes.
#[derive(Debug, Default)]
pub struct Exposures {
    table: Mutex<BTreeMap<ExposureId, (Exposed, Known)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Exposures {
    /// Exposes `what` under `id`, in place of what was there.
    pub fn insert(&self, id: ExposureId, what: Exposed) {
        drop(lock(&self.table).insert(id, (what, Known::default())));
    }

    /// Exposes nothing under `id` any more.
    pub fn remove(&self, id: ExposureId) {
        drop(lock(&self.table).remove(&id));
    }

    /// Exposes nothing any more.
    pub fn clear(&self) {
        lock(&self.table).clear();
    }

    fn get(&self, id: ExposureId) -> Result<(Exposed, Known)> {
        let found = lock(&self.table).get(&id).cloned();
        found.ok_or_else(|| {
            let context = format!("nothing is exposed as {id}");
            Error::new(ErrorKind::NotRetained, context)
        })
    }

    /// What is exposed under `id`, which has all of `span`.
    pub fn find(&self, id: ExposureId, span: Span) -> Result<Exposed> {
        let (exposed, _) = self.get(id)?;
        exposed
            .check_range(span.offset, span.length)
            .map_err(|error| error.within(&format!("exposure {id}")))?;
        Ok(exposed)
    }

    /// What `asker` has to know of `spans` of what is exposed under `id`: where they stand, for one on the same
    /// machine, how it reads them past this process, and their fingerprints, which are computed now if they are not
    /// known, or `afresh`.
    pub fn describe(
        &self,
        asker: Asker<'_>,
        id: ExposureId,
        (spans, afresh): (&[Span], bool),
        deadline: &Deadline,
    ) -> Result<Description> {
        let (exposed, known) = self.get(id)?;
        let (mut fingerprints, mut remotes) = (Vec::new(), Vec::new());
        for span in spans {
            let checked = exposed.check_range(span.offset, span.length);
            checked.map_err(|error| error.within(&format!("exposure {id}")))?;
            if deadline.left().is_none() {
                let context = format!("describing {} ranges of exposure {id}", spans.len());
                return Err(Error::new(ErrorKind::Timeout, context));
            }
            let bytes = exposed.sealed(*span);
            fingerprints
                .push(bytes.map(|bytes| known_of(&known, (*span, bytes), asker.key, afresh)));
            remotes.push(bytes.and_then(|bytes| {
                let offered = asker.one_sided?;
                let is_long = bytes.len() >= offered.least_bytes();
                let (remote, offer) = is_long.then(|| offered.offer(&exposed, *span, bytes))??;
                keep(&known, offer);
                Some(remote)
            }));
        }
        // Nobody needs the way where no range can be read by it.
        let way = asker
            .one_sided
            .filter(|_| remotes.iter().any(Option::is_some));
        Ok(Description {
            located: asker
                .same_machine
                .then(|| same_node::locate(&exposed))
                .flatten(),
            fingerprints,
            fabric: way.map(|way| Fabric {
                address: way.address(),
                remotes,
            }),
        })
    }
}

fn known_of(
    known: &Known,
    (span, bytes): (Span, &[u8]),
    key: FingerprintKey,
    afresh: bool,
) -> Fingerprint {
    let findings = lock(known);
    let before = findings.fingerprints.get(&span).copied();
    if let Some(before) = before.filter(|_| !afresh && findings.key == Some(key)) {
        return before;
    }
    drop(findings);
    let fingerprint = key.of(bytes).fingerprint;
    let mut known = lock(known);
    if known.fingerprints.len() >= KNOWN_MAX || known.key != Some(key) {
        known.fingerprints.clear();
        known.key = Some(key);
    }
    known.fingerprints.insert(span, fingerprint);
    fingerprint
}

/// Memory stays readable for as long as it is exposed.
fn keep(known: &Known, offer: Offer) {
    let mut known = lock(known);
    if !known.offers.iter().any(|kept| Arc::ptr_eq(kept, &offer)) {
        known.offers.push(offer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: ExposureId = ExposureId([7; 16]);

    fn kind<T>(result: Result<T>) -> Option<ErrorKind> {
        result.err().map(|error| error.kind())
    }

    #[test]
    fn ranges_are_checked_and_withdrawn_bytes_stay_with_their_reader() {
        let exposures = Exposures::default();
        let find = |offset, length| exposures.find(ID, Span { offset, length });
        assert_eq!(kind(find(0, 0)), Some(ErrorKind::NotRetained));
        exposures.insert(ID, Exposed::Memory(Arc::new(b"hello".to_vec())));
        for (offset, length) in [(0, 6), (6, 0), (5, 1), (u64::MAX, 1), (1, u64::MAX)] {
            let found = kind(find(offset, length));
            assert_eq!(found, Some(ErrorKind::InvalidArgument), "{offset} {length}");
        }
        let exposed = find(1, 4).unwrap();
        exposures.remove(ID);
        let mut bytes = [0; 4];
        exposed.read_at(&mut bytes, 1).unwrap();
        assert_eq!(&bytes, b"ello");
        assert_eq!(kind(find(0, 1)), Some(ErrorKind::NotRetained));
    }
}
