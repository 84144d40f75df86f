// SPDX-License-Identifier: Apache-2.0 OR MIT
//! TCP endpoints beside others that refuse, stall, die, or say what nobody understands.

use backstay_base::io::Device;
use backstay_base::io::file::FileDevice;
use backstay_base::{ErrorKind, Result};
use backstay_format::FingerprintKey;
use backstay_format::mac::{MAC_BYTES, Sealer, secret_id};
use backstay_format::wire::{
    Description, Head, Hello, Kind, Proof, Reason, Refused, Role, Span, Welcome, open, proven, seal,
};
use backstay_net::{Endpoint, Exposed, ExposureId, Peer, Secret, TcpEndpoint, TcpOptions};
use hmac::Mac;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub(crate) const WITHIN: Duration = Duration::from_secs(10);
pub(crate) const SHORT: Duration = Duration::from_millis(300);
const SECRET: [u8; 32] = [9; 32];
pub(crate) const ID: ExposureId = ExposureId([4; 16]);

pub(crate) fn must<T, E: std::fmt::Debug>(result: std::result::Result<T, E>) -> T {
    result.unwrap_or_else(|error| panic!("{error:?}"))
}

pub(crate) fn options(name: &str) -> TcpOptions {
    let mut options = TcpOptions::new(name, "job", Secret::from_bytes(SECRET));
    options.listen = Some(([127, 0, 0, 1], 0).into());
    options
}

pub(crate) fn endpoint(options: TcpOptions) -> TcpEndpoint {
    let endpoint = must(TcpEndpoint::open(options));
    endpoint.serve(Arc::new(|request: &[u8], _: Duration| Ok(request.to_vec())));
    endpoint
}

