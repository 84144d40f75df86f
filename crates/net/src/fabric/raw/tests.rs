// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: ports that read from each other in one process, by the providers that every machine has.

use super::*;
use backstay_base::clock::Deadline;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const PIECE: usize = 256 << 10;

/// The library, or words of what is left out without it.
fn library() -> Option<&'static Library> {
    match Library::load() {
        Ok(library) => Some(library),
        Err(words) => {
            let words = format!("SKIPPED: {words} (libfabric1)\n");
            std::io::stderr().write_all(words.as_bytes()).unwrap();
            None
        }
    }
}

fn domain(library: &'static Library, provider: &str) -> Arc<Domain> {
    let host = provider.starts_with("tcp").then_some("127.0.0.1");
    Domain::open(library, provider, host).unwrap()
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(10))
}

fn bytes(count: usize) -> Arc<Vec<u8>> {
    let byte = |index: usize| u8::try_from(index * 7 % 251).unwrap();
    Arc::new((0..count).map(byte).collect())
}

fn register(domain: &Arc<Domain>, bytes: &Arc<Vec<u8>>) -> Registration {
    let exposed = Exposed::Memory(Arc::clone(bytes));
    let around = exposed.around(bytes).unwrap();
    Registration::new(domain, around, exposed).unwrap()
}

/// A port that goes on while `work` is done.
fn served<T>(owner: &Port, work: impl FnOnce() -> T) -> T {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Acquire) {
                owner.poll(None).unwrap();
                std::thread::sleep(Duration::from_micros(50));
            }
        });
        let done = work();
        ended.store(true, Ordering::Release);
        done
    })
}

#[test]
fn one_port_reads_what_another_registered() {
    let Some(library) = library() else { return };
    for provider in ["tcp;ofi_rxm", "shm"] {
        let domain = domain(library, provider);
        let memory = bytes(PIECE + 1000);
        let registration = register(&domain, &memory);
        let owner = Port::open(&domain, (0, 0)).unwrap();
        let reader = Port::open(&domain, (2, PIECE)).unwrap();
        served(&owner, || {
            let peer = reader.peer(owner.address()).unwrap();
            for (start, length) in [(0, PIECE), (1000, PIECE), (17, 1), (PIECE, 1000)] {
                let wanted = &memory[start..start + length];
                let (key, address) = registration.place(wanted).unwrap();
                let mut held = reader.take(Some(&soon())).unwrap().unwrap();
                held.begin(peer, (key, address), length, &soon()).unwrap();
                held.finish(&soon()).unwrap();
                assert!(
                    held.bytes(length).unwrap() == wanted,
                    "{provider}: {length}"
                );
            }
            let all: Vec<Held> = std::iter::from_fn(|| reader.take(None).unwrap()).collect();
            assert_eq!(all.len(), 2, "all pieces came back");
        });
        assert_eq!(
            registration.place(&[0; 8]),
            None,
            "memory that is not in it"
        );
    }
}

#[test]
fn keys_are_drawn_and_one_that_was_revoked_is_refused() {
    let Some(library) = library() else { return };
    let domain = domain(library, "tcp;ofi_rxm");
    let memory = bytes(PIECE);
    let (first, second) = (register(&domain, &memory), register(&domain, &memory));
    let place = first.place(&memory).unwrap();
    assert_ne!(place.0, second.place(&memory).unwrap().0);
    let owner = Port::open(&domain, (0, 0)).unwrap();
    let reader = Port::open(&domain, (1, PIECE)).unwrap();
    drop(first);
    served(&owner, || {
        let peer = reader.peer(owner.address()).unwrap();
        let mut held = reader.take(None).unwrap().unwrap();
        let limit = Deadline::after(Duration::from_secs(2));
        let begun = held.begin(peer, place, PIECE, &limit);
        let failed = begun.and_then(|()| held.finish(&limit)).unwrap_err();
        assert!(matches!(failed, Failed::Refused(_)), "{failed:?}");
    });
}

#[test]
fn a_read_that_nobody_answers_ends_at_its_limit_and_its_memory_stays_with_the_port() {
    let Some(library) = library() else { return };
    let domain = domain(library, "tcp;ofi_rxm");
    let memory = bytes(PIECE);
    let registration = register(&domain, &memory);
    let owner = Port::open(&domain, (0, 0)).unwrap();
    let reader = Port::open(&domain, (1, PIECE)).unwrap();
    let place = registration.place(&memory).unwrap();
    let peer = reader.peer(owner.address()).unwrap();
    // Connected, and then the owner does nothing more.
    let mut held = reader.take(None).unwrap().unwrap();
    served(&owner, || {
        held.begin(peer, place, PIECE, &soon()).unwrap();
        held.finish(&soon()).unwrap();
    });
    held.begin(peer, place, PIECE, &soon()).unwrap();
    let limit = Deadline::after(Duration::from_millis(300));
    assert_eq!(held.finish(&limit), Err(Failed::Late));
    assert!(held.bytes(PIECE).is_none(), "it may be written yet");
    drop(held);
    assert!(reader.take(None).unwrap().is_none(), "nobody else has it");
    // When the read is over, whoever waits gets it.
    let taken = served(&owner, || reader.take(Some(&soon())).unwrap());
    assert!(*taken.unwrap().bytes(PIECE).unwrap() == **memory);
}

#[test]
fn what_is_not_there_is_said() {
    let Some(library) = library() else { return };
    assert!(library.version() >= (1, 11));
    let all = providers(library);
    assert!(all.iter().any(|one| one == "tcp;ofi_rxm"), "{all:?}");
    let refused = Domain::open(library, "no such", None).unwrap_err();
    assert!(refused.contains("looking for a provider"), "{refused}");
}
