// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what protects a checkpoint now, from the stripe logs beside the opened stores.
//! In: opened stores. Out: redundancy groups, and per checkpoint against which losses it is safe.
//! Invariants: a checkpoint is called protected only where the newest log at hand says so of every
//! store that holds a part of it; what a log does not know is said to be on its nodes only.

use super::open::OpenStore;
use super::{Checkpoint, Stores};
use backstay_base::error::ErrorKind;
use backstay_format::width::to_u64;
use backstay_format::{Address, BlockRef, CheckpointId, RootSlot, SegmentId, StoreId};
use backstay_store::control::{CONTROL_FILE, ControlGlance};
use backstay_store::recover::walk_part;
use backstay_store::stripe_log::StripeTable;
use backstay_store::tree::walk;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Members that protect each other, as the newest log of the opened stores has them.
#[derive(Debug)]
pub struct Group {
    /// The job.
    pub job: String,
    /// The members, by column.
    pub members: Vec<GroupMember>,
    pub(super) table: StripeTable,
}

/// A node in a group.
#[derive(Debug)]
pub struct GroupMember {
    /// Its store.
    pub store: StoreId,
    /// The node that had it when the log was written.
    pub node: String,
    /// What fails together with it.
    pub domain: String,
    /// The opened store, as an index into [`Stores::stores`].
    pub here: Option<usize>,
    /// What its store retained when the log was written: made again, it has these.
    pub retained: BTreeSet<CheckpointId>,
}

/// How safe a checkpoint is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Safety {
    /// The loss of a node that has a part of it loses it.
    NodeOnly,
    /// The same for now; a job is encoding it.
    Encoding,
    /// It survives the loss of as many members of each group as are covered.
    Protected,
    /// It is in the archive: it survives the loss of all nodes.
    Archived,
}

/// What protects a checkpoint.
#[derive(Debug, Clone)]
pub struct Protection {
    /// How safe it is.
    pub safety: Safety,
    /// Redundancy was on when these stores were last written.
    pub redundant: bool,
    /// The groups its stores are in, as indices into [`Stores::groups`].
    pub groups: Vec<usize>,
    /// Losses that every group covers.
    pub losses: u8,
    /// Losses that were asked to be covered.
    pub asked: u8,
    /// Why this is less than was asked for.
    pub short: Vec<String>,
}

/// How much of what a group's stripes hold is still of use, as far as its members are here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GroupUse {
    /// Bytes of the data of the members that are here.
    pub bytes_known: u64,
    /// Of these, bytes that no retained checkpoint uses.
    pub bytes_dead: u64,
}

impl Group {
    /// Which composition of the group.
    pub fn epoch(&self) -> u64 {
        self.table.epoch
    }
    /// The last recorded round.
    pub fn round(&self) -> u64 {
        self.table.round
    }
    /// Losses that it covers.
    pub fn losses(&self) -> u8 {
        self.table.parity
    }
    /// Losses that were asked to be covered.
    pub fn asked(&self) -> u8 {
        self.table.asked
    }
    /// The newest protected checkpoint.
    pub fn protected(&self) -> CheckpointId {
        self.table.protected
    }
    /// Stripes.
    pub fn stripes(&self) -> u64 {
        to_u64(self.table.stripes.len())
    }
    /// The scheme, as far as its stripes tell: of two nodes all schemes are a copy.
    pub fn scheme(&self) -> &'static str {
        match (self.table.parity, self.table.asked, self.table.pieces_max) {
            (1, 0 | 1, 1) if self.members.len() == 2 => "copy",
            (1, 0 | 1, 1) => "partner",
            (1, 0 | 1, _) => "xor",
            _ => "rs",
        }
    }
    /// Bytes of data, and of the parity over them.
    pub fn bytes(&self) -> (u64, u64) {
        let (mut data, mut parity) = (0, 0);
        let length = |piece: &backstay_format::StripePiece| u64::from(piece.extent.length_bytes);
        for stripe in self.table.stripes.values() {
            data += stripe.pieces.iter().map(length).sum::<u64>();
            parity += stripe.parity.iter().map(length).sum::<u64>();
        }
        (data, parity)
    }

    fn new(job: &str, table: StripeTable, stores: &[OpenStore]) -> Self {
        let members = table.members.iter().map(|member| {
            let root = RootSlot::decode(&member.root, member.store);
            let revisions = root.map(|root| root.revisions).unwrap_or_default();
            GroupMember {
                store: member.store,
                node: member.node.clone(),
                domain: member.domain.clone(),
                here: stores.iter().position(|store| store.id() == member.store),
                retained: revisions.iter().map(|r| r.checkpoint).collect(),
            }
        });
        Self {
            job: job.to_owned(),
            members: members.collect(),
            table,
        }
    }

    fn is(&self, table: &StripeTable) -> bool {
        let stores = |table: &StripeTable| -> Vec<StoreId> {
            table.members.iter().map(|member| member.store).collect()
        };
        (self.table.epoch, self.table.round) == (table.epoch, table.round)
            && stores(&self.table) == stores(table)
    }
}

