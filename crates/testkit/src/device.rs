// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a device in memory that records every operation and fails where a test says so.
//! In from: tests, and a store that owns a handle. Out to: [`crate::crash`], which reads the log.
//! Invariants: the log holds what was done to the bytes, in order, failed parts included; an
//! injected failure happens once.

use crate::bytes::SharedBytes;
use backstay_base::io::{Device, ReadAt};
use backstay_format::width::to_u64;
use std::io::{Error, ErrorKind, Result};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Longest simulated device: as with a file system, there is an end somewhere.
pub const LENGTH_MAX: u64 = 1 << 46;
/// errno of a full device.
pub const ENOSPC: i32 = 28;
/// errno of a quota reached.
pub const EDQUOT: i32 = 122;
/// errno of a device that lost bytes.
pub const EIO: i32 = 5;

/// What was done to a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// These bytes were written. Of a write that failed: the part that was written.
    Write {
        /// Where.
        offset: u64,
        /// What.
        bytes: Arc<[u8]>,
    },
    /// A sync returned `Ok`.
    Sync,
    /// A sync failed: what it should have kept may be lost, whatever a later sync says.
    SyncFailed,
    /// The device grew.
    Reserve {
        /// Its length from then on.
        length_bytes: u64,
    },
    /// A range was given back: zeros stand there.
    Discard {
        /// Where.
        offset: u64,
        /// How many bytes.
        bytes: u64,
    },
    /// The device was cut off.
    Shrink {
        /// Its length from then on.
        length_bytes: u64,
    },
}

/// A failure that waits for its turn.
#[derive(Debug, Clone, Copy)]
struct Fault {
    /// Operations of this kind to let pass first.
    pass: u64,
    errno: i32,
}

/// Counts operations of one kind, and fails one of them when asked to.
#[derive(Debug, Default)]
struct Gate {
    done: u64,
    faults: Vec<Fault>,
}

impl Gate {
    /// The failure of this operation, if it is its turn.
    fn enter(&mut self) -> Option<Error> {
        self.done += 1;
        let due = self.faults.iter().position(|fault| fault.pass == 0);
        for fault in &mut self.faults {
            fault.pass = fault.pass.saturating_sub(1);
        }
        due.map(|index| Error::from_raw_os_error(self.faults.swap_remove(index).errno))
    }
}

#[derive(Debug, Default)]
struct State {
    bytes: SharedBytes,
    log: Vec<Operation>,
    writes: Gate,
    reads: Gate,
    syncs: Gate,
    /// Longest length, and the errno beyond it.
    limit: Option<(u64, i32)>,
    memory: bool,
    /// Syncs to let pass until who uses the device is killed.
    syncs_left: Option<u64>,
    killed: bool,
    /// Ranges that cannot be read, and with which errno.
    unreadable: Vec<(Range<u64>, i32)>,
}

/// A device in memory. Copies are handles of the same device.
#[derive(Debug, Clone, Default)]
pub struct SimDevice {
    state: Arc<Mutex<State>>,
}

impl SimDevice {
    /// An empty device without a limit.
    pub fn new() -> Self {
        Self::default()
    }

