// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Collective calls of agents over sockets of this machine: all of them, and what ends them.

use super::*;
use crate::routing::nodes::handle_alone;
use backstay_net::{Secret, TcpEndpoint, TcpOptions};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

const LONG: Duration = Duration::from_secs(60);

type Agent = (Arc<Circle>, Arc<dyn Endpoint>);

fn endpoint(rank: u32, secret: u8) -> Arc<dyn Endpoint> {
    let secret = Secret::from_bytes([secret; 32]);
    let mut options = TcpOptions::new(format!("host{rank}"), "job", secret);
    options.listen = Some(([127, 0, 0, 1], 0).into());
    Arc::new(TcpEndpoint::open(options).expect("endpoint"))
}

/// Agents over these endpoints, of which the others know the addresses of `peers`.
fn circle(endpoints: Vec<Arc<dyn Endpoint>>, peers: &[Peer], limit: Duration) -> Vec<Agent> {
    let agents = (0..).zip(endpoints).map(|(rank, endpoint)| {
        let circle = Circle::new(rank, peers.to_vec(), Arc::clone(&endpoint), limit);
        let answers = Arc::clone(&circle);
        endpoint.serve(Arc::new(move |request: &[u8], within: Duration| {
            handle_alone(&answers, request, within)
        }));
        (circle, endpoint)
    });
    agents.collect()
}

fn agents(size: u32, limit: Duration) -> Vec<Agent> {
    let endpoints: Vec<_> = (0..size).map(|rank| endpoint(rank, 1)).collect();
    let peers: Vec<Peer> = endpoints.iter().map(|endpoint| endpoint.peer()).collect();
    circle(endpoints, &peers, limit)
}

/// What each of these agents comes to.
fn each<T: Send>(agents: &[Agent], work: impl Fn(&Communicating) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let work = &work;
        let all = agents.iter().map(|(circle, _)| {
            let comm = Communicating(Arc::clone(circle));
            scope.spawn(move || work(&comm))
        });
        let all: Vec<_> = all.collect();
        all.into_iter()
            .map(|one| one.join().expect("joined"))
            .collect()
    })
}

fn every_call(comm: &Communicating) {
    let (rank, size) = (comm.rank(), comm.size());
    for round in 0..3u8 {
        let mine = [u8::try_from(rank % 250).expect("small"), round];
        let mut all = vec![0; 2 * index(size)];
        comm.allgather(&mine, &mut all).expect("allgather");
        for (other, part) in all.chunks(2).enumerate() {
            assert_eq!(part, [u8::try_from(other % 250).expect("small"), round]);
        }
        let mut values = [i64::from(rank), -i64::from(rank), i64::MIN];
        comm.allreduce_max(&mut values).expect("max");
        assert_eq!(values, [i64::from(size) - 1, 0, i64::MIN]);
        for root in [0, size - 1] {
            let mine = vec![round; index(rank)];
            let parts = comm.gather(&mine, root).expect("gather");
            let lengths: Vec<usize> = parts.iter().map(Vec::len).collect();
            let expected: Vec<usize> = (0..index(size)).collect();
            assert_eq!(lengths, if rank == root { expected } else { Vec::new() });
            let mut bytes = [if rank == root { 7 + round } else { 0 }; 9];
            comm.broadcast(&mut bytes, root).expect("broadcast");
            assert_eq!(bytes, [7 + round; 9]);
        }
        comm.barrier().expect("barrier");
        let sum = |parts: Vec<Vec<u8>>| Ok(vec![parts.iter().map(|part| part[0]).sum::<u8>()]);
        let sum = comm.0.decide(vec![1], sum).expect("decide");
        assert_eq!(sum, [u8::try_from(size).expect("small")]);
    }
    comm.gather(&[], size).expect_err("no such root");
    comm.0.leave();
}

#[test]
fn all_calls_do_what_they_are_to_whatever_the_number_of_agents() {
    for size in [1, 2, 5, 40] {
        each(&agents(size, LONG), every_call);
    }
}

