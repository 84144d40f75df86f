// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what every [`Endpoint`] must do, as a suite.
//! In: a laboratory that makes endpoints which reach each other. Out: a panic that names the rule.

use crate::SimDevice;
use crate::comm::run_ranks;
use crate::oracle::noise;
use backstay_base::io::sealed::SealedView;
use backstay_base::io::{Device, ReadAt};
use backstay_base::{Error, ErrorKind, Result};
use backstay_format::width::{to_u64, to_usize};
use backstay_net::{
    Described, Endpoint, Exposed, ExposureId, Handler, MESSAGE_BYTES_MAX, Peer, SPANS_MAX, Span,
};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Long enough for everything that is to succeed.
const WITHIN: Duration = Duration::from_secs(20);
/// What is to reach its limit.
const SHORT: Duration = Duration::from_millis(200);
const ID: ExposureId = ExposureId([0x5a; 16]);

/// Makes endpoints that reach each other.
pub trait TransportLab {
    /// A new endpoint.
    fn endpoint(&self, name: &str) -> Arc<dyn Endpoint>;
    /// Makes the endpoint's handler stall until the handler is replaced and [`Self::go_on`] called.
    fn stall(&self, endpoint: &dyn Endpoint);
    /// Ends what [`Self::stall`] began.
    fn go_on(&self, endpoint: &dyn Endpoint);
    /// An address of the right form where nobody is.
    fn nobody(&self) -> Peer;
}

/// Runs the endpoints of `lab` through every rule of the trait.
///
/// # Panics
/// Panics at the first rule that is broken, naming it.
pub fn transport_conformance(lab: &dyn TransportLab) {
    carries_messages_of_every_length(lab);
    brings_errors_of_handlers_back(lab);
    survives_a_handler_that_panics(lab);
    replaces_a_handler(lab);
    pulls_any_range(lab);
    describes_what_is_sealed_and_what_is_not(lab);
    computes_fingerprints_once_and_tells_who_damaged(lab);
    refuses_what_is_not_there(lab);
    brings_errors_of_devices_back(lab);
    serves_many_at_once(lab);
    lets_peers_call_each_other(lab);
    reaches_itself(lab);
    keeps_to_the_limit(lab);
    names_a_peer_that_is_not_there(lab);
    ends_when_shut_down(lab);
}

fn echo() -> Arc<dyn Handler> {
    Arc::new(|request: &[u8], _: Duration| Ok(request.iter().rev().copied().collect()))
}

fn pair(lab: &dyn TransportLab) -> (Arc<dyn Endpoint>, Arc<dyn Endpoint>) {
    let (one, other) = (lab.endpoint("one"), lab.endpoint("other"));
    other.serve(echo());
    (one, other)
}

fn done<T>(rule: &str, result: Result<T>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{rule}: {error}"),
    }
}

fn refused<T>(rule: &str, result: Result<T>, kind: ErrorKind, peer: &Peer) {
    match result {
        Ok(_) => panic!("{rule}: it succeeded"),
        Err(error) => {
            assert_eq!(error.kind(), kind, "{rule}: {error}");
            let text = error.to_string();
            assert!(text.contains(&peer.name), "{rule}: names the peer: {text}");
        }
    }
}

fn carries_messages_of_every_length(lab: &dyn TransportLab) {
    let (one, other) = pair(lab);
    for length in [0, 1, 7, 4096, 65_537, 1 << 20, (5 << 20) + 3] {
        let request = noise(to_u64(length), length);
        let answer = done("a call", one.call(&other.peer(), &request, WITHIN));
        let wanted: Vec<u8> = request.into_iter().rev().collect();
        assert!(answer == wanted, "an answer of {length} bytes arrives");
    }
    let long = vec![0; MESSAGE_BYTES_MAX + 1];
    let result = one.call(&other.peer(), &long, WITHIN);
    let rule = "a request that is too long is refused";
    refused(rule, result, ErrorKind::InvalidArgument, &other.peer());
    let answer = one.call(&other.peer(), b"ab", Duration::MAX);
    assert_eq!(done("a call without a limit", answer), b"ba");
    done(
        "a refused call breaks nothing",
        one.call(&other.peer(), b"", WITHIN),
    );
}

