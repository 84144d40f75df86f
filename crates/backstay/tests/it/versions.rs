// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages that cannot be: of another version, or beyond the format. Each is an error with words for who
//! asks, and nobody waits in vain.

use crate::transport::{WITHIN, endpoint, must, options};
use backstay::agent::{ProcessOptions, run};
use backstay::format::StoreId;
use backstay::format::agent::{Answer, Request, Seat};
use backstay::format::bytes::FRAME_TAIL_BYTES;
use backstay::format::drain::DrainRequest;
use backstay::format::hash::checksum;
use backstay::format::limits::{GROUP_MEMBERS_MAX, MESSAGE_VERSION_MAJOR};
use backstay::format::local::{LocalAnswer, LocalRequest};
use backstay::{Error, ErrorKind};
use backstay_archive::drain::DrainPoint;
use backstay_net::{Endpoint, TcpEndpoint};
use backstay_parity::agent::local::{AgentClient, AgentPlace, receive, send};
use backstay_parity::agent::{Ask, Asker};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The next major version of messages.
const LATER: u16 = MESSAGE_VERSION_MAJOR + 1;

/// The same frame of the next major version, whole.
pub(crate) fn later(bytes: Vec<u8>) -> Vec<u8> {
    let major = u16::from_le_bytes(*bytes[8..10].first_chunk().unwrap());
    of_version(bytes, major + 1)
}

/// The same frame of another major version, whole.
fn of_version(mut bytes: Vec<u8>, major: u16) -> Vec<u8> {
    bytes[8..10].copy_from_slice(&major.to_le_bytes());
    let summed = bytes.len() - FRAME_TAIL_BYTES;
    let sum = checksum(&bytes[..summed]).to_le_bytes();
    bytes[summed..].copy_from_slice(&sum);
    bytes
}

fn names_both_versions(error: &Error, other: u16) {
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    says_both_versions(&error.to_string(), MESSAGE_VERSION_MAJOR, other);
}

pub(crate) fn says_both_versions(text: &str, ours: u16, other: u16) {
    assert!(text.contains("version"), "{text}");
    assert!(
        text.contains(&format!("expected {ours}, found {other}")),
        "{text}"
    );
}

fn socket(folder: &Path) -> UnixStream {
    let stream = must(UnixStream::connect(folder.join("agent.socket")));
    must(stream.set_read_timeout(Some(WITHIN)));
    stream
}

#[test]
fn an_agent_process_refuses_a_library_of_another_version_and_goes_on() {
    let folder = must(tempfile::tempdir());
    let options = ProcessOptions {
        directory: folder.path().to_owned(),
        linger: WITHIN,
        over: None,
    };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let agent = scope.spawn(|| run(&options, &stop));
        while !folder.path().join("agent.socket").exists() {
            std::thread::yield_now();
        }
        let stream = socket(folder.path());
        let request = LocalRequest::DropRebuilt.encode().unwrap();
        must(send(&stream, &later(request.clone())));
        let answer = must(receive(&stream)).unwrap();
        match LocalAnswer::decode(&answer).unwrap() {
            LocalAnswer::Failed { kind, text } => {
                assert_eq!(kind, ErrorKind::Unsupported.code(), "{text}");
                says_both_versions(&text, MESSAGE_VERSION_MAJOR, LATER);
            }
            other => panic!("{other:?}"),
        }
        // One of its own version on the same connection is answered.
        must(send(&stream, &LocalRequest::Goodbye.encode().unwrap()));
        let answer = must(receive(&stream)).unwrap();
        assert_eq!(LocalAnswer::decode(&answer), Ok(LocalAnswer::Done));
        stop.store(true, Ordering::SeqCst);
        must(agent.join().unwrap());
    });
}

#[test]
fn a_library_refuses_an_agent_process_of_another_version() {
    let folder = must(tempfile::tempdir());
    let place = must(AgentPlace::take(folder.path(), std::process::id()));
    let client = AgentClient::find(folder.path()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let stream = place.accept(WITHIN).unwrap();
            must(receive(&stream)).unwrap();
            must(send(&stream, &later(LocalAnswer::Done.encode().unwrap())));
        });
        let error = client.ask(&LocalRequest::Stores, WITHIN).unwrap_err();
        names_both_versions(&error, LATER);
    });
}

#[test]
fn what_cannot_be_said_to_an_agent_process_is_an_error_at_once() {
    let folder = must(tempfile::tempdir());
    let _place = must(AgentPlace::take(folder.path(), std::process::id()));
    let client = AgentClient::find(folder.path()).unwrap();
    // Nobody answers: who waited would get a timeout.
    let request = LocalRequest::Attach {
        directory: "/x".repeat(3000),
        store_directory: String::new(),
    };
    let error = client.ask(&request, WITHIN).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(error.to_string().contains("folder"), "{error}");
    let request = LocalRequest::Archive {
        plan: vec![b' '; 64 << 20],
    };
    let error = client.ask(&request, WITHIN).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(error.to_string().contains("at most 67108864"), "{error}");
}

/// An endpoint that answers every call with these bytes.
fn answering(bytes: Vec<u8>) -> TcpEndpoint {
    let server = endpoint(options("agent"));
    server.serve(Arc::new(move |_: &[u8], _: Duration| Ok(bytes.clone())));
    server
}

#[test]
fn agents_of_other_versions_refuse_each_others_messages() {
    // The version before was never released; some may run it yet.
    for other in [MESSAGE_VERSION_MAJOR - 1, LATER] {
        let server = answering(of_version(Answer::Done.encode().unwrap(), other));
        let asker = Asker(Arc::new(endpoint(options("asker"))));
        let error = asker.ask(&server.peer(), &Request::Survey, WITHIN);
        names_both_versions(&error.unwrap_err(), other);

        let point = DrainPoint::new(Arc::new(endpoint(options("node"))), "node");
        let request = of_version(DrainRequest::Progress.encode().unwrap(), other);
        names_both_versions(&point.handle(&request, WITHIN).unwrap_err(), other);
    }
}

#[test]
fn a_request_that_cannot_be_said_is_not_sent() {
    let server = answering(Answer::Done.encode().unwrap());
    let asker = Asker(Arc::new(endpoint(options("asker"))));
    let seat = Seat {
        store: StoreId::default(),
        node: "node".to_owned(),
        domain: "rack".to_owned(),
        address: "127.0.0.1:1".to_owned(),
    };
    for (seats, field) in [
        (vec![seat.clone(); GROUP_MEMBERS_MAX + 1], "seats"),
        (
            vec![Seat {
                domain: "x".repeat(129),
                ..seat.clone()
            }],
            "domain",
        ),
    ] {
        let request = Request::Repair { seats };
        let error = asker.ask(&server.peer(), &request, WITHIN).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.to_string().contains(field), "{error}");
    }
    let request = Request::Repair { seats: vec![seat] };
    assert_eq!(
        must(asker.ask(&server.peer(), &request, WITHIN)),
        Answer::Done
    );
}
