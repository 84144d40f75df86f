// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what the simulated network promises those who use it as one.

use super::*;

const WITHIN: Duration = Duration::from_secs(1);
const ID: ExposureId = ExposureId([3; 16]);

fn pair(seed: u64) -> (SimNetwork, Arc<SimEndpoint>, Arc<SimEndpoint>) {
    let network = SimNetwork::new(seed);
    let (one, other) = (network.endpoint("a"), network.endpoint("b"));
    other.serve(Arc::new(|request: &[u8], _: Duration| Ok(request.to_vec())));
    other.expose(ID, Exposed::Memory(Arc::new((0..=255).collect())));
    (network, one, other)
}

fn outcome(one: &SimEndpoint, other: &SimEndpoint) -> (Option<ErrorKind>, Option<ErrorKind>) {
    let call = one.call(&other.peer(), b"x", WITHIN);
    let mut bytes = [0; 100];
    let pull = one.pull(&other.peer(), ID, 5, &mut bytes, WITHIN);
    (
        call.err().map(|error| error.kind()),
        pull.err().map(|error| error.kind()),
    )
}

#[test]
fn links_are_cut_and_mended_and_nodes_stalled_and_resumed() {
    let (network, one, other) = pair(1);
    let unreachable = Some(ErrorKind::PeerUnreachable);
    assert_eq!(outcome(&one, &other), (None, None));
    network.cut("b", "a");
    assert_eq!(outcome(&one, &other), (unreachable, unreachable));
    network.mend("a", "b");
    network.isolate("a");
    assert_eq!(outcome(&one, &other), (unreachable, unreachable));
    network.mend_all();
    network.stall("b");
    let before = network.elapsed();
    let late = Some(ErrorKind::Timeout);
    assert_eq!(outcome(&one, &other), (late, late));
    assert_eq!(network.elapsed(), before + 2 * WITHIN);
    network.resume("b");
    assert_eq!(outcome(&one, &other), (None, None));
}

#[test]
fn a_node_started_again_has_forgotten_and_its_former_start_is_dead() {
    let (network, one, other) = pair(2);
    network.take_down("b");
    let unreachable = Some(ErrorKind::PeerUnreachable);
    assert_eq!(outcome(&one, &other), (unreachable, unreachable));
    let again = network.endpoint("b");
    other.expose(ID, Exposed::Memory(Arc::new(vec![0; 200])));
    let (call, pull) = outcome(&one, &again);
    assert_eq!(call, Some(ErrorKind::Unsupported));
    assert_eq!(pull, Some(ErrorKind::NotRetained));
    let dead = other.call(&one.peer(), b"x", WITHIN);
    assert_eq!(dead.unwrap_err().kind(), ErrorKind::PeerUnreachable);
    other.shut_down();
    assert!(network.is_up("b"), "a dead handle takes nothing down");
}

#[test]
fn planned_faults_come_in_their_turn_and_damage_is_found() {
    let (network, one, other) = pair(3);
    let kinds = Fault::ALL.map(|fault| {
        // After the call and what describes.
        network.plan(3, fault);
        outcome(&one, &other).1
    });
    let late = Some(ErrorKind::Timeout);
    let unreachable = Some(ErrorKind::PeerUnreachable);
    let damaged = Some(ErrorKind::Corrupt);
    assert_eq!(kinds, [unreachable, late, unreachable, late, damaged]);
    assert_eq!(outcome(&one, &other), (None, None));
}

#[test]
fn a_hook_may_end_a_node_before_any_operation() {
    let (network, one, other) = pair(4);
    let handle = network.clone();
    network.set_hook(move |attempt| {
        if attempt.number == 3 {
            assert!(matches!(&attempt.action, Action::Read { span, .. } if span.length == 100));
            handle.take_down(&attempt.to);
        }
        None
    });
    let unreachable = Some(ErrorKind::PeerUnreachable);
    assert_eq!(outcome(&one, &other), (None, unreachable));
}

#[test]
fn a_node_that_ends_in_its_handler_gives_no_answer() {
    let (network, one, other) = pair(5);
    let handle = network.clone();
    other.serve(Arc::new(move |_: &[u8], _: Duration| {
        handle.take_down("b");
        Ok(Vec::new())
    }));
    let error = one.call(&other.peer(), b"x", WITHIN).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PeerUnreachable);
}

