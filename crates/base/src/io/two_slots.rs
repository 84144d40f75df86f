// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a state that is replaced as a whole: two slots of a device, of which the good one with the
//! higher sequence counts. Also copies that are written once, of which any good one counts.
//! In from: the root of a store, the root of an archive, the catalog. Out to: their device.
//! Invariants: what could not be read is never taken for damage: the state may stand there, so nothing is
//! taken from the other slot, unless somebody gave up what may stand there, and then it is written over only
//! when that was carried out; a torn slot is looked at again before it is believed torn; what was found is
//! synced before it is built on; the slot that holds the state is never written; a sequence is above all
//! that were tried; what is written was decoded first; after a failed sync nothing more is written.

use super::direct::{ALIGNMENT, AlignedBytes};
use super::{Device, ReadAt};
use crate::error::{Error, ErrorKind, Result};
use backstay_format::FormatError;
use backstay_format::bytes::{FRAME_HEAD_BYTES, frame_minor};
use backstay_format::limits::{STORE_VERSION_MAJOR, STORE_VERSION_MINOR};
use backstay_format::width::index;
use std::fmt::Debug;
use std::time::Duration;

/// How often a slot that is not good is looked at again, and after how long: it may be in the middle of
/// being written, or an error may pass.
const SETTLING: usize = 3;
const SETTLE: Duration = Duration::from_micros(500);
/// Bytes of a slot that are read at first.
const READ_BYTES: usize = 64 << 10;

/// What stands in the slots, and where.
pub trait SlotFormat: Debug {
    /// A state.
    type State: Clone + Debug + PartialEq;
    /// What errors call a slot.
    fn what(&self) -> &'static str;
    /// File offset of a slot.
    fn offset(&self, slot: usize) -> u64;
    /// Bytes of each slot.
    fn slot_bytes(&self) -> usize;
    /// The sequence of a state.
    fn sequence(&self, state: &Self::State) -> u64;
    /// Its bytes, in a frame; an error where they would not be read as it.
    fn encode(&self, state: &Self::State) -> std::result::Result<Vec<u8>, FormatError>;
    /// The state at the front of `bytes`.
    fn decode(&self, bytes: &[u8]) -> std::result::Result<Self::State, FormatError>;
    /// Whether nothing was ever written beside `state`, if it is good and in slot 0.
    fn is_first(&self, _state: &Self::State) -> bool {
        true
    }
}

/// How slots are written.
pub trait Medium {
    /// Where they stand.
    fn device(&self) -> &dyn Device;
    /// Writes all of `bytes` at `offset`.
    fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let device = self.device();
        device.write_at(bytes, offset).map_err(|error| {
            let (name, length) = (device.name(), bytes.len());
            Error::io(format!("{name}: writing {length} bytes at {offset}"), error)
        })
    }
    /// Makes all that was written durable.
    fn sync(&self) -> Result<()> {
        let device = self.device();
        device
            .sync()
            .map_err(|error| Error::io(format!("{}: syncing it", device.name()), error))
    }
}

/// A device that nothing else is to be known of.
#[derive(Debug, Clone, Copy)]
pub struct Plain<'a>(pub &'a dyn Device);

impl Medium for Plain<'_> {
    fn device(&self) -> &dyn Device {
        self.0
    }
}

/// What one slot holds.
#[derive(Debug)]
pub enum Slot<S> {
    /// Nothing yet.
    Unused,
    /// A state.
    Good(S),
    /// What was read is provably not what was written.
    Damaged(Error),
    /// It could not be read: whatever was written last may stand there.
    Unread(Error),
}

/// What both slots hold.
#[derive(Debug)]
pub struct Slots<S> {
    /// Slot 0 and slot 1.
    pub slots: [Slot<S>; 2],
    /// The latest minor version that a good slot names.
    minor: u16,
}

/// What stands in two slots, good states first and of them the newest.
#[derive(Debug)]
pub struct Found<S> {
    /// The good states, newest first, each with its slot.
    pub states: Vec<(S, usize)>,
    /// What is wrong with the other slot, or both.
    pub damaged: Option<Error>,
    /// Why the other slot could not be read, where what may stand there was given up.
    pub given_up: Option<Error>,
    minor: u16,
}

