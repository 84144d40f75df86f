// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what must hold after every step of every job, by name.
//! In: what ranks were told, what the model knows, what is in the files. Out: which of them is broken,
//! and how.
//! Invariants: nothing is asked for beyond what the documents promise.
//!
//! | name | looked at |
//! |---|---|
//! | [`ONE_START`] | when a job is started beside a start of it that is stopped |
//! | [`ONE_OUTCOME`] | after every start, for every collective call |
//! | [`EVERY_WORD`] | at every restore, on every rank |
//! | [`NOTHING_NEWER`] | at every restore |
//! | [`NOTHING_DROPPED`] | at every restore that something kept from what there is, and at the next |
//! | [`STILL_THERE`] | at every restore, after losses |
//! | [`NEVER_BACK`] | at every restore |
//! | [`DONE_IS_DONE`] | at every restore after a job finished |
//! | [`ONE_NAME`] | at every checkpoint and restore |
//! | [`GOES_ON`] | at every call that nothing disturbs |
//! | [`TRULY_PROTECTED`] | after every start: what the stores' own logs say |
//! | [`TRULY_ARCHIVED`] | after every start: what the catalog says |
//! | [`WHOLE`] | after every start: every byte of every store and of the archive |
//! | [`A_GOOD_SLOT`] | after every start |
//! | [`BOUNDED`] | after every start |

use crate::ledger::{Event, Outcome, Told};
use crate::world::node_name;
use backstay::{CheckpointId, ErrorKind};
use backstay_inspect::{Checkpoint, Safety, Stores};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A store has one start of a job at a time: a second one is refused.
pub(crate) const ONE_START: &str = "a store has one start at a time";
/// All ranks are told the same by a collective call.
pub(crate) const ONE_OUTCOME: &str = "all ranks have one outcome";
/// What comes back is word for word what was there when the checkpoint was taken.
pub(crate) const EVERY_WORD: &str = "every word that comes back is the one that was taken";
/// A restore gives the newest checkpoint that can be had.
pub(crate) const NOTHING_NEWER: &str = "nothing newer that can be had is passed over";
/// A read that could not be made sends no job to an older checkpoint.
pub(crate) const NOTHING_DROPPED: &str = "nothing is dropped by a read that failed";
/// What was told to be protected, or archived, survives what this is against.
pub(crate) const STILL_THERE: &str = "what was told safe survives the losses that this covers";
/// A checkpoint that a start went back behind is gone.
pub(crate) const NEVER_BACK: &str = "an abandoned checkpoint never comes back";
/// A job that finished begins anew, as long as any node that is there, or the archive, knows that it did.
pub(crate) const DONE_IS_DONE: &str = "a finished job is not gone on from";
/// A checkpoint's name is given once.
pub(crate) const ONE_NAME: &str = "a name stands for one checkpoint";
/// What nothing disturbs is well, in time.
pub(crate) const GOES_ON: &str = "what nothing disturbs goes on";
/// A wait for protection is well only for what is protected.
pub(crate) const TRULY_PROTECTED: &str = "wait(Protected) is well only for what is protected";
/// A wait for the archive is well only for what is there.
pub(crate) const TRULY_ARCHIVED: &str = "wait(Archive) is well only for what the catalog lists";
/// What a root or a catalog names decodes and verifies.
pub(crate) const WHOLE: &str = "what is listed decodes and verifies";
/// Of two slots one is good, whatever happens.
pub(crate) const A_GOOD_SLOT: &str = "both slots are never bad";
/// Space is bounded by what is retained, not by how long a job runs.
pub(crate) const BOUNDED: &str = "space in use does not grow without bound";

/// Bytes that a store may have beside what it retains.
const SPACE_BYTES: u64 = 48 << 20;
/// States of a node that a store may hold beside the retained ones: those that are written, that parity
/// still covers, that were freed and are not reused yet.
const SPACE_STATES: u64 = 24;

/// What is said of an invariant that does not hold.
pub(crate) fn broken(name: &str, how: impl std::fmt::Display) -> String {
    format!("BROKEN: {name}: {how}")
}

