// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what every [`Device`], [`Communicator`] and transport must do, as suites to run one through.
//! In: a maker of fresh devices, or the ranks of a communicator. Out: a panic that names the rule.
//! Invariants: the contracts stand at the traits; a rule here is one of their sentences.

mod transport;

pub use transport::{TransportLab, transport_conformance};

use crate::comm::run_ranks;
use crate::oracle::noise;
use backstay_base::io::Device;
use backstay_base::{Communicator, ErrorKind};
use std::sync::atomic::{AtomicU64, Ordering};

const MIB: u64 = 1 << 20;

/// Runs devices made by `make`, each fresh and empty, through every rule of the trait.
///
/// # Panics
/// Panics at the first rule that is broken, naming it.
pub fn device_conformance<D: Device>(make: impl Fn() -> D) {
    grows_with_zeros_and_never_shrinks(&make());
    moves_all_bytes_or_fails(&make());
    keeps_to_its_length(&make());
    keeps_what_was_written_when_it_grows(&make());
    fails_without_real_space(&make());
    is_shared_by_threads(&make());
}

fn grows_with_zeros_and_never_shrinks(device: &dyn Device) {
    assert!(!device.name().is_empty(), "a device has a name");
    assert_eq!(length(device), 0, "a fresh device is empty");
    reserve(device, 10_000);
    assert_eq!(length(device), 10_000, "reserve sets the length");
    assert_eq!(
        read(device, 0, 10_000),
        [0; 10_000],
        "reserve fills with zeros"
    );
    let allocated = device.allocated_bytes();
    let real = allocated.as_ref().is_ok_and(|&bytes| bytes >= 10_000);
    assert!(real, "reserved space is real: {allocated:?}");
    reserve(device, 10_000);
    assert!(device.reserve(9_999).is_err(), "a device never shrinks");
    assert_eq!(length(device), 10_000, "a refused reserve changes nothing");
}

fn moves_all_bytes_or_fails(device: &dyn Device) {
    reserve(device, 5 * MIB);
    let places = [
        (0, 1),
        (1, 511),
        (4095, 2),
        (12_345, 100_000),
        (MIB + 3, 3 << 20),
    ];
    for (seed, (offset, count)) in (0u64..).zip(places) {
        let bytes = noise(seed, count);
        write(device, &bytes, offset);
        assert!(
            read(device, offset, count) == bytes,
            "a write is read again"
        );
    }
    let before = read(device, 0, 5 << 20);
    write(device, b"inside", 7777);
    let after = read(device, 0, 5 << 20);
    assert_eq!(after[7777..7783], *b"inside");
    let outside = after[..7777] == before[..7777] && after[7783..] == before[7783..];
    assert!(outside, "a write touches its own range only");
    write(device, &[], 5 * MIB);
    assert!(
        read(device, 5 * MIB, 0).is_empty(),
        "nothing can be moved anywhere inside"
    );
    sync(device);
    assert!(read(device, 0, 5 << 20) == after, "a sync changes nothing");
    sync(device);
}

fn keeps_to_its_length(device: &dyn Device) {
    reserve(device, 4096);
    write(device, &[7; 4096], 0);
    for (offset, count) in [(4096, 1), (4095, 2), (0, 4097), (1 << 40, 8), (u64::MAX, 2)] {
        let read = device.read_at(&mut vec![0; count], offset);
        assert!(
            read.is_err(),
            "a read beyond the end fails: {count} at {offset}"
        );
        let written = device.write_at(&vec![9; count], offset);
        assert!(
            written.is_err(),
            "a write beyond the end fails: {count} at {offset}"
        );
        assert_eq!(
            length(device),
            4096,
            "a write never lengthens: {count} at {offset}"
        );
    }
}

fn keeps_what_was_written_when_it_grows(device: &dyn Device) {
    reserve(device, 5000);
    let bytes = noise(5, 5000);
    write(device, &bytes, 0);
    reserve(device, 3 * MIB);
    assert_eq!(length(device), 3 * MIB);
    assert_eq!(
        read(device, 0, 5000),
        bytes,
        "growth keeps what was written"
    );
    let rest = read(device, 5000, (3 << 20) - 5000);
    assert!(
        rest.iter().all(|&byte| byte == 0),
        "growth fills with zeros"
    );
}

fn fails_without_real_space(device: &dyn Device) {
    reserve(device, 4096);
    let refused = device.reserve(1 << 62);
    assert!(refused.is_err(), "4 EiB are not there");
    assert_eq!(length(device), 4096, "a failed reserve changes nothing");
    write(device, &[1; 4096], 0);
    sync(device);
}

fn is_shared_by_threads(device: &dyn Device) {
    reserve(device, MIB);
    // Neighbours share pages: 65,000 is no multiple of one.
    let count = 65_000;
    run_ranks((0u64..16).collect(), |index| {
        for round in 0..8 {
            let bytes = noise(index * 100 + round, count);
            write(device, &bytes, index * 65_000);
            let found = read(device, index * 65_000, count);
            assert!(found == bytes, "threads do not disturb each other: {index}");
        }
        sync(device);
    });
}

fn length(device: &dyn Device) -> u64 {
    match device.length_bytes() {
        Ok(bytes) => bytes,
        Err(error) => panic!("length_bytes: {error}"),
    }
}

fn reserve(device: &dyn Device, length_bytes: u64) {
    if let Err(error) = device.reserve(length_bytes) {
        panic!("reserve of {length_bytes} bytes: {error}");
    }
}

fn read(device: &dyn Device, offset: u64, count: usize) -> Vec<u8> {
    let mut bytes = vec![0xa5; count];
    if let Err(error) = device.read_at(&mut bytes, offset) {
        panic!("read of {count} bytes at {offset}: {error}");
    }
    bytes
}