/// Whether what may stand in a slot that cannot be read counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Unread {
    /// It may be the newest state: nothing is taken for it.
    #[default]
    Counts,
    /// Somebody named the checkpoint to go on from, and gave up what may be newer: the other slot is taken.
    GivenUp,
}

/// Fills `buffer`; what lies beyond the end of the file is damage.
pub fn read(device: &dyn ReadAt, buffer: &mut [u8], offset: u64, what: &'static str) -> Result<()> {
    device.read_at(buffer, offset).map_err(|error| {
        let name = device.name();
        if error.kind() == std::io::ErrorKind::UnexpectedEof {
            let found = "the end of the file";
            let damage = FormatError::new(what, "bytes", 0, "a longer file", found);
            return Error::malformed(format!("{name}: {what} at byte {offset}"), damage);
        }
        Error::io(format!("{name}: reading {what} at byte {offset}"), error)
    })
}

/// Looks at both slots, until neither is in the middle of being written.
pub fn look<F: SlotFormat>(device: &dyn ReadAt, format: &F) -> Slots<F::State> {
    let mut tries = 0;
    loop {
        let found = look_once(device, format);
        let passes = |slot: &Slot<F::State>| match slot {
            Slot::Unused | Slot::Good(_) => false,
            Slot::Damaged(_) => true,
            // Others than plain errors of a file were waited for already.
            Slot::Unread(error) => error.kind() == ErrorKind::StoreIo,
        };
        if tries >= SETTLING || !found.slots.iter().any(passes) {
            return found;
        }
        tries += 1;
        std::thread::sleep(SETTLE);
    }
}

/// Looks at both slots once.
pub fn look_once<F: SlotFormat>(device: &dyn ReadAt, format: &F) -> Slots<F::State> {
    let mut minor = 0;
    let mut slots = [0, 1].map(|slot| match read_slot(device, format, slot) {
        Ok(Some((state, named))) => {
            minor = named.max(minor);
            Slot::Good(state)
        }
        Ok(None) => Slot::Unused,
        Err(error) if error.kind() == ErrorKind::Corrupt => Slot::Damaged(error),
        Err(error) => Slot::Unread(error),
    });
    // The first state goes into slot 0, so slot 1 alone may have been left as it was.
    let is_left = match &slots {
        [Slot::Good(first), Slot::Unused] => format.is_first(first),
        [_, Slot::Unused] => false,
        _ => true,
    };
    for (slot, found) in slots.iter_mut().enumerate() {
        if matches!(found, Slot::Unused) && (slot == 0 || !is_left) {
            let damage = FormatError::new(format.what(), "magic", 0, "a state", "zeros");
            *found = Slot::Damaged(Error::malformed(place(device, format, slot), damage));
        }
    }
    Slots { slots, minor }
}

fn place<F: SlotFormat>(device: &dyn ReadAt, format: &F, slot: usize) -> String {
    let (name, what, offset) = (device.name(), format.what(), format.offset(slot));
    format!("{name}: {what} slot at byte {offset}")
}

/// The state in a slot and the minor version that it names; `None` if there are zeros.
fn read_slot<F: SlotFormat>(
    device: &dyn ReadAt,
    format: &F,
    slot: usize,
) -> Result<Option<(F::State, u16)>> {
    let (offset, most) = (format.offset(slot), format.slot_bytes());
    let mut bytes = AlignedBytes::new(READ_BYTES.min(most));
    read(device, &mut bytes, offset, format.what())?;
    if bytes.iter().all(|&byte| byte == 0) {
        return Ok(None);
    }
    let stated = bytes[..FRAME_HEAD_BYTES][12..].first_chunk();
    let stated = index(stated.map_or(0, |bytes| u32::from_le_bytes(*bytes)));
    if stated > bytes.len() && bytes.len() < most {
        bytes = AlignedBytes::new(stated.next_multiple_of(ALIGNMENT).min(most));
        read(device, &mut bytes, offset, format.what())?;
    }
    let state = format
        .decode(&bytes)
        .map_err(|error| Error::malformed(place(device, format, slot), error))?;
    Ok(Some((state, frame_minor(&bytes).unwrap_or(0))))
}

