// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Values that may be beyond every limit: a sample of a structure, some of whose fields were changed.
//! A new field does not compile before it is named here.

use backstay_format::agent::{
    Answer, Collected, RecordPart, Request, Seat, StripePlan, Survey, SurveyedGroup,
    SurveyedMember, SurveyedRevision, SurveyedUnread,
};
use backstay_format::drain::{
    DrainAnswer, DrainJob, DrainProgress, DrainRequest, GatherPiece, Offered,
};
use backstay_format::local::{LocalAnswer, LocalRequest, LocalStoreEntry};
use backstay_format::scheme::{Arrangement, Coder, History, Lags, Scheme, SecondPass};
use backstay_format::wire::{
    Describe, Description, Fabric, Failure, Head, Hello, Located, Proof, Read, Reason, Refused,
    Remote, Span, Welcome,
};
use backstay_format::{
    Address, ArchiveFile, ArchiveRoot, ArchiveSuperblock, ArchiveTable, BaseRun, BlockRef,
    CatalogCheckpoint, CatalogPart, CatalogStart, CatalogState, CatalogSuperblock, CheckpointId,
    Digest, ElementType, Extent, Fingerprint, Heir, Lineage, Member, Page, PartMap, PartStretch,
    RankEntry, RankRange, RankRoot, RevisionEntry, RootSlot, Round, SegmentClass, SegmentHeader,
    SegmentId, SegmentPiece, SegmentRecord, Slab, StoreId, StoredFile, StreamRoot, Stretch, Stripe,
    StripeId, StripeLogHead, StripePiece, Superblock, TableEntry, TablePlace, VariableDescriptor,
};
use std::sync::Arc;

/// Numbers drawn from a seed, and how often a field is changed.
pub(crate) struct Dice {
    state: u64,
    /// One field of so many is changed; 0: none.
    one_in: u64,
}

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        let mut dice = Self {
            state: seed | 1,
            one_in: 0,
        };
        dice.one_in = dice.pick(&[0, 4, 16, 16, 64]);
        dice
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn pick<T: Clone>(&mut self, all: &[T]) -> T {
        let at = self.next() % u64::try_from(all.len()).unwrap();
        all[usize::try_from(at).unwrap()].clone()
    }

    fn changes(&mut self) -> bool {
        self.one_in > 0 && self.next().is_multiple_of(self.one_in)
    }
}

/// What can be changed, perhaps beyond what the format can say.
pub(crate) trait Rough {
    fn rough(&mut self, dice: &mut Dice);
}

macro_rules! numbers {
    ($($kind:ty),*) => {$(
        impl Rough for $kind {
            fn rough(&mut self, dice: &mut Dice) {
                if dice.changes() {
                    let near = [self.wrapping_add(1), self.wrapping_sub(1), 0, 1, Self::MAX];
                    let bit = 1 << (dice.next() % u64::from(Self::BITS));
                    let near = dice.pick(&near);
                    *self = dice.pick(&[near, bit, bit.wrapping_add(1), bit.wrapping_sub(1)]);
                }
            }
        }
    )*};
}
numbers!(u8, u16, u32, u64, i32, i64);

/// Those of which one is chosen.
macro_rules! choices {
    ($($kind:ty: $all:expr),* $(,)?) => {$(
        impl Rough for $kind {
            fn rough(&mut self, dice: &mut Dice) {
                if dice.changes() {
                    *self = dice.pick(&$all);
                }
            }
        }
    )*};
}
choices!(
    bool: [false, true],
    ElementType: ElementType::ALL,
    SegmentClass: SegmentClass::ALL,
    Reason: Reason::ALL,
    History: History::ALL,
    Arrangement: Arrangement::ALL,
    Coder: Coder::ALL,
    SecondPass: SecondPass::ALL,
    Lags: [&[][..], &[1], &[1, 0, 2], &[9; 6], &[u32::MAX; 7]].map(Lags::new),
);

impl Rough for String {
    fn rough(&mut self, dice: &mut Dice) {
        if dice.changes() {
            let lengths = [
                0, 1, 127, 128, 129, 255, 256, 4095, 4096, 4097, 65_535, 65_536,
            ];
            let length = dice.pick(&lengths);
            *self = dice.pick(&["x", "\u{e9}", "/", "."]).repeat(length);
        }
    }
}