fn brings_errors_of_handlers_back(lab: &dyn TransportLab) {
    let (one, other) = pair(lab);
    other.serve(Arc::new(|request: &[u8], _: Duration| {
        let kind = ErrorKind::ALL[usize::from(request[0])];
        Err(Error::new(
            kind,
            format!("segment {} is not \u{e9}vident", request[0]),
        ))
    }));
    for (index, kind) in (0_u8..).zip(ErrorKind::ALL) {
        let result = one.call(&other.peer(), &[index], WITHIN);
        let text = format!("segment {index} is not \u{e9}vident");
        let has_text = result.as_ref().is_err_and(|e| e.context().contains(&text));
        assert!(has_text, "the context of an error comes back: {result:?}");
        refused("an error comes back", result, kind, &other.peer());
    }
    let rule = "an endpoint without a handler says so";
    let result = other.call(&one.peer(), b"x", WITHIN);
    refused(rule, result, ErrorKind::Unsupported, &one.peer());
}

fn survives_a_handler_that_panics(lab: &dyn TransportLab) {
    let (one, other) = pair(lab);
    other.serve(Arc::new(|request: &[u8], _: Duration| {
        assert!(request.is_empty(), "a panic on purpose");
        Ok(Vec::new())
    }));
    let result = one.call(&other.peer(), b"x", WITHIN);
    refused(
        "a panic is an error",
        result,
        ErrorKind::Internal,
        &other.peer(),
    );
    done(
        "a panic ends one call only",
        one.call(&other.peer(), b"", WITHIN),
    );
}

fn replaces_a_handler(lab: &dyn TransportLab) {
    let (one, other) = pair(lab);
    for round in 0..5_u8 {
        other.serve(Arc::new(move |_: &[u8], _: Duration| Ok(vec![round])));
        let answer = done("a call", one.call(&other.peer(), b"x", WITHIN));
        assert_eq!(answer, [round], "the last handler that was set answers");
    }
}

fn check_pull(one: &dyn Endpoint, peer: &Peer, bytes: &[u8], offset: usize, length: usize) {
    let mut into = vec![0xa5; length];
    let pulled = one.pull(peer, ID, to_u64(offset), &mut into, WITHIN);
    done("a pull", pulled);
    let wanted = &bytes[offset..offset + length];
    assert!(into == wanted, "{length} bytes at {offset} are pulled");
}

fn pulls_any_range(lab: &dyn TransportLab) {
    let (one, other) = pair(lab);
    let bytes = noise(11, (9 << 20) + 5);
    let device = SimDevice::from_bytes(bytes.clone());
    let exposed = [
        Exposed::Memory(Arc::new(bytes.clone())),
        Exposed::Device(Arc::new(device)),
    ];
    let end = bytes.len();
    for what in exposed {
        other.expose(ID, what);
        for (offset, length) in [
            (0, 0),
            (0, 1),
            (1, 4095),
            (4097, 1),
            (12_345, 262_144),
            (262_143, 262_146),
            (1 << 20, 1 << 20),
            (3, (5 << 20) + 1),
            (0, end),
            (end - 1, 1),
            (end, 0),
        ] {
            check_pull(&*one, &other.peer(), &bytes, offset, length);
        }
    }
    let newer = noise(12, 1000);
    other.expose(ID, Exposed::Memory(Arc::new(newer.clone())));
    check_pull(&*one, &other.peer(), &newer, 1, 999);
}

fn span(offset: u64, length: u64) -> Span {
    Span { offset, length }
}