fn write(device: &dyn Device, bytes: &[u8], offset: u64) {
    if let Err(error) = device.write_at(bytes, offset) {
        panic!("write of {} bytes at {offset}: {error}", bytes.len());
    }
}

fn sync(device: &dyn Device) {
    if let Err(error) = device.sync() {
        panic!("sync: {error}");
    }
}

/// Runs the ranks of a communicator, each on its own thread, through every rule of the trait.
///
/// # Panics
/// Panics at the first rule that is broken, naming it.
pub fn communicator_conformance<C: Communicator>(ranks: Vec<C>) {
    let size = ranks.len();
    let arrived = AtomicU64::new(0);
    let seen = run_ranks(ranks, |comm| {
        assert_eq!(comm.size() as usize, size, "size is the number of ranks");
        for round in 0..50 {
            gathers_in_rank_order(&comm, round);
            takes_the_maximum(&comm, i64::from(round));
            waits_for_all(&comm, &arrived, u64::from(round));
            gathers_any_length_at_a_root(&comm, round);
            broadcasts_what_the_root_has(&comm, round);
        }
        refuses_a_wrong_length(&comm);
        comm.rank()
    });
    let mut seen = seen;
    seen.sort_unstable();
    let each_once = seen.iter().zip(0..).all(|(&rank, wanted)| rank == wanted);
    assert!(each_once, "each rank once, from 0: {seen:?}");
}

fn gathers_in_rank_order(comm: &dyn Communicator, round: u32) {
    let size = comm.size() as usize;
    for length in [0, 1, 8, 1000] {
        let part = |rank: u32| noise(u64::from(rank * 1000 + round), length);
        let mut all = vec![0xa5; size * length];
        let result = comm.allgather(&part(comm.rank()), &mut all);
        assert!(result.is_ok(), "allgather: {result:?}");
        let wanted: Vec<u8> = (0..comm.size()).flat_map(part).collect();
        assert!(all == wanted, "allgather gives all parts in rank order");
    }
}

fn takes_the_maximum(comm: &dyn Communicator, round: i64) {
    let (rank, size) = (i64::from(comm.rank()), i64::from(comm.size()));
    let only_mine = if rank == round % size {
        round
    } else {
        i64::MIN
    };
    let mut values = [rank + round, -rank - round, only_mine, i64::MIN, i64::MAX];
    let result = comm.allreduce_max(&mut values);
    assert!(result.is_ok(), "allreduce_max: {result:?}");
    let wanted = [size - 1 + round, -round, round, i64::MIN, i64::MAX];
    assert_eq!(values, wanted, "allreduce_max takes each maximum");
    let result = comm.allreduce_max(&mut []);
    assert!(result.is_ok(), "allreduce_max of nothing: {result:?}");
}

fn waits_for_all(comm: &dyn Communicator, arrived: &AtomicU64, round: u64) {
    let size = u64::from(comm.size());
    arrived.fetch_add(1, Ordering::Relaxed);
    let result = comm.barrier();
    assert!(result.is_ok(), "barrier: {result:?}");
    let now = arrived.load(Ordering::Relaxed);
    let least = (round + 1) * size;
    assert!(now >= least, "a barrier waits for all: {now} of {least}");
}

fn gathers_any_length_at_a_root(comm: &dyn Communicator, round: u32) {
    let root = round % comm.size();
    // Some bring nothing; of the rounds with long parts there are few.
    let scale = if round == 7 { 100_000 } else { 700 };
    let length = |rank: u32| ((rank * 5 + round) % 3) as usize * scale + (rank % 2) as usize;
    let part = |rank: u32| noise(u64::from(rank * 1000 + round), length(rank));
    let gathered = comm.gather(&part(comm.rank()), root);
    let Ok(gathered) = gathered else {
        panic!("gather: {gathered:?}");
    };
    if comm.rank() == root {
        let wanted: Vec<Vec<u8>> = (0..comm.size()).map(part).collect();
        assert!(
            gathered == wanted,
            "gather gives the root all parts in rank order, of their lengths"
        );
    } else {
        assert!(gathered.is_empty(), "only the root has what was gathered");
    }
}

fn broadcasts_what_the_root_has(comm: &dyn Communicator, round: u32) {
    let root = (round + 1) % comm.size();
    for length in [0, 1, 8, 4099] {
        let of = |rank: u32| noise(u64::from(rank * 77 + round), length);
        let mut bytes = of(comm.rank());
        let result = comm.broadcast(&mut bytes, root);
        assert!(result.is_ok(), "broadcast: {result:?}");
        assert!(bytes == of(root), "broadcast gives all what the root has");
    }
}

fn refuses_a_wrong_length(comm: &dyn Communicator) {
    let mut short = vec![0; 8 * comm.size() as usize - 1];
    let kind = comm.allgather(&[1; 8], &mut short).map_err(|e| e.kind());
    assert_eq!(
        kind,
        Err(ErrorKind::InvalidArgument),
        "allgather refuses a buffer of another length, before it communicates"
    );
    let nobody = comm.size();
    let kinds = [
        comm.gather(&[1], nobody).map(drop),
        comm.broadcast(&mut [1], nobody),
    ];
    for kind in kinds.map(|refused| refused.map_err(|error| error.kind())) {
        let wanted = Err(ErrorKind::InvalidArgument);
        assert_eq!(kind, wanted, "a root beyond the size is refused");
    }
    let result = comm.barrier();
    assert!(result.is_ok(), "a refused call breaks nothing: {result:?}");
}
