// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: every state in which a device may be found after a crash.
//! In: the log of a [`crate::device::SimDevice`]. Out: crash images, each with a way to make it again.
//! Invariants: what a completed sync covers is in every image; of what came after it, any part may
//! be kept, dropped, torn or reordered; nothing outside a write's own range is ever touched.
//!
//! For every prefix of the log with up to [`CrashOptions::exhaustive_up_to`] unsynced operations:
//! all subsets of them, each whole, with one torn at a sector, with one torn at a byte, with some
//! sectors of one missing, and in another order where order matters. With more: the extremes, every
//! single one dropped or alone, and seeded samples. A growth that is dropped takes what was
//! written beyond the old end with it. After a failed sync what it should have covered stays in
//! doubt for ever.

use crate::bytes::SharedBytes;
use crate::device::{Operation, SimDevice};
use crate::seeded::Seeded;
use backstay_format::width::{to_u64, to_usize};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Bytes that a disk writes whole.
const SECTOR_BYTES: u64 = 512;
/// Images of each subset: whole, torn at a sector, torn at a byte, sieved, reordered.
const VARIANTS: usize = 5;

/// Which images to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CrashOptions {
    /// Seed of everything that is drawn.
    pub seed: u64,
    /// All subsets up to this many unsynced operations (16 at most); samples above.
    pub exhaustive_up_to: usize,
    /// Samples of each prefix with more unsynced operations.
    pub samples: usize,
    /// Prefixes to skip: the first image is made after this many operations.
    pub from_operation: usize,
}

impl Default for CrashOptions {
    fn default() -> Self {
        Self {
            seed: 1,
            exhaustive_up_to: 8,
            samples: 64,
            from_operation: 0,
        }
    }
}

/// What a device may hold after a crash.
#[derive(Debug, Clone)]
pub struct CrashImage {
    /// Operations of the log that had returned, or were under way, at the crash.
    pub ops_applied: usize,
    /// Number of the image among those of this prefix: with the seed, what makes it again.
    pub index: usize,
    /// What was done to the unsynced operations, and how to make the image again.
    pub description: String,
    /// What the device holds.
    pub bytes: SharedBytes,
}

impl CrashImage {
    /// A device that holds the image; the image is not copied.
    pub fn device(&self) -> SimDevice {
        SimDevice::from_shared(self.bytes.clone())
    }
}

/// An image that did not pass.
#[derive(Debug, Clone)]
pub struct CrashFailure {
    /// See [`CrashImage::ops_applied`].
    pub ops_applied: usize,
    /// See [`CrashImage::index`].
    pub index: usize,
    /// See [`CrashImage::description`].
    pub description: String,
    /// What the visitor said.
    pub reason: String,
}

impl fmt::Display for CrashFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "crash image {}: {}", self.description, self.reason)
    }
}

impl std::error::Error for CrashFailure {}

/// What a visit covered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CrashSummary {
    /// Prefixes of the log.
    pub prefixes: usize,
    /// Images.
    pub images: usize,
    /// Most unsynced operations at one time.
    pub unsynced_most: usize,
}

/// What became of one unsynced operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Dropped,
    Kept,
    /// Only so many bytes of it, from its front.
    Torn(u64),
    /// Only some of its sectors, drawn with this seed.
    Sieved(u64),
}

/// The state before the crash: what is durable, and what is not.
#[derive(Debug, Clone)]
struct Replay<'a> {
    durable: SharedBytes,
    unsynced: Vec<&'a Operation>,
    /// How many of `unsynced`, from the front, a failed sync left in doubt.
    doubtful: usize,
}

impl<'a> Replay<'a> {
    fn new(initial: &SharedBytes) -> Self {
        Self {
            durable: initial.clone(),
            unsynced: Vec::new(),
            doubtful: 0,
        }
    }

    fn step(&mut self, operation: &'a Operation) {
        match operation {
            Operation::Sync => {
                for kept in self.unsynced.drain(self.doubtful..) {
                    apply(&mut self.durable, kept, Fate::Kept);
                }
                self.durable.settle();
            }
            Operation::SyncFailed => self.doubtful = self.unsynced.len(),
            Operation::Write { .. }
            | Operation::Reserve { .. }
            | Operation::Discard { .. }
            | Operation::Shrink { .. } => self.unsynced.push(operation),
        }
    }
}

