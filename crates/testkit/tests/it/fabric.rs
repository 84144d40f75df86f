// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The transport over libfabric: the suite, and peers that die, stop or withdraw inside of reads, by the
//! providers that every machine has.

use crate::stalling::{Stalling, nobody};
use backstay_base::ErrorKind;
use backstay_format::width::to_u64;
use backstay_net::{
    Described, Endpoint, Exposed, ExposureId, Peer, Secret, Span, TcpEndpoint, TcpOptions,
    Transport, Transports,
};
use backstay_testkit::conformance::{TransportLab, transport_conformance};
use backstay_testkit::oracle::noise;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const PROVIDERS: [&str; 2] = ["tcp;ofi_rxm", "shm"];
const ID: ExposureId = ExposureId([0x5a; 16]);
const WITHIN: Duration = Duration::from_secs(20);
const BYTES: usize = 64 << 20;
/// Says to a process of this test that it is the owner, and by which provider.
const OWNER: &str = "BACKSTAY_TEST_FABRIC_OWNER";

fn must<T, E: std::fmt::Display>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

fn there<T>(found: Option<T>) -> T {
    found.unwrap_or_else(|| panic!("it was there before"))
}

fn say(words: &str) {
    must(writeln!(std::io::stderr(), "{words}"));
}

/// An endpoint that reads by `provider`; without the library there is none.
fn endpoint(name: &str, provider: &str) -> Option<Arc<TcpEndpoint>> {
    let mut options = TcpOptions::new(name, "a job", Secret::from_bytes([9; 32]));
    options.listen = Some(([127, 0, 0, 1], 0).into());
    options.transports = Transports {
        transport: Transport::Libfabric,
        provider: Some(provider.to_owned()),
    };
    match TcpEndpoint::open(options) {
        Ok(endpoint) => Some(Arc::new(endpoint)),
        Err(error) if error.to_string().contains("cannot be loaded") => {
            say(&format!("SKIPPED: {error} (libfabric1)"));
            None
        }
        Err(error) => panic!("{error}"),
    }
}

struct Fabric {
    provider: &'static str,
    stalling: Stalling,
    all: Mutex<Vec<Arc<TcpEndpoint>>>,
}

impl TransportLab for Fabric {
    fn endpoint(&self, name: &str) -> Arc<dyn Endpoint> {
        let endpoint = there(endpoint(name, self.provider));
        must(self.all.lock()).push(Arc::clone(&endpoint));
        endpoint
    }
    fn stall(&self, endpoint: &dyn Endpoint) {
        self.stalling.stall(endpoint);
    }
    fn go_on(&self, _: &dyn Endpoint) {
        self.stalling.go_on();
    }
    fn nobody(&self) -> Peer {
        nobody()
    }
}

#[test]
fn libfabric_conforms() {
    for provider in PROVIDERS {
        if endpoint("probe", provider).is_none() {
            return;
        }
        let lab = Fabric {
            provider,
            stalling: Stalling::default(),
            all: Mutex::default(),
        };
        transport_conformance(&lab);
        let all = lab.all.lock().unwrap();
        let past: u64 = all.iter().map(|endpoint| endpoint.moved_bytes()[1]).sum();
        say(&format!("{provider}: {past} bytes past the sockets"));
        // Of 8 threads 12 reads each of 700,001 bytes, and others.
        assert!(past >= 8 * 12 * 700_001, "{provider}: {past} bytes");
        assert_eq!(all[0].transport(), format!("libfabric {provider}"));
    }
}

/// Not a test of its own: the process that others read from, and kill.
#[test]
fn owner() {
    let Ok(provider) = std::env::var(OWNER) else {
        return;
    };
    let endpoint = endpoint("owner", &provider).unwrap();
    endpoint.expose(ID, Exposed::Memory(Arc::new(noise(1, BYTES))));
    must(writeln!(
        std::io::stderr(),
        "address {}",
        endpoint.address()
    ));
    std::thread::sleep(Duration::from_secs(120));
}

/// The process, which ends with this.
struct Owner {
    child: Child,
    peer: Peer,
}

