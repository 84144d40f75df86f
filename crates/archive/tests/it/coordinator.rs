// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the coordinator of drains asks of whom in large jobs, counted.

use backstay_archive::drain::{ArchiveNode, ArchivePlan, ArchiveThread, DrainPoint, DrainSettings};
use backstay_base::Result;
use backstay_base::io::shared::SharedWords;
use backstay_format::drain::{ArchiveCodec, DrainAnswer, DrainProgress, DrainRequest};
use backstay_format::{CheckpointId, Digest, Lineage, Merge, RankRange, StoreId, Superblock};
use backstay_net::Endpoint;
use backstay_store::control::Control;
use backstay_store::reserve::{Reserve, ReserveSettings};
use backstay_testkit::SimNetwork;
use backstay_testkit::device::SimDevice;
use backstay_testkit::network::Traffic;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const ID: CheckpointId = CheckpointId {
    incarnation: 1,
    number: 5,
};
const WITHIN: Duration = Duration::from_secs(60);

fn name(at: usize) -> String {
    format!("n{at}")
}

/// A node that drains at once whatever it is told to, and the nodes that it was told to tell.
fn drains_at_once(network: &SimNetwork, at: usize, told: &Arc<Mutex<Vec<String>>>) {
    let endpoint = network.endpoint(&name(at));
    let (begun, told) = (Mutex::new(None), Arc::clone(told));
    endpoint.serve(Arc::new(
        move |request: &[u8], _: Duration| -> Result<Vec<u8>> {
            let answer = match DrainRequest::decode(request).unwrap() {
                DrainRequest::Begin(job) => {
                    *begun.lock().unwrap() = Some(job);
                    DrainAnswer::Done
                }
                DrainRequest::Progress => {
                    DrainAnswer::Progress(done(begun.lock().unwrap().as_ref()))
                }
                DrainRequest::Archived { nodes, .. } => {
                    let names = nodes.into_iter().map(|seat| seat.node);
                    told.lock().unwrap().extend(names);
                    DrainAnswer::Done
                }
                _ => DrainAnswer::Done,
            };
            Ok(answer.encode().unwrap())
        },
    ));
}

fn done(job: Option<&backstay_format::drain::DrainJob>) -> DrainProgress {
    let Some(job) = job else {
        return DrainProgress::default();
    };
    let file = format!("aggregate-{}-1.backstay", job.aggregator);
    DrainProgress {
        state: 2,
        checkpoint: job.checkpoint,
        store: StoreId(Digest::of(file.as_bytes()).0),
        file,
        sequence: 2,
        world_size: job.aggregators,
        ranks: RankRange::of([job.aggregator]),
        ..DrainProgress::default()
    }
}

fn plan(folder: &Path, nodes: usize) -> ArchivePlan {
    let node = |at| ArchiveNode {
        name: name(at),
        address: format!("sim:{}", name(at)),
    };
    ArchivePlan {
        folder: folder.join("job"),
        job: "job".to_owned(),
        run: 7,
        incarnation: 1,
        lineage: Lineage {
            began: 1,
            start: 1,
            ..Lineage::default()
        },
        from: None,
        every: 1,
        retained: 2,
        settings: DrainSettings {
            merge: Merge::Concatenate,
            group_size: 32,
            codec: ArchiveCodec::Raw,
            second_pass: false,
            history: 0,
            every: 1,
            threads: 1,
            write_threads: 1,
            rate_bytes: None,
            reserve_bytes: None,
            stripe_count: None,
            stripe_size_bytes: None,
            nice: 0,
            cpu_set: None,
            timeout_ms: 60_000,
        },
        nodes: (0..nodes).map(node).collect(),
        aggregate_nodes: None,
        status: None,
    }
}

/// The coordinator on node 0, whose checkpoint is committed.
fn coordinator(network: &SimNetwork) -> (Arc<DrainPoint>, Control) {
    let words = SharedWords::heap(Control::words_for(64));
    let control = Control::start(words, 64).unwrap();
    let superblock = Superblock {
        store: StoreId(*b"coordinator test"),
        segment_bytes: 1 << 18,
        run: 7,
        created_unix_ns: 1,
        job: "job".to_owned(),
        node: name(0),
    };
    let settings = ReserveSettings {
        reserve_bytes_max: None,
        wait: WITHIN,
        space_later: false,
    };
    let device = Arc::new(SimDevice::new());
    let reserve = Reserve::create(device, control.clone(), &superblock, 2, settings).unwrap();
    // Its own share is drained by a node beside it.
    let point = Arc::new(DrainPoint::new(network.endpoint("coordinator"), &name(0)));
    point.attach(&reserve);
    control.set_committed(ID);
    (point, control)
}

/// Drains one checkpoint of a job of so many nodes: what the coordinator did, and the nodes that were told.
fn drain(nodes: usize) -> (Traffic, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let network = SimNetwork::new(1);
    let told = Arc::default();
    (0..nodes).for_each(|at| drains_at_once(&network, at, &told));
    let (point, _control) = coordinator(&network);
    let plan = plan(folder.path(), nodes);
    let catalog = plan.open_catalog().unwrap();
    let thread = ArchiveThread::start(point, plan, Some(catalog)).unwrap();
    let begun = Instant::now();
    while told.lock().unwrap().len() < nodes {
        assert!(begun.elapsed() < WITHIN, "not all nodes are told");
        std::thread::sleep(Duration::from_millis(5));
    }
    thread.end();
    let mut told = std::mem::take(&mut *told.lock().unwrap());
    told.sort();
    (network.traffic("coordinator"), told)
}

/// It begins, looks once or twice, and tells: whatever the nodes are, of aggregators only.
#[test]
fn the_coordinator_asks_aggregators_and_these_tell_their_nodes() {
    for (nodes, aggregators) in [(16, 16), (256, 32), (2048, 64)] {
        let (traffic, told) = drain(nodes);
        assert_eq!(traffic.peers(), aggregators);
        let calls = usize::try_from(traffic.calls_sent).unwrap();
        assert!(
            (3 * aggregators..=4 * aggregators).contains(&calls),
            "{calls}"
        );
        assert_eq!(traffic.calls_handled + traffic.pulls_sent, 0);
        let mut all: Vec<String> = (0..nodes).map(name).collect();
        all.sort();
        assert_eq!(told, all);
    }
}
