// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the store that an aggregator drains into: the one it has, one that it opens again, one that it
//! takes over from another process, or a new one.
//! In from: the request to drain. Out to: `point`.
//! Invariants: a file on shared storage never changes its writing host; whoever takes over writes a file of
//! its own and only reads the former, which is the one that the catalog names: what nobody recorded is begun
//! anew, because nobody says how what it goes on from went on. A store is kept open for one start of the job.

use super::encode::Decoders;
use super::fetch::open_device;
use super::history::note_deltas;
use super::ledger::{Ledger, Runs};
use super::point::{OpenStore, Start};
use super::state::State;
use super::{DrainSettings, PARALLEL_MAX, parallel};
use crate::layout::Layout;
use crate::{ArchiveDevice, ArchiveStore, Identity, ReadOptions, WriteOptions, fence, store_file};
use backstay_base::clock::{Pulse, patiently};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::direct::writes_pay;
use backstay_base::notice;
use backstay_format::drain::DrainJob;
use backstay_format::{SegmentHeader, TableEntry};
use backstay_store::reader::StoreReader;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// So many files, each taken over from the one before, hold what is retained; then all goes to a new one.
const CHAIN_MAX: usize = 4;
/// So many numbers are tried for a new file.
const EPOCHS_TRIED: u32 = 1000;

/// The store for a drain; `held` is the one of the drain before.
pub(super) fn store_for(
    held: Option<OpenStore>,
    job: &DrainJob,
    settings: &DrainSettings,
    pulse: &Pulse,
) -> Result<OpenStore> {
    // What a former start or another coordinator left open may have been removed meanwhile: it is looked up.
    let is_it = |held: &OpenStore| {
        (&held.start, held.aggregator) == (&Start::of(job), job.aggregator)
            && (held.file == job.file || held.recorded == job.file)
    };
    if let Some(held) = held.filter(is_it) {
        return Ok(held);
    }
    let folder = Path::new(&job.folder);
    let options = options(folder, job, settings, pulse);
    // Half of what the coordinator waits for a step.
    let patience = Duration::from_millis(settings.timeout_ms / 2);
    let may_pass = |error: &Error| is_unread(error, folder, &job.file);
    let opened = patiently(patience, may_pass, || {
        let (file, store) = open(folder, job, &options)?;
        let state = load(&store)?;
        Ok((file, store, state))
    });
    let (file, store, state) = match opened {
        Err(error) if may_pass(&error) || is_damage(&error, folder, &job.file) => {
            notice::warn(&format!("all is drained to a new file: {error}"));
            let (file, store) = make(folder, job, &options)?;
            (file, store, State::empty())
        }
        opened => opened?,
    };
    Ok(OpenStore {
        start: Start::of(job),
        aggregator: job.aggregator,
        recorded: job.file.clone(),
        file,
        store,
        state,
    })
}

/// Whether there is no going on from `file`.
fn is_damage(error: &Error, folder: &Path, file: &str) -> bool {
    error.kind() == ErrorKind::Corrupt || !file.is_empty() && !is_there(folder, file)
}

/// Whether the head of `file` cannot be read: nobody goes on from it then. What the catalog lists of it stays
/// listed, and is there when it can be read again.
fn is_unread(error: &Error, folder: &Path, file: &str) -> bool {
    let opened = || open_device(folder, file).map(drop);
    let is_io = |error: &Error| error.kind() == ErrorKind::StoreIo;
    !file.is_empty() && is_io(error) && opened().is_err_and(|error| is_io(&error))
}

/// A new file that goes on from none.
fn make(folder: &Path, job: &DrainJob, options: &WriteOptions) -> Result<(String, ArchiveStore)> {
    let mut identity = identity(job);
    let made = go_on(folder, "", &mut identity, options)?;
    made.ok_or_else(|| too_many(folder, job))
}

fn identity(job: &DrainJob) -> Identity {
    Identity {
        job: job.job.clone(),
        run: job.run,
        aggregator: job.aggregator,
        epoch: epoch_of(&job.file),
        host: fence::host(),
    }
}

/// The epoch of an aggregator's file, by its name.
pub(super) fn epoch_of(file: &str) -> u32 {
    crate::FileName::store(file).map_or(0, |(_, epoch)| epoch)
}