/// [`ONE_OUTCOME`]; the words of a refusal may differ.
pub(crate) fn one_outcome(told: &Told) -> Result<(), String> {
    let alike = |one: &Outcome, other: &Outcome| match (one, other) {
        (Outcome::Refused(one, _), Outcome::Refused(other, _)) => one == other,
        (one, other) => one == other,
    };
    let mut outcomes = told.outcomes.values();
    if let Some(first) = outcomes.next()
        && !outcomes.all(|other| alike(first, other))
    {
        return Err(broken(ONE_OUTCOME, format!("{:#?}", told.outcomes)));
    }
    if let Some(text) = &told.diverged {
        return Err(broken(ONE_OUTCOME, text));
    }
    for (number, told) in &told.calls {
        let kinds: BTreeSet<&String> = told.values().collect();
        if kinds.len() > 1 {
            return Err(broken(ONE_OUTCOME, format!("call {number}: {told:#?}")));
        }
    }
    Ok(())
}

/// A checkpoint that must come back, and why.
#[derive(Debug)]
pub(crate) struct Required {
    pub(crate) id: CheckpointId,
    pub(crate) step: u64,
    pub(crate) why: String,
    /// It was told safe, and nodes were lost meanwhile.
    pub(crate) lossy: bool,
}

/// [`NOTHING_NEWER`], [`NOTHING_DROPPED`], [`STILL_THERE`]: of a start's first restore.
pub(crate) fn nothing_lost(
    outcome: &Outcome,
    required: Option<&Required>,
    disturbed: bool,
) -> Result<(), String> {
    let Some(required) = required else {
        return Ok(());
    };
    let name = match disturbed {
        true => NOTHING_DROPPED,
        false if required.lossy => STILL_THERE,
        false => NOTHING_NEWER,
    };
    let Required { id, step, why, .. } = required;
    match outcome {
        Outcome::Restored(_, restored) if restored >= step => Ok(()),
        // It says that it cannot, and nothing is lost by that.
        Outcome::Refused(..) if disturbed => Ok(()),
        other => Err(broken(
            name,
            format!("{other:?}, and checkpoint {id} (step {step}) can be had: {why}"),
        )),
    }
}

/// [`NEVER_BACK`].
pub(crate) fn never_back(
    id: CheckpointId,
    abandoned: &BTreeSet<CheckpointId>,
) -> Result<(), String> {
    if abandoned.contains(&id) {
        let text = format!("{id}, which an earlier restore went back behind");
        return Err(broken(NEVER_BACK, text));
    }
    Ok(())
}

/// [`ONE_NAME`].
pub(crate) fn one_name(id: CheckpointId, step: u64, known: Option<u64>) -> Result<(), String> {
    match known {
        Some(known) if known != step => Err(broken(
            ONE_NAME,
            format!("checkpoint {id} is of step {step}, and was of step {known}"),
        )),
        _ => Ok(()),
    }
}

/// [`GOES_ON`]: some errors are never right, whatever is done to a job.
pub(crate) fn sane(what: &str, error: &backstay::Error, full: bool) -> Result<(), String> {
    let never = [
        ErrorKind::Internal,
        ErrorKind::InvalidArgument,
        ErrorKind::Communicator,
        ErrorKind::StoreBusy,
        ErrorKind::VariableMismatch,
    ];
    let kind = error.kind();
    if never.contains(&kind) || kind == ErrorKind::StoreFull && !full {
        return Err(broken(GOES_ON, format!("{what}: {kind:?}: {error}")));
    }
    Ok(())
}

/// What the files of a start are looked at for.
pub(crate) struct Files<'a> {
    /// Where they are.
    pub(crate) folder: &'a Path,
    pub(crate) archive: &'a Path,
    /// The nodes of the start.
    pub(crate) nodes: &'a BTreeSet<usize>,
    /// Nodes whose files were harmed.
    pub(crate) harmed: &'a BTreeSet<usize>,
    /// Bytes of all variables of the job, and of how many checkpoints of them.
    pub(crate) state_bytes: u64,
    pub(crate) kept: u64,
    /// Nothing failed while they were written.
    pub(crate) undisturbed: bool,
}