pub(crate) fn kind<T>(result: Result<T>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

/// Runs `work`, which must keep to its limit of [`SHORT`].
fn timely<T>(work: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let result = work();
    let took = begun.elapsed();
    assert!(took < SHORT + Duration::from_secs(2), "{took:?}");
    result
}

/// Reads one frame of a handshake.
pub(crate) fn read_frame(stream: &mut TcpStream) -> Vec<u8> {
    let mut frame = vec![0; 32];
    must(stream.read_exact(&mut frame));
    let head = must(Head::decode(&frame));
    let body = head.body_bytes as usize;
    frame.resize(32 + body + 8, 0);
    must(stream.read_exact(&mut frame[32..]));
    frame
}

/// A connection that was accepted, in the hands of a test.
pub(crate) struct Wire {
    pub(crate) stream: TcpStream,
    pub(crate) send: Sealer,
    receive: Sealer,
}

impl Wire {
    fn new(stream: TcpStream, role: Role, hello: &[u8], welcome: &[u8]) -> Self {
        let of = |role| Sealer::derive(&SECRET, role, hello, welcome);
        let (client, server) = (of(Role::Client), of(Role::Server));
        let (send, receive) = match role {
            Role::Client => (client, server),
            Role::Server => (server, client),
        };
        Self {
            stream,
            send,
            receive,
        }
    }

    pub(crate) fn write(&mut self, kind: Kind, body: &[u8]) -> std::io::Result<()> {
        let frame = must(self.send.seal(kind, body));
        self.stream.write_all(&frame)
    }

    /// The next frame.
    pub(crate) fn read(&mut self) -> (Head, Kind, Vec<u8>) {
        let mut frame = vec![0; 32];
        must(self.stream.read_exact(&mut frame));
        let body = must(Head::decode(&frame)).body_bytes as usize;
        frame.resize(32 + body + MAC_BYTES, 0);
        must(self.stream.read_exact(&mut frame[32..]));
        let (head, kind, body) = must(self.receive.open(&frame));
        (head, kind, body.to_vec())
    }

    /// Describes the one range that was asked for, sealed or not, and waits for what follows.
    fn describe(&mut self, sealed: Option<[u8; 100]>) {
        let fingerprint =
            sealed.map(|bytes| FingerprintKey::derive(&SECRET).of(&bytes).fingerprint);
        let description = Description {
            located: None,
            fingerprints: vec![fingerprint],
            fabric: None,
        };
        drop(self.write(Kind::Description, &must(description.encode())));
        self.wait_for_request();
    }

    /// Waits for the head of a request, and reads the rest where it is short.
    fn wait_for_request(&mut self) {
        let mut head = [0; 32];
        if self.stream.read_exact(&mut head).is_err() {
            return;
        }
        let rest = must(Head::decode(&head)).body_bytes as usize + MAC_BYTES;
        if rest < 1000 {
            must(self.stream.read_exact(&mut vec![0; rest]));
        }
    }
}

fn said_hello() -> Hello {
    Hello {
        nonce: [3; 32],
        secret: secret_id(&SECRET),
        job: "job".to_owned(),
        name: "stranger".to_owned(),
    }
}

fn mac(role: Role, hello: &[u8], welcome: &[u8]) -> [u8; 32] {
    let mut mac = must(hmac::Hmac::<sha2::Sha256>::new_from_slice(&SECRET));
    mac.update(&proven(role, hello, welcome));
    mac.finalize().into_bytes().into()
}

/// Does what a server does until the connection is accepted.
fn welcome(mut stream: TcpStream) -> Wire {
    let hello = read_frame(&mut stream);
    let hello = must(open(&hello)).2;
    let mut said = Welcome {
        proof: [0; 32],
        nonce: [1; 32],
        machine: [2; 16],
        job: "job".to_owned(),
        name: "impostor".to_owned(),
    };
    said.proof = mac(Role::Server, hello, &must(said.encode()));
    must(stream.write_all(&must(seal(Kind::Welcome, &must(said.encode())))));
    read_frame(&mut stream);
    let mut wire = Wire::new(stream, Role::Server, hello, &must(said.encode()));
    must(wire.write(Kind::Accepted, &[]));
    wire
}

/// Does what a client does until the connection is accepted.
pub(crate) fn hello(peer: &Peer) -> Wire {
    let mut stream = must(TcpStream::connect(&peer.address));
    must(stream.set_read_timeout(Some(WITHIN)));
    let said = must(said_hello().encode());
    must(stream.write_all(&must(seal(Kind::Hello, &said))));
    let welcome = read_frame(&mut stream);
    let welcome = must(open(&welcome)).2;
    let proof = mac(Role::Client, &said, welcome);
    must(stream.write_all(&must(seal(Kind::Proof, &Proof { proof }.encode()))));
    let mut wire = Wire::new(stream, Role::Client, &said, welcome);
    assert_eq!(wire.read().1, Kind::Accepted);
    wire
}

/// A server that does `work` on each connection that was accepted, `count` of them.
fn impostor(
    count: usize,
    work: impl Fn(&mut Wire) + Send + Sync + 'static,
) -> (Peer, JoinHandle<()>) {
    let listener = must(TcpListener::bind("127.0.0.1:0"));
    let peer = Peer::new("impostor", must(listener.local_addr()).to_string());
    let thread = std::thread::spawn(move || {
        std::thread::scope(|scope| {
            for _ in 0..count {
                let (stream, _) = must(listener.accept());
                let work = &work;
                scope.spawn(move || {
                    let mut wire = welcome(stream);
                    wire.wait_for_request();
                    work(&mut wire);
                });
            }
        });
    });
    (peer, thread)
}

/// The refusal that a server answers `bytes` with, before it closes.
fn refusal(peer: &Peer, bytes: &[u8]) -> Option<Refused> {
    let mut stream = must(TcpStream::connect(&peer.address));
    must(stream.set_read_timeout(Some(WITHIN)));
    must(stream.write_all(bytes));
    let mut answer = Vec::new();
    drop(stream.read_to_end(&mut answer));
    let (head, kind, body) = open(&answer).ok()?;
    (kind == Kind::Refused).then(|| must(Refused::decode(&head, body)))
}

#[test]
fn a_wrong_secret_and_another_job_are_refused_on_both_sides() {
    let server = endpoint(options("server"));
    let mut wrong = options("wrong");
    wrong.secret = must(Secret::draw());
    let mut other = options("other");
    other.job = "another job".to_owned();
    for (options, word) in [(wrong, "secret"), (other, "another job")] {
        let client = endpoint(options);
        for (from, to) in [(&client, &server), (&server, &client)] {
            let error = from.call(&to.peer(), b"x", WITHIN).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
            assert!(error.to_string().contains(word), "{error}");
            let mut byte = [0];
            let result = from.pull(&to.peer(), ID, 0, &mut byte, WITHIN);
            assert_eq!(kind(result), Some(ErrorKind::Configuration));
        }
    }
    // A client that does not look at the server's proof, and has none of its own.
    let mut stream = must(TcpStream::connect(server.address()));
    must(stream.write_all(&must(seal(Kind::Hello, &must(said_hello().encode())))));
    read_frame(&mut stream);
    must(stream.write_all(&must(seal(Kind::Proof, &Proof { proof: [0; 32] }.encode()))));
    let answer = read_frame(&mut stream);
    let (head, _, body) = must(open(&answer));
    let refused = must(Refused::decode(&head, body));
    assert_eq!(refused.reason, Reason::Secret);
    assert_eq!(must(server.call(&server.peer(), b"x", WITHIN)), b"x");
}

#[test]
fn another_version_is_refused_on_both_sides() {
    let server = endpoint(options("server"));
    let later = |kind| {
        let head = Head {
            major: 3,
            ..must(Head::new(kind, 0))
        };
        [&head.encode()[..], &[0; 8]].concat()
    };
    let refused = refusal(&server.peer(), &later(Kind::Hello)).unwrap();
    assert_eq!(refused.reason, Reason::Version);
    for version in ['2', '3'] {
        assert!(refused.words.contains(version), "{}", refused.words);
    }
    // One of before the first release.
    let earlier = Head {
        major: 1,
        ..must(Head::new(Kind::Hello, 0))
    };
    let refused = refusal(&server.peer(), &earlier.encode()).unwrap();
    assert_eq!(refused.reason, Reason::Version);
    assert!(refused.words.contains("not 1"), "{}", refused.words);

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = Peer::new("later", listener.local_addr().unwrap().to_string());
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = must(listener.accept());
        read_frame(&mut stream);
        must(stream.write_all(&later(Kind::Welcome)));
        drop(stream.read(&mut [0; 1]));
    });
    let result = server.call(&peer, b"x", WITHIN);
    assert_eq!(kind(result), Some(ErrorKind::Unsupported));
    thread.join().unwrap();
}

