// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a range of another device as a device: several stores in one file.
//! In from: `archive`. Out to: the device below.
//! Invariants: nothing outside the range is read or written.

use super::sealed::{Mapping, SealedRange};
use super::{Device, ReadAt};
use backstay_format::width::to_u64;
use std::io::{Error, ErrorKind, Result};
use std::sync::Arc;

/// The bytes `offset..offset + length` of a device.
#[derive(Debug, Clone)]
pub struct Region {
    device: Arc<dyn Device>,
    offset: u64,
    length: u64,
}

impl Region {
    /// The bytes `offset..offset + length` of `device`, which need not be there yet.
    pub fn new(device: Arc<dyn Device>, offset: u64, length: u64) -> Self {
        Self {
            device,
            offset,
            length,
        }
    }

    /// The offset below of `bytes` bytes at `offset`.
    fn place(&self, offset: u64, bytes: usize, beyond: ErrorKind) -> Result<u64> {
        match offset.checked_add(to_u64(bytes)) {
            Some(end) if end <= self.length => Ok(self.offset + offset),
            _ => Err(beyond.into()),
        }
    }
}

impl ReadAt for Region {
    fn length_bytes(&self) -> Result<u64> {
        let below = self.device.length_bytes()?;
        Ok(below.saturating_sub(self.offset).min(self.length))
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let offset = self.place(offset, buffer.len(), ErrorKind::UnexpectedEof)?;
        self.device.read_at(buffer, offset)
    }

    fn lend(&self, range: SealedRange) -> Option<&[u8]> {
        let beyond = ErrorKind::UnexpectedEof;
        self.place(range.offset(), range.length(), beyond).ok()?;
        self.device.lend(range.within(self.offset))
    }

    fn mapping(&self, lent: &[u8]) -> Option<Mapping> {
        self.device.mapping(lent)
    }

    fn name(&self) -> String {
        format!("{} from byte {}", self.device.name(), self.offset)
    }

    fn is_memory(&self) -> bool {
        self.device.is_memory()
    }
}

impl Device for Region {
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let offset = self.place(offset, bytes.len(), ErrorKind::InvalidInput)?;
        self.device.write_at(bytes, offset)
    }

    fn write_parts_at(&self, parts: &[&[u8]], offset: u64) -> Result<()> {
        let bytes = parts.iter().map(|part| part.len()).sum();
        let offset = self.place(offset, bytes, ErrorKind::InvalidInput)?;
        self.device.write_parts_at(parts, offset)
    }

    fn refresh(&self) -> Result<()> {
        self.device.refresh()
    }

    fn sync(&self) -> Result<()> {
        self.device.sync()
    }

    fn reserve(&self, length_bytes: u64) -> Result<()> {
        if length_bytes > self.length {
            let text = format!(
                "a region of {} bytes in {}",
                self.length,
                self.device.name()
            );
            return Err(Error::new(ErrorKind::StorageFull, text));
        }
        let end = self.offset + length_bytes;
        if end <= self.device.length_bytes()? {
            return Ok(());
        }
        self.device.reserve(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::file::FileDevice;

    #[test]
    fn a_region_stays_within_its_range() {
        let folder = tempfile::tempdir().unwrap();
        let file = FileDevice::open(&folder.path().join("file"), true).unwrap();
        let file: Arc<dyn Device> = Arc::new(file);
        file.reserve(1000).unwrap();
        let region = Region::new(Arc::clone(&file), 600, 1000);
        assert_eq!(region.length_bytes().unwrap(), 400);
        region.reserve(300).unwrap();
        assert_eq!(file.length_bytes().unwrap(), 1000, "it is long enough");
        region.reserve(1000).unwrap();
        assert_eq!(region.length_bytes().unwrap(), 1000);
        let full = region.reserve(1001).unwrap_err();
        assert_eq!(full.kind(), ErrorKind::StorageFull);
        region.write_at(&[7; 10], 990).unwrap();
        region.sync().unwrap();
        let mut found = [0; 10];
        file.read_at(&mut found, 1590).unwrap();
        assert_eq!(found, [7; 10]);
        assert!(region.write_at(&[7; 10], 991).is_err());
        assert!(region.write_at(&[7], u64::MAX).is_err());
        let beyond = region.read_at(&mut found, 991).unwrap_err();
        assert_eq!(beyond.kind(), ErrorKind::UnexpectedEof);
    }
}
