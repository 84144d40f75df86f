// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: taking checkpoints from C, at once or in the background, and keeping them.
//! Invariants: a checkpoint under way is known by its key, and to its session alone.

use crate::boundary::on_session;
use crate::keys;
use crate::pointer;
use crate::session::Session;
use crate::sized;
use crate::status::invalid;
use engine::{CheckpointId, Error, Level, Result};
use std::ffi::c_char;
use std::mem::{offset_of, size_of};
use std::ptr;

/// The checkpoint is durable on its node: it survives the death of all processes.
pub const BACKSTAY_LEVEL_NODE: i32 = 1;
/// The checkpoint is protected across nodes: it survives the loss of as many as the redundancy covers.
pub const BACKSTAY_LEVEL_PROTECTED: i32 = 2;
/// The checkpoint is in the archive: it survives the loss of all nodes.
pub const BACKSTAY_LEVEL_ARCHIVE: i32 = 3;

/// Which checkpoint: one start of the job, and a number that grows over all its starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Id {
    /// Which start of the job took it, from 1.
    pub incarnation: u64,
    /// Its number, from 1.
    pub number: u64,
}

impl From<CheckpointId> for Id {
    fn from(id: CheckpointId) -> Self {
        Self {
            incarnation: id.incarnation,
            number: id.number,
        }
    }
}

/// What a checkpoint cost this process.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Report {
    /// sizeof(backstay_report), set by the caller; so much of the struct is filled.
    pub struct_size: usize,
    /// Which checkpoint.
    pub checkpoint: Id,
    /// Blocks protected.
    pub blocks_total: u64,
    /// Blocks written, because they changed or were new.
    pub blocks_changed: u64,
    /// Bytes protected.
    pub bytes_total: u64,
    /// Bytes of the blocks written.
    pub bytes_changed: u64,
    /// Bytes written to record where the blocks are.
    pub bytes_manifest: u64,
    /// Seconds the application waited.
    pub blocking_seconds: f64,
    /// Of these, seconds for finding and copying changed blocks.
    pub capture_seconds: f64,
    /// Seconds from the capture until durable at node level.
    pub commit_seconds: f64,
    /// Seconds waited after that until protected across nodes.
    pub protect_seconds: f64,
    /// Seconds waited after that until in the archive.
    pub archive_seconds: f64,
}

// SAFETY: repr(C), begins with its size; zero is a number.
unsafe impl sized::Sized for Report {
    const NAME: &'static str = "backstay_report";
    const FIRST_SIZE: usize = offset_of!(Report, commit_seconds) + size_of::<f64>();
}

/// Bytes of backstay_protection.shortfall.
pub const BACKSTAY_SHORTFALL_BYTES: usize = 512;

/// What is durable at which level now, as far as this process's node knows.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Protection {
    /// sizeof(backstay_protection), set by the caller; so much of the struct is filled.
    pub struct_size: usize,
    /// The newest checkpoint of the job that is durable on its nodes; number 0 if there is none. So in
    /// the next two.
    pub at_node: Id,
    /// The newest checkpoint that survives the loss of nodes.
    pub at_protected: Id,
    /// The checkpoint that is being encoded.
    pub encoding: Id,
    /// Lost nodes of a group that were asked to be survived; 0 without redundancy.
    pub losses_asked: u32,
    /// Lost nodes that every group survives.
    pub losses_covered: u32,
    /// Why protection is less than was asked for, cut to fit; empty if it is not.
    pub shortfall: [c_char; BACKSTAY_SHORTFALL_BYTES],
}

// SAFETY: repr(C), begins with its size; zero is a number.
unsafe impl sized::Sized for Protection {
    const NAME: &'static str = "backstay_protection";
    const FIRST_SIZE: usize = size_of::<Protection>();
}

/// A checkpoint under way; what C has is a key.
#[derive(Debug)]
pub struct UnderWay(());

/// What a scrub found.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Scrubbed {
    /// sizeof(backstay_scrubbed), set by the caller; so much of the struct is filled.
    pub struct_size: usize,
    /// Blocks read and checked.
    pub blocks_checked: u64,
    /// Blocks that were damaged.
    pub blocks_damaged: u64,
    /// Of these, blocks written anew from application memory; the next checkpoint replaces the others.
    pub blocks_healed: u64,
}