/// The groups of the opened stores, and which one each store is in. Of several logs that name a store
/// the newest counts: a member may have missed the last record.
pub(super) fn form_groups(stores: &mut [OpenStore]) -> (Vec<Group>, Vec<Option<usize>>) {
    let tables: Vec<(String, StripeTable)> = stores
        .iter_mut()
        .filter_map(|store| Some((store.job().to_owned(), store.take_table()?)))
        .filter(|(_, table)| table.epoch > 0)
        .collect();
    let (mut groups, mut group_of): (Vec<Group>, Vec<Option<usize>>) = (Vec::new(), Vec::new());
    for store in &*stores {
        let newest = tables
            .iter()
            .filter(|(_, table)| table.column(store.id()).is_some())
            .max_by_key(|(_, table)| (table.epoch, table.round));
        group_of.push(newest.map(|(job, table)| {
            if let Some(known) = groups.iter().position(|group| group.is(table)) {
                return known;
            }
            groups.push(Group::new(job, table.clone(), stores));
            groups.len() - 1
        }));
    }
    (groups, group_of)
}

impl Stores {
    /// The redundancy groups that the opened stores are in.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// The group a store is in, as an index into [`Stores::groups`].
    pub fn group_of(&self, store: usize) -> Option<usize> {
        self.group_of.get(store).copied().flatten()
    }

    /// What protects a checkpoint now.
    pub fn protection(&self, checkpoint: &Checkpoint) -> Protection {
        let mut groups: Vec<usize> = checkpoint
            .stores
            .iter()
            .filter_map(|&at| self.group_of(at))
            .collect();
        groups.sort_unstable();
        groups.dedup();
        let of = |what: fn(&Group) -> u8| groups.iter().map(move |&at| what(&self.groups[at]));
        let losses = of(Group::losses).min().unwrap_or(0);
        let asked = of(Group::asked).max().unwrap_or(0);
        let safeties = checkpoint.stores.iter();
        let safeties = safeties.map(|&store| self.safety(store, checkpoint.id));
        let stores = || checkpoint.stores.iter().map(|&at| &self.stores[at]);
        Protection {
            safety: safeties.min().unwrap_or(Safety::NodeOnly),
            redundant: stores().any(OpenStore::redundant),
            short: self.short(checkpoint, &groups),
            groups,
            losses,
            asked,
        }
    }

    fn safety(&self, store: usize, id: CheckpointId) -> Safety {
        let opened = &self.stores[store];
        if opened.archive().is_some() {
            return Safety::Archived;
        }
        if let Some(group) = self.group_of(store).map(|at| &self.groups[at]) {
            let member = group.members.iter().find(|m| m.here == Some(store));
            if id <= group.protected() && member.is_some_and(|m| m.retained.contains(&id)) {
                return Safety::Protected;
            }
            if id <= group.protected() {
                return Safety::NodeOnly;
            }
        }
        match opened.glance() {
            Some(glance) if opened.redundant() && glance.failed(id).is_none() => Safety::Encoding,
            _ => Safety::NodeOnly,
        }
    }

    /// What is less than was asked for.
    fn short(&self, checkpoint: &Checkpoint, groups: &[usize]) -> Vec<String> {
        let mut short = Vec::new();
        for group in groups.iter().map(|&at| &self.groups[at]) {
            if group.losses() < group.asked() {
                let names: Vec<&str> = group.members.iter().map(|m| &*m.node).collect();
                short.push(format!(
                    "the group of {} nodes ({}) covers {} lost of {} asked for: it is too small",
                    names.len(),
                    names.join(", "),
                    group.losses(),
                    group.asked()
                ));
            }
        }
        for &at in &checkpoint.stores {
            let store = &self.stores[at];
            if store.redundant() && self.group_of(at).is_none() && store.glance().is_none() {
                let node = store.node();
                short.push(format!(
                    "redundancy was asked for, but node {node} is in no group: nothing protects what \
                     it has"
                ));
            }
            let failed = store
                .glance()
                .and_then(|glance| glance.failed(checkpoint.id));
            if let Some(code) = failed.filter(|_| store.redundant()) {
                let kind = i32::try_from(code).ok().and_then(ErrorKind::from_code);
                short.push(format!(
                    "node {}: the last round of protection failed ({}); the job's log says why",
                    store.node(),
                    kind.map_or("unknown", ErrorKind::meaning)
                ));
            }
        }
        short
    }

