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
use super::state::State;
use crate::archive::layout::Layout;
use crate::archive::{ArchiveStore, Identity, ReadOptions, WriteOptions, fence, store_file};
use crate::error::{Error, ErrorKind, Result};
use crate::store::reader::StoreReader;
use backstay_format::drain::DrainJob;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// So many numbers are tried for a new file.
const EPOCHS_TRIED: u32 = 1000;

/// The store for a drain; `held` is the one of the drain before.
pub(super) fn store_for(
    held: Option<OpenStore>,
    job: &DrainJob,
    settings: &DrainSettings,
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
    let (file, store) = open(folder, job, &options)?;
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

/// The epoch of an aggregator's file, by its name.
fn epoch_of(file: &str) -> u32 {
    let number = file
        .strip_suffix(".backstay")
        .and_then(|name| name.rsplit('-').next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

fn open(folder: &Path, job: &DrainJob, options: &WriteOptions) -> Result<(String, ArchiveStore)> {
    let mut identity = Identity {
        job: job.job.clone(),
        run: job.run,
        aggregator: job.aggregator,
        epoch: epoch_of(&job.file),
        host: fence::host(),
    };
    if !job.file.is_empty() {
        match ArchiveStore::open(folder, &job.file, &identity, options) {
            Ok(store) => return Ok((job.file.clone(), store)),
            Err(error) if error.kind() == ErrorKind::StoreBusy => {}
            Err(error) => return Err(error),
        }
    }
    // Files of drains that nobody recorded may stand in the way: each try has the next number.
    for _ in 0..EPOCHS_TRIED {
        identity.epoch += 1;
        let name = store_file(job.aggregator, identity.epoch);
        let made = if job.file.is_empty() {
            ArchiveStore::create(folder, &name, &identity, options)
        } else {
            ArchiveStore::take_over(folder, &job.file, &name, &identity, options)
        };
        match made {
            Ok(store) => return Ok((name, store)),
            Err(error) if is_there(folder, &name) => {
                tracing::debug!("{name} is there: {error}");
            }
            Err(error) => return Err(error),
        }
    }
    let context = format!(
        "{}: too many files of aggregator {}",
        folder.display(),
        job.aggregator
    );
    Err(Error::new(ErrorKind::StoreBusy, context))
}

fn is_there(folder: &Path, name: &str) -> bool {
    folder.join(name).exists()
}

fn options(job: &DrainJob, settings: &DrainSettings) -> WriteOptions {
    let aggregators = u64::from(job.aggregators.max(1));
    let defaults = WriteOptions::default();
    WriteOptions {
        reserve_bytes: settings.reserve_bytes.unwrap_or(defaults.reserve_bytes),
        writer_threads: backstay_format::width::index(settings.write_threads),
        layout: Layout {
            stripe_count: settings.stripe_count,
            stripe_size_bytes: settings.stripe_size_bytes,
        },
        rate_bytes: settings.rate_bytes.map(|rate| rate.div_ceil(aggregators)),
        read: ReadOptions {
            decode: Arc::new(Decoders::default()),
            ..defaults.read.clone()
        },
        ..defaults
    }
}

fn load(store: &ArchiveStore) -> Result<State> {
    let root = store.root();
    let mut ledger = Ledger::default();
    for entry in store.device().entries() {
        ledger.open(
            entry.segment,
            u64::from(entry.decoded_bytes),
            BTreeSet::new(),
        );
    }
    let reader = StoreReader::open(store.device())?;
    reader.read_records(|_, _, _| {})?;
    State::load(&reader, root.revisions.clone(), ledger)
}