impl<S> Slots<S> {
    /// The good states, if all that was written could be read, and one is good.
    pub fn found<F: SlotFormat<State = S>>(self, format: &F) -> Result<Found<S>> {
        self.found_as(format, Unread::Counts)
    }

    /// The same, where what may stand in a slot that cannot be read may be given up.
    pub fn found_as<F: SlotFormat<State = S>>(
        self,
        format: &F,
        unread: Unread,
    ) -> Result<Found<S>> {
        let (mut states, mut damaged) = (Vec::new(), None);
        let has_other = self.slots.iter().any(|slot| matches!(slot, Slot::Good(_)));
        let mut given_up = None;
        for (slot, found) in self.slots.into_iter().enumerate() {
            match found {
                Slot::Unused => {}
                Slot::Good(state) => states.push((state, slot)),
                Slot::Damaged(error) => damaged = damaged.or(Some(error)),
                // Nobody gives up what another version wrote.
                Slot::Unread(error) if error.kind() == ErrorKind::Unsupported => {
                    let why = "another version of Backstay wrote it, and may have written newer states \
                               there; use that version";
                    return Err(error.within(why));
                }
                Slot::Unread(error) if has_other && unread == Unread::GivenUp => {
                    given_up = Some(error);
                }
                Slot::Unread(error) => {
                    let why = "the newest state may stand where nothing can be read, so the other \
                               slot is not taken for it; try again, or look for a failing device";
                    return Err(error.within(why));
                }
            }
        }
        // Of two equal ones slot 0 counts.
        states.sort_by_key(|(state, _)| std::cmp::Reverse(format.sequence(state)));
        match damaged {
            Some(damaged) if states.is_empty() => Err(damaged),
            damaged => Ok(Found {
                states,
                damaged,
                given_up,
                minor: self.minor,
            }),
        }
    }
}

/// The newest state and its slot.
pub fn newest<F: SlotFormat>(
    device: &dyn ReadAt,
    format: &F,
    unread: Unread,
) -> Result<(F::State, usize)> {
    let found = look(device, format).found_as(format, unread)?;
    let newest = found.states.into_iter().next();
    newest.ok_or_else(|| Error::new(ErrorKind::Internal, "no slot is good"))
}

/// Refuses to write where a later minor version wrote.
fn refuse_later(device: &dyn ReadAt, minor: u16) -> Result<()> {
    if minor > STORE_VERSION_MINOR {
        let context = format!(
            "{}: its format is {STORE_VERSION_MAJOR}.{minor}, this Backstay writes \
             {STORE_VERSION_MAJOR}.{STORE_VERSION_MINOR}; use the Backstay that wrote it",
            device.name()
        );
        return Err(Error::new(ErrorKind::Unsupported, context));
    }
    Ok(())
}

/// What one of several copies says, which are equal and never written again.
#[derive(Debug)]
pub struct Copied<T> {
    /// It.
    pub value: T,
    /// What is wrong with the copies before it.
    pub damaged: Option<Error>,
    minor: u16,
}

impl<T> Copied<T> {
    /// Refuses to write where a later minor version wrote.
    pub fn refuse_later(&self, device: &dyn ReadAt) -> Result<()> {
        refuse_later(device, self.minor)
    }
}

