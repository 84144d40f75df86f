// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: which ranks share a node, who leads them, and how they come to one store.
//! In from: `Session::open`. Out to: `session::checkpoint` and `restore`.
//! Invariants: the lowest rank of a node leads; every rank makes the same collective calls, and an
//! error of one is the outcome of all.

use super::neighbours::{Neighbours, share_directory};
use super::vote::vote;
use super::watch::Watched;
use crate::config::{Config, Redundancy};
use crate::leave::Looks;
use backstay_base::clock::{patiently, unix_ns};
use backstay_base::cpu;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::ReadAt;
use backstay_base::io::file::FileDevice;
use backstay_base::io::shared::SharedWords;
use backstay_base::io::two_slots::Unread;
use backstay_base::notice;
use backstay_format::limits::{SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SEGMENTS_MAX};
use backstay_format::{CheckpointId, Digest, Geometry, Lineage, StoreId, Superblock};
use backstay_parity::agent::local::{AgentClient, quiesce};
use backstay_store::control::{CONTROL_FILE, Control, wait_until};
use backstay_store::lock::StoreLock;
use backstay_store::place::{self, Place, STORE_FILE};
use backstay_store::reader::StoreReader;
use backstay_store::reserve::{Reserve, ReserveSettings, is_blank};
use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Threads that capture on a rank by default, at most: memory is as fast then as it gets.
const CAPTURE_THREADS_MAX: usize = 8;
/// A store up to this size is made at once.
const AT_ONCE_BYTES: u64 = 64 << 20;

/// This rank's place on its node.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) job: String,
    pub(super) name: String,
    pub(super) nodes: u32,
    /// Place of this node among them, by their lowest ranks.
    pub(super) place: u32,
    /// The ranks of this node, ascending; the first leads.
    pub(super) ranks: Vec<u32>,
    /// Index of this rank among them.
    pub(super) local: u32,
    pub(super) directory: PathBuf,
    pub(super) control: Control,
    pub(super) settings: ReserveSettings,
    /// Whether a checkpoint to restore was named: what is newer is given up then, also where it cannot be read.
    pub(super) names_one: bool,
    /// The leader's: why the store that is here could not be opened; it is as a lost one until it is put aside.
    pub(super) unopened: RefCell<Option<Unopened>>,
    /// The run of the job, for stores that are made.
    pub(super) run: u32,
    /// Some node of the job has a store of that run.
    pub(super) was_there: bool,
    /// The agent process of the node, which let go of the store for this start to open it.
    pub(super) agent: RefCell<Option<AgentClient>>,
    /// The leader's: in the folder, and where the store is if that is elsewhere.
    pub(super) lock: RefCell<Option<StoreLock>>,
    pub(super) lock_elsewhere: RefCell<Option<StoreLock>>,
    /// The store's file as this rank has it open, and where it is.
    pub(super) opened: RefCell<Option<(Arc<FileDevice>, PathBuf)>>,
    /// Segments that the store which this leader made is to have; it is made with those of the first checkpoint.
    pub(super) wanted_slots: Cell<u64>,
    /// Kept open in the place of a control file that was removed.
    pub(super) held: RefCell<Option<std::fs::File>>,
}

/// A store that could not be opened.
#[derive(Debug)]
pub(super) struct Unopened {
    pub(super) why: Error,
    /// The newest checkpoint that a root slot lists which can be read.
    pub(super) listed: Option<CheckpointId>,
}

impl Unopened {
    /// It was read, and is damaged: what it held is lost, and what else can be had is the newest there is.
    pub(super) fn is_lost(&self) -> bool {
        self.why.kind().proves_loss()
    }
}