#[test]
fn garbage_on_the_port_is_refused_and_the_server_goes_on() {
    let server = endpoint(options("server"));
    let peer = server.peer();
    let hello = |length: u32| {
        let head = Head {
            body_bytes: length,
            ..must(Head::new(Kind::Hello, 0))
        };
        head.encode().to_vec()
    };
    for bytes in [
        b"GET / HTTP/1.1\r\nHost: somewhere.example\r\n\r\n".to_vec(),
        vec![0; 100_000],
        hello(8_193),
        hello(u32::MAX),
        must(seal(Kind::Call, b"no hello before")),
        // Nobody waits for 64 MiB of a stranger, or takes memory for them.
        must(Head::new(Kind::Call, 64 << 20)).encode().to_vec(),
        must(seal(Kind::Hello, b"short")),
    ] {
        let refused = refusal(&peer, &bytes);
        assert_eq!(
            refused.map(|refused| refused.reason),
            Some(Reason::Protocol)
        );
    }
    // Half a frame, then silence: nobody waits for it.
    let mut silent = TcpStream::connect(&peer.address).unwrap();
    silent
        .write_all(&must(seal(Kind::Hello, b""))[..20])
        .unwrap();
    assert_eq!(server.call(&peer, b"x", WITHIN).unwrap(), b"x");
    // After the handshake as well.
    for is_frame in [true, false] {
        let mut wire = self::hello(&peer);
        let welcome = must(wire.send.seal(Kind::Welcome, b""));
        let bytes = if is_frame { welcome } else { vec![1; 64] };
        wire.stream.write_all(&bytes).unwrap();
        assert_eq!(wire.read().1, Kind::Refused);
        let left = wire.stream.read(&mut [0; 1]);
        assert_eq!(left.unwrap_or(0), 0, "it is closed");
    }
    assert_eq!(server.call(&peer, b"x", WITHIN).unwrap(), b"x");
}

