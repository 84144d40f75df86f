// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Level 2 over libfabric: stores that are registered, rounds that read them, and a node that is lost.

use crate::job::{Rank, WORDS, config};
use backstay::config::{Redundancy, Transport};
use backstay::{CheckpointId, Config, Level};
use backstay_net::{Secret, TcpEndpoint, TcpOptions};
use backstay_testkit::comm::{ThreadComm, run_ranks};
use serde_json::Value;
use std::io::Write;
use std::path::Path;

fn node(folder: &Path, provider: &str, place: usize) -> Config {
    Config {
        node: Some(format!("n{place}")),
        store_path: Some(folder.join(format!("n{place}"))),
        redundancy: Redundancy::Xor,
        listen_address: Some("127.0.0.1:0".to_owned()),
        transport: Transport::Libfabric,
        fabric_provider: Some(provider.to_owned()),
        ..config(folder)
    }
}

/// Whether the provider is there; without the library it is not, which is said.
fn is_there(folder: &Path, provider: &str) -> bool {
    let mut options = TcpOptions::new("probe", "test job", Secret::from_bytes([1; 32]));
    options.listen = Some(([127, 0, 0, 1], 0).into());
    options.transports = node(folder, provider, 0).transports();
    let Err(error) = TcpEndpoint::open(options) else {
        return true;
    };
    let text = error.to_string();
    assert!(text.contains("cannot be loaded"), "{text}");
    let words = format!("SKIPPED: {text} (libfabric1)\n");
    std::io::stderr().write_all(words.as_bytes()).unwrap();
    false
}

/// One start on three nodes, and what the metrics of each say of how it read.
fn start(folder: &Path, provider: &str, body: impl Fn(&mut Rank) + Sync) -> Vec<Value> {
    run_ranks(ThreadComm::new(3), |comm| {
        let place = usize::try_from(backstay::Communicator::rank(&comm)).unwrap();
        let mut rank = Rank::open(comm, node(folder, provider, place)).expect("opening");
        rank.settle().expect("protecting");
        body(&mut rank);
        let path = rank.session.directory().join("metrics.json");
        rank.session.close().expect("closing");
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    })
}

fn protect(rank: &mut Rank) {
    for _ in 0..3 {
        rank.compute();
        let handle = rank.session.checkpoint_start().unwrap();
        rank.session.wait(handle, Level::Protected).unwrap();
    }
}

#[test]
fn stores_in_memory_are_read_over_libfabric_and_a_lost_one_is_made_again() {
    for provider in ["tcp;ofi_rxm", "shm"] {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let folder = folder.path();
        if !is_there(folder, provider) {
            return;
        }
        let metrics = start(folder, provider, protect);
        let mut past = 0;
        for metrics in &metrics {
            assert_eq!(metrics["transport"], format!("libfabric {provider}"));
            past += metrics["read_bytes_libfabric"].as_u64().unwrap_or(0);
        }
        let bytes = u64::try_from(WORDS * 8).unwrap();
        assert!(past >= bytes / 2, "{provider}: {past} bytes: {metrics:?}");
        std::fs::remove_dir_all(folder.join("n1")).unwrap();
        let metrics = start(folder, provider, |rank| {
            let restored = rank.session.restore().unwrap();
            assert_eq!(restored.checkpoint, CheckpointId::new(1, 3));
            rank.check();
            protect(rank);
        });
        assert_eq!(metrics[1]["transport"], format!("libfabric {provider}"));
    }
}