/// Shows `visit` every crash image of `log` on a device that held `initial`; ends at the first
/// that fails, by an error or a panic.
pub fn for_each_image(
    log: &[Operation],
    initial: &SharedBytes,
    options: CrashOptions,
    mut visit: impl FnMut(&CrashImage) -> Result<(), String>,
) -> Result<CrashSummary, CrashFailure> {
    let mut replay = Replay::new(initial);
    let mut summary = CrashSummary::default();
    for ops_applied in 0..=log.len() {
        if let Some(last) = ops_applied.checked_sub(1) {
            replay.step(&log[last]);
        }
        if ops_applied < options.from_operation {
            continue;
        }
        summary.prefixes += 1;
        summary.unsynced_most = summary.unsynced_most.max(replay.unsynced.len());
        for index in 0..image_count(&replay, options) {
            let Some(image) = make_image(&replay, options, ops_applied, index) else {
                continue;
            };
            summary.images += 1;
            let reason = match catch_unwind(AssertUnwindSafe(|| visit(&image))) {
                Ok(Ok(())) => continue,
                Ok(Err(reason)) => reason,
                Err(panic) => format!("panic: {}", panic_text(&*panic)),
            };
            return Err(CrashFailure {
                ops_applied,
                index,
                description: image.description,
                reason,
            });
        }
    }
    Ok(summary)
}

/// One image again, as a [`CrashFailure`] names it; `None` if there is no such image.
pub fn image_at(
    log: &[Operation],
    initial: &SharedBytes,
    options: CrashOptions,
    ops_applied: usize,
    index: usize,
) -> Option<CrashImage> {
    let mut replay = Replay::new(initial);
    for operation in log.get(..ops_applied)? {
        replay.step(operation);
    }
    (index < image_count(&replay, options)).then_some(())?;
    make_image(&replay, options, ops_applied, index)
}

fn is_exhaustive(unsynced: usize, options: CrashOptions) -> bool {
    unsynced <= options.exhaustive_up_to.min(16)
}

/// Indices of the images of this prefix; some of them may give none.
fn image_count(replay: &Replay<'_>, options: CrashOptions) -> usize {
    let unsynced = replay.unsynced.len();
    if is_exhaustive(unsynced, options) {
        VARIANTS << unsynced
    } else {
        2 + 2 * unsynced + options.samples
    }
}

fn make_image(
    replay: &Replay<'_>,
    options: CrashOptions,
    ops_applied: usize,
    index: usize,
) -> Option<CrashImage> {
    let mut seeded = Seeded::of(&[options.seed, to_u64(ops_applied), to_u64(index)]);
    let plan = if is_exhaustive(replay.unsynced.len(), options) {
        plan_subset(&replay.unsynced, index, &mut seeded)?
    } else {
        plan_sample(&replay.unsynced, index, &mut seeded)
    };
    let mut bytes = replay.durable.clone();
    for &(place, fate) in &plan {
        apply(&mut bytes, replay.unsynced[place], fate);
    }
    Some(CrashImage {
        ops_applied,
        index,
        description: describe(options, ops_applied, index, &plan),
        bytes,
    })
}

/// Operations in the order in which they reach the device, and what becomes of each.
type Plan = Vec<(usize, Fate)>;

/// The subset `index / VARIANTS`, in the variant `index % VARIANTS`; `None` where the variant
/// gives nothing new.
fn plan_subset(unsynced: &[&Operation], index: usize, seeded: &mut Seeded) -> Option<Plan> {
    let (subset, variant) = (index / VARIANTS, index % VARIANTS);
    let mut plan: Plan = (0..unsynced.len())
        .map(|place| match subset >> place & 1 {
            0 => (place, Fate::Dropped),
            _ => (place, Fate::Kept),
        })
        .collect();
    let kept: Vec<usize> = (0..unsynced.len())
        .filter(|&place| plan[place].1 == Fate::Kept)
        .collect();
    match variant {
        0 => {}
        4 if orders_differ(unsynced, &kept) => {
            // Reversed is the one order that swaps every pair; the other is drawn.
            plan.reverse();
            if seeded.chance(1, 2) {
                seeded.shuffle(&mut plan);
            }
        }
        1..=3 if !kept.is_empty() => {
            // The newest in half of the cases: a crash in the middle of a write.
            let place = if seeded.chance(1, 2) {
                kept[kept.len() - 1]
            } else {
                kept[seeded.index(kept.len())]
            };
            plan[place].1 = damaged(unsynced[place], variant, seeded);
        }
        _ => return None,
    }
    Some(plan)
}

