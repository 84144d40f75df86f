// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the store that an aggregator drains into: the one it has, one that it opens again, one that it
//! takes over from another process, or a new one.
//! In from: the request to drain. Out to: `point`.
//! Invariants: a file on shared storage never changes its writing host; whoever takes over writes a file of
//! its own and only reads the former.

use super::DrainSettings;
use super::encode::Decoders;
use super::ledger::Ledger;
use super::point::OpenStore;
use super::source::host;
use super::state::State;
use crate::archive::{ArchiveStore, Identity, Layout, WriteOptions, can_open};
use crate::error::Result;
use crate::store::reader::StoreReader;
use backstay_format::drain::DrainJob;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// The store for a drain; `held` is the one of the drain before.
pub(super) fn store_for(
    held: Option<OpenStore>,
    job: &DrainJob,
    settings: &DrainSettings,
    node: &str,
) -> Result<OpenStore> {
    let is_it = |held: &OpenStore| {
        (&*held.job, held.run, held.aggregator) == (&*job.job, job.run, job.aggregator)
            && (job.file.is_empty() || held.file == job.file)
    };
    if let Some(held) = held.filter(is_it) {
        return Ok(held);
    }
    let folder = Path::new(&job.folder);
    let options = options(job, settings);
    let identity = |epoch| Identity {
        job: job.job.clone(),
        run: job.run,
        aggregator: job.aggregator,
        epoch,
        host: host(node),
    };
    let (file, store) = if job.file.is_empty() {
        ArchiveStore::create_next(folder, &identity(0), &options)?
    } else if can_open(folder, &job.file, &host(node))? {
        (job.file.clone(), ArchiveStore::open(folder, &job.file, &options)?)
    } else {
        ArchiveStore::take_over_next(folder, &job.file, &identity(0), &options)?
    };
    let state = load(&store)?;
    Ok(OpenStore {
        job: job.job.clone(),
        run: job.run,
        aggregator: job.aggregator,
        file,
        store,
        state,
    })
}

fn options(job: &DrainJob, settings: &DrainSettings) -> WriteOptions {
    let aggregators = u64::from(job.aggregators.max(1));
    WriteOptions {
        reserve_bytes: settings.reserve_bytes,
        writer_threads: backstay_format::width::index(settings.write_threads),
        rate_bytes: settings.rate_bytes.map(|rate| rate.div_ceil(aggregators)),
        layout: Layout {
            stripe_count: settings.stripe_count,
            stripe_size_bytes: settings.stripe_size_bytes,
        },
        decode: Arc::new(Decoders::default()),
        ..WriteOptions::default()
    }
}

fn load(store: &ArchiveStore) -> Result<State> {
    let root = store.root();
    let mut ledger = Ledger::default();
    for entry in store.entries() {
        ledger.open(entry.segment, u64::from(entry.decoded_bytes), BTreeSet::new());
    }
    let reader = StoreReader::open(store.device())?;
    reader.read_records(|_, _, _| {})?;
    State::load(&reader, root.revisions, ledger)
}