// SAFETY: repr(C), begins with its size; zero is a number.
unsafe impl sized::Sized for Scrubbed {
    const NAME: &'static str = "backstay_scrubbed";
    const FIRST_SIZE: usize = offset_of!(Scrubbed, blocks_healed) + size_of::<u64>();
}

/// Takes a checkpoint of everything protected: all processes together. On return it is durable at node
/// level on every node, or it does not exist and all processes have the same status; the last
/// checkpoint stays in any case. `report` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backstay_checkpoint(session: *mut Session, report: *mut Report) -> i32 {
    on_session(session, "backstay_checkpoint", |state| {
        // SAFETY: the header asks for NULL or a struct as long as it says.
        unsafe { sized::check(report) }?;
        let done = state.engine()?.checkpoint()?;
        // SAFETY: the same.
        unsafe { sized::write(report, &reported(&done)) }
    })
}

/// Starts a checkpoint: all processes together. On return the changed blocks were copied and the
/// memory may change; the commit goes on in the background. `*handle` is for backstay_test and
/// backstay_wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backstay_checkpoint_start(
    session: *mut Session,
    handle: *mut *mut UnderWay,
) -> i32 {
    on_session(session, "backstay_checkpoint_start", |state| {
        let place = pointer::required(handle, "handle")?;
        // SAFETY: not NULL, so the caller says it is valid for writing.
        unsafe { place.write(ptr::null_mut()) };
        let handle = state.engine()?.checkpoint_start()?;
        let key = keys::new();
        // SAFETY: as above.
        unsafe { place.write(key) };
        state.under_way.insert(key.addr(), handle);
        Ok(())
    })
}

/// Whether this process's part of a checkpoint under way has come to an end at `level`; that it was a
/// good end backstay_wait tells. Local.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backstay_test(
    session: *mut Session,
    handle: *const UnderWay,
    level: i32,
    done: *mut bool,
) -> i32 {
    on_session(session, "backstay_test", |state| {
        let done = pointer::required(done, "done")?;
        let level = level_of(level)?;
        let found = state.under_way.get(&handle.addr()).copied();
        let found = found.ok_or_else(|| unknown(handle))?;
        let outcome = state.engine()?.test(&found, level)?;
        // SAFETY: not NULL, so the caller says it is valid for writing.
        unsafe { done.write(outcome) };
        Ok(())
    })
}

/// Waits until a checkpoint under way is durable at `level`: all processes together. The handle is
/// gone afterwards whatever is returned. `report` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backstay_wait(
    session: *mut Session,
    handle: *mut UnderWay,
    level: i32,
    report: *mut Report,
) -> i32 {
    on_session(session, "backstay_wait", |state| {
        // SAFETY: the header asks for NULL or a struct as long as it says.
        unsafe { sized::check(report) }?;
        let level = level_of(level)?;
        let found = state.under_way.remove(&handle.addr());
        let found = found.ok_or_else(|| unknown(handle))?;
        let done = state.engine()?.wait(found, level)?;
        // SAFETY: the same.
        unsafe { sized::write(report, &reported(&done)) }
    })
}

/// What is durable at which level now, and whether that is less than was asked for. Local.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backstay_protection_status(
    session: *mut Session,
    protection: *mut Protection,
) -> i32 {
    on_session(session, "backstay_protection_status", |state| {
        let place = pointer::required(protection, "protection")?;
        let status = state.engine()?.protection();
        let small = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let id = |id: Option<CheckpointId>| id.map(Id::from).unwrap_or_default();
        let now = Protection {
            struct_size: size_of::<Protection>(),
            at_node: id(status.node),
            at_protected: id(status.protected),
            encoding: id(status.encoding),
            losses_asked: small(status.asked),
            losses_covered: small(status.covered),
            shortfall: text_of(status.shortfall.as_deref().unwrap_or_default()),
        };
        // SAFETY: not NULL, so the caller says it is a struct as long as it says.
        unsafe { sized::write(place, &now) }
    })
}

/// As much of a text as fits before its zero byte, cut between characters.
fn text_of(text: &str) -> [c_char; BACKSTAY_SHORTFALL_BYTES] {
    let mut cut = text.len().min(BACKSTAY_SHORTFALL_BYTES - 1);
    while !text.is_char_boundary(cut) {
        cut -= 1;
    }
    let mut bytes = [0; BACKSTAY_SHORTFALL_BYTES];
    for (to, from) in bytes.iter_mut().zip(text.as_bytes()[..cut].iter()) {
        *to = c_char::from_le_bytes([*from]);
    }
    bytes
}