/// The first good copy. Since all are equal, one that cannot be read does no harm while another is good.
pub fn first_copy<T>(
    device: &dyn ReadAt,
    (offsets, length): (&[u64], usize),
    what: &'static str,
    decode: impl Fn(&[u8]) -> std::result::Result<T, FormatError>,
) -> Result<Copied<T>> {
    let (mut damaged, mut unread) = (None, None);
    let mut good: Option<Copied<T>> = None;
    for &offset in offsets {
        let mut bytes = AlignedBytes::new(length);
        let found = read(device, &mut bytes, offset, what).and_then(|()| {
            let place = || format!("{}: {what} at byte {offset}", device.name());
            decode(&bytes).map_err(|error| Error::malformed(place(), error))
        });
        match found {
            Ok(value) => {
                let minor = frame_minor(&bytes).unwrap_or(0);
                let first = good.get_or_insert_with(|| Copied {
                    value,
                    damaged: unread.take().or(damaged.take()),
                    minor,
                });
                first.minor = first.minor.max(minor);
            }
            Err(error) if error.kind() == ErrorKind::Corrupt => damaged = damaged.or(Some(error)),
            Err(error) => unread = unread.or(Some(error)),
        }
    }
    // What could not be read may be good.
    let wrong = unread.or(damaged);
    let none = || Error::new(ErrorKind::Internal, "there are no copies");
    good.ok_or_else(|| wrong.unwrap_or_else(none))
}

/// Two slots, for the one who writes them.
#[derive(Debug)]
pub struct TwoSlots<F: SlotFormat> {
    format: F,
    state: F::State,
    /// The slot that holds it.
    slot: usize,
    /// The highest sequence that was found or tried.
    tried: u64,
    /// Whether the state is known to be durable.
    durable: bool,
    /// What was wrong with the other slot when it was read.
    damaged: Option<Error>,
    /// Why it could not be read, and what may stand there was given up; until that may be written over.
    given_up: Option<Error>,
    may_write_over: bool,
    /// Which sync failed.
    failed: Option<String>,
}

impl<F: SlotFormat> TwoSlots<F> {
    /// Reads the slots of `medium` to go on from what they hold, and makes that durable: what is read may
    /// stand in a cache only, while the one durable slot is the next to be written.
    pub fn open(medium: &impl Medium, format: F) -> Result<Self> {
        Self::open_as(medium, format, Unread::Counts)
    }

    /// The same, where what may stand in a slot that cannot be read may be given up.
    pub fn open_as(medium: &impl Medium, format: F, unread: Unread) -> Result<Self> {
        let mut opened = Self::read(medium, format, unread)?;
        opened.settle(medium)?;
        Ok(opened)
    }

    /// As [`TwoSlots::open_as`], where nothing is built on what was read before [`TwoSlots::settle`].
    pub fn read(medium: &impl Medium, format: F, unread: Unread) -> Result<Self> {
        let found = look(medium.device(), &format).found_as(&format, unread)?;
        Self::of(medium.device(), format, found)
    }

    /// The same of what was found, and of the first of its states.
    pub fn of(device: &dyn ReadAt, format: F, found: Found<F::State>) -> Result<Self> {
        refuse_later(device, found.minor)?;
        let sequences = found.states.iter().map(|(state, _)| format.sequence(state));
        // What was given up may be one further.
        let tried = sequences.max().unwrap_or(0) + u64::from(found.given_up.is_some());
        let Some((state, slot)) = found.states.into_iter().next() else {
            return Err(Error::new(ErrorKind::Internal, "no slot is good"));
        };
        Ok(Self {
            format,
            state,
            slot,
            tried,
            durable: false,
            damaged: found.damaged,
            given_up: found.given_up,
            may_write_over: false,
            failed: None,
        })
    }

    /// Writes the first state, durably. Slot 1 holds zeros.
    pub fn make(medium: &impl Medium, format: F, first: F::State) -> Result<Self> {
        let mut made = Self {
            tried: format.sequence(&first).saturating_sub(1),
            format,
            state: first.clone(),
            // As if the other one were the state's.
            slot: 1,
            durable: true,
            damaged: None,
            given_up: None,
            may_write_over: false,
            failed: None,
        };
        made.write(medium, first)?;
        Ok(made)
    }

    /// Says that who opened the device synced it since the state was written.
    #[must_use]
    pub fn known_durable(mut self) -> Self {
        self.durable = true;
        self
    }

