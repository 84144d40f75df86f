// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who may speak to an endpoint: peers, in their turn; nobody on the way between them; strangers only so
//! far that they do not keep peers out; former starts of the job no more.

use crate::job::{config, start};
use crate::transport::{ID, SHORT, WITHIN, endpoint, hello, kind, must, options};
use backstay::format::mac::MAC_BYTES;
use backstay::format::wire::{Head, Kind, Refused};
use backstay::{Config, ErrorKind};
use backstay_archive::drain::{publish_secret, shared_secret};
use backstay_archive::job_folder;
use backstay_net::{Endpoint, Exposed, Peer, Secret, SecretSource, TcpEndpoint, TcpOptions};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What somebody on the way makes of a frame: `true` if it is of the client, its number in that direction
/// after the handshake, the frame.
type Tamper = fn(bool, u64, Vec<u8>) -> Vec<Vec<u8>>;

/// Reads a frame of either side; `None` at the end.
fn next_frame(stream: &mut TcpStream, in_session: bool) -> Option<Vec<u8>> {
    let mut frame = vec![0; 32];
    stream.read_exact(&mut frame).ok()?;
    let head = Head::decode(&frame).ok()?;
    let is_sealed = in_session || head.kind == Kind::Accepted.id();
    let tail = if is_sealed { MAC_BYTES } else { 8 };
    frame.resize(32 + head.body_bytes as usize + tail, 0);
    stream.read_exact(&mut frame[32..]).ok()?;
    if head.kind == Kind::Bare.id() {
        // What is in no frame goes with the one before.
        let start = frame.len();
        frame.resize(start + READ_BYTES, 0);
        stream.read_exact(&mut frame[start..]).ok()?;
    }
    Some(frame)
}

/// Bytes that are read past somebody on the way.
const READ_BYTES: usize = 700_000;

/// Hands the frames of one direction on.
fn pump((mut from, mut to): (TcpStream, TcpStream), is_client: bool, tamper: Tamper) {
    let (mut in_session, mut number) = (false, 0);
    while let Some(frame) = next_frame(&mut from, in_session) {
        // The client's proof is its last frame of the handshake, the server's is in its welcome.
        let last = if is_client {
            Kind::Proof
        } else {
            Kind::Accepted
        };
        let was = in_session;
        in_session |= must(Head::decode(&frame)).kind == last.id();
        let frames = if was {
            number += 1;
            tamper(is_client, number - 1, frame)
        } else {
            vec![frame]
        };
        for frame in frames {
            if to.write_all(&frame).is_err() {
                return;
            }
        }
    }
    drop(to.shutdown(std::net::Shutdown::Write));
}

/// Somebody on the way to `server`, for one connection after the other.
fn on_the_way(server: &Peer, tamper: Tamper) -> Peer {
    let listener = must(TcpListener::bind("127.0.0.1:0"));
    let peer = Peer::new("server", must(listener.local_addr()).to_string());
    let address = server.address.clone();
    std::thread::spawn(move || {
        while let Ok((client, _)) = listener.accept() {
            let Ok(server) = TcpStream::connect(&address) else {
                return;
            };
            let (from, to) = (must(client.try_clone()), must(server.try_clone()));
            std::thread::spawn(move || pump((from, to), true, tamper));
            std::thread::spawn(move || pump((server, client), false, tamper));
        }
    });
    peer
}

/// A frame with another body, or another kind, whose head and length are in order.
fn with_kind(frame: &[u8], kind: Kind) -> Vec<u8> {
    let body = must(Head::decode(frame)).body_bytes as usize;
    [&must(Head::new(kind, body)).encode()[..], &frame[32..]].concat()
}