/// All, none, all but one, only one; then fates and order drawn.
fn plan_sample(unsynced: &[&Operation], index: usize, seeded: &mut Seeded) -> Plan {
    let count = unsynced.len();
    let plan = |keep: &dyn Fn(usize) -> bool| -> Plan {
        let fate = |place| {
            if keep(place) {
                Fate::Kept
            } else {
                Fate::Dropped
            }
        };
        (0..count).map(|place| (place, fate(place))).collect()
    };
    match index {
        0 => plan(&|_| true),
        1 => plan(&|_| false),
        _ if index < 2 + count => plan(&|place| place != index - 2),
        _ if index < 2 + 2 * count => plan(&|place| place == index - 2 - count),
        _ => {
            let share = 1 + seeded.below(9);
            let mut plan = plan(&|_| true);
            for (place, fate) in &mut plan {
                if !seeded.chance(share, 10) {
                    *fate = Fate::Dropped;
                } else if seeded.chance(1, 6) {
                    let variant = 1 + seeded.index(3);
                    *fate = damaged(unsynced[*place], variant, seeded);
                }
            }
            if seeded.chance(1, 2) {
                seeded.shuffle(&mut plan);
            }
            plan
        }
    }
}

/// A fate between kept and dropped: torn at a sector (1), at a byte (2), or sieved (3).
fn damaged(operation: &Operation, variant: usize, seeded: &mut Seeded) -> Fate {
    let (offset, length) = match operation {
        Operation::Write { offset, bytes } => (*offset, to_u64(bytes.len())),
        Operation::Reserve { length_bytes } => (0, *length_bytes),
        Operation::Discard { offset, bytes } => (*offset, *bytes),
        // A file is cut off in one step.
        Operation::Sync | Operation::SyncFailed | Operation::Shrink { .. } => (0, 0),
    };
    match variant {
        1 => {
            let first = offset.next_multiple_of(SECTOR_BYTES) - offset;
            let sectors = length.saturating_sub(first).div_ceil(SECTOR_BYTES);
            Fate::Torn((first + seeded.below(sectors) * SECTOR_BYTES).min(length))
        }
        2 => Fate::Torn(seeded.below(length)),
        _ => Fate::Sieved(seeded.next_u64()),
    }
}

/// Whether it matters in which order these operations arrive.
fn orders_differ(unsynced: &[&Operation], kept: &[usize]) -> bool {
    let end = |operation: &Operation| match operation {
        Operation::Write { offset, bytes } => Some((*offset, *offset + to_u64(bytes.len()))),
        Operation::Discard { offset, bytes } => Some((*offset, *offset + bytes)),
        _ => None,
    };
    let ranges: Vec<(u64, u64)> = kept
        .iter()
        .filter_map(|&place| end(unsynced[place]))
        .collect();
    (0..ranges.len()).any(|first| {
        let (start, end) = ranges[first];
        ranges[..first]
            .iter()
            .any(|other| other.0 < end && start < other.1)
    })
}

/// Lets `operation` reach the device as `fate` says.
fn apply(bytes: &mut SharedBytes, operation: &Operation, fate: Fate) {
    match (operation, fate) {
        (Operation::Sync | Operation::SyncFailed, _) | (_, Fate::Dropped) => {}
        (Operation::Reserve { length_bytes }, Fate::Kept) => grow(bytes, *length_bytes),
        (Operation::Reserve { .. }, Fate::Torn(length)) => grow(bytes, length),
        (Operation::Reserve { length_bytes }, Fate::Sieved(seed)) => {
            grow(bytes, Seeded::new(seed).below(*length_bytes));
        }
        (
            Operation::Discard {
                offset,
                bytes: gone,
            },
            fate,
        ) => {
            let (from, gone) = match fate {
                Fate::Torn(count) => (*offset, count.min(*gone)),
                // From anywhere in it to its end.
                Fate::Sieved(seed) => {
                    let from = Seeded::new(seed).below(*gone);
                    (*offset + from, *gone - from)
                }
                _ => (*offset, *gone),
            };
            bytes.clear(from, gone);
        }
        (Operation::Shrink { length_bytes }, Fate::Kept) => {
            let length = bytes.length_bytes().min(*length_bytes);
            bytes.resize(length);
        }
        (Operation::Shrink { .. }, _) => {}
        (Operation::Write { offset, bytes: new }, Fate::Kept) => put(bytes, new, *offset),
        (Operation::Write { offset, bytes: new }, Fate::Torn(count)) => {
            put(bytes, &new[..to_usize(count).min(new.len())], *offset);
        }
        (Operation::Write { offset, bytes: new }, Fate::Sieved(seed)) => {
            let mut seeded = Seeded::new(seed);
            let mut done = 0;
            while done < new.len() {
                let position = *offset + to_u64(done);
                let sector_end = (position + 1).next_multiple_of(SECTOR_BYTES);
                let next = (done + to_usize(sector_end - position)).min(new.len());
                if seeded.chance(1, 2) {
                    put(bytes, &new[done..next], position);
                }
                done = next;
            }
        }
    }
}