#[test]
fn what_an_authenticated_peer_does_wrong_is_an_error() {
    type Wrong = fn(&mut Wire);
    let wrongs: [(Wrong, ErrorKind); 7] = [
        (|_| std::thread::sleep(SHORT * 3), ErrorKind::Timeout),
        (|_| {}, ErrorKind::PeerUnreachable),
        (
            |wire| drop(wire.stream.write_all(b"no frame at all, but bytes enough")),
            ErrorKind::PeerUnreachable,
        ),
        (
            |wire| {
                let head = Head {
                    body_bytes: u32::MAX,
                    ..must(Head::new(Kind::Answer, 0))
                }
                .encode();
                drop(wire.stream.write_all(&head));
            },
            ErrorKind::PeerUnreachable,
        ),
        (
            |wire| drop(wire.write(Kind::Hello, b"x")),
            ErrorKind::PeerUnreachable,
        ),
        (
            |wire| drop(wire.write(Kind::Failure, b"x")),
            ErrorKind::PeerUnreachable,
        ),
        (
            |wire| {
                drop(
                    wire.stream
                        .write_all(&must(Head::new(Kind::Answer, 1000)).encode()),
                );
                std::thread::sleep(SHORT * 3);
            },
            ErrorKind::Timeout,
        ),
    ];
    let client = endpoint(options("client"));
    for (index, (wrong, wanted)) in wrongs.into_iter().enumerate() {
        let (peer, thread) = impostor(2, wrong);
        let call = timely(|| client.call(&peer, b"x", SHORT));
        assert_eq!(kind(call), Some(wanted), "call {index}");
        let mut into = [0; 100];
        let pull = timely(|| client.pull(&peer, ID, 0, &mut into, SHORT));
        // What answers a call is nonsense for a pull; the length of a failure's text is wrong.
        assert_eq!(kind(pull), Some(wanted), "pull {index}");
        thread.join().unwrap();
    }
}

#[test]
fn a_process_that_is_stopped_is_late_and_a_busy_one_too() {
    let client = endpoint(options("client"));
    // The kernel of a stopped process still takes connections, as far as its backlog goes.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = Peer::new("stopped", listener.local_addr().unwrap().to_string());
    let call = timely(|| client.call(&peer, b"x", SHORT));
    assert_eq!(kind(call), Some(ErrorKind::Timeout));
    // One that reads nothing: a request larger than all buffers on the way.
    let (peer, thread) = impostor(1, |_| std::thread::sleep(SHORT * 2));
    let head = client.call(&peer, b"x", Duration::ZERO);
    assert_eq!(kind(head), Some(ErrorKind::Timeout), "no time at all");
    let call = timely(|| client.call(&peer, &vec![0; 60 << 20], SHORT));
    assert_eq!(kind(call), Some(ErrorKind::Timeout));
    drop(thread);
}

type Answer = fn(&mut Wire);