fn describes_what_is_sealed_and_what_is_not(lab: &dyn TransportLab) {
    let (one, other) = pair(lab);
    let (peer, bytes) = (other.peer(), noise(15, 100_000));
    let describe = |spans: &[Span]| one.describe(&peer, ID, (spans, false), WITHIN);
    other.expose(ID, Exposed::Memory(Arc::new(bytes.clone())));
    let spans = [
        span(5, 70_000),
        span(0, 0),
        span(99_999, 1),
        span(5, 70_000),
    ];
    let described = done("many ranges in one message", describe(&spans));
    assert_eq!(described.len(), spans.len());
    for (range, span) in described.iter().zip(spans) {
        assert_eq!((range.exposure, range.span), (ID, span));
        let (start, length) = (to_usize(span.offset), to_usize(span.length));
        let wanted = &bytes[start..start + length];
        let wanted_known = range.fingerprint.map(|known| known.key.of(wanted));
        assert!(
            wanted_known.is_some() && range.fingerprint == wanted_known,
            "{span:?}"
        );
        let mut into = vec![0; length];
        done(
            "a range that was described",
            one.read(&peer, range, &mut into, WITHIN),
        );
        assert!(into == wanted, "{span:?} is read");
        let result = one.read(&peer, range, &mut vec![0; length + 1], WITHIN);
        let kind = result.err().map(|error| error.kind());
        let wanted = Some(ErrorKind::InvalidArgument);
        assert_eq!(kind, wanted, "memory of another length than the range");
    }
    let result = describe(&[span(0, 1), span(100_000, 1)]);
    let rule = "one range of many is not there";
    refused(rule, result, ErrorKind::InvalidArgument, &peer);
    let result = describe(&vec![span(0, 1); SPANS_MAX + 1]);
    refused("too many ranges", result, ErrorKind::InvalidArgument, &peer);
    let all = done("the most ranges", describe(&vec![span(0, 1); SPANS_MAX]));
    assert_eq!(all.len(), SPANS_MAX);
    let device = SimDevice::from_bytes(bytes);
    other.expose(ID, Exposed::Device(Arc::new(device)));
    let unsealed = done("a device", describe(&spans));
    let rule = "what may be written has no fingerprint";
    assert!(
        unsealed.iter().all(|range| range.fingerprint.is_none()),
        "{rule}"
    );
    other.withdraw(ID);
    refused(
        "a withdrawn exposure",
        describe(&spans),
        ErrorKind::NotRetained,
        &peer,
    );
}

/// Sealed bytes, which become others by damage or repair.
#[derive(Debug)]
struct Changing {
    bytes: [Vec<u8>; 2],
    is_changed: AtomicBool,
}

impl Changing {
    fn now(&self) -> &[u8] {
        &self.bytes[usize::from(self.is_changed.load(Ordering::SeqCst))]
    }
}

impl ReadAt for Changing {
    fn length_bytes(&self) -> io::Result<u64> {
        Ok(to_u64(self.now().len()))
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let start = to_usize(offset);
        buffer.copy_from_slice(&self.now()[start..start + buffer.len()]);
        Ok(())
    }

    fn name(&self) -> String {
        "changing".to_owned()
    }
}