impl<const N: usize> Rough for [u8; N] {
    fn rough(&mut self, dice: &mut Dice) {
        if dice.changes() {
            let at = dice.next();
            self.fill(at.to_le_bytes()[0]);
        }
    }
}

impl<T: Rough + Clone> Rough for Vec<T> {
    fn rough(&mut self, dice: &mut Dice) {
        // As it is now: thousands of one that has become large would be gigabytes.
        let last = self.last().cloned();
        for one in self.iter_mut() {
            one.rough(dice);
        }
        if !dice.changes() {
            return;
        }
        let length = dice.pick(&[
            0, 1, 2, 3, 8, 9, 16, 17, 32, 33, 64, 65, 255, 256, 300, 20_000,
        ]);
        if dice.next().is_multiple_of(2) {
            self.reverse();
        } else if let Some(last) = last {
            self.resize(length, last);
        }
    }
}

impl<T: Rough + Clone> Rough for Option<T> {
    fn rough(&mut self, dice: &mut Dice) {
        if let Some(value) = self {
            value.rough(dice);
        }
        if dice.changes() {
            *self = None;
        }
    }
}

impl Rough for Arc<[u32]> {
    fn rough(&mut self, dice: &mut Dice) {
        let mut all = self.to_vec();
        all.rough(dice);
        *self = all.into();
    }
}

/// Changes each field of a structure.
macro_rules! fields {
    ($($kind:ident { $($field:ident),* })*) => {$(
        impl Rough for $kind {
            fn rough(&mut self, dice: &mut Dice) {
                let Self { $($field),* } = self;
                $($field.rough(dice);)*
            }
        }
    )*};
}

/// Changes the one number or array of a structure.
macro_rules! wrapped {
    ($($kind:ident),*) => {$(
        impl Rough for $kind {
            fn rough(&mut self, dice: &mut Dice) {
                self.0.rough(dice);
            }
        }
    )*};
}
wrapped!(StoreId, SegmentId, Address, Digest, Fingerprint, StripeId);

/// Changes each field of the variant.
macro_rules! variants {
    ($($kind:ident {
        $($unit:ident,)*; $($tuple:ident($inner:ident),)*; $($named:ident { $($field:ident),* },)*
    })*) => {$(
        impl Rough for $kind {
            fn rough(&mut self, dice: &mut Dice) {
                match self {
                    $(Self::$unit => {})*
                    $(Self::$tuple($inner) => $inner.rough(dice),)*
                    $(Self::$named { $($field),* } => { $($field.rough(dice);)* })*
                }
            }
        }
    )*};
}