impl Node {
    /// Finds the ranks of this node and opens what they share. Collective.
    pub(super) fn join(comm: &Watched, config: &Config) -> Result<Self> {
        let job = config.job.clone().unwrap_or_else(place::default_job_name);
        let name = config.node.clone().unwrap_or_else(place::node_name);
        let boot = if config.node.is_some() {
            String::new()
        } else {
            place::boot_id()
        };
        let Neighbours {
            ranks,
            nodes,
            place,
        } = Neighbours::find(comm, &job, &format!("{name} {boot}"))?;
        let local = ranks
            .iter()
            .position(|&rank| rank == comm.rank())
            .unwrap_or(0);
        let local = u32::try_from(local).unwrap_or(0);
        let opened = if local == 0 {
            lead(config, &job, &name).map(Some)
        } else {
            Ok(None)
        };
        let (mine, opened) = match opened {
            Ok(led) => (Ok(led.as_ref().map(|led| led.0.clone())), led),
            Err(error) => (Err(error), None),
        };
        let directory = share_directory(comm, mine, (place, &name))?;
        let (control, lock, agent) = match opened {
            Some((_, control, lock, agent)) => (Ok(control), Some(lock), agent),
            None => (follow(&directory), None, None),
        };
        let control = vote(comm, "joining the store", 0, control)?;
        let settings = ReserveSettings {
            reserve_bytes_max: config.reserve_bytes,
            wait: Duration::from_millis(config.timeout_ms),
            space_later: false,
        };
        Ok(Self {
            job,
            name,
            nodes,
            place,
            ranks,
            local,
            directory,
            control,
            settings,
            names_one: config.restore_checkpoint.is_some(),
            unopened: RefCell::new(None),
            run: 1,
            was_there: false,
            agent: RefCell::new(agent),
            lock: RefCell::new(lock),
            lock_elsewhere: RefCell::new(None),
            opened: RefCell::new(None),
            wanted_slots: Cell::new(0),
            held: RefCell::new(None),
        })
    }

    /// Threads that capture on this rank; by default its share of the processors.
    pub(super) fn capture_threads(&self, configured: Option<u32>) -> usize {
        let share = || cpu::usable() / self.ranks.len().max(1);
        let share = || share().clamp(1, CAPTURE_THREADS_MAX);
        configured.map_or_else(share, backstay_format::width::index)
    }

    pub(super) fn leads(&self) -> bool {
        self.local == 0
    }

    /// One rank of a node looks whether somebody wishes that the program leaves.
    pub(super) fn looks(&self) -> Looks {
        Looks {
            here: self.leads(),
            place: self.place,
            nodes: self.nodes,
        }
    }

    pub(super) fn store_path(&self) -> PathBuf {
        self.directory.join(STORE_FILE)
    }

    /// Opens the store that an earlier start left; the leader first, then the others. One that cannot be read
    /// is as a lost one, and [`Node::unopened`] says why. Collective.
    pub(super) fn open_store(&self, comm: &Watched) -> Result<Option<Reserve>> {
        let open = |unread: Unread| -> Result<Option<Reserve>> {
            let path = self.store_path();
            let looked = |error| Error::io(format!("looking for {}", path.display()), error);
            if !path.try_exists().map_err(looked)? {
                return Ok(None);
            }
            let device = self.device(false)?;
            if is_blank(&*device) {
                notice::info(&format!(
                    "{} never held a checkpoint, and is rebuilt",
                    self.store_path().display()
                ));
                return Ok(None);
            }
            let control = self.control.clone();
            let reserve = Reserve::open_as(device, control, self.settings, unread)?;
            self.check_owner(reserve.reader().superblock())?;
            self.control.set_created(1);
            Ok(Some(reserve))
        };
        let led = if self.leads() {
            let led = patiently(self.settings.wait, Error::may_pass, || open(Unread::Counts));
            let led = match led {
                Err(error) if self.names_one && error.kind() == ErrorKind::StoreIo => {
                    open(Unread::GivenUp)
                }
                led => led,
            };
            led.or_else(|error| self.leave_unopened(error))
        } else {
            Ok(None)
        };
        let led = vote(comm, "opening the store", 0, led)?;
        if self.leads() {
            return vote(comm, "attaching to the store", 0, Ok(led));
        }
        let attached = if self.control.created() == 1 {
            self.attach().map(Some)
        } else {
            Ok(None)
        };
        vote(comm, "attaching to the store", 0, attached)
    }

    /// A store that cannot be read, or is damaged as a whole, is left as it is, until it is known what can be had
    /// without it.
    fn leave_unopened(&self, error: Error) -> Result<Option<Reserve>> {
        if error.kind() != ErrorKind::StoreIo && !error.kind().proves_loss() {
            return Err(error);
        }
        // Ranks find no store.
        self.control.set_created(0);
        *self.opened.borrow_mut() = None;
        notice::warn(&format!("the store of this node cannot be opened: {error}"));
        let listed = self.listed_in_one_slot();
        let numbers: Vec<u64> = listed.iter().map(|id| id.number).collect();
        let why = if numbers.is_empty() {
            error
        } else {
            error.within(&format!(
                "one root slot can be read, and lists checkpoints {numbers:?}"
            ))
        };
        *self.unopened.borrow_mut() = Some(Unopened {
            why,
            listed: listed.last().copied(),
        });
        Ok(None)
    }