impl Device for Changing {
    fn write_at(&self, _: &[u8], _: u64) -> io::Result<()> {
        Err(io::ErrorKind::PermissionDenied.into())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn reserve(&self, _: u64) -> io::Result<()> {
        Ok(())
    }
}

impl SealedView for Changing {
    fn lend_sealed(&self, offset: u64, length: usize) -> Option<&[u8]> {
        let start = to_usize(offset);
        self.now().get(start..start + length)
    }
}

fn computes_fingerprints_once_and_tells_who_damaged(lab: &dyn TransportLab) {
    let (one, other) = pair(lab);
    let peer = other.peer();
    let view = Arc::new(Changing {
        bytes: [noise(16, 300_000), noise(17, 300_000)],
        is_changed: AtomicBool::new(false),
    });
    other.expose(ID, Exposed::Sealed(Arc::<Changing>::clone(&view)));
    let all = [span(0, 300_000)];
    let describe = |afresh| done("a view", one.describe(&peer, ID, (&all, afresh), WITHIN));
    let first = describe(false)[0].fingerprint;
    let of = |at: usize| first.map(|known| known.key.of(&view.bytes[at]));
    let (before, after) = (of(0), of(1));
    assert!(first.is_some() && first == before);
    view.is_changed.store(true, Ordering::SeqCst);
    let described = describe(false);
    let rule = "a fingerprint is computed once";
    assert_eq!(described[0].fingerprint, before, "{rule}");
    let mut into = vec![0; 300_000];
    let read = one.read(&peer, &described[0], &mut into, WITHIN);
    done("what the owner has now is given back", read);
    assert!(into == view.bytes[1]);
    let rule = "it was computed afresh, and is kept";
    assert_eq!(describe(false)[0].fingerprint, after, "{rule}");
    // Bytes that the owner never described, nor has.
    let forged = Described {
        fingerprint: before,
        ..described[0].clone()
    };
    view.is_changed.store(false, Ordering::SeqCst);
    done("as it was", one.read(&peer, &forged, &mut into, WITHIN));
    assert!(into == view.bytes[0]);
}

fn refuses_what_is_not_there(lab: &dyn TransportLab) {
    let (one, other) = pair(lab);
    let peer = other.peer();
    other.expose(ID, Exposed::Memory(Arc::new(vec![1; 1000])));
    for (offset, length) in [(0, 1001), (999, 2), (1000, 1), (1001, 0), (u64::MAX, 2)] {
        let result = one.pull(&peer, ID, offset, &mut vec![0; length], WITHIN);
        let rule = format!("{length} bytes at {offset} of 1000 are refused");
        refused(&rule, result, ErrorKind::InvalidArgument, &peer);
    }
    let unknown = ExposureId([1; 16]);
    for length in [0, 10] {
        let result = one.pull(&peer, unknown, 0, &mut vec![0; length], WITHIN);
        let rule = "an exposure that nobody made is refused";
        refused(rule, result, ErrorKind::NotRetained, &peer);
    }
    check_pull(&*one, &peer, &[1; 1000], 0, 1000);
    other.withdraw(unknown);
    other.withdraw(ID);
    let result = one.pull(&peer, ID, 0, &mut [0; 10], WITHIN);
    let rule = "a withdrawn exposure is refused";
    refused(rule, result, ErrorKind::NotRetained, &peer);
}

fn brings_errors_of_devices_back(lab: &dyn TransportLab) {
    let (one, other) = pair(lab);
    let (peer, bytes) = (other.peer(), noise(13, 3 << 20));
    let device = SimDevice::from_bytes(bytes.clone());
    other.expose(ID, Exposed::Device(Arc::new(device.clone())));
    // The first read and one in the middle.
    for nth in [1, 2] {
        device.fail_read(nth, crate::device::EIO);
        let mut into = vec![0; 3 << 20];
        let mut result = one.pull(&peer, ID, 0, &mut into, WITHIN);
        if result.is_ok() {
            result = one.pull(&peer, ID, 0, &mut into, WITHIN);
        }
        let rule = "an error of the owner's device comes back";
        refused(rule, result, ErrorKind::StoreIo, &peer);
        check_pull(&*one, &peer, &bytes, 17, 1 << 20);
    }
}

fn serves_many_at_once(lab: &dyn TransportLab) {
    let (one, other) = pair(lab);
    let bytes = noise(14, 2 << 20);
    other.expose(ID, Exposed::Memory(Arc::new(bytes.clone())));
    run_ranks((0..8_u64).collect(), |index| {
        for round in 0..12 {
            let request = noise(index * 100 + round, 3000 + 977 * 12);
            let answer = done("a call", one.call(&other.peer(), &request, WITHIN));
            assert!(answer.iter().rev().eq(&request), "answers are not mixed up");
            let offset = usize::try_from(index * 1_000 + round).unwrap_or(0);
            check_pull(&*one, &other.peer(), &bytes, offset, 700_001);
        }
    });
}

fn lets_peers_call_each_other(lab: &dyn TransportLab) {
    let (one, other) = pair(lab);
    let relay = |next: &Arc<dyn Endpoint>, from: &Arc<dyn Endpoint>| -> Arc<dyn Handler> {
        let (peer, from) = (next.peer(), Arc::downgrade(from));
        Arc::new(move |request: &[u8], within: Duration| {
            let gone = || Error::new(ErrorKind::Internal, "the endpoint is gone");
            match request.split_first() {
                Some((1.., rest)) => from.upgrade().ok_or_else(gone)?.call(&peer, rest, within),
                _ => Ok(request.to_vec()),
            }
        })
    };
    one.serve(relay(&other, &one));
    other.serve(relay(&one, &other));
    let ends = [(&one, &other), (&other, &one)];
    run_ranks(vec![0, 1, 0, 1], |end| {
        let (from, to) = ends[end];
        for _ in 0..20 {
            let answer = from.call(&to.peer(), &[1, 1, 1, 0], WITHIN);
            let answer = done("calls of two peers to each other", answer);
            assert_eq!(answer, [0], "each call went four times over the link");
        }
    });
}

fn reaches_itself(lab: &dyn TransportLab) {
    let (_, other) = pair(lab);
    let answer = done("a call to itself", other.call(&other.peer(), b"ab", WITHIN));
    assert_eq!(answer, b"ba");
    other.expose(ID, Exposed::Memory(Arc::new(vec![5; 100])));
    check_pull(&*other, &other.peer(), &[5; 100], 10, 90);
}

fn keeps_to_the_limit(lab: &dyn TransportLab) {
    let (one, other) = pair(lab);
    lab.stall(&*other);
    let begun = Instant::now();
    let result = one.call(&other.peer(), b"x", SHORT);
    let took = begun.elapsed();
    refused("a stalled peer", result, ErrorKind::Timeout, &other.peer());
    let most = SHORT + Duration::from_secs(2);
    assert!(took < most, "the limit of {SHORT:?} is kept: {took:?}");
    lab.go_on(&*other);
    let calls = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&calls);
    other.serve(Arc::new(move |_: &[u8], within: Duration| {
        assert!(
            within <= WITHIN,
            "a handler is told what is left of the limit"
        );
        count.fetch_add(1, Ordering::SeqCst);
        Ok(Vec::new())
    }));
    let result = one.call(&other.peer(), b"x", WITHIN);
    done("a peer that goes on is reached again", result);
    assert_eq!(calls.load(Ordering::SeqCst), 1, "a call is handled once");
}