/// All that are left fail soon, and say whose host it is.
fn fails(left: &[Agent], host: &str) {
    let began = Instant::now();
    let errors = each(left, |comm| {
        let mut turns = 0;
        loop {
            match comm.barrier() {
                Ok(()) => turns += 1,
                Err(error) => return (turns, error.words()),
            }
        }
    });
    for (turns, error) in &errors {
        assert!(error.contains(host), "{error}");
        assert!(*turns < 1000, "{turns}");
    }
    assert!(began.elapsed() < LONG / 2, "{:?}", began.elapsed());
    // And so does each later call, at once.
    let again = Instant::now();
    each(left, |comm| comm.barrier().expect_err("over"));
    assert!(again.elapsed() < LONG / 2);
}

#[test]
fn an_agent_that_is_gone_ends_the_calls_of_all() {
    // The first, one that others bring to, and one that nobody does; before a call and in it.
    for (size, victim) in [(3, 0), (3, 2), (36, 1)] {
        for before in [true, false] {
            let mut all = agents(size, LONG);
            each(&all, |comm| comm.barrier().expect("all are there"));
            let (_, gone) = all.remove(victim);
            let host = format!("host{victim}");
            if before {
                gone.shut_down();
                fails(&all, &host);
                continue;
            }
            thread::scope(|scope| {
                scope.spawn(|| {
                    thread::sleep(Duration::from_millis(300));
                    gone.shut_down();
                });
                fails(&all, &host);
            });
        }
    }
}

#[test]
fn an_agent_that_is_late_is_waited_for() {
    let all = agents(3, Duration::from_millis(500));
    let came = each(&all, |comm| {
        if comm.rank() != 1 {
            // Longer than the limit for one that does not answer at all.
            thread::sleep(Duration::from_secs(3));
        }
        comm.barrier()
    });
    assert!(came.iter().all(Result::is_ok), "{came:?}");
}

#[test]
fn an_agent_that_does_not_answer_ends_the_calls_of_all() {
    for stalled in [0, 2] {
        let mut endpoints: Vec<_> = (0..3).map(|rank| endpoint(rank, 1)).collect();
        let mut peers: Vec<Peer> = endpoints.iter().map(|endpoint| endpoint.peer()).collect();
        // Takes connections, and says nothing.
        let silent = TcpListener::bind("127.0.0.1:0").expect("listener");
        peers[stalled].address = silent.local_addr().expect("address").to_string();
        endpoints[stalled].shut_down();
        let mut all = circle(
            std::mem::take(&mut endpoints),
            &peers,
            Duration::from_secs(1),
        );
        all.remove(stalled);
        fails(&all, &format!("host{stalled}"));
    }
}

#[test]
fn who_does_not_know_the_secret_takes_no_part() {
    let endpoints = vec![endpoint(0, 1), endpoint(1, 2)];
    let peers: Vec<Peer> = endpoints.iter().map(|endpoint| endpoint.peer()).collect();
    let all = circle(endpoints, &peers, LONG);
    let errors = each(&all, |comm| comm.barrier().expect_err("refused").words());
    assert!(
        errors.iter().any(|error| error.contains("secret")),
        "{errors:?}"
    );
}

#[test]
fn nonsense_disturbs_nobody() {
    let all = agents(3, LONG);
    let address = all[0].0.peers[0].address.clone();
    let mut stranger = TcpStream::connect(&address).expect("connection");
    // What it is told, if anything, is not what this is about.
    drop(stranger.write_all(&[0x42; 4096]));
    drop(stranger.read(&mut [0; 64]));
    let (circle, endpoint) = &all[1];
    for request in [&[][..], &[255; 64], &[0, 9, 1, 7]] {
        let refused = endpoint.call(&circle.peers[0], request, LONG);
        refused.expect_err("nonsense");
    }
    // One that does not bring here, and turns that are not.
    for (from, turn) in [(7, 1), (1, 5)] {
        let request = Request::Bring {
            from,
            turn,
            call: Call::Max,
            bytes: Vec::new(),
        };
        circle.ask(0, &request, LONG).expect_err("out of turn");
    }
    each(&all, every_call);
}

#[test]
fn different_calls_are_an_error_of_all() {
    let all = agents(3, LONG);
    let errors = each(&all, |comm| {
        if comm.rank() == 2 {
            comm.gather(&[], 0).map(drop)
        } else {
            comm.barrier()
        }
    });
    for error in errors {
        let error = error.expect_err("different").words();
        assert!(error.contains("different calls"), "{error}");
    }
}