    /// What the one root slot that can be read lists.
    fn listed_in_one_slot(&self) -> Vec<CheckpointId> {
        let root = FileDevice::open_read_only(&self.store_path())
            .map_err(|error| Error::io("opening it", error))
            .and_then(|device| StoreReader::open(Arc::new(device)))
            .and_then(|reader| {
                reader.give_up_unread(true);
                reader.newest_root()
            });
        let revisions = root.map(|(root, _)| root.revisions).unwrap_or_default();
        revisions.iter().map(|r| r.checkpoint).collect()
    }

    /// Moves a store that could not be opened out of the way: a checkpoint was restored without it.
    pub(super) fn put_unopened_aside(&self) -> Result<()> {
        let (what, extension) = match &*self.unopened.borrow() {
            None => return Ok(()),
            Some(unopened) if unopened.is_lost() => ("is damaged", "damaged"),
            Some(_) => ("cannot be read", "unread"),
        };
        let path = self.store_path();
        let aside = path.with_extension(extension);
        notice::warn(&format!(
            "{}, which {what}, is moved to {}; remove it when it is of no use any more",
            path.display(),
            aside.display()
        ));
        std::fs::rename(&path, &aside)
            .and_then(|()| backstay_base::io::sync_folder(&self.directory))
            .map_err(|error| Error::io(format!("moving {}", path.display()), error))?;
        *self.unopened.borrow_mut() = None;
        Ok(())
    }

    /// A number for the run of a job in its first start, from which all ranks take the highest.
    pub(super) fn draw_run(&self) -> u32 {
        let seed = format!("{} {} {}", self.name, std::process::id(), unix_ns());
        let Digest([a, b, c, d, ..]) = Digest::of(seed.as_bytes());
        u32::from_le_bytes([a, b, c, d]).max(1)
    }

    fn check_owner(&self, superblock: &Superblock) -> Result<()> {
        if superblock.job == self.job {
            return Ok(());
        }
        let context = format!(
            "{} belongs to job {:?}, this is job {:?}; set job or store_path",
            self.store_path().display(),
            superblock.job,
            self.job
        );
        Err(Error::new(ErrorKind::Configuration, context))
    }

    fn device(&self, create: bool) -> Result<Arc<FileDevice>> {
        let path = self.store_path();
        let device = FileDevice::open(&path, create)
            .map_err(|error| Error::io(format!("opening {}", path.display()), error))?;
        let device = Arc::new(device);
        let home = std::fs::read_link(&path).unwrap_or(path);
        *self.opened.borrow_mut() = Some((Arc::clone(&device), home));
        Ok(device)
    }

    fn attach(&self) -> Result<Reserve> {
        Reserve::attach(self.device(false)?, self.control.clone(), self.settings)
    }

    /// Makes the store if this start has none yet: the leader by the needs of all its ranks.
    /// `need_bytes` is what this rank protects. A later start has another incarnation, checkpoint or not.
    pub(super) fn create_store(
        &self,
        config: &Config,
        need_bytes: u64,
        (turn, lineage): (u64, Lineage),
    ) -> Result<Reserve> {
        self.control.set_need(self.local, turn, need_bytes);
        // Made before by a checkpoint that could not go on with it.
        if self.control.created() == 1 {
            return self.attach();
        }
        if self.leads() {
            let made = self.lead_creation(config, turn, lineage);
            let outcome = made.as_ref().err().map_or(1, |error| {
                (turn << 8) | u64::try_from(error.kind().code()).unwrap_or(0xff)
            });
            self.control.set_created(outcome);
            return made;
        }
        wait_until(
            "the node's leader to make the store",
            self.settings.wait,
            || self.control.created() == 1 || self.control.created() >> 8 == turn,
        )?;
        let outcome = self.control.created();
        if outcome == 1 {
            return self.attach();
        }
        // The leader tells all ranks what is wrong; it may be right next time.
        let kind = i32::try_from(outcome & 0xff)
            .ok()
            .and_then(ErrorKind::from_code);
        Err(Error::new(
            kind.unwrap_or(ErrorKind::StoreIo),
            "the node's leader could not make the store",
        )
        .second_hand())
    }