fn grow(bytes: &mut SharedBytes, length_bytes: u64) {
    if length_bytes > bytes.length_bytes() {
        bytes.resize(length_bytes);
    }
}

/// Writes what lies within the length: what a lost growth leaves outside is lost with it.
fn put(bytes: &mut SharedBytes, new: &[u8], offset: u64) {
    let room = bytes.length_bytes().saturating_sub(offset);
    let count = to_usize(room.min(to_u64(new.len())));
    bytes.write(&new[..count], offset);
}

fn describe(options: CrashOptions, ops_applied: usize, index: usize, plan: &Plan) -> String {
    let first = ops_applied.saturating_sub(plan.len());
    let fates: Vec<String> = plan
        .iter()
        .map(|(place, fate)| match fate {
            Fate::Dropped => format!("-{place}"),
            Fate::Kept => format!("+{place}"),
            Fate::Torn(count) => format!("+{place}[..{count}]"),
            Fate::Sieved(_) => format!("+{place}[sieved]"),
        })
        .collect();
    format!(
        "seed {} ops_applied {ops_applied} index {index} \
         ({} unsynced, the first about operation {first}, in order of arrival: {})",
        options.seed,
        plan.len(),
        fates.join(" ")
    )
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no text")
        .to_owned()
}

/// A write, for logs made by hand.
pub fn write(offset: u64, bytes: &[u8]) -> Operation {
    Operation::Write {
        offset,
        bytes: Arc::from(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use backstay_base::io::Device;
    use std::collections::BTreeSet;
    use std::time::Instant;

    fn blank(length: usize) -> SharedBytes {
        SharedBytes::new(vec![0; length])
    }

    fn images(log: &[Operation], initial: &SharedBytes, ops: usize) -> BTreeSet<Vec<u8>> {
        let mut found = BTreeSet::new();
        let options = CrashOptions::default();
        for_each_image(log, initial, options, |image| {
            if image.ops_applied == ops {
                found.insert(image.bytes.to_vec());
            }
            Ok(())
        })
        .unwrap();
        found
    }

    #[test]
    fn all_subsets_of_unsynced_writes_and_nothing_else() {
        let log = [
            write(0, b"S"),
            Operation::Sync,
            write(1, b"a"),
            write(2, b"b"),
            write(3, b"c"),
        ];
        let found = images(&log, &blank(5), 5);
        let mut wanted = BTreeSet::new();
        for subset in 0..8u8 {
            let keep = |bit: u8, byte: u8| if subset >> bit & 1 == 1 { byte } else { 0 };
            wanted.insert(vec![b'S', keep(0, b'a'), keep(1, b'b'), keep(2, b'c'), 0]);
        }
        assert_eq!(found, wanted);
        assert_eq!(
            images(&log, &blank(5), 2).len(),
            1,
            "a sync leaves one state"
        );
        assert_eq!(images(&log, &blank(5), 1).len(), 2);
    }

    #[test]
    fn a_write_is_torn_at_sectors_and_bytes_inside_its_range_only() {
        let log = [write(1000, &[1; 3000]), write(1000, &[1; 3000])];
        let (mut sector, mut byte, mut sieved) = (0, 0, 0);
        for seed in 0..200 {
            let options = CrashOptions {
                seed,
                ..CrashOptions::default()
            };
            for_each_image(&log[..1], &blank(8192), options, |image| {
                let bytes = image.bytes.to_vec();
                let outside = bytes[..1000].iter().chain(&bytes[4000..]);
                assert!(outside.copied().all(|byte| byte == 0));
                let new: usize = bytes.iter().map(|&byte| usize::from(byte)).sum();
                let is_prefix = bytes[1000..1000 + new].iter().all(|&byte| byte == 1);
                if new == 0 || new == 3000 {
                } else if !is_prefix {
                    sieved += 1;
                } else if (1000 + new).is_multiple_of(512) {
                    sector += 1;
                } else {
                    byte += 1;
                }
                Ok(())
            })
            .unwrap();
        }
        assert!(
            sector > 100 && byte > 100 && sieved > 100,
            "{sector} {byte} {sieved}"
        );
    }

    #[test]
    fn overlapping_writes_are_reordered() {
        let log = [write(0, b"old"), write(0, b"new")];
        let both = |seed| {
            let options = CrashOptions {
                seed,
                ..CrashOptions::default()
            };
            image_at(&log, &blank(3), options, 2, 3 * VARIANTS + 4).unwrap()
        };
        let found: BTreeSet<Vec<u8>> = (0..20).map(|seed| both(seed).bytes.to_vec()).collect();
        assert!(found.contains(b"old".as_slice()), "{found:?}");
        let apart = [write(0, b"old"), write(3, b"new")];
        let none = image_at(
            &apart,
            &blank(6),
            CrashOptions::default(),
            2,
            3 * VARIANTS + 4,
        );
        assert!(none.is_none(), "order does not matter here");
    }

    #[test]
    fn a_growth_that_is_lost_takes_its_writes_with_it() {
        let log = [
            Operation::Reserve { length_bytes: 8 },
            write(4, b"tail"),
            write(0, b"head"),
        ];
        let found = images(&log, &blank(4), 3);
        assert!(found.contains(b"head".as_slice()));
        assert!(found.contains(b"headtail".as_slice()));
        assert!(found.contains(b"head\0\0\0\0".as_slice()));
        assert!(found.iter().all(|bytes| bytes.len() <= 8));
    }

    #[test]
    fn what_was_given_back_is_gone_or_not_or_in_part() {
        let discard = Operation::Discard {
            offset: 2,
            bytes: 4,
        };
        let found = images(&[discard], &SharedBytes::new(vec![7; 8]), 1);
        for wanted in [&[7; 8], &[7, 7, 0, 0, 0, 0, 7, 7]] {
            assert!(found.contains(wanted.as_slice()), "{found:?}");
        }
        // Nothing outside it is touched, and what is lost of it is one run from an end.
        let whole = |bytes: &Vec<u8>| bytes[..2] == [7, 7] && bytes[6..] == [7, 7];
        assert!(found.iter().all(whole) && found.len() > 2, "{found:?}");
        let shrink = Operation::Shrink { length_bytes: 3 };
        let found = images(&[shrink, Operation::Sync], &SharedBytes::new(vec![7; 8]), 1);
        let wanted: BTreeSet<Vec<u8>> = [vec![7; 8], vec![7; 3]].into();
        assert_eq!(found, wanted, "a file is cut off in one step");
    }

    #[test]
    fn a_failed_sync_leaves_doubt_that_a_later_one_does_not_lift() {
        let log = [
            write(0, b"a"),
            Operation::SyncFailed,
            write(1, b"b"),
            Operation::Sync,
        ];
        let wanted: BTreeSet<Vec<u8>> = [b"ab".to_vec(), b"\0b".to_vec()].into();
        assert_eq!(images(&log, &blank(2), 4), wanted);
    }

    #[test]
    fn many_unsynced_writes_are_sampled_with_the_extremes_among_them() {
        let log: Vec<Operation> = (0..12).map(|place| write(place, &[1])).collect();
        let found = images(&log, &blank(12), 12);
        let with = |count: usize| {
            let has = |bytes: &&Vec<u8>| {
                bytes.iter().map(|&byte| usize::from(byte)).sum::<usize>() == count
            };
            found.iter().filter(has).count()
        };
        assert_eq!((with(0), with(1), with(11), with(12)), (1, 12, 12, 1));
        let between = found.len() - 26;
        assert!(between > 20, "{between} samples");
        let options = CrashOptions::default();
        let summary = for_each_image(&log, &blank(12), options, |_| Ok(())).unwrap();
        assert_eq!(summary.prefixes, 13);
        assert_eq!(summary.unsynced_most, 12);
    }

    /// A store of one number: data in block `n % 2`, then a root with the number, each synced.
    fn commit(device: &SimDevice, number: u8, sync_data: bool, sync_root: bool) {
        let data = u64::from(number % 2) * 512 + 1024;
        device.write_at(&[number; 512], data).unwrap();
        if sync_data {
            device.sync().unwrap();
        }
        device
            .write_at(&[number], u64::from(number % 2) * 512)
            .unwrap();
        if sync_root {
            device.sync().unwrap();
        }
    }

    /// Opens the store of one number: the higher root, whose data must be whole.
    fn recover(device: &SimDevice) -> Result<u8, String> {
        let bytes = device.to_vec();
        let number = bytes[0].max(bytes[512]);
        let data = &bytes[1024 + usize::from(number % 2) * 512..][..512];
        if data.iter().any(|&byte| byte != number) {
            return Err(format!("root {number} but data {}, {}", data[0], data[511]));
        }
        Ok(number)
    }

    /// Commits three numbers and checks every crash image.
    fn trial(sync_data: bool, sync_root: bool) -> Result<CrashSummary, CrashFailure> {
        let device = SimDevice::from_bytes(vec![0; 2048]);
        let initial = device.start_log();
        let mut acknowledged = Vec::new();
        for number in 1..=3 {
            commit(&device, number, sync_data, sync_root);
            acknowledged.push((device.log_length(), number));
        }
        for_each_image(&device.log(), &initial, CrashOptions::default(), |image| {
            let found = recover(&image.device())?;
            let due = acknowledged
                .iter()
                .filter(|(mark, _)| *mark <= image.ops_applied);
            let least = due.map(|(_, number)| *number).max().unwrap_or(0);
            if !(least..=least + 1).contains(&found) {
                return Err(format!("{least} was acknowledged, {found} is there"));
            }
            Ok(())
        })
    }

    #[test]
    fn a_right_protocol_passes_and_each_missing_sync_is_found() {
        let summary = trial(true, true).unwrap();
        assert!(summary.images > 30, "{summary:?}");
        let failure = trial(false, true).unwrap_err();
        assert!(failure.reason.contains("but data"), "{failure}");
        let failure = trial(true, false).unwrap_err();
        assert!(failure.reason.contains("was acknowledged"), "{failure}");
    }

    #[test]
    fn a_failing_image_can_be_made_again_and_a_panic_is_reported() {
        let log: Vec<Operation> = (0..10).map(|place| write(place * 700, &[1; 900])).collect();
        let options = CrashOptions {
            seed: 77,
            ..CrashOptions::default()
        };
        let initial = blank(8192);
        let (mut count, mut bytes) = (0, Vec::new());
        let failure = for_each_image(&log, &initial, options, |image| {
            count += 1;
            bytes = image.bytes.to_vec();
            assert!(count < 2500, "stop at {count}");
            Ok(())
        })
        .unwrap_err();
        assert_eq!(failure.reason, "panic: stop at 2500");
        let again = image_at(&log, &initial, options, failure.ops_applied, failure.index).unwrap();
        assert_eq!(again.bytes.to_vec(), bytes);
        assert_eq!(again.description, failure.description);
        let named = format!(
            "seed 77 ops_applied {} index {}",
            failure.ops_applied, failure.index
        );
        assert!(failure.to_string().contains(&named), "{failure}");
        assert!(image_at(&log, &initial, options, 11, 0).is_none());
    }

    #[test]
    fn images_of_a_large_device_share_its_bytes() {
        let initial = blank(64 << 20);
        let log: Vec<Operation> = (0..8).map(|place| write(place << 22, &[1; 4096])).collect();
        let begun = Instant::now();
        let summary = for_each_image(&log, &initial, CrashOptions::default(), |image| {
            assert!(image.bytes.changed_pages() <= 8);
            Ok(())
        })
        .unwrap();
        assert!(summary.images > 1500, "{summary:?}");
        // 1,500 copies of 64 MiB would take a minute.
        assert!(begun.elapsed().as_secs() < 10, "{:?}", begun.elapsed());
    }
}