fn open(folder: &Path, job: &DrainJob, options: &WriteOptions) -> Result<(String, ArchiveStore)> {
    let mut identity = identity(job);
    let opened = go_on(folder, &job.file, &mut identity, options)?;
    opened.ok_or_else(|| too_many(folder, job))
}

/// Opens `former` again where this process may write it; else takes it over. An empty one is none: the
/// first file is made.
fn go_on(
    folder: &Path,
    former: &str,
    identity: &mut Identity,
    options: &WriteOptions,
) -> Result<Option<(String, ArchiveStore)>> {
    if !former.is_empty() {
        identity.epoch = epoch_of(former);
        match ArchiveStore::open(folder, former, identity, options) {
            Ok(store) => return Ok(Some((former.to_owned(), store))),
            Err(error) if error.kind() == ErrorKind::StoreBusy => {}
            Err(error) => return Err(error),
        }
    }
    // What stands in many files is drained once more, so that they can go.
    let is_long = |device: Arc<ArchiveDevice>| device.root().files.len() + 1 >= CHAIN_MAX;
    let former = match former {
        "" => "",
        former if is_long(open_device(folder, former)?) => "",
        former => former,
    };
    make_next(folder, former, identity, options)
}

/// Makes the next file of an aggregator, behind `identity.epoch`: one that goes on from `former`, if that is not empty.
pub(super) fn make_next(
    folder: &Path,
    former: &str,
    identity: &mut Identity,
    options: &WriteOptions,
) -> Result<Option<(String, ArchiveStore)>> {
    // Files of drains that nobody recorded may stand in the way: each try has the next number.
    for _ in 0..EPOCHS_TRIED {
        identity.epoch += 1;
        let name = store_file(identity.aggregator, identity.epoch);
        if is_there(folder, &name) {
            continue;
        }
        let made = if former.is_empty() {
            ArchiveStore::create(folder, &name, identity, options)
        } else {
            ArchiveStore::take_over(folder, former, &name, identity, options)
        };
        match made {
            Ok(store) => return Ok(Some((name, store))),
            Err(error) if error.kind() == ErrorKind::StoreBusy => {
                tracing::debug!("{name} is there: {error}");
            }
            // What was made of it holds nothing.
            Err(error) => {
                drop(std::fs::remove_file(folder.join(&name)));
                return Err(error);
            }
        }
    }
    Ok(None)
}

fn too_many(folder: &Path, job: &DrainJob) -> Error {
    let context = format!(
        "{}: too many files of aggregator {}",
        folder.display(),
        job.aggregator
    );
    Error::new(ErrorKind::StoreBusy, context)
}

fn is_there(folder: &Path, name: &str) -> bool {
    folder.join(name).exists()
}

fn options(folder: &Path, job: &DrainJob, settings: &DrainSettings, pulse: &Pulse) -> WriteOptions {
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
        direct_write: writes_pay(folder),
        pulse: pulse.clone(),
        read: ReadOptions {
            decode: Arc::new(Decoders::default()),
            pulse: pulse.clone(),
            ..defaults.read.clone()
        },
        ..defaults
    }
}

fn load(store: &ArchiveStore) -> Result<State> {
    let root = store.root();
    let mut ledger = Ledger::default();
    let entries = store.device().entries();
    for entry in &entries {
        ledger.open(
            entry.segment,
            u64::from(entry.decoded_bytes),
            Runs::default(),
        );
    }
    open_deltas(store, &entries, &mut ledger)?;
    let reader = StoreReader::open(store.device())?;
    reader.read_records(|_, _, _| {})?;
    State::load(&reader, root.revisions.clone(), ledger)
}

/// Takes into account what deltas refer to. One whose header is damaged refers to nothing: nobody can
/// decode it.
fn open_deltas(store: &ArchiveStore, entries: &[TableEntry], ledger: &mut Ledger) -> Result<()> {
    let deltas: Vec<&TableEntry> = entries.iter().filter(|entry| entry.delta).collect();
    let device = store.device();
    let headers = parallel(&deltas, PARALLEL_MAX, |entry| {
        match device.header(entry.segment) {
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                notice::warn(&error.to_string());
                Ok(None)
            }
            read => read.map(Some),
        }
    })?;
    let headers: Vec<SegmentHeader> = headers.into_iter().flatten().collect();
    for header in &headers {
        let decoded = u64::from(header.decoded_bytes);
        ledger.open(header.segment, decoded, header.bases.as_slice().into());
    }
    note_deltas(ledger, &headers);
    Ok(())
}