    /// A device that holds `bytes`.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self::from_shared(SharedBytes::new(bytes))
    }

    /// A device that holds `bytes`, without copying them.
    pub fn from_shared(bytes: SharedBytes) -> Self {
        let device = Self::new();
        device.lock().bytes = bytes;
        device
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on `reserve` beyond `length_bytes` fails with `ENOSPC`.
    pub fn set_capacity(&self, length_bytes: u64) {
        self.lock().limit = Some((length_bytes, ENOSPC));
    }
    /// From now on `reserve` beyond `length_bytes` fails with `EDQUOT`.
    pub fn set_quota(&self, length_bytes: u64) {
        self.lock().limit = Some((length_bytes, EDQUOT));
    }
    /// Takes capacity and quota away.
    pub fn set_unlimited(&self) {
        self.lock().limit = None;
    }
    /// What [`ReadAt::is_memory`] says; false at first.
    pub fn set_memory(&self, memory: bool) {
        self.lock().memory = memory;
    }

    /// The `nth` write from now (1 is the next) writes half of its bytes and fails with `errno`.
    pub fn fail_write(&self, nth: u64, errno: i32) {
        let pass = nth.saturating_sub(1);
        self.lock().writes.faults.push(Fault { pass, errno });
    }
    /// The `nth` read from now (1 is the next) fails with `errno`.
    pub fn fail_read(&self, nth: u64, errno: i32) {
        let pass = nth.saturating_sub(1);
        self.lock().reads.faults.push(Fault { pass, errno });
    }
    /// The `nth` sync from now (1 is the next) fails with `errno`.
    pub fn fail_sync(&self, nth: u64, errno: i32) {
        let pass = nth.saturating_sub(1);
        self.lock().syncs.faults.push(Fault { pass, errno });
    }

    /// Who uses the device is killed when it begins its `nth` sync from now (1 is the next): that sync and
    /// all that it does after it come to nothing, until [`SimDevice::revive`]. The device did not crash:
    /// what was written before is read again.
    pub fn kill_at_sync(&self, nth: u64) {
        self.lock().syncs_left = Some(nth.saturating_sub(1));
    }
    /// Another one uses the device from now on.
    pub fn revive(&self) {
        let mut state = self.lock();
        (state.killed, state.syncs_left) = (false, None);
    }
    /// From now on reads that touch `range` fail with `errno`, until [`SimDevice::make_readable`].
    pub fn make_unreadable(&self, range: Range<u64>, errno: i32) {
        self.lock().unreadable.push((range, errno));
    }
    /// All can be read again.
    pub fn make_readable(&self) {
        self.lock().unreadable.clear();
    }

    /// Flips the bits of `mask` in the byte at `offset`, unrecorded: damage.
    ///
    /// Returns false if there is no such byte.
    pub fn flip(&self, offset: u64, mask: u8) -> bool {
        let mut state = self.lock();
        let mut byte = [0];
        if !state.bytes.read(&mut byte, offset) {
            return false;
        }
        state.bytes.write(&[byte[0] ^ mask], offset)
    }
    /// Cuts the device off, or lengthens it by zeros, unrecorded: damage.
    pub fn truncate(&self, length_bytes: u64) {
        self.lock().bytes.resize(length_bytes);
    }

    /// Everything recorded so far.
    pub fn log(&self) -> Vec<Operation> {
        self.lock().log.clone()
    }
    /// Number of operations recorded so far: the mark of "acknowledged by now".
    pub fn log_length(&self) -> usize {
        self.lock().log.len()
    }
    /// Forgets the log; what the device holds now is the initial state of what follows.
    pub fn start_log(&self) -> SharedBytes {
        let mut state = self.lock();
        state.log.clear();
        state.bytes.clone()
    }
    /// What it holds, as shared pages.
    pub fn shared_bytes(&self) -> SharedBytes {
        self.lock().bytes.clone()
    }
    /// What it holds.
    pub fn to_vec(&self) -> Vec<u8> {
        self.lock().bytes.to_vec()
    }
    /// Calls of `write_at` so far.
    pub fn write_count(&self) -> u64 {
        self.lock().writes.done
    }
    /// Calls of `read_at` so far.
    pub fn read_count(&self) -> u64 {
        self.lock().reads.done
    }
    /// Calls of `sync` so far.
    pub fn sync_count(&self) -> u64 {
        self.lock().syncs.done
    }
}