/// What the files themselves must be, whatever happened to the processes that wrote them.
pub(crate) fn files(files: &Files<'_>, told: &Told) -> Result<(), String> {
    let here = |node: &&usize| !files.harmed.contains(node);
    let paths: Vec<PathBuf> = files
        .nodes
        .iter()
        .filter(here)
        .map(|node| files.folder.join(node_name(*node)))
        .chain([files.archive.to_owned()])
        .filter(|path| path.exists())
        .collect();
    let mut stores = Stores::open(&paths);
    // Threads of a start that just ended may still write; what stays is damage.
    let mut verified = verify(&stores);
    for _ in 0..3 {
        if verified.is_ok() {
            break;
        }
        std::thread::sleep(Duration::from_millis(60));
        stores = Stores::open(&paths);
        verified = verify(&stores);
    }
    // A store that was never made whole is none; nor is what a kill left of making one.
    for unreadable in stores.unreadable() {
        if unreadable.error.kind() == ErrorKind::Corrupt {
            let text = format!("{}: {}", unreadable.path.display(), unreadable.error);
            return Err(broken(A_GOOD_SLOT, text));
        }
    }
    verified?;
    bounded(files)?;
    let all = stores.checkpoints();
    if files.harmed.is_disjoint(files.nodes) && files.undisturbed {
        truly_protected(&stores, &all, told)?;
    }
    truly_archived(&all, told)
}

/// [`WHOLE`].
fn verify(stores: &Stores) -> Result<(), String> {
    let archives = stores.verify_archives().into_iter();
    let archives = archives.flat_map(|archive| archive.findings);
    let verified = stores.verify(None, &mut |_| {}).into_iter();
    let findings = verified.flat_map(|store| store.findings).chain(archives);
    // What has a good copy left concerns no checkpoint.
    let bad: Vec<String> = findings
        .filter(|finding| !finding.checkpoints.is_empty())
        .map(|finding| format!("{} of {:?}", finding.text, finding.checkpoints))
        .collect();
    if bad.is_empty() {
        return Ok(());
    }
    Err(broken(WHOLE, format!("{bad:#?}")))
}

/// [`BOUNDED`].
fn bounded(files: &Files<'_>) -> Result<(), String> {
    let states = SPACE_STATES + 2 * files.kept;
    let most = SPACE_BYTES + states * files.state_bytes;
    for node in files.nodes {
        let name = node_name(*node);
        let path = files.folder.join(&name).join("job").join(&name);
        let path = path.join(backstay_store::place::STORE_FILE);
        let length = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
        if length > most {
            let text = format!("the store of {name} has {length} bytes, {most} were enough");
            return Err(broken(BOUNDED, text));
        }
    }
    Ok(())
}

fn last_told(told: &Told, which: impl Fn(&Event) -> Option<CheckpointId>) -> Option<CheckpointId> {
    let at = told
        .events
        .iter()
        .rposition(|event| which(event).is_some())?;
    let id = which(&told.events[at])?;
    let gone = told.events[at..]
        .iter()
        .any(|event| matches!(event, Event::GoingBack(back, _) if *back < id));
    (!gone).then_some(id)
}

/// [`TRULY_PROTECTED`]: the stores' own logs say so, of it or of a newer one.
fn truly_protected(stores: &Stores, all: &[Checkpoint], told: &Told) -> Result<(), String> {
    let last = last_told(told, |event| match event {
        Event::Protected(id, _) => Some(*id),
        _ => None,
    });
    let Some(id) = last else { return Ok(()) };
    let safe = |checkpoint: &&Checkpoint| {
        checkpoint.archived.is_none()
            && checkpoint.is_complete()
            && checkpoint.id >= id
            && stores.protection(checkpoint).safety >= Safety::Protected
    };
    if all.iter().any(|checkpoint| safe(&checkpoint)) {
        return Ok(());
    }
    let known: Vec<_> = all
        .iter()
        .map(|c| (c.id, c.is_complete(), stores.protection(c).safety))
        .collect();
    let text = format!("{id} was told protected; the stores have {known:?}");
    Err(broken(TRULY_PROTECTED, text))
}

/// [`TRULY_ARCHIVED`].
fn truly_archived(all: &[Checkpoint], told: &Told) -> Result<(), String> {
    let last = last_told(told, |event| match event {
        Event::Archived(id, _) => Some(*id),
        _ => None,
    });
    let Some(id) = last else { return Ok(()) };
    let listed = |checkpoint: &&Checkpoint| {
        checkpoint.archived.is_some() && checkpoint.is_complete() && checkpoint.id >= id
    };
    if all.iter().any(|checkpoint| listed(&checkpoint)) {
        return Ok(());
    }
    let known: Vec<_> = all
        .iter()
        .filter(|c| c.archived.is_some())
        .map(|c| (c.id, c.is_complete()))
        .collect();
    let text = format!("{id} was told archived; the archive has {known:?}");
    Err(broken(TRULY_ARCHIVED, text))
}
