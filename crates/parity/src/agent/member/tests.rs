// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: parity that arrives late, rounds that others may have recorded, and logs without room.

use super::*;
use backstay_base::io::ReadAt;
use backstay_base::io::shared::SharedWords;
use backstay_format::{StripeId, StripePiece, Superblock};
use backstay_store::control::Control;
use backstay_store::place::STORE_FILE;
use backstay_store::reserve::ReserveSettings;
use backstay_store::stripe_log::StripeLog;
use std::time::Duration;

pub(in crate::agent) const STORE: StoreId = StoreId(*b"a group's member");
const PARITY_BYTES: u32 = 16 << 10;

/// A new store in `folder`.
pub(in crate::agent) fn reserve(folder: &Path) -> Reserve {
    let device = FileDevice::open(&folder.join(STORE_FILE), true).unwrap();
    let control = Control::start(SharedWords::heap(Control::words_for(16)), 16).unwrap();
    let superblock = Superblock {
        store: STORE,
        segment_bytes: 1 << 18,
        run: 1,
        created_unix_ns: 1,
        job: "parity".to_owned(),
        node: "node".to_owned(),
    };
    let settings = ReserveSettings {
        reserve_bytes_max: None,
        wait: Duration::from_secs(5),
        space_later: false,
    };
    Reserve::create(Arc::new(device), control, &superblock, 4, settings).unwrap()
}

pub(in crate::agent) fn seat(store: StoreId) -> Seat {
    Seat {
        store,
        node: "node".to_owned(),
        domain: "node".to_owned(),
        address: "nowhere".to_owned(),
    }
}

/// The only member of a group, in round 0 of epoch 1.
fn member(folder: &Path) -> NodeMember {
    let mut member = NodeMember::attach(&reserve(folder), folder, None).unwrap();
    member.join(1, (1, 1), &[seat(STORE)]).unwrap();
    member
}

impl NodeMember {
    fn free_slots(&self) -> u64 {
        self.reserve.control().free_slots()
    }

    /// Its log, for which there is no room from now on.
    pub(in crate::agent) fn lose_log(&mut self) -> Option<StripeLog> {
        let (full, _) =
            StripeLog::open([Arc::new(Full), Arc::new(Full), Arc::new(Full)], STORE).unwrap();
        self.log.log.replace(full)
    }
    pub(in crate::agent) fn set_log(&mut self, log: Option<StripeLog>) {
        self.log.log = log;
    }

    /// Where in the store the next so many extents of parity would go.
    fn places(&mut self, count: usize) -> Vec<u64> {
        let place = |_| self.allocate(PARITY_BYTES).unwrap().1;
        (0..count).map(place).collect()
    }
}

#[test]
fn parity_still_on_its_way_keeps_its_place_when_its_round_is_over() {
    let folder = tempfile::tempdir().unwrap();
    let mut member = member(folder.path());
    let free = member.free_slots();
    member.begin((1, 1), 1).unwrap();
    let (late, place) = member.allocate(PARITY_BYTES).unwrap();
    let (early, _) = member.allocate(PARITY_BYTES).unwrap();
    member.arrived((1, 1), &early).unwrap();
    member.begin((1, 2), 1).unwrap();
    // As many as a segment holds: each free place of the same segment is among them.
    let places = member.places(16);
    assert!(!places.contains(&place), "{places:?}");
    let error = member.arrived((1, 1), &late).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    for extent in member.arriving.clone() {
        member.arrived((1, 2), &extent).unwrap();
    }
    member.begin((1, 3), 1).unwrap();
    assert_eq!(member.free_slots(), free, "what no round uses is free");
}

#[test]
fn what_others_may_have_recorded_keeps_its_place_and_what_nobody_can_have_does_not() {
    for (known_from, stays) in [(1, false), (2, true)] {
        let folder = tempfile::tempdir().unwrap();
        let mut member = member(folder.path());
        member.begin((1, 1), 1).unwrap();
        let (extent, place) = member.allocate(PARITY_BYTES).unwrap();
        member.arrived((1, 1), &extent).unwrap();
        member.flush(1, 1).unwrap();
        member.begin((1, 2), known_from).unwrap();
        let places = member.places(16);
        assert_eq!(places.contains(&place), !stays, "{known_from}: {places:?}");
    }
}

/// A long round goes on while its node commits further: checkpoints that it is not about come and go.
#[test]
fn what_a_round_does_not_need_is_free_while_it_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let mut member = member(folder.path());
    member.begin((1, 1), 1).unwrap();
    let control = member.reserve.control().clone();
    let [needed, dropped] = [(); 2].map(|()| {
        let slot = control.take_slot(Owner::Rank(0)).unwrap();
        let segment = control.take_segment_id();
        control.describe_slot(slot, segment, SegmentClass::Large);
        control.retire_slot(slot);
        (slot, segment)
    });
    member.offered.insert(needed.1);
    std::thread::sleep(2 * RELEASE_EVERY);
    member.allocate(PARITY_BYTES).unwrap();
    assert!(control.is_retired(needed.0), "a stripe may name it");
    assert!(!control.is_retired(dropped.0));
}