/// Answers to a pull, and what the reader makes of them.
const WRONG_BYTES: [(Answer, ErrorKind); 9] = [
    // Other bytes than were described, and the owner does not have them.
    (
        |wire| {
            wire.describe(Some([1; 100]));
            drop(wire.write(Kind::Bare, &[]));
            drop(wire.stream.write_all(&[2; 100]));
            wire.wait_for_request();
            wire.describe(Some([1; 100]));
        },
        ErrorKind::Corrupt,
    ),
    // More than was asked for, less, and none.
    (
        |wire| {
            wire.describe(None);
            drop(wire.write(Kind::Piece, &[2; 101]));
        },
        ErrorKind::PeerUnreachable,
    ),
    (
        |wire| {
            wire.describe(None);
            drop(wire.write(Kind::Piece, &[2; 99]));
        },
        ErrorKind::PeerUnreachable,
    ),
    (|wire| wire.describe(None), ErrorKind::PeerUnreachable),
    // Ended in the middle of a piece.
    (
        |wire| {
            wire.describe(None);
            let frame = must(wire.send.seal(Kind::Piece, &[2; 100]));
            drop(wire.stream.write_all(&frame[..80]));
        },
        ErrorKind::PeerUnreachable,
    ),
    // Pieces without end: each of them empty.
    (
        |wire| {
            wire.describe(None);
            while wire.write(Kind::Piece, &[]).is_ok() {}
        },
        ErrorKind::PeerUnreachable,
    ),
    // Bytes without a MAC that have no fingerprint, and the other way round.
    (
        |wire| {
            wire.describe(None);
            drop(wire.write(Kind::Bare, &[]));
            drop(wire.stream.write_all(&[2; 100]));
        },
        ErrorKind::PeerUnreachable,
    ),
    (
        |wire| {
            wire.describe(Some([2; 100]));
            drop(wire.write(Kind::Piece, &[2; 100]));
        },
        ErrorKind::PeerUnreachable,
    ),
    // Another number of ranges.
    (
        |wire| {
            let description = Description {
                located: None,
                fingerprints: vec![None; 2],
                fabric: None,
            };
            drop(wire.write(Kind::Description, &must(description.encode())));
            wire.wait_for_request();
        },
        ErrorKind::PeerUnreachable,
    ),
];

#[test]
fn pulled_bytes_that_are_wrong_are_an_error() {
    for (index, (answer, wanted)) in WRONG_BYTES.into_iter().enumerate() {
        let client = endpoint(options("client"));
        let (peer, thread) = impostor(1, answer);
        let mut into = [0; 100];
        let result = timely(|| client.pull(&peer, ID, 0, &mut into, SHORT));
        assert_eq!(kind(result), Some(wanted), "case {index}");
        // Ends the connections that it keeps.
        drop(client);
        thread.join().unwrap();
    }
}

#[test]
fn a_peer_started_again_on_its_port_is_reached_at_once() {
    let client = endpoint(options("client"));
    let mut at = options("server");
    let server = endpoint(at.clone());
    server.expose(ID, Exposed::Memory(Arc::new(vec![1; 1000])));
    let peer = server.peer();
    assert_eq!(client.call(&peer, b"x", WITHIN).unwrap(), b"x");
    drop(server);
    assert_eq!(
        kind(client.call(&peer, b"x", WITHIN)),
        Some(ErrorKind::PeerUnreachable)
    );
    at.listen = peer.address.parse().ok();
    let server = endpoint(at.clone());
    assert_eq!(client.call(&peer, b"y", WITHIN).unwrap(), b"y");
    // With a connection that was kept.
    drop(server);
    let server = endpoint(at);
    server.expose(ID, Exposed::Memory(Arc::new(vec![1; 1000])));
    let mut into = [0; 10];
    client.pull(&peer, ID, 5, &mut into, WITHIN).unwrap();
    assert_eq!(into, [1; 10]);
}

#[test]
fn a_kept_connection_that_dies_unseen_is_replaced_once_for_a_pull_and_not_for_a_call() {
    // Serves one pull, closes when asked for the next, and serves that on a fresh connection.
    let (peer, thread) = impostor(2, |wire| {
        wire.describe(None);
        must(wire.write(Kind::Piece, &[7; 10]));
        wire.wait_for_request();
    });
    let client = endpoint(options("client"));
    let mut into = [0; 10];
    client.pull(&peer, ID, 0, &mut into, WITHIN).unwrap();
    client.pull(&peer, ID, 0, &mut into, WITHIN).unwrap();
    assert_eq!(into, [7; 10]);
    let call = client.call(&peer, b"x", WITHIN);
    assert_eq!(kind(call), Some(ErrorKind::PeerUnreachable));
    thread.join().unwrap();
}