#[test]
fn a_repeated_request_is_handled_twice_and_later_only_in_the_same_start() {
    let (network, one, other) = pair(7);
    let count = Arc::new(Mutex::new(0_u8));
    let counted = Arc::clone(&count);
    let handler = move |_: &[u8], _: Duration| {
        let mut count = counted.lock().unwrap();
        *count += 1;
        Ok(vec![*count])
    };
    other.serve(Arc::new(handler));
    network.plan(1, Fault::Repeated);
    assert_eq!(one.call(&other.peer(), b"x", WITHIN).unwrap(), [2]);
    let later = Arc::new(Mutex::new(Vec::new()));
    let (handle, kept) = (network.clone(), Arc::clone(&later));
    network.set_hook(move |attempt| {
        kept.lock().unwrap().push(handle.once_more(attempt));
        None
    });
    assert_eq!(one.call(&other.peer(), b"x", WITHIN).unwrap(), [3]);
    assert_eq!(one.call(&other.peer(), b"x", WITHIN).unwrap(), [4]);
    let again = |at: usize| {
        let once_more = later.lock().unwrap().remove(at);
        once_more();
        *count.lock().unwrap()
    };
    assert_eq!(again(0), 5);
    network.endpoint("b");
    assert_eq!(again(0), 5, "of a start that is over");
}

#[test]
fn traffic_is_counted_at_both_ends_and_over_starts() {
    let (network, one, other) = pair(8);
    assert_eq!(outcome(&one, &other), (None, None));
    one.call(&one.peer(), b"own", WITHIN).unwrap_err();
    network.cut("a", "b");
    outcome(&one, &other);
    let (sent, served) = (network.traffic("a"), network.traffic("b"));
    assert_eq!(
        (sent.calls_sent, sent.pulls_sent, sent.messages()),
        (2, 1, 3)
    );
    assert_eq!((served.calls_handled, served.pulls_served), (2, 1));
    assert_eq!((sent.bytes_pulled, served.bytes_served), (100, 100));
    // The answer is the request; a range is described besides.
    assert_eq!(
        (sent.message_bytes_sent, sent.message_bytes_received),
        (17, 37)
    );
    assert_eq!(
        (served.message_bytes_sent, served.message_bytes_received),
        (37, 17)
    );
    assert_eq!((sent.peers(), sent.peers_asking.len()), (1, 0));
    assert!(served.peers_asking.contains("a") && served.peers_asked.is_empty());
    network.endpoint("b");
    assert_eq!(network.traffic("b"), served);
    network.clear_traffic();
    assert_eq!(network.traffic("b"), Traffic::default());
}

#[test]
fn memory_is_read_past_its_owner_until_it_is_withdrawn() {
    let (network, one, other) = pair(9);
    network.read_past_owners();
    let spans = [Span {
        offset: 5,
        length: 100,
    }];
    let described = one.describe(&other.peer(), ID, (&spans, false), WITHIN);
    let [range] = &described.unwrap()[..] else {
        panic!("one range");
    };
    let mut bytes = [0; 100];
    let mut read = || {
        let read = one.read(&other.peer(), range, &mut bytes, WITHIN);
        read.map(|()| bytes[0]).map_err(|error| error.kind())
    };
    let served = || network.traffic("b").pulls_served;
    assert_eq!((read(), served()), (Ok(5), 0));
    network.stall("b");
    assert_eq!((read(), served()), (Ok(5), 0), "its code does not run");
    network.resume("b");
    for fault in [Fault::Corrupt, Fault::Lost, Fault::AnswerBroken] {
        let before = (served(), network.reads_past()[1]);
        network.plan(1, fault);
        assert_eq!(read(), Ok(5), "{fault:?}: through the owner");
        assert_eq!(served(), before.0 + 1);
        let missed = before.1 + u64::from(fault != Fault::Corrupt);
        assert_eq!(network.reads_past()[1], missed);
    }
    // The key is of memory that is exposed no more.
    other.expose(ID, Exposed::Memory(Arc::new(vec![7; 256])));
    assert_eq!(read(), Ok(7), "what the owner has now");
    other.withdraw(ID);
    assert_eq!(read(), Err(ErrorKind::NotRetained));
    other.expose(ID, Exposed::Memory(Arc::new((0..=255).collect())));
    let handle = network.clone();
    network.set_hook(move |attempt| {
        if let Action::ReadPast { length: 100, .. } = attempt.action {
            handle.take_down(&attempt.to);
        }
        None
    });
    assert_eq!(read(), Err(ErrorKind::PeerUnreachable), "it died in a read");
}

#[test]
fn random_faults_are_those_of_the_seed() {
    let run = |seed| {
        let (network, one, other) = pair(seed);
        network.set_random_faults(1, 3);
        let found: Vec<_> = (0..50).map(|_| outcome(&one, &other)).collect();
        (found, network.elapsed())
    };
    assert_eq!(run(6), run(6));
    assert_ne!(run(6), run(7));
    assert!(run(6).0.contains(&(None, None)));
}