    /// The state: durable, except before [`TwoSlots::settle`].
    pub fn state(&self) -> &F::State {
        &self.state
    }
    /// What was wrong with the other slot when it was read: then the state may be the older one.
    pub fn damaged(&self) -> Option<&Error> {
        self.damaged.as_ref()
    }
    /// Why the other slot could not be read, where what may stand there was given up: the state may be the
    /// older one.
    pub fn given_up(&self) -> Option<&Error> {
        self.given_up.as_ref()
    }
    /// From now on what was given up may be written over: what it was given up for is done.
    pub fn write_over_given_up(&mut self) {
        self.may_write_over = true;
    }
    /// The sequence that the next state has.
    pub fn next_sequence(&self) -> u64 {
        self.tried + 1
    }
    /// Whether another state than this one may be found: one was tried, and its write failed.
    pub fn in_doubt(&self) -> bool {
        self.tried > self.format.sequence(&self.state)
    }

    /// Refuses where a sync has failed.
    pub fn usable(&self) -> Result<()> {
        match &self.failed {
            Some(failed) => Err(Error::new(ErrorKind::StoreFailed, failed.clone())),
            None => Ok(()),
        }
    }

    /// Makes durable what was found.
    pub fn settle(&mut self, medium: &impl Medium) -> Result<()> {
        if !self.durable {
            self.sync(medium)?;
            self.durable = true;
        }
        Ok(())
    }

    /// Makes durable all that was written to `medium`. An error is the end of writing: what of it is there
    /// nobody knows, and a later sync does not say.
    pub fn sync(&mut self, medium: &impl Medium) -> Result<()> {
        self.usable()?;
        medium.sync().map_err(|error| {
            let mut text = error.context().to_owned();
            let is_told = error.kind() == ErrorKind::StoreFailed;
            let mut cause = std::error::Error::source(&error);
            while let Some(error) = cause {
                text = format!("{text}: {error}");
                cause = error.source();
            }
            if !is_told {
                text.push_str("; what was written since the last commit may be lost, and nothing more is written");
            }
            let failed = Error::new(ErrorKind::StoreFailed, text.clone());
            self.failed = Some(text);
            failed
        })
    }

    /// The bytes of `state`, if they fit into a slot and are read as it.
    pub fn encode(&self, device: &dyn ReadAt, state: &F::State) -> Result<AlignedBytes> {
        let (what, most) = (self.format.what(), self.format.slot_bytes());
        let encoded = self.format.encode(state);
        let encoded = encoded
            .map_err(|error| Error::unwritable(format!("{}: {what}", device.name()), error))?;
        if encoded.len() > most {
            let length = encoded.len();
            let context = format!(
                "{}: {what}: a state of {length} bytes in slots of {most}; drop checkpoints",
                device.name()
            );
            return Err(Error::new(ErrorKind::StoreFull, context));
        }
        let mut padded = AlignedBytes::new(encoded.len().next_multiple_of(ALIGNMENT).min(most));
        padded[..encoded.len()].copy_from_slice(&encoded);
        Ok(padded)
    }

    /// Replaces the state, durably. After an error the former one counts, as long as this process lives;
    /// what another finds may be either. It may be tried again, unless a sync failed.
    pub fn write(&mut self, medium: &impl Medium, state: F::State) -> Result<()> {
        self.usable()?;
        let bytes = self.encode(medium.device(), &state)?;
        let sequence = self.format.sequence(&state);
        if sequence != self.next_sequence() {
            let context = format!("sequence {sequence} after {} was tried", self.tried);
            return Err(Error::new(ErrorKind::Internal, context));
        }
        self.settle(medium)?;
        let slot = 1 - self.slot;
        if let (Some(unread), false) = (&self.given_up, self.may_write_over) {
            let why = "a slot that could not be read is written over only when the checkpoint that \
                       restore_checkpoint names was restored; restore it first";
            return Err(unread.as_kind(ErrorKind::Unreadable).within(why));
        }
        self.tried = sequence;
        let written = medium.write(&bytes, self.format.offset(slot));
        if self.given_up.is_some() {
            written.map_err(|error| {
                error.within(
                    "the slot that could not be read cannot be written either; copy what can be read of the \
                     file (dd bs=4096 conv=noerror,sync), put the copy in its place, and start again",
                )
            })?;
        } else {
            written?;
        }
        self.sync(medium)?;
        (self.state, self.slot, self.damaged) = (state, slot, None);
        self.given_up = None;
        Ok(())
    }
}