/// A file on a file system without room.
#[derive(Debug)]
struct Full;

impl ReadAt for Full {
    fn length_bytes(&self) -> std::io::Result<u64> {
        Ok(0)
    }

    fn read_at(&self, _buffer: &mut [u8], _offset: u64) -> std::io::Result<()> {
        Err(std::io::ErrorKind::UnexpectedEof.into())
    }

    fn name(&self) -> String {
        "a full one".to_owned()
    }
}

impl Device for Full {
    fn write_at(&self, _bytes: &[u8], _offset: u64) -> std::io::Result<()> {
        Err(std::io::ErrorKind::StorageFull.into())
    }

    fn sync(&self) -> std::io::Result<()> {
        Ok(())
    }

    fn reserve(&self, _length_bytes: u64) -> std::io::Result<()> {
        Err(std::io::ErrorKind::StorageFull.into())
    }
}

#[test]
fn a_log_without_room_is_said_before_parity_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let mut member = member(folder.path());
    let request = |round| Request::MakeRoom {
        epoch: 1,
        round,
        record_bytes: 1000,
        table_bytes: 1000,
    };
    member.begin((1, 1), 1).unwrap();
    member.answer(&request(1)).unwrap();
    member.lose_log();
    let error = member.answer(&request(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StoreFull, "{error}");
}

pub(in crate::agent) const OTHER: StoreId = StoreId(*b"the other member");

/// The first of two members, in round 0 of epoch 1.
fn first_of_two(folder: &Path) -> NodeMember {
    let mut member = member(folder);
    member.join(1, (1, 1), &[seat(STORE), seat(OTHER)]).unwrap();
    member
}

/// The first record of the group, with the first member's parity at `extent`.
pub(in crate::agent) fn record(extent: Extent) -> Round {
    let piece = |column| StripePiece { column, extent };
    let other = |store| backstay_format::Member {
        store,
        node: "node".to_owned(),
        domain: "node".to_owned(),
        superblock: Vec::new(),
        root: Vec::new(),
    };
    Round {
        generation: 0,
        epoch: 1,
        round: 1,
        whole: true,
        parity: 1,
        asked: 1,
        pieces_max: 1,
        protected: CheckpointId::default(),
        members: vec![other(STORE), other(OTHER)],
        removed: Vec::new(),
        added: vec![Stripe {
            id: StripeId(1),
            pieces: vec![piece(1)],
            parity: vec![piece(0)],
        }],
    }
}

#[test]
fn a_round_that_is_begun_twice_keeps_what_it_took() {
    let folder = tempfile::tempdir().unwrap();
    let mut member = first_of_two(folder.path());
    member.begin((1, 1), 1).unwrap();
    let (extent, place) = member.allocate(PARITY_BYTES).unwrap();
    member.arrived((1, 1), &extent).unwrap();
    member.begin((1, 1), 1).unwrap();
    let places = member.places(16);
    assert!(!places.contains(&place), "{place}: {places:?}");
    member.record(&record(extent)).unwrap();
    member.begin((1, 2), 1).unwrap();
    member.begin((1, 2), 1).unwrap();
}

#[test]
fn a_round_that_is_over_does_not_begin_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut member = first_of_two(folder.path());
    let refused = |member: &mut NodeMember| {
        let error = member.begin((1, 1), 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    };
    member.begin((1, 1), 1).unwrap();
    let (extent, _) = member.allocate(PARITY_BYTES).unwrap();
    member.arrived((1, 1), &extent).unwrap();
    member.record(&record(extent)).unwrap();
    refused(&mut member);
    member.begin((1, 2), 1).unwrap();
    refused(&mut member);
}

#[test]
fn parity_that_was_taken_and_that_no_record_names_is_free_when_the_round_is_over() {
    let folder = tempfile::tempdir().unwrap();
    let mut member = first_of_two(folder.path());
    member.begin((1, 1), 1).unwrap();
    let (named, _) = member.allocate(PARITY_BYTES).unwrap();
    let (twice, place) = member.allocate(PARITY_BYTES).unwrap();
    let (late, other) = member.allocate(PARITY_BYTES).unwrap();
    member.arrived((1, 1), &named).unwrap();
    member.arrived((1, 1), &twice).unwrap();
    member.flush(1, 1).unwrap();
    member.record(&record(named)).unwrap();
    member.arrived((1, 1), &late).unwrap();
    member.settle(1, 1, CheckpointId::default()).unwrap();
    member.begin((1, 2), 1).unwrap();
    let places = member.places(15);
    assert!(places.contains(&place), "{place}: {places:?}");
    assert!(places.contains(&other), "{other}: {places:?}");
}