impl State {
    /// What a process that was killed does comes to nothing.
    fn alive(&self) -> Result<()> {
        if self.killed {
            return Err(Error::other("the process was killed"));
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8], offset: u64) -> Result<()> {
        self.alive()?;
        let end = offset.checked_add(to_u64(bytes.len()));
        if end.is_none_or(|end| end > self.bytes.length_bytes()) {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "write of {} bytes at {offset} goes beyond the reserved {}",
                    bytes.len(),
                    self.bytes.length_bytes()
                ),
            ));
        }
        let fault = self.writes.enter();
        let count = if fault.is_some() {
            bytes.len() / 2
        } else {
            bytes.len()
        };
        self.bytes.write(&bytes[..count], offset);
        if count > 0 {
            self.log.push(Operation::Write {
                offset,
                bytes: bytes[..count].into(),
            });
        }
        fault.map_or(Ok(()), Err)
    }
}

impl ReadAt for SimDevice {
    fn length_bytes(&self) -> Result<u64> {
        Ok(self.lock().bytes.length_bytes())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let mut state = self.lock();
        state.alive()?;
        if let Some(error) = state.reads.enter() {
            return Err(error);
        }
        let end = offset.saturating_add(to_u64(buffer.len()));
        let meets = |(range, _): &&(Range<u64>, i32)| range.start < end && offset < range.end;
        if let Some((_, errno)) = state.unreadable.iter().find(meets) {
            return Err(Error::from_raw_os_error(*errno));
        }
        if state.bytes.read(buffer, offset) {
            Ok(())
        } else {
            Err(Error::from(ErrorKind::UnexpectedEof))
        }
    }

    fn name(&self) -> String {
        "simulated device".to_owned()
    }

    fn is_memory(&self) -> bool {
        self.lock().memory
    }
}