/// Every way to tamper, on one direction or the other.
fn tampers() -> [(&'static str, Tamper); 10] {
    [
        ("a bit of a request", |is_client, _, mut frame| {
            if is_client {
                frame[40] ^= 1;
            }
            vec![frame]
        }),
        ("a bit of an answer", |is_client, _, mut frame| {
            if !is_client {
                frame[32] ^= 0x80;
            }
            vec![frame]
        }),
        ("a bit of a MAC", |_, _, mut frame| {
            let last = frame.len() - 1;
            frame[last] ^= 4;
            vec![frame]
        }),
        ("a bit of what is in no frame", |_, _, mut frame| {
            if frame.len() > READ_BYTES {
                frame[READ_BYTES / 2] ^= 2;
            }
            vec![frame]
        }),
        ("the kind of an answer", |is_client, _, frame| {
            if is_client {
                return vec![frame];
            }
            vec![with_kind(&frame, Kind::Failure)]
        }),
        ("a frame of the server twice", |is_client, _, frame| {
            if is_client {
                return vec![frame];
            }
            vec![frame.clone(), frame]
        }),
        ("a request twice", |is_client, _, frame| {
            if is_client {
                return vec![frame.clone(), frame];
            }
            vec![frame]
        }),
        ("frames of the server in another order", swap),
        (
            "a frame of the server left out",
            |is_client, number, frame| {
                if is_client || number > 0 {
                    return vec![frame];
                }
                Vec::new()
            },
        ),
        ("frames put in", |_, _, frame| {
            let forged = |kind| {
                let head = must(Head::new(kind, 12)).encode();
                [&head[..], &[1; 12 + MAC_BYTES]].concat()
            };
            vec![forged(Kind::Answer), forged(Kind::Call), frame]
        }),
    ]
}

/// The second frame of the server before the first.
fn swap(is_client: bool, number: u64, frame: Vec<u8>) -> Vec<Vec<u8>> {
    static HELD: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());
    if is_client {
        return vec![frame];
    }
    let mut held = must(HELD.lock());
    if number == 0 {
        held.clear();
    }
    held.push(frame);
    if number == 0 {
        return Vec::new();
    }
    held.drain(..).rev().collect()
}

#[test]
fn nobody_on_the_way_changes_repeats_leaves_out_or_puts_in_a_frame() {
    let bytes: Vec<u8> = (0..READ_BYTES).map(|n| n.to_le_bytes()[1]).collect();
    for (what, tamper) in tampers() {
        let server = endpoint(options("server"));
        server.expose(ID, Exposed::Memory(Arc::new(bytes.clone())));
        let handled: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
        let log = Arc::clone(&handled);
        server.serve(Arc::new(move |request: &[u8], _: Duration| {
            must(log.lock()).push(request.to_vec());
            Ok(request.to_vec())
        }));
        let peer = on_the_way(&server.peer(), tamper);
        // A fresh connection each, and one that was used.
        let mut failed = 0;
        for round in 0..3_u8 {
            let client = endpoint(options("client"));
            for step in 0..2_u8 {
                let request = [round, step, 7, 7];
                let mut into = vec![0; bytes.len()];
                let called = client.call(&peer, &request, SHORT);
                let pulled = client.pull(&peer, ID, 0, &mut into, SHORT);
                if let Ok(answer) = &called {
                    assert_eq!(answer, &request, "{what}");
                }
                assert!(pulled.is_err() || into == bytes, "{what}");
                for error in [called.err(), pulled.err()].into_iter().flatten() {
                    failed += 1;
                    let kinds = [
                        ErrorKind::PeerUnreachable,
                        ErrorKind::Timeout,
                        ErrorKind::Corrupt,
                    ];
                    assert!(kinds.contains(&error.kind()), "{what}: {error}");
                }
            }
        }
        // A request that is repeated comes behind the answer to it: its connection ends then.
        let least = if what == "a request twice" { 0 } else { 3 };
        assert!(failed >= least, "{what}: {failed} of 12 failed");
        let handled = must(handled.lock()).clone();
        for request in &handled {
            assert_eq!(&request[2..], [7, 7], "{what}: a request that nobody made");
            let times = handled.iter().filter(|other| *other == request).count();
            assert_eq!(times, 1, "{what}: {request:?} was done {times} times");
        }
        let straight = endpoint(options("straight"));
        assert_eq!(
            must(straight.call(&server.peer(), &[9, 9, 7, 7], WITHIN)),
            [9, 9, 7, 7]
        );
    }
}