    /// How much of a group's data is still of use, as far as its members are here.
    pub fn group_use(&self, group: usize) -> GroupUse {
        let group = &self.groups[group];
        let mut sum = GroupUse::default();
        for (column, member) in (0..).zip(&group.members) {
            let Some(store) = member.here.map(|at| &self.stores[at]) else {
                continue;
            };
            let mut used: BTreeMap<Address, u64> = BTreeMap::new();
            for id in store.retained().iter().map(|r| r.entry.checkpoint) {
                each_block(store, id, &mut |address, length| {
                    used.insert(address, to_u64(length));
                });
            }
            let mut segments: BTreeSet<SegmentId> = BTreeSet::new();
            let data = group.table.stripes.values().flat_map(|s| &s.pieces);
            let mut known = 0;
            for piece in data.filter(|piece| piece.column == column) {
                known += u64::from(piece.extent.length_bytes);
                segments.insert(piece.extent.segment);
            }
            let used = used
                .into_iter()
                .filter(|(address, _)| segments.contains(&address.segment()));
            let used: u64 = used.map(|(_, length)| length).sum();
            sum.bytes_known += known;
            sum.bytes_dead += known.saturating_sub(used);
        }
        sum
    }

    /// Bytes of a checkpoint in these stores that no stripe covers.
    pub fn bytes_uncovered(&self, checkpoint: &Checkpoint) -> u64 {
        let mut sum = 0;
        for &at in &checkpoint.stores {
            let store = &self.stores[at];
            let covered = self.covered(at);
            let mut seen: BTreeSet<Address> = BTreeSet::new();
            each_block(store, checkpoint.id, &mut |address, length| {
                let end = to_u64(length) + u64::from(address.offset_bytes());
                let covered = covered.get(&address.segment()).copied().unwrap_or(0);
                if end > covered && seen.insert(address) {
                    sum += to_u64(length);
                }
            });
        }
        sum
    }

    /// How far stripes cover each segment of a store: always from its front.
    fn covered(&self, store: usize) -> BTreeMap<SegmentId, u64> {
        let mut covered = BTreeMap::new();
        let Some(group) = self.group_of(store).map(|at| &self.groups[at]) else {
            return covered;
        };
        let column = group.table.column(self.stores[store].id());
        let data = group.table.stripes.values().flat_map(|s| &s.pieces);
        for piece in data.filter(|piece| Some(piece.column) == column) {
            let extent = &piece.extent;
            let end = u64::from(extent.offset_bytes) + u64::from(extent.length_bytes);
            let known: &mut u64 = covered.entry(extent.segment).or_default();
            *known = end.max(*known);
        }
        covered
    }
}

/// Every block and page of a checkpoint in a store, as far as it can be read.
fn each_block(store: &OpenStore, id: CheckpointId, visit: &mut dyn FnMut(Address, usize)) {
    let retained = store.retained().iter().find(|r| r.entry.checkpoint == id);
    let Some(retained) = retained else { return };
    let mut note = |block: &BlockRef, length: usize| visit(block.address, length);
    walk(
        store.reader(),
        &retained.entry.ranks,
        &mut |_, block, length| note(block, length),
        &mut |_, _, _| {},
    );
    for rank in retained.ranks.iter().flatten() {
        walk_part(store.reader(), &rank.root, &mut note, &mut |_, _| {});
    }
}

/// What a job that uses the store in `directory` has said, if one does. Looks at the kernel's list of
/// locks, and takes none.
pub(super) fn glance(directory: &Path) -> Option<ControlGlance> {
    use std::os::unix::fs::MetadataExt;
    let path = directory.join(CONTROL_FILE);
    let inode = std::fs::metadata(&path).ok()?.ino();
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let held = locks.lines().any(|line| {
        let mut words = line.split_whitespace();
        let is_flock = words.any(|word| word == "FLOCK");
        let file = words.find(|word| word.matches(':').count() == 2);
        let number = file.and_then(|file| file.rsplit(':').next());
        is_flock && number.is_some_and(|number| number.parse() == Ok(inode))
    });
    held.then(|| ControlGlance::at(&path)).flatten()
}