#[test]
fn operations_beyond_the_connections_to_a_peer_wait_for_one() {
    let mut one = options("client");
    one.connections_per_peer_max = 1;
    let (client, server) = (endpoint(one), endpoint(options("server")));
    server.serve(Arc::new(|_: &[u8], within: Duration| {
        std::thread::sleep(Duration::from_millis(100).min(within));
        Ok(Vec::new())
    }));
    let peer = server.peer();
    std::thread::scope(|scope| {
        let calls = [0; 4].map(|_| scope.spawn(|| client.call(&peer, b"x", WITHIN)));
        for call in calls {
            call.join().unwrap().unwrap();
        }
        let slow = scope.spawn(|| client.call(&peer, b"x", WITHIN));
        std::thread::sleep(Duration::from_millis(20));
        let late = client.call(&peer, b"x", Duration::from_millis(10));
        assert_eq!(kind(late), Some(ErrorKind::Timeout));
        slow.join().unwrap().unwrap();
    });
}

#[test]
fn an_endpoint_shut_down_ends_calls_under_way() {
    let (client, server) = (endpoint(options("client")), endpoint(options("server")));
    server.serve(Arc::new(|_: &[u8], _: Duration| {
        std::thread::sleep(Duration::from_secs(3));
        Ok(Vec::new())
    }));
    let peer = server.peer();
    std::thread::scope(|scope| {
        for ends in [&client, &server] {
            let begun = Instant::now();
            let call = scope.spawn(|| client.call(&peer, b"x", WITHIN));
            std::thread::sleep(Duration::from_millis(100));
            ends.shut_down();
            let found = kind(call.join().unwrap());
            assert_eq!(found, Some(ErrorKind::PeerUnreachable));
            assert!(
                begun.elapsed() < Duration::from_secs(2),
                "{:?}",
                begun.elapsed()
            );
        }
    });
}

#[test]
fn files_of_the_same_machine_are_read_as_they_are_and_only_if_they_are_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let bytes: Vec<u8> = (0..3_000_001_u32)
        .map(|n| n.to_le_bytes()[0] ^ n.to_le_bytes()[1])
        .collect();
    let device = FileDevice::open(&path, true).unwrap();
    device.reserve(bytes.len() as u64).unwrap();
    device.write_at(&bytes, 0).unwrap();
    let (client, server) = (endpoint(options("client")), endpoint(options("server")));
    server.expose(ID, Exposed::Device(Arc::new(device)));
    let check = || {
        for (offset, length) in [(0, 3_000_001), (17, 1_000_000), (3_000_000, 1), (5, 0)] {
            let mut into = vec![0; length];
            let pulled = client.pull(&server.peer(), ID, offset as u64, &mut into, WITHIN);
            pulled.unwrap();
            assert!(into == bytes[offset..offset + length]);
        }
    };
    check();
    // Another file in its place: what the owner has open is pulled through the socket.
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, vec![0xee; bytes.len()]).unwrap();
    check();
    let mut beyond = [0; 2];
    let result = client.pull(&server.peer(), ID, 3_000_000, &mut beyond, WITHIN);
    assert_eq!(kind(result), Some(ErrorKind::InvalidArgument));
}

/// A connection that the other side resets kills a process that does not ignore SIGPIPE, unless each
/// write says that it must not.
#[test]
fn writing_to_a_reset_connection_raises_no_signal() {
    // SAFETY: the default action of a signal; Rust's runtime had set it to be ignored.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let server = endpoint(options("server"));
    server.expose(ID, Exposed::Memory(Arc::new(vec![1; 64 << 20])));
    let read = backstay_format::wire::Read {
        exposure: ID.0,
        span: Span {
            offset: 0,
            length: 64 << 20,
        },
        within_us: 5_000_000,
        bare: true,
    };
    for _ in 0..5 {
        let mut wire = hello(&server.peer());
        wire.write(Kind::Read, &must(read.encode())).unwrap();
        wire.stream.read_exact(&mut [0; 100]).unwrap();
        drop(wire);
    }
    let client = endpoint(options("client"));
    let (peer, thread) = impostor(5, |_| {});
    for _ in 0..5 {
        let call = client.call(&peer, &vec![0; 8 << 20], WITHIN);
        assert_eq!(kind(call), Some(ErrorKind::PeerUnreachable));
    }
    drop(thread);
    assert_eq!(client.call(&server.peer(), b"x", WITHIN).unwrap(), b"x");
}