static SENT: Mutex<Vec<u8>> = Mutex::new(Vec::new());

#[test]
fn what_a_client_sent_once_opens_no_other_connection() {
    let server = endpoint(options("server"));
    let calls = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&calls);
    server.serve(Arc::new(move |_: &[u8], _: Duration| {
        count.fetch_add(1, Ordering::SeqCst);
        Ok(Vec::new())
    }));
    let record: Tamper = |is_client, _, frame| {
        if is_client {
            must(SENT.lock()).extend(&frame);
        }
        vec![frame]
    };
    let peer = on_the_way(&server.peer(), record);
    must(endpoint(options("client")).call(&peer, b"x", WITHIN));
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    let sent = must(SENT.lock()).clone();
    assert!(!sent.is_empty());
    // Behind a handshake of somebody who knows the secret, and whose connection is taken over.
    let mut wire = hello(&server.peer());
    must(wire.stream.write_all(&sent));
    let (head, kind, body) = wire.read();
    assert_eq!(kind, Kind::Refused);
    let refused = must(Refused::decode(&head, &body));
    assert!(refused.words.contains("MAC"), "{}", refused.words);
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

/// A handler that holds requests until it is told not to.
fn holding(server: &TcpEndpoint) -> Arc<AtomicBool> {
    let held = Arc::new(AtomicBool::new(true));
    let hold = Arc::clone(&held);
    server.serve(Arc::new(move |request: &[u8], _: Duration| {
        while request == b"hold" && hold.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(request.to_vec())
    }));
    held
}

#[test]
fn a_peer_beyond_the_bound_waits_for_a_place() {
    let mut few = options("server");
    few.connections_max = 3;
    let server = endpoint(few);
    let held = holding(&server);
    let peer = server.peer();
    let clients = [0; 5].map(|_| endpoint(options("client")));
    std::thread::scope(|scope| {
        let calls: Vec<_> = clients[..3]
            .iter()
            .map(|client| scope.spawn(|| client.call(&peer, b"hold", WITHIN)))
            .collect();
        std::thread::sleep(Duration::from_millis(200));
        let late = clients[3].call(&peer, b"x", SHORT);
        assert_eq!(
            kind(late),
            Some(ErrorKind::Timeout),
            "it waits within its limit"
        );
        let waits = scope.spawn(|| clients[4].call(&peer, b"x", WITHIN));
        std::thread::sleep(Duration::from_millis(50));
        held.store(false, Ordering::SeqCst);
        assert_eq!(must(must(waits.join())), b"x");
        for call in calls {
            assert_eq!(must(must(call.join())), b"hold");
        }
    });
    // Connections that are kept give way, and who kept one comes back, by a call as well.
    for client in clients.iter().chain(&clients) {
        assert_eq!(must(client.call(&peer, b"x", WITHIN)), b"x");
    }
}

#[test]
fn many_more_peers_than_places_are_all_served() {
    let mut few = options("server");
    few.connections_max = 2;
    let server = endpoint(few);
    server.expose(ID, Exposed::Memory(Arc::new(vec![5; 300_000])));
    let peer = server.peer();
    std::thread::scope(|scope| {
        let each = |_| {
            let peer = &peer;
            scope.spawn(move || {
                let client = endpoint(options("client"));
                for step in 0..5_u8 {
                    assert_eq!(must(client.call(peer, &[step], WITHIN)), [step]);
                    let mut into = vec![0; 300_000];
                    must(client.pull(peer, ID, 0, &mut into, WITHIN));
                    assert!(into.iter().all(|&byte| byte == 5));
                }
            })
        };
        let clients: Vec<_> = (0..12).map(each).collect();
        for client in clients {
            client.join().unwrap();
        }
    });
}