impl Device for SimDevice {
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.lock().write(bytes, offset)
    }

    fn sync(&self) -> Result<()> {
        let mut state = self.lock();
        if state.syncs_left == Some(0) {
            state.killed = true;
        }
        state.syncs_left = state.syncs_left.map(|left| left.saturating_sub(1));
        state.alive()?;
        let fault = state.syncs.enter();
        state.log.push(match fault {
            None => Operation::Sync,
            Some(_) => Operation::SyncFailed,
        });
        fault.map_or(Ok(()), Err)
    }

    fn reserve(&self, length_bytes: u64) -> Result<()> {
        let mut state = self.lock();
        state.alive()?;
        let length = state.bytes.length_bytes();
        if length_bytes < length {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "a device never shrinks",
            ));
        }
        if length_bytes > LENGTH_MAX {
            return Err(Error::from_raw_os_error(ENOSPC));
        }
        if let Some((limit, errno)) = state.limit
            && length_bytes > limit
        {
            return Err(Error::from_raw_os_error(errno));
        }
        if length_bytes > length {
            state.bytes.resize(length_bytes);
            state.log.push(Operation::Reserve { length_bytes });
        }
        Ok(())
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<()> {
        let mut state = self.lock();
        state.alive()?;
        let end = offset.saturating_add(bytes).min(state.bytes.length_bytes());
        let bytes = end.saturating_sub(offset);
        if bytes > 0 {
            state.bytes.clear(offset, bytes);
            state.log.push(Operation::Discard { offset, bytes });
        }
        Ok(())
    }

    fn shrink(&self, length_bytes: u64) -> Result<bool> {
        let mut state = self.lock();
        state.alive()?;
        let length = state.bytes.length_bytes();
        if length_bytes < length {
            state.bytes.resize(length_bytes);
            state.log.push(Operation::Shrink { length_bytes });
        }
        Ok(length_bytes <= length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errno(result: Result<()>) -> Option<i32> {
        result.expect_err("an error was injected").raw_os_error()
    }

    #[test]
    fn the_log_holds_operations_in_order_and_handles_share_it() {
        let device = SimDevice::new();
        let owned: Box<dyn Device> = Box::new(device.clone());
        owned.reserve(100).unwrap();
        owned.write_at(b"abc", 10).unwrap();
        owned.sync().unwrap();
        owned.reserve(100).unwrap();
        let write = Operation::Write {
            offset: 10,
            bytes: (*b"abc").into(),
        };
        let wanted = vec![
            Operation::Reserve { length_bytes: 100 },
            write,
            Operation::Sync,
        ];
        assert_eq!(device.log(), wanted);
        assert_eq!(&device.to_vec()[10..13], b"abc");
    }

    #[test]
    fn limits_give_the_errno_and_change_nothing() {
        let device = SimDevice::new();
        device.set_capacity(1000);
        device.reserve(1000).unwrap();
        assert_eq!(errno(device.reserve(1001)), Some(ENOSPC));
        device.set_quota(1000);
        assert_eq!(errno(device.reserve(1001)), Some(EDQUOT));
        assert_eq!(device.length_bytes().unwrap(), 1000);
        device.set_unlimited();
        device.reserve(1001).unwrap();
        assert_eq!(errno(device.reserve(u64::MAX)), Some(ENOSPC));
    }

    #[test]
    fn the_nth_operation_fails_once() {
        let device = SimDevice::from_bytes(vec![0; 100]);
        device.fail_write(2, EIO);
        device.write_at(&[1; 4], 0).unwrap();
        assert_eq!(errno(device.write_at(&[2; 4], 0)), Some(EIO));
        assert_eq!(&device.to_vec()[..4], [2, 2, 1, 1], "half was written");
        device.write_at(&[3; 4], 0).unwrap();

        device.fail_sync(1, EIO);
        assert_eq!(errno(device.sync()), Some(EIO));
        device.sync().unwrap();
        let syncs = &device.log()[3..];
        assert_eq!(syncs, [Operation::SyncFailed, Operation::Sync]);

        device.fail_read(1, ENOSPC);
        assert_eq!(errno(device.read_at(&mut [0; 4], 0)), Some(ENOSPC));
        device.read_at(&mut [0; 4], 0).unwrap();
        let counts = (
            device.write_count(),
            device.sync_count(),
            device.read_count(),
        );
        assert_eq!(counts, (3, 2, 2));
    }

    #[test]
    fn what_a_killed_process_does_comes_to_nothing_and_what_it_wrote_is_read() {
        let device = SimDevice::from_bytes(vec![0; 8]);
        device.kill_at_sync(2);
        device.write_at(&[1], 0).unwrap();
        device.sync().unwrap();
        device.write_at(&[2], 1).unwrap();
        assert!(device.sync().is_err() && device.sync().is_err());
        assert!(device.write_at(&[3], 2).is_err() && device.reserve(9).is_err());
        device.revive();
        let mut found = [0; 3];
        device.read_at(&mut found, 0).unwrap();
        assert_eq!(found, [1, 2, 0]);
        assert_eq!(device.log().len(), 3, "two writes and a sync");
        device.make_unreadable(1..2, EIO);
        device.read_at(&mut found, 2).unwrap();
        assert_eq!(errno(device.read_at(&mut found, 0)), Some(EIO));
        device.make_readable();
        device.read_at(&mut found, 0).unwrap();
        device.sync().unwrap();
    }

    #[test]
    fn two_faults_keep_their_own_turns() {
        let device = SimDevice::from_bytes(vec![0; 8]);
        device.fail_write(3, ENOSPC);
        device.fail_write(1, EIO);
        let found: Vec<Option<i32>> = (0..4)
            .map(|_| device.write_at(&[1], 0).err()?.raw_os_error())
            .collect();
        assert_eq!(found, [Some(EIO), None, Some(ENOSPC), None]);
    }

    #[test]
    fn damage_is_not_recorded() {
        let device = SimDevice::from_bytes(vec![7; 10]);
        assert!(device.flip(9, 0x80));
        assert!(!device.flip(10, 1));
        device.truncate(9);
        assert_eq!(device.to_vec(), [7; 9]);
        device.truncate(10);
        assert_eq!(device.to_vec()[9], 0);
        assert!(device.log().is_empty());
    }
}