    /// Where the store is: the node's directory, unless there was no room in it.
    pub(super) fn store_directory(&self) -> PathBuf {
        let store = std::fs::canonicalize(self.store_path());
        let found = store
            .ok()
            .and_then(|path| path.parent().map(Path::to_owned));
        found.unwrap_or_else(|| self.directory.clone())
    }

    /// The store goes elsewhere than lock and control file: the ranks find it by a link, and a later
    /// start, which finds only the store, by a lock beside it.
    fn link_to(&self, directory: &Path) -> Result<()> {
        if directory == self.directory {
            return Ok(());
        }
        *self.lock_elsewhere.borrow_mut() = Some(StoreLock::take(directory, &self.job)?);
        let (link, target) = (self.store_path(), directory.join(STORE_FILE));
        // A link to an earlier place, of a creation that failed.
        drop(std::fs::remove_file(&link));
        std::os::unix::fs::symlink(target, &link)
            .and_then(|()| backstay_base::io::sync_folder(&self.directory))
            .map_err(|error| Error::io(format!("linking {}", link.display()), error))
    }

    /// The first of `sizes` that there is room for, and where; else what keeps the smallest from fitting.
    /// Beyond a limit on memory the kernel kills the job, so there the first has to fit: what the rule
    /// asks for more than is needed is what the program can still grow by.
    fn find_room(&self, config: &Config, sizes: &[(u32, u64)]) -> Result<(Place, u32, u64)> {
        let bytes_of =
            |&(segment_bytes, slots): &(u32, u64)| Geometry { segment_bytes }.file_bytes(slots);
        let whole = sizes.first().map_or(0, bytes_of);
        let limit = place::memory_limit();
        let mut short = None;
        for size in sizes {
            let bytes = bytes_of(size);
            let place = place::choose(
                config.store_path.as_deref(),
                &self.job,
                &self.name,
                Some(bytes),
            );
            let fits = place.and_then(|place| {
                place::check_room(&place, bytes)?;
                place::check_memory(&place, whole, limit.as_ref())?;
                Ok(place)
            });
            match fits {
                Ok(place) => return Ok((place, size.0, size.1)),
                Err(error) if error.kind() == ErrorKind::StoreFull => short = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(short.unwrap_or_else(|| Error::new(ErrorKind::Internal, "no size was tried")))
    }

    fn new_store_id(&self) -> StoreId {
        let (job, name, process) = (&self.job, &self.name, std::process::id());
        StoreId(Digest::of(format!("{job} {name} {process} {}", unix_ns()).as_bytes()).0)
    }

    fn lead_creation(&self, config: &Config, turn: u64, lineage: Lineage) -> Result<Reserve> {
        let others = 0..u32::try_from(self.ranks.len()).unwrap_or(u32::MAX);
        wait_until(
            "all ranks of the node to say what they need",
            self.settings.wait,
            || {
                others
                    .clone()
                    .all(|local| self.control.need(local, turn).is_some())
            },
        )?;
        let need: u64 = others
            .filter_map(|local| self.control.need(local, turn))
            .sum();
        let parity = if self.control.redundant() {
            parity_share(config, self.nodes)
        } else {
            0.0
        };
        self.check_reserve(config, need, parity)?;
        let sizes = sizes(config, need, self.ranks.len(), parity);
        let (place, segment_bytes, slots) = self.find_room(config, &sizes)?;
        let bytes = Geometry { segment_bytes }.file_bytes(slots);
        self.link_to(&place.directory)?;
        remove_blank(&place.directory.join(STORE_FILE))?;
        let device = self.device(true)?;
        let superblock = Superblock {
            store: self.new_store_id(),
            segment_bytes,
            run: self.run,
            created_unix_ns: unix_ns(),
            job: self.job.clone(),
            node: self.name.clone(),
        };
        let control = self.control.clone();
        self.wanted_slots.set(slots);
        let first = if device.is_memory() && config.reserve_bytes.is_none() {
            slots_at_first(segment_bytes, slots, need, self.ranks.len())
        } else {
            slots
        };
        let settings = ReserveSettings {
            space_later: first < slots,
            ..self.settings
        };
        let made = Reserve::create_in_start(device, control, &superblock, first, settings, lineage);
        if made.is_err() {
            // Space that a failed creation took is given back; the first error is the one to tell.
            drop(std::fs::remove_file(place.directory.join(STORE_FILE)));
        }
        let made = made?;
        // One line of a job: other nodes say only what they chose otherwise.
        if self.ranks.contains(&0) || !place.first {
            let others = match self.nodes - 1 {
                0 => String::new(),
                others => format!(" on node {}, what each needs on {others} others", self.name),
            };
            notice::info(&format!(
                "{} MiB reserved{others}: {}",
                bytes >> 20,
                place.why
            ));
        }
        Ok(made)
    }

    /// Refuses a `reserve_bytes` that has no room for one checkpoint of `need` bytes.
    fn check_reserve(&self, config: &Config, need: u64, parity: f64) -> Result<()> {
        let Some(bytes) = config.reserve_bytes.filter(|&bytes| bytes < need) else {
            return Ok(());
        };
        let unset = Config {
            reserve_bytes: None,
            ..config.clone()
        };
        let rule = sizes(&unset, need, self.ranks.len(), parity);
        let of_rule = rule.first().map_or(need, |&(segment_bytes, slots)| {
            Geometry { segment_bytes }.file_bytes(slots)
        });
        let context = format!(
            "reserve_bytes is {bytes}, and the ranks of node {} protect {need} bytes: short by {} for one \
             checkpoint; set it to {of_rule}, which the rule would reserve, or do not set it",
            self.name,
            need - bytes
        );
        Err(Error::new(ErrorKind::StoreFull, context))
    }
}

/// Of `slots` segments of a new store in memory those that the first checkpoint waits for: the rest is taken while
/// the program goes on, where that is worth it.
fn slots_at_first(segment_bytes: u32, slots: u64, need: u64, ranks: usize) -> u64 {
    let geometry = Geometry { segment_bytes };
    if geometry.file_bytes(slots) < AT_ONCE_BYTES {
        return slots;
    }
    let least = least_slots(ranks);
    let state = need
        .saturating_add(need / 32)
        .div_ceil(u64::from(segment_bytes));
    slots.min(state + least)
}

/// What a store may be made of, bytes of a segment and number of segments, best first: room for the state
/// of `need` bytes, what changes of it in each retained revision and in the one being written, and a quarter
/// more; then in smaller segments, of which less stays unused; then without the quarter. Where `parity`
/// bytes protect each byte, one more is kept while it is encoded.
fn sizes(config: &Config, need: u64, ranks: usize, parity: f64) -> Vec<(u32, u64)> {
    let encoded = if parity > 0.0 { 1.0 } else { 0.0 };
    let copies = (f64::from(config.retained) + encoded) * config.changed_share;
    let estimate = |slack: f64| {
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let estimate = need as f64 * (1.0 + copies) * (1.0 + parity) * slack;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "an estimate"
        )]
        let estimate = estimate as u64;
        estimate
    };
    let segment_for = |bytes: u64| {
        let share = bytes / (backstay_format::width::to_u64(ranks) * 16).max(1);
        let fitting = u32::try_from(share.min(1 << 30)).unwrap_or(SEGMENT_BYTES_MAX);
        let fitting = fitting.max(1).next_power_of_two();
        let fitting = fitting.clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX);
        let segment_bytes = config.segment_bytes.unwrap_or(fitting);
        segment_bytes.max(config.block_bytes)
    };
    if let Some(bytes) = config.reserve_bytes {
        let segment_bytes = segment_for(bytes);
        let slots = Geometry { segment_bytes }.slots_in(bytes).max(1);
        return vec![(segment_bytes, slots)];
    }
    let least = least_slots(ranks);
    let slots = |bytes: u64, segment_bytes: u32| bytes.div_ceil(u64::from(segment_bytes)) + least;
    let (whole, bare) = (estimate(1.25), estimate(1.0));
    let first = segment_for(whole);
    let mut found = vec![(first, slots(whole, first).min(SEGMENTS_MAX))];
    let smallest = SEGMENT_BYTES_MIN.max(config.block_bytes);
    for bytes in [whole, bare] {
        let halves = (0..=SMALLER).map(|half| first >> half);
        for segment_bytes in
            halves.filter(|&bytes| config.segment_bytes.is_none_or(|asked| asked == bytes))
        {
            let slots = slots(bytes, segment_bytes);
            if segment_bytes >= smallest && slots <= SEGMENTS_MAX {
                found.push((segment_bytes, slots));
            }
        }
    }
    found.dedup();
    found
}