/// Whether it is time for a checkpoint: `*level` becomes the level it should reach, or 0 for not now.
/// To be asked once a step, say: follows the setting `interval`, by default the planner's, from
/// measured costs and failures. Whatever the level, `backstay_checkpoint` is the answer: one for
/// `BACKSTAY_LEVEL_ARCHIVE` then drains in the background. All processes together; most calls ask nobody.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backstay_due(session: *mut Session, level: *mut i32) -> i32 {
    on_session(session, "backstay_due", |state| {
        let level = pointer::required(level, "level")?;
        let due = state.engine()?.due()?.map_or(0, |level| level as i32);
        // SAFETY: not NULL, so the caller says it is valid for writing.
        unsafe { level.write(due) };
        Ok(())
    })
}

/// Whether the program should take a last checkpoint, close the session and end: `backstay run`, a
/// scheduler or SIGTERM asked for it. It is known after `backstay_due`, which then says yes once, and
/// after each checkpoint; the same in all processes. Local.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backstay_should_leave(session: *mut Session, leave: *mut bool) -> i32 {
    on_session(session, "backstay_should_leave", |state| {
        let leave = pointer::required(leave, "leave")?;
        let wish = state.engine()?.should_leave();
        // SAFETY: not NULL, so the caller says it is valid for writing.
        unsafe { leave.write(wish) };
        Ok(())
    })
}

/// Keeps checkpoint `number` until it is unpinned, however many newer ones there are. All processes
/// together.
#[unsafe(no_mangle)]
pub extern "C" fn backstay_pin(session: *mut Session, number: u64) -> i32 {
    on_session(session, "backstay_pin", |state| state.engine()?.pin(number))
}

/// Lets a pinned checkpoint go when its turn comes. All processes together.
#[unsafe(no_mangle)]
pub extern "C" fn backstay_unpin(session: *mut Session, number: u64) -> i32 {
    on_session(session, "backstay_unpin", |state| {
        state.engine()?.unpin(number)
    })
}

/// Reads what is stored of this process's variables and checks it; a damaged block is written anew
/// from application memory where that still holds the same bytes. `scrubbed` may be NULL. Local.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backstay_scrub(session: *mut Session, scrubbed: *mut Scrubbed) -> i32 {
    on_session(session, "backstay_scrub", |state| {
        // SAFETY: the header asks for NULL or a struct as long as it says.
        unsafe { sized::check(scrubbed) }?;
        let found = state.engine()?.scrub()?;
        let found = Scrubbed {
            struct_size: size_of::<Scrubbed>(),
            blocks_checked: found.blocks,
            blocks_damaged: found.healed + found.beyond,
            blocks_healed: found.healed,
        };
        // SAFETY: the same.
        unsafe { sized::write(scrubbed, &found) }
    })
}

pub(crate) fn reported(report: &engine::Report) -> Report {
    Report {
        struct_size: size_of::<Report>(),
        checkpoint: report.checkpoint.into(),
        blocks_total: report.blocks_total,
        blocks_changed: report.blocks_changed,
        bytes_total: report.bytes_total,
        bytes_changed: report.bytes_changed,
        bytes_manifest: report.bytes_manifest,
        blocking_seconds: report.blocking_time.as_secs_f64(),
        capture_seconds: report.capture_time.as_secs_f64(),
        commit_seconds: report.commit_time.as_secs_f64(),
        protect_seconds: report.protect_time.as_secs_f64(),
        archive_seconds: report.archive_time.as_secs_f64(),
    }
}

fn unknown(handle: *const UnderWay) -> Error {
    invalid(format!(
        "{handle:p} is no checkpoint under way of this session: waited for already?"
    ))
}

fn level_of(number: i32) -> Result<Level> {
    match number {
        BACKSTAY_LEVEL_NODE => Ok(Level::Node),
        BACKSTAY_LEVEL_PROTECTED => Ok(Level::Protected),
        BACKSTAY_LEVEL_ARCHIVE => Ok(Level::Archive),
        other => Err(invalid(format!(
            "level is {other}, not BACKSTAY_LEVEL_NODE (1), BACKSTAY_LEVEL_PROTECTED (2) or \
             BACKSTAY_LEVEL_ARCHIVE (3)"
        ))),
    }
}