fields! {
    CheckpointId { incarnation, number }
    BlockRef { address, digest }
    StreamRoot { length_bytes, block_bytes, height, top }
    Superblock { store, segment_bytes, run, created_unix_ns, job, node }
    SegmentRecord { store, segment, class }
    RevisionEntry {
        checkpoint, pinned, complete, world_size, committed_unix_ns, bytes_total, bytes_changed, ranks
    }
    Lineage { began, start, finished, asked, arguments }
    RootSlot { store, sequence, incarnation, next_segment, closed, lineage, revisions }
    Page { level, entries }
    RankRoot {
        rank, world_size, born, variable_count, bytes_total, descriptors, table
    }
    RankEntry { rank, root }
    Slab { global_shape, start }
    VariableDescriptor { name, element, shape, slab, file }
    Stretch { start, length }
    StoredFile { path, routed, mode, modified_s, modified_ns, length_bytes, stretches }
    Scheme { element, history, lags, arrangement, coder, second_pass }
    ArchiveSuperblock {
        store, segment_bytes, run, created_unix_ns, aggregator, epoch, job, host
    }
    ArchiveFile { store, name }
    TablePlace { offset, length_bytes, digest }
    ArchiveRoot {
        store, sequence, incarnation, next_segment, draining, table, files, revisions
    }
    TableEntry {
        segment, offset, digest, decoded_bytes, stored_bytes, file, class, merge, delta, draining
    }
    ArchiveTable { store, sequence, entries }
    SegmentPiece { offset, length_bytes, digest }
    BaseRun { offset, length_bytes, base }
    SegmentHeader {
        store, segment, checkpoint, decoded_bytes, payload_bytes, class, merge, element, scheme,
        variable, pieces, bases
    }
    Heir { of, epoch, host }
    PartStretch { offset, length_bytes, age, first_ns, last_ns }
    PartMap { length_bytes, stretches }
    CatalogSuperblock { catalog, slot_bytes, run, created_unix_ns, epoch, job, host }
    CatalogStart { incarnation, from }
    RankRange { first, count }
    CatalogPart { store, sequence, ranks }
    CatalogCheckpoint {
        checkpoint, world_size, kept, finished, archived_unix_ns, bytes_total, bytes_written, parts
    }
    CatalogState { sequence, incarnation, lineage, stores, starts, rank_sets, checkpoints }
    StripeLogHead { store, generation }
    Extent { segment, class, offset_bytes, length_bytes, digest }
    StripePiece { column, extent }
    Stripe { id, pieces, parity }
    Member { store, node, domain, superblock, root }
    Round {
        generation, epoch, round, whole, parity, asked, pieces_max, protected, members, removed, added
    }
    RecordPart { round, number, last }
    Seat { store, node, domain, address }
    StripePlan { id, pieces, holders }
    Collected { superblock, root, waiting, dead }
    SurveyedRevision { checkpoint, complete, world_size, ranks }
    SurveyedMember { store, node, domain, incarnation, sequence, checkpoints }
    SurveyedGroup { epoch, round, parity, pieces_max, protected, members }
    Survey { store, run, incarnation, sequence, length_bytes, rebuilt, unread, revisions, group, former }
    SurveyedUnread { root, why }
    GatherPiece { address, length_bytes }
    DrainJob {
        folder, settings, job, run, aggregator, aggregators, incarnation, catalog, checkpoint, retain,
        sources, file
    }
    Offered { store, length_bytes, path, host, world_size, committed_unix_ns, ranks }
    DrainProgress {
        state, checkpoint, store, file, sequence, world_size, ranks, bytes_total, bytes_changed, bytes_equal,
        bytes_resumed, bytes_compared, bytes_encoded, bytes_stored, growths, steps, kind, text
    }
    LocalStoreEntry { store, directory, rebuilt }
    Head { major, minor, kind, body_bytes }
    Hello { nonce, secret, job, name }
    Welcome { proof, nonce, machine, job, name }
    Proof { proof }
    Refused { reason, words }
    Failure { code, words }
    Span { offset, length }
    Describe { exposure, within_us, same_machine, afresh, provider, spans }
    Description { located, fingerprints, fabric }
    Fabric { address, remotes }
    Remote { key, address }
    Read { exposure, span, within_us, bare }
    Located { device, inode, path }
}

variants! {
    Request {
        Survey,;
        Record(part),;
        Table { store, epoch, part },
        Join { epoch, parity, pieces_max, seats },
        Collect { epoch, round, want, known_from },
        MakeRoom { epoch, round, record_bytes, table_bytes },
        Encode { epoch, round, stripes },
        Take { epoch, round, from, exposure, length_bytes, digest },
        Flush { epoch, round },
        Settle { epoch, round, protected },
        Report { round, checkpoint, kind, text },
        Rebuild { lost, seats, authority, epoch, checkpoint, own, named },
        SetAside { store },
        Repair { seats },
        Follow { from, epoch },
        Settled { epoch, round, protected },
    }
    Answer {
        Done,;
        Surveys(surveys), Table(part), Collected(collected), Encoded(stripes), Taken(extent),;
        Rebuilt { extents, bytes, lost },
    }
    DrainRequest {
        Progress,;
        Begin(job),;
        Offer { checkpoint },
        Gather { checkpoint, pieces },
        Release { exposure },
        Cancel { incarnation },
        Archived { checkpoint, kind, nodes },
    }
    DrainAnswer {
        Done,;
        Offered(offered), Progress(progress),;
        Gathered { exposure, length_bytes },
    }
    LocalRequest {
        Detach, Stores, DropRebuilt, Goodbye,;
        ;
        Begin {
            secret, job, node, listen, threads, rate_bytes, nice, cpu_set, timeout_ms, transport,
            fabric_provider
        },
        Attach { directory, store_directory },
        Coordinate { scheme, parity, epoch, members, nodes },
        Archive { plan },
        Stop { limit_ms },
    }
    LocalAnswer {
        Done,;
        Stores(entries),;
        Ready { address },
        Failed { kind, text },
    }
}