/// How often segments are halved where there is little room.
const SMALLER: u32 = 4;

/// Segments beside those of the state: each rank fills segments of up to four classes, and the node one.
fn least_slots(ranks: usize) -> u64 {
    backstay_format::width::to_u64(ranks) * 5 + 2
}

/// Bytes of parity that a node keeps for each byte of its own.
fn parity_share(config: &Config, nodes: u32) -> f64 {
    let members = config.group_size.min(nodes).max(2);
    let of = |parities: u32| {
        let parities = parities.min(members - 1);
        f64::from(parities) / f64::from(members - parities)
    };
    match config.redundancy {
        Redundancy::None => 0.0,
        Redundancy::Partner => 1.0,
        Redundancy::Xor => of(1),
        Redundancy::Rs => of(config.parity),
    }
}

/// The file at `path`, for reading; what cannot be opened may be there.
pub(super) fn open_if_there(path: &Path) -> Result<Option<FileDevice>> {
    match FileDevice::open_read_only(path) {
        Ok(device) => Ok(Some(device)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io(format!("opening {}", path.display()), error)),
    }
}

/// Removes what a creation left that was killed; a store that holds anything stays, and is an error.
fn remove_blank(path: &Path) -> Result<()> {
    let Some(device) = open_if_there(path)? else {
        return Ok(());
    };
    if !is_blank(&device) {
        let context = format!(
            "{} holds a store; remove it, or set another job",
            path.display()
        );
        return Err(Error::new(ErrorKind::StoreBusy, context));
    }
    std::fs::remove_file(path)
        .map_err(|error| Error::io(format!("removing {}", path.display()), error))
}