/// A server in a process of its own, for the test below.
#[test]
#[ignore = "is started by the test of a process that is stopped and killed"]
fn a_server_process() {
    let server = endpoint(options("process"));
    server.expose(ID, Exposed::Memory(Arc::new(vec![7; 64 << 20])));
    println!("address={};", server.address());
    // Ends with the pipe that the test holds.
    drop(std::io::stdin().read(&mut [0; 1]));
}

#[test]
fn a_process_that_is_stopped_or_killed_is_an_error_within_the_limit() {
    use rustix::process::{Pid, Signal, kill_process};
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    let words = [
        "--exact",
        "transport::a_server_process",
        "--ignored",
        "--nocapture",
    ];
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(process.stdout.take().unwrap());
    let mut lines = output.lines().map_while(std::result::Result::ok);
    let address = lines.find_map(|line| {
        let (_, rest) = line.split_once("address=")?;
        Some(rest.split_once(';')?.0.to_owned())
    });
    let peer = Peer::new("process", address.unwrap());
    let pid = Pid::from_child(&process);
    let client = endpoint(options("client"));
    let mut into = vec![0; 64 << 20];
    client.pull(&peer, ID, 0, &mut into, WITHIN).unwrap();
    assert!(into.iter().all(|&byte| byte == 7));

    kill_process(pid, Signal::STOP).unwrap();
    // All of its threads: one that runs just now stops a little later.
    let stat = format!("/proc/{}/stat", process.id());
    while !std::fs::read_to_string(&stat).unwrap().contains(") T ") {
        std::thread::yield_now();
    }
    for _ in 0..2 {
        let call = timely(|| client.call(&peer, b"x", SHORT));
        assert_eq!(kind(call), Some(ErrorKind::Timeout));
        let pull = timely(|| client.pull(&peer, ID, 0, &mut into, SHORT));
        assert_eq!(kind(pull), Some(ErrorKind::Timeout));
    }
    kill_process(pid, Signal::CONT).unwrap();
    assert_eq!(client.call(&peer, b"x", WITHIN).unwrap(), b"x");

    // Killed while pulls are under way: the last one fails, and every later one.
    let failed = std::thread::scope(|scope| {
        let pulls = scope.spawn(|| {
            loop {
                if let Err(error) = client.pull(&peer, ID, 0, &mut into, WITHIN) {
                    return error;
                }
            }
        });
        std::thread::sleep(Duration::from_millis(100));
        kill_process(pid, Signal::KILL).unwrap();
        pulls.join().unwrap()
    });
    assert_eq!(failed.kind(), ErrorKind::PeerUnreachable, "{failed}");
    let call = client.call(&peer, b"x", WITHIN);
    assert_eq!(kind(call), Some(ErrorKind::PeerUnreachable));
    process.wait().unwrap();
}

/// A store is pulled while ranks write beside what is asked for: what is hashed is what is sent.
#[test]
fn what_is_written_meanwhile_is_copied_before_it_is_sent() {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else {
        return;
    };
    let path = folder.path().join("store");
    let device = Arc::new(FileDevice::open(&path, true).unwrap());
    device.reserve(1 << 20).unwrap();
    device.write_at(&vec![0; 1 << 20], 0).unwrap();
    let (client, server) = (endpoint(options("client")), endpoint(options("server")));
    server.expose(ID, Exposed::Device(Arc::<FileDevice>::clone(&device)));
    // Others cannot find the file, so that they pull it through the socket.
    std::fs::remove_file(&path).unwrap();
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut value = 0_u8;
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                value = value.wrapping_add(1);
                device.write_at(&vec![value; 256 << 10], 0).unwrap();
            }
        });
        let mut into = vec![0; 256 << 10];
        let pulls = (0..300).map(|_| client.pull(&server.peer(), ID, 0, &mut into, WITHIN));
        let wrong = pulls.filter(Result::is_err).count();
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(wrong, 0, "what was sent is not what was hashed");
    });
}
