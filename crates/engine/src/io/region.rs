// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a range of another device as a device: several stores in one file.
//! In from: `archive`. Out to: the device below.
//! Invariants: nothing outside the range is read or written.

use super::Device;
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

impl Device for Region {
    fn length_bytes(&self) -> Result<u64> {
        let below = self.device.length_bytes()?;
        Ok(below.saturating_sub(self.offset).min(self.length))
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let offset = self.place(offset, buffer.len(), ErrorKind::UnexpectedEof)?;
        self.device.read_at(buffer, offset)
    }
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let offset = self.place(offset, bytes.len(), ErrorKind::InvalidInput)?;
        self.device.write_at(bytes, offset)
    }
    fn refresh(&self) -> Result<()> {
        self.device.refresh()
    }
    fn lend(&self, offset: u64, length: usize) -> Option<&[u8]> {
        let offset = self.place(offset, length, ErrorKind::UnexpectedEof).ok()?;
        self.device.lend(offset, length)
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
    fn name(&self) -> String {
        format!("{} from byte {}", self.device.name(), self.offset)
    }
    fn is_memory(&self) -> bool {
        self.device.is_memory()
    }
}