fn names_a_peer_that_is_not_there(lab: &dyn TransportLab) {
    let one = lab.endpoint("one");
    let nobody = lab.nobody();
    let call = one.call(&nobody, b"x", WITHIN);
    refused("nobody", call, ErrorKind::PeerUnreachable, &nobody);
    let pull = one.pull(&nobody, ID, 0, &mut [0; 4], WITHIN);
    refused("nobody", pull, ErrorKind::PeerUnreachable, &nobody);
    let nowhere = Peer::new("nowhere", "not an address");
    let call = one.call(&nowhere, b"x", WITHIN);
    refused("no address", call, ErrorKind::InvalidArgument, &nowhere);
}

fn ends_when_shut_down(lab: &dyn TransportLab) {
    let (one, other) = pair(lab);
    one.serve(echo());
    let (first, second) = (one.peer(), other.peer());
    done("a call", one.call(&second, b"x", WITHIN));
    other.shut_down();
    other.shut_down();
    let result = one.call(&second, b"x", WITHIN);
    refused(
        "a peer shut down",
        result,
        ErrorKind::PeerUnreachable,
        &second,
    );
    let result = other.call(&first, b"x", WITHIN);
    let rule = "an endpoint shut down calls nobody";
    refused(rule, result, ErrorKind::PeerUnreachable, &first);
}
