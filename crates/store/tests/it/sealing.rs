// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What parity may cover: a slot that is given back and taken again while a sync runs is not sealed by it.

use backstay_base::io::shared::SharedWords;
use backstay_base::io::{Device, ReadAt};
use backstay_format::{SegmentClass, StoreId, Superblock};
use backstay_store::control::{Control, Owner};
use backstay_store::reserve::{Reserve, ReserveSettings};
use backstay_store::space::SegmentSource;
use backstay_testkit::SimDevice;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

type Hook = Box<dyn FnOnce() + Send>;

/// A device in whose next sync something else happens.
#[derive(Default)]
struct Hooked {
    device: SimDevice,
    hook: Mutex<Option<Hook>>,
}

impl fmt::Debug for Hooked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("hooked device")
    }
}

impl ReadAt for Hooked {
    fn length_bytes(&self) -> std::io::Result<u64> {
        self.device.length_bytes()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
        self.device.read_at(buffer, offset)
    }

    fn name(&self) -> String {
        "hooked device".to_owned()
    }
}

impl Device for Hooked {
    fn write_at(&self, bytes: &[u8], offset: u64) -> std::io::Result<()> {
        self.device.write_at(bytes, offset)
    }

    fn sync(&self) -> std::io::Result<()> {
        let hook = self.hook.lock().unwrap().take();
        if let Some(hook) = hook {
            hook();
        }
        self.device.sync()
    }

    fn reserve(&self, length_bytes: u64) -> std::io::Result<()> {
        self.device.reserve(length_bytes)
    }
}

#[test]
fn a_sync_seals_only_the_segments_that_were_there_before_it() {
    let device = Arc::new(Hooked::default());
    let words = SharedWords::heap(Control::words_for(8));
    let control = Control::start(words, 8).unwrap();
    control.set_redundant(true);
    let superblock = Superblock {
        store: StoreId(*b"sealing of slots"),
        segment_bytes: 1 << 18,
        run: 1,
        created_unix_ns: 1,
        job: "sealing".to_owned(),
        node: "node".to_owned(),
    };
    let settings = ReserveSettings {
        reserve_bytes_max: None,
        wait: Duration::from_secs(5),
        space_later: false,
    };
    let shared: Arc<dyn Device> = device.clone();
    let reserve = Reserve::create(shared, control.clone(), &superblock, 2, settings).unwrap();
    let pool = reserve.pool(Owner::Rank(0));
    let (kept, _) = pool.lease(SegmentClass::Small).unwrap();
    let (slot, _) = pool.lease(SegmentClass::Small).unwrap();
    for filled in [kept, slot] {
        pool.filled(filled, 8192);
    }
    // In both cases: never sealed before, and sealed before.
    for _ in 0..2 {
        let (theirs, others) = (control.clone(), reserve.clone());
        let hook = move || {
            theirs.free_slot(slot);
            let again = others.pool(Owner::Parity).lease(SegmentClass::Small);
            assert_eq!(again.unwrap().0, slot);
        };
        *device.hook.lock().unwrap() = Some(Box::new(hook));
        reserve.seal().unwrap();
        assert_eq!(control.sealed(kept), 8192);
        assert_eq!(control.sealed(slot), 0, "another segment stands there now");
        pool.filled(slot, 4096);
        reserve.seal().unwrap();
        assert_eq!(control.sealed(slot), 4096);
    }
    control.free_slot(slot);
    assert_eq!(control.sealed(slot), 0);
}
