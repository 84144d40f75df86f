// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every device of the workspace through the suite, and faulty ones that the suite must refuse.

use backstay_base::io::file::FileDevice;
use backstay_base::io::{Device, ReadAt};
use backstay_testkit::SimDevice;
use backstay_testkit::conformance::device_conformance;
use std::cell::Cell;
use std::io::Result;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

#[test]
fn the_simulated_device_conforms() {
    device_conformance(SimDevice::new);
}

fn files_conform(folder: &Path) {
    let count = Cell::new(0);
    device_conformance(|| {
        count.set(count.get() + 1);
        let path = folder.join(format!("device {}", count.get()));
        FileDevice::open(&path, true).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    });
}

#[test]
fn files_on_disk_conform() {
    files_conform(tempfile::tempdir().unwrap().path());
}

#[test]
fn files_in_memory_conform() {
    // Not every machine has it, and a container's may be read-only.
    if let Ok(folder) = tempfile::tempdir_in("/dev/shm") {
        files_conform(folder.path());
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    Shrinks,
    Lengthens,
    Forgets,
    Sparse,
    Spills,
}

/// A device with one fault.
#[derive(Debug)]
struct Faulty {
    inner: SimDevice,
    fault: Fault,
}

impl ReadAt for Faulty {
    fn length_bytes(&self) -> Result<u64> {
        self.inner.length_bytes()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.inner.read_at(buffer, offset)
    }

    fn name(&self) -> String {
        self.inner.name()
    }

    fn allocated_bytes(&self) -> Result<u64> {
        match self.fault {
            Fault::Sparse => Ok(0),
            _ => self.inner.allocated_bytes(),
        }
    }
}

impl Device for Faulty {
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let end = offset.saturating_add(bytes.len() as u64);
        let length = self.inner.length_bytes()?;
        if self.fault == Fault::Lengthens && end > length && end < 1 << 20 {
            self.inner.reserve(end)?;
        }
        if self.fault == Fault::Spills && end < length {
            self.inner.flip(end, 0xff);
        }
        let last = usize::from(self.fault == Fault::Forgets && bytes.len() > 1);
        self.inner.write_at(&bytes[..bytes.len() - last], offset)
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }

    fn reserve(&self, length_bytes: u64) -> Result<()> {
        if self.fault == Fault::Shrinks && length_bytes < self.inner.length_bytes()? {
            return Ok(());
        }
        self.inner.reserve(length_bytes)
    }
}

fn passes(fault: Fault) -> bool {
    let make = || Faulty {
        inner: SimDevice::new(),
        fault,
    };
    catch_unwind(AssertUnwindSafe(|| device_conformance(make))).is_ok()
}

#[test]
fn the_suite_finds_each_fault() {
    assert!(passes(Fault::None));
    for fault in [
        Fault::Shrinks,
        Fault::Lengthens,
        Fault::Forgets,
        Fault::Sparse,
        Fault::Spills,
    ] {
        assert!(!passes(fault), "{fault:?}");
    }
}