/// What a leader has: directory, control words, lock, and the node's agent process.
type Led = (PathBuf, Control, StoreLock, Option<AgentClient>);

/// The leader's part: directory, lock, control file.
fn lead(config: &Config, job: &str, node: &str) -> Result<Led> {
    let limit = Duration::from_millis(config.timeout_ms);
    let look = || place::existing(config.store_path.as_deref(), job, node);
    let directory = match patiently(limit, Error::may_pass, look)? {
        Some(directory) => directory,
        None => place::choose(config.store_path.as_deref(), job, node, None)?.directory,
    };
    let lock = StoreLock::take(&directory, job)?;
    let mut agent = quiesce(&directory)?;
    let path = directory.join(CONTROL_FILE);
    let free = StoreLock::wait_for_former_ranks(&path);
    if let (Err(_), Some(agent)) = (&free, agent.take_if(|_| free.is_err())) {
        agent.end(&directory)?;
        StoreLock::wait_for_former_ranks(&path)?;
    } else {
        free?;
    }
    let count = Control::words_for(SEGMENTS_MAX);
    let words = SharedWords::map(&path, Some(count))
        .map_err(|error| Error::io(format!("making {}", path.display()), error))?;
    Ok((directory, Control::start(words, SEGMENTS_MAX)?, lock, agent))
}

fn follow(directory: &Path) -> Result<Control> {
    let path = directory.join(CONTROL_FILE);
    let words = SharedWords::map(&path, None)
        .map_err(|error| Error::io(format!("opening {}", path.display()), error))?;
    Control::join(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_smaller_store_is_tried_where_the_rule_asks_for_too_much() {
        let bytes = |(segment_bytes, slots)| Geometry { segment_bytes }.file_bytes(slots) >> 20;
        let config = Config::default();
        let tried = sizes(&config, 24 << 20, 1, 0.0);
        assert!(bytes(tried[0]) > 69, "what the rule asks for: {tried:?}");
        let least = tried.last().copied().map(bytes);
        assert!(
            least.is_some_and(|least| (36..46).contains(&least)),
            "{tried:?}"
        );
        // What is asked for is what is made.
        let config = Config {
            reserve_bytes: Some(50 << 20),
            ..config
        };
        assert_eq!(sizes(&config, 24 << 20, 1, 0.0).len(), 1);
        let config = Config {
            segment_bytes: Some(1 << 20),
            ..Config::default()
        };
        let tried = sizes(&config, 24 << 20, 1, 0.0);
        assert!(
            tried
                .iter()
                .all(|(segment_bytes, _)| *segment_bytes == 1 << 20)
        );
    }
}