impl Owner {
    fn start(provider: &str) -> Self {
        let mut command = Command::new(must(std::env::current_exe()));
        command
            .args(["--exact", "fabric::owner", "--nocapture"])
            .env(OWNER, provider);
        let mut child = must(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn());
        let lines = BufReader::new(there(child.stderr.take())).lines();
        let mut addresses =
            lines.filter_map(|line| must(line).strip_prefix("address ").map(str::to_owned));
        let peer = Peer::new("owner", there(addresses.next()));
        Self { child, peer }
    }
    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        must(kill_process(pid, signal));
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn describe(reader: &TcpEndpoint, peer: &Peer, length: usize) -> Described {
    let span = Span {
        offset: 0,
        length: to_u64(length),
    };
    let described = must(reader.describe(peer, ID, (&[span], false), WITHIN));
    let range = there(described.into_iter().next());
    assert!(range.remote.is_some(), "it is offered");
    range
}

#[test]
fn a_peer_that_dies_inside_a_read_is_an_error_in_time() {
    for provider in PROVIDERS {
        let Some(reader) = endpoint("reader", provider) else {
            return;
        };
        let owner = Owner::start(provider);
        let mut into = vec![0; BYTES];
        let range = describe(&reader, &owner.peer, BYTES);
        must(reader.read(&owner.peer, &range, &mut into, WITHIN));
        assert_eq!(reader.moved_bytes(), [0, to_u64(BYTES)], "{provider}");
        std::thread::scope(|scope| {
            let reading = scope.spawn(|| {
                let begun = Instant::now();
                loop {
                    if let Err(error) = reader.read(&owner.peer, &range, &mut into, WITHIN) {
                        return (error, begun.elapsed());
                    }
                }
            });
            std::thread::sleep(Duration::from_millis(150));
            owner.signal(Signal::KILL);
            let (error, took) = reading.join().unwrap();
            let kinds = [ErrorKind::PeerUnreachable, ErrorKind::Timeout];
            assert!(kinds.contains(&error.kind()), "{provider}: {error}");
            assert!(error.to_string().contains("owner"), "{provider}: {error}");
            assert!(
                took < WITHIN + Duration::from_secs(2),
                "{provider}: {took:?}"
            );
        });
        // Who died takes nothing of reads from others.
        let next = Owner::start(provider);
        let range = describe(&reader, &next.peer, BYTES);
        must(reader.read(&next.peer, &range, &mut into, WITHIN));
        assert!(into == noise(1, BYTES), "{provider}");
        assert!(reader.moved_bytes()[1] >= 2 * to_u64(BYTES), "{provider}");
    }
}

#[test]
fn a_peer_that_is_stopped_inside_a_read_is_an_error_at_the_limit() {
    let provider = PROVIDERS[0];
    let Some(reader) = endpoint("reader", provider) else {
        return;
    };
    let owner = Owner::start(provider);
    let mut into = vec![0; BYTES];
    let range = describe(&reader, &owner.peer, BYTES);
    must(reader.read(&owner.peer, &range, &mut into, WITHIN));
    owner.signal(Signal::STOP);
    let (begun, limit) = (Instant::now(), Duration::from_secs(1));
    let error = reader
        .read(&owner.peer, &range, &mut into, limit)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    let took = begun.elapsed();
    assert!(took < limit + Duration::from_secs(2), "{took:?}");
    // It goes on, and has bytes of the read that was given up on their way: they reach nobody.
    into.fill(7);
    owner.signal(Signal::CONT);
    std::thread::sleep(Duration::from_millis(300));
    assert!(into.iter().all(|&byte| byte == 7));
    let past = reader.moved_bytes()[1];
    must(reader.read(&owner.peer, &range, &mut into, WITHIN));
    assert!(into == noise(1, BYTES));
    let rests = "a peer that gave nothing in time is read over the connection for a while";
    assert_eq!(reader.moved_bytes()[1], past, "{rests}");
}

#[test]
fn what_is_withdrawn_or_replaced_is_read_no_more_as_it_was() {
    for provider in PROVIDERS {
        let (Some(owner), Some(reader)) =
            (endpoint("owner", provider), endpoint("reader", provider))
        else {
            return;
        };
        let (length, peer) = (1 << 20, owner.peer());
        let mut into = vec![0; length];
        owner.expose(ID, Exposed::Memory(Arc::new(noise(1, length))));
        let range = describe(&reader, &peer, length);
        must(reader.read(&peer, &range, &mut into, WITHIN));
        assert_eq!(reader.moved_bytes(), [0, to_u64(length)]);
        // The key is of memory that is exposed no more: the owner says what it has now.
        owner.expose(ID, Exposed::Memory(Arc::new(noise(2, length))));
        must(reader.read(&peer, &range, &mut into, WITHIN));
        assert!(into == noise(2, length), "{provider}");
        owner.withdraw(ID);
        match reader.read(&peer, &range, &mut into, WITHIN) {
            // What was freed may stand there yet.
            Ok(()) => assert!(into == noise(1, length), "{provider}"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::NotRetained, "{provider}: {error}"),
        }
    }
}

#[test]
fn without_a_provider_auto_reads_over_tcp_and_libfabric_says_so() {
    let open = |transport, provider: Option<&str>| {
        let mut options = TcpOptions::new("one", "a job", Secret::from_bytes([9; 32]));
        options.listen = Some(([127, 0, 0, 1], 0).into());
        options.transports = Transports {
            transport,
            provider: provider.map(str::to_owned),
        };
        TcpEndpoint::open(options)
    };
    let tcp = must(open(Transport::Auto, Some("no such")));
    assert_eq!(tcp.transport(), "tcp");
    let error = open(Transport::Libfabric, Some("no such")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    let text = error.to_string();
    assert!(
        text.contains("no such") && text.contains("transport = tcp"),
        "{text}"
    );
}
