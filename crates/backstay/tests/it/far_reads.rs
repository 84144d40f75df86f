// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a rank, or an aggregator, pulls from the store of another node: what it needs, whatever else is there.

use crate::job::config;
use backstay::config::Redundancy;
use backstay::{Communicator, Config, ElementType, Level, Session, Variable};
use backstay_testkit::comm::{ThreadComm, run_ranks};
use backstay_testkit::network::SimNetwork;
use std::path::Path;

const NODES: usize = 3;
/// Of a node: the second has an endpoint that nothing else uses.
const RANKS: usize = 2;

fn words(name: &str, rank: usize, count: usize) -> Vec<u64> {
    let seed = u64::from(name.as_bytes()[0]) << 40 | (rank as u64) << 32;
    (0..count as u64)
        .map(|at| (seed | at).wrapping_mul(0x9e37_79b9_7f4a_7c15))
        .collect()
}

/// A start of which each rank has variables of so many words; it is `shift` nodes further than where its data is.
fn start(
    folder: &Path,
    network: &SimNetwork,
    (variables, shift): (&[(&str, usize)], usize),
    body: impl Fn(&mut Session, bool) + Sync,
) {
    run_ranks(ThreadComm::new(NODES * RANKS), |comm| {
        let rank = usize::try_from(comm.rank()).unwrap();
        let place = (rank / RANKS + shift) % NODES;
        let leads = rank % RANKS == 0;
        let name = if leads {
            format!("n{place}")
        } else {
            format!("n{place}.1")
        };
        let endpoint = network.endpoint(&name);
        let config = Config {
            redundancy: Redundancy::Xor,
            store_path: Some(folder.join(format!("n{place}"))),
            node: Some(format!("n{place}")),
            ..config(folder)
        };
        let mut session = Session::open_on(Box::new(comm), config, Some(endpoint)).unwrap();
        let mut memory: Vec<Vec<u64>> = variables
            .iter()
            .map(|(name, count)| words(name, rank, *count))
            .collect();
        for ((name, count), words) in variables.iter().zip(&mut memory) {
            let variable = Variable::new(name, ElementType::U64, &[*count as u64]);
            // SAFETY: `memory` outlives the session.
            unsafe {
                session
                    .protect(variable, words.as_mut_ptr().cast())
                    .unwrap();
            };
        }
        if shift > 0 {
            for words in &mut memory {
                words.fill(0);
            }
            session.restore().unwrap();
            for ((name, count), got) in variables.iter().zip(&memory) {
                assert!(*got == words(name, rank, *count), "{name} of rank {rank}");
            }
        }
        body(&mut session, leads);
        session.close().unwrap();
    });
}

fn protects(session: &mut Session, _: bool) {
    let handle = session.checkpoint_start().unwrap();
    session.wait(handle, Level::Protected).unwrap();
}

/// What the ranks that lead no node pulled in a restart where all data is on other nodes.
fn pulled(variables: &[(&str, usize)]) -> Vec<u64> {
    let folder = tempfile::tempdir().unwrap();
    let network = SimNetwork::new(1);
    start(folder.path(), &network, (variables, 0), protects);
    network.clear_traffic();
    start(folder.path(), &network, (variables, 1), |_, _| ());
    let of = |place| network.traffic(&format!("n{place}.1")).bytes_pulled;
    (0..NODES).map(of).collect()
}

#[test]
fn a_rank_pulls_what_it_needs_of_another_nodes_store() {
    // Superblock, roots, the tables of the node and of the rank, the pages of its trees, and what was read ahead.
    const HEAD: u64 = 112 << 10;
    for count in [128, 4096, 100_000, 1_000_000] {
        let need = count as u64 * 8;
        for pulled in pulled(&[("field", count)]) {
            let most = need + need / 16 + HEAD;
            assert!((need..=most).contains(&pulled), "{need}: {pulled}");
        }
    }
}

#[test]
fn an_aggregator_pulls_what_changed_and_the_pages_above_it() {
    let folder = tempfile::tempdir().unwrap();
    let (folder, network) = (folder.path(), SimNetwork::new(1));
    let count = 1_000_000;
    run_ranks(ThreadComm::new(NODES), |comm| {
        let place = usize::try_from(comm.rank()).unwrap();
        let endpoint = network.endpoint(&format!("n{place}"));
        let config = Config {
            node: Some(format!("n{place}")),
            store_path: Some(folder.join(format!("n{place}"))),
            archive: Some(folder.join("pfs")),
            aggregate_nodes: Some(3),
            ..config(folder)
        };
        let mut session = Session::open_on(Box::new(comm), config, Some(endpoint)).unwrap();
        let mut memory = words("field", place, count);
        let variable = Variable::new("field", ElementType::U64, &[count as u64]);
        // SAFETY: `memory` outlives the session.
        unsafe {
            session
                .protect(variable, memory.as_mut_ptr().cast())
                .unwrap();
        };
        let mut pulled = Vec::new();
        for word in 0..3 {
            *memory.get_mut(word).unwrap() ^= 1;
            let before = network.traffic("n0").bytes_pulled;
            let handle = session.checkpoint_start().unwrap();
            session.wait(handle, Level::Archive).unwrap();
            pulled.push(network.traffic("n0").bytes_pulled - before);
        }
        if place == 0 {
            let need = 2 * 8 * count as u64;
            assert!((need..=need + need / 16).contains(&pulled[0]), "{pulled:?}");
            // Of each of two nodes a block of 16 KiB, the pages above it and the tables that lead there.
            assert!(
                pulled[1..].iter().all(|bytes| *bytes <= 2 * (256 << 10)),
                "{pulled:?}"
            );
        }
        session.close().unwrap();
    });
}