#[test]
fn strangers_do_not_keep_peers_out() {
    let mut few = options("server");
    few.strangers_max = 16;
    few.connections_max = 1;
    let server = endpoint(few);
    let peer = server.peer();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // They come again and again, say nothing, or half of something, and stay.
        for words in [
            &b""[..],
            b"BKSTWIRE",
            &must(Head::new(Kind::Hello, 8000)).encode(),
        ] {
            let words = words.to_vec();
            let (peer, over) = (&peer, &over);
            scope.spawn(move || {
                let mut kept = Vec::new();
                while !over.load(Ordering::SeqCst) {
                    if let Ok(mut stream) = TcpStream::connect(&peer.address) {
                        drop(stream.write_all(&words));
                        kept.push(stream);
                    }
                    if kept.len() > 100 {
                        kept.drain(..50);
                    }
                    std::thread::sleep(Duration::from_millis(10));
                }
            });
        }
        std::thread::sleep(Duration::from_millis(100));
        // From the same address as all of them, which is the worst case.
        let calls = [0; 3].map(|_| endpoint(options("client")).call(&peer, b"x", WITHIN));
        over.store(true, Ordering::SeqCst);
        for call in calls {
            assert_eq!(must(call), b"x");
        }
    });
}

#[test]
fn an_endpoint_listens_only_where_others_are_told_to_come() {
    let secret = Secret::from_bytes([9; 32]);
    let server = endpoint(TcpOptions::new("server", "job", secret));
    let told: std::net::SocketAddr = must(server.address().parse());
    assert!(!told.ip().is_unspecified());
    let client = endpoint(options("client"));
    assert_eq!(must(client.call(&server.peer(), b"x", WITHIN)), b"x");
    // Another address of this host.
    let elsewhere = TcpStream::connect(("127.0.0.2", told.port()));
    assert!(elsewhere.is_err(), "{told} and others");
}

#[test]
fn an_endpoint_that_goes_on_learns_the_secret_of_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    let first = shared_secret(&path).unwrap();
    let mut stays = options("server");
    stays.secret = first.clone();
    stays.secret_source = Some(SecretSource::new(move || shared_secret(&path)));
    let server = endpoint(stays);
    let of_start = |secret: &Secret| {
        let mut options = options("client");
        options.secret = secret.clone();
        endpoint(options)
    };
    let former = of_start(&first);
    assert_eq!(must(former.call(&server.peer(), b"x", WITHIN)), b"x");
    let second = Secret::draw().unwrap();
    publish_secret(folder.path(), &second).unwrap();
    let next = of_start(&second);
    assert_eq!(must(next.call(&server.peer(), b"y", WITHIN)), b"y");
    // What went by the former secret has ended, and does not begin again.
    let late = former.call(&server.peer(), b"x", WITHIN);
    assert!(late.is_err(), "a former start is answered no more");
    let again = former.call(&server.peer(), b"x", WITHIN);
    assert_eq!(kind(again), Some(ErrorKind::Configuration));
    let stranger = of_start(&Secret::draw().unwrap());
    let begun = Instant::now();
    let refused = stranger.call(&server.peer(), b"x", WITHIN);
    assert_eq!(kind(refused), Some(ErrorKind::Configuration));
    assert!(begun.elapsed() < WITHIN);
    assert_eq!(must(next.call(&server.peer(), b"z", WITHIN)), b"z");
}

#[test]
fn every_start_of_a_job_with_an_archive_has_a_secret_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("archive");
    std::fs::create_dir(&archive).unwrap();
    let config = Config {
        archive: Some(archive.clone()),
        ..config(folder.path())
    };
    let job = job_folder(&archive, "test job");
    let mut seen = Vec::new();
    for _ in 0..3 {
        start(1, &config, |rank| {
            rank.compute();
            rank.session.checkpoint().unwrap();
        });
        seen.push(std::fs::read(job.join("secret")).unwrap());
    }
    assert!(seen.iter().all(|secret| secret.len() == Secret::BYTES));
    assert!(seen[0] != seen[1] && seen[1] != seen[2] && seen[0] != seen[2]);
    let left = std::fs::read_dir(&job).unwrap().flatten();
    let beside = left.filter(|entry| entry.file_name().to_string_lossy().starts_with("secret-"));
    assert_eq!(beside.count(), 0, "nothing is left beside it");
}
