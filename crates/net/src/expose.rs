// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the table of what peers may pull from this endpoint.
//! In from: `expose` and `withdraw` of an endpoint. Out to: the side of a pull that owns the bytes.
//! Invariants: a range is checked against the length before a byte is read; what was looked up stays
//! alive until its reader is done, withdrawn or not.

use super::ExposureId;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::Device;
use backstay_base::io::sealed::SealedView;
use backstay_format::width::{to_u64, to_usize};
use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What peers may pull from.
#[derive(Clone)]
pub enum Exposed {
    /// The bytes of a device: a store. They are copied when they are sent, because they may be written
    /// meanwhile.
    Device(Arc<dyn Device>),
    /// The same of a device that knows which of them nobody writes: those are sent from where they stand.
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

/// What one endpoint exposes.
#[derive(Debug, Default)]
pub struct Exposures {
    table: Mutex<BTreeMap<ExposureId, Exposed>>,
}

impl Exposures {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<ExposureId, Exposed>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Exposes `what` under `id`, in place of what was there.
    pub fn insert(&self, id: ExposureId, what: Exposed) {
        drop(self.lock().insert(id, what));
    }

    /// Exposes nothing under `id` any more.
    pub fn remove(&self, id: ExposureId) {
        drop(self.lock().remove(&id));
    }

    /// Exposes nothing any more.
    pub fn clear(&self) {
        self.lock().clear();
    }

    /// What is exposed under `id`, with `length` bytes at `offset`.
    pub fn find(&self, id: ExposureId, offset: u64, length: u64) -> Result<Exposed> {
        let found = self.lock().get(&id).cloned();
        let Some(exposed) = found else {
            let context = format!("nothing is exposed as {id}");
            return Err(Error::new(ErrorKind::NotRetained, context));
        };
        exposed
            .check_range(offset, length)
            .map_err(|error| error.within(&format!("exposure {id}")))?;
        Ok(exposed)
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
        assert_eq!(kind(exposures.find(ID, 0, 0)), Some(ErrorKind::NotRetained));
        exposures.insert(ID, Exposed::Memory(Arc::new(b"hello".to_vec())));
        for (offset, length) in [(0, 6), (6, 0), (5, 1), (u64::MAX, 1), (1, u64::MAX)] {
            let found = kind(exposures.find(ID, offset, length));
            assert_eq!(found, Some(ErrorKind::InvalidArgument), "{offset} {length}");
        }
        let exposed = exposures.find(ID, 1, 4).unwrap();
        exposures.remove(ID);
        let mut bytes = [0; 4];
        exposed.read_at(&mut bytes, 1).unwrap();
        assert_eq!(&bytes, b"ello");
        assert_eq!(kind(exposures.find(ID, 0, 1)), Some(ErrorKind::NotRetained));
    }
}
