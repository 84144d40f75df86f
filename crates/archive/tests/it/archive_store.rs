// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The archive store from outside: what is appended and committed is read again, through the layout of a
//! node's store, by many threads, after a takeover, and never wrong when damaged.

use backstay_archive::{
    ArchiveDevice, ArchiveStore, Commit, Identity, NewSegment, Place, RawDecode, ReadOptions,
    WriteOptions, fence, store_file,
};
use backstay_base::io::region::Region;
use backstay_base::io::{Device, ReadAt};
use backstay_base::{Error, ErrorKind};
use backstay_format::CheckpointId;
use backstay_format::heir::HEIR_OFFSET;
use backstay_format::stream::StreamRoot;
use backstay_format::{
    Address, BaseRun, BlockRef, Digest, Page, RankEntry, RevisionEntry, SegmentClass, SegmentId,
    SegmentPiece,
};
use backstay_store::reader::StoreReader;
use backstay_store::tree::{Tree, read_internal};
use backstay_testkit::SimDevice;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Files in memory, by name.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeviceFolder(Arc<Mutex<BTreeMap<String, SimDevice>>>);

impl DeviceFolder {
    pub(crate) fn put(&self, name: &str, device: &SimDevice) {
        let mut files = self.0.lock().unwrap();
        files.insert(name.to_owned(), device.clone());
    }

    /// The same files under the same names, to which others may be added.
    pub(crate) fn copied(&self) -> Self {
        let files = self.0.lock().unwrap();
        let copy = |(name, file): (&String, &SimDevice)| {
            let bytes = file.shared_bytes();
            (name.clone(), SimDevice::from_shared(bytes))
        };
        Self(Arc::new(Mutex::new(files.iter().map(copy).collect())))
    }

    pub(crate) fn device(&self, name: &str) -> backstay_base::Result<SimDevice> {
        let files = self.0.lock().unwrap();
        let none = || Error::new(ErrorKind::StoreIo, format!("no {name}"));
        files.get(name).cloned().ok_or_else(none)
    }
}

impl Place for DeviceFolder {
    fn open(&self, name: &str) -> backstay_base::Result<Arc<dyn ReadAt>> {
        Ok(self.open_to_mark(name)?)
    }
    fn open_to_mark(&self, name: &str) -> backstay_base::Result<Arc<dyn Device>> {
        match self.0.lock().unwrap().get(name) {
            Some(device) => Ok(Arc::new(device.clone())),
            None => Err(Error::new(ErrorKind::StoreIo, format!("no {name}"))),
        }
    }
}

pub(crate) fn identity(epoch: u32) -> Identity {
    Identity {
        job: "heat".to_owned(),
        run: 7,
        aggregator: 3,
        epoch,
        host: fence::host(),
    }
}

/// Small windows, so that a few segments fill several.
pub(crate) fn options() -> WriteOptions {
    WriteOptions {
        segment_bytes: 1 << 18,
        reserve_bytes: 128 << 10,
        writer_threads: 1,
        write_bytes: 64 << 10,
        queue_bytes: 256 << 10,
        ..WriteOptions::default()
    }
}

pub(crate) fn reading() -> ReadOptions {
    ReadOptions {
        direct: false,
        cache_bytes: 1 << 20,
        decode: Arc::new(RawDecode),
        ..ReadOptions::default()
    }
}

pub(crate) fn id(number: u64) -> CheckpointId {
    CheckpointId::new(1, number)
}

/// Bytes that tell segments apart.
pub(crate) fn content(segment: u64, length: usize) -> Vec<u8> {
    let mut word = segment.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        bytes.extend(word.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// A base that is one piece.
pub(crate) fn stored_whole(
    segment: SegmentId,
    checkpoint: CheckpointId,
    payload: Vec<u8>,
) -> NewSegment {
    let piece = SegmentPiece {
        offset: 0,
        length_bytes: u32::try_from(payload.len()).unwrap(),
        digest: Digest::of(&payload),
    };
    NewSegment {
        segment,
        checkpoint,
        class: SegmentClass::Small,
        merge: 0,
        element: None,
        variable: String::new(),
        scheme: vec![0],
        decoded_bytes: piece.length_bytes,
        pieces: vec![piece],
        bases: Vec::new(),
        payload: payload.into(),
    }
}

/// Appends a base of so many bytes.
pub(crate) fn append(store: &ArchiveStore, number: u64, length: usize) -> SegmentId {
    let segment = store.next_segment();
    let payload = content(segment.0, length);
    store
        .append(stored_whole(segment, id(number), payload))
        .unwrap();
    segment
}

/// Lays things into one segment, with granules of 64 bytes.
struct Packer {
    segment: SegmentId,
    bytes: Vec<u8>,
    pieces: Vec<SegmentPiece>,
}

impl Packer {
    fn new(segment: SegmentId) -> Self {
        let (bytes, pieces) = (Vec::new(), Vec::new());
        Self {
            segment,
            bytes,
            pieces,
        }
    }

    fn put(&mut self, what: &[u8]) -> BlockRef {
        let offset = self.bytes.len().next_multiple_of(64);
        self.bytes.resize(offset, 0);
        self.bytes.extend_from_slice(what);
        let digest = Digest::of(what);
        self.pieces.push(SegmentPiece {
            offset: u32::try_from(offset).unwrap(),
            length_bytes: u32::try_from(what.len()).unwrap(),
            digest,
        });
        BlockRef {
            address: Address::new(self.segment, u16::try_from(offset / 64).unwrap()),
            digest,
        }
    }

    fn append(self, store: &ArchiveStore, number: u64) {
        let mut segment = stored_whole(self.segment, id(number), self.bytes);
        segment.pieces = self.pieces;
        store.append(segment).unwrap();
    }
}

/// A stream of `bytes` in blocks of 1,024: blocks in one segment for each 32, pages in another.
fn stream(store: &ArchiveStore, number: u64, bytes: &[u8]) -> StreamRoot {
    let length_bytes = u64::try_from(bytes.len()).unwrap();
    let blocks: Vec<&[u8]> = bytes.chunks(1024).collect();
    let mut refs = Vec::new();
    for group in blocks.chunks(32) {
        let mut packer = Packer::new(store.next_segment());
        refs.extend(group.iter().map(|block| packer.put(block)));
        packer.append(store, number);
    }
    let mut pages = Packer::new(store.next_segment());
    let mut level = 0;
    while refs.len() > 1 {
        level += 1;
        let encode = |entries: &[BlockRef]| {
            let entries = entries.to_vec();
            Page { level, entries }.encode().unwrap()
        };
        let encoded: Vec<Vec<u8>> = refs.chunks(32).map(encode).collect();
        refs = encoded.iter().map(|page| pages.put(page)).collect();
    }
    pages.append(store, number);
    StreamRoot {
        length_bytes,
        block_bytes: 1024,
        height: level,
        top: refs[0],
    }
}

/// A revision whose table of ranks has one rank, whose rank root is said to be `root`.
fn revision(store: &ArchiveStore, number: u64, root: BlockRef) -> RevisionEntry {
    let table = RankEntry::encode_table(&[RankEntry { rank: 0, root }]).unwrap();
    let mut packer = Packer::new(store.next_segment());
    let top = packer.put(&table);
    packer.append(store, number);
    RevisionEntry {
        checkpoint: id(number),
        pinned: false,
        complete: true,
        world_size: 1,
        committed_unix_ns: 1,
        bytes_total: 0,
        bytes_changed: 0,
        ranks: StreamRoot {
            length_bytes: u64::try_from(table.len()).unwrap(),
            block_bytes: 1024,
            height: 0,
            top,
        },
    }
}

/// A store with one revision whose only rank is a stream of `bytes`.
fn with_stream(device: &Arc<SimDevice>, bytes: &[u8]) -> (ArchiveStore, StreamRoot) {
    let store = ArchiveStore::create_on(device.clone(), &identity(1), &options()).unwrap();
    let root = stream(&store, 1, bytes);
    let entry = revision(&store, 1, root.top);
    let commit = Commit {
        incarnation: 1,
        revisions: vec![entry],
        ..Commit::default()
    };
    assert_eq!(store.commit(&commit).unwrap(), 2);
    (store, root)
}

#[test]
fn a_store_reader_reads_an_archive_as_if_it_were_a_store() {
    let device = Arc::new(SimDevice::new());
    let bytes = content(1, 300_000);
    let (store, root) = with_stream(&device, &bytes);
    let opened = ArchiveDevice::open_on(device, &DeviceFolder::default(), &reading()).unwrap();
    for device in [opened, store.device()] {
        let reader = StoreReader::open(device.clone()).unwrap();
        let mut found = 0;
        let slots = reader.read_records(|_, _, damage| {
            assert!(damage.is_none());
            found += 1;
        });
        assert_eq!(slots.unwrap(), found);
        assert_eq!(found, 10 + 1 + 1);
        let (newest, _) = reader.newest_root().unwrap();
        assert_eq!((newest.sequence, newest.incarnation), (2, 1));
        let table = read_internal(&reader, &newest.revisions[0].ranks, "table of ranks").unwrap();
        let ranks = RankEntry::decode_table(&table).unwrap();
        assert_eq!((ranks.len(), ranks[0].root), (1, root.top));
        let tree = Tree::load(&reader, root).unwrap();
        assert_eq!(tree.root(), &root);
        assert!(read_internal(&reader, &root, "block").unwrap() == bytes);
    }
}

#[test]
fn a_store_in_a_folder_goes_on_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let (name, identity) = (store_file(3, 1), identity(1));
    let store = ArchiveStore::create(folder.path(), &name, &identity, &options()).unwrap();
    let lengths = [1, 4096, 100_000, 262_144, 777];
    let segments: Vec<SegmentId> = lengths.iter().map(|&n| append(&store, 1, n)).collect();
    let live = store.device();
    for (segment, length) in segments.iter().zip(lengths) {
        assert!(*live.segment(*segment).unwrap() == content(segment.0, length));
    }
    let again = ArchiveStore::open(folder.path(), &name, &identity, &options());
    assert_eq!(
        again.unwrap_err().kind(),
        ErrorKind::StoreBusy,
        "it is written"
    );
    let draining = Commit {
        incarnation: 1,
        draining: Some(id(1)),
        ..Commit::default()
    };
    store.commit(&draining).unwrap();
    append(&store, 1, 5000);
    let lost = store.next_segment();
    drop((store, live));

    let store = ArchiveStore::open(folder.path(), &name, &identity, &options()).unwrap();
    assert_eq!(store.root().draining, Some(id(1)));
    let unfinished = store.unfinished().unwrap();
    assert_eq!(unfinished.len(), lengths.len());
    assert_eq!(unfinished[2].pieces[0].length_bytes, 100_000);
    assert!(
        store.next_segment() <= lost,
        "ids no root referred to are given again"
    );
    let last = append(&store, 2, 9000);
    let done = Commit {
        incarnation: 1,
        free: vec![segments[0]],
        ..Commit::default()
    };
    assert_eq!(store.commit(&done).unwrap(), 3);
    assert_eq!(store.unfinished().unwrap().len(), 0);
    let reader = ArchiveDevice::open(folder.path(), &name, &ReadOptions::default()).unwrap();
    assert_eq!(reader.entries().len(), lengths.len());
    assert!(*reader.segment(last).unwrap() == content(last.0, 9000));
    assert!(reader.segment(segments[0]).is_err());
    let other = Identity { run: 8, ..identity };
    for result in [
        ArchiveStore::create(folder.path(), &name, &other, &options()),
        ArchiveStore::open(folder.path(), &name, &other, &options()),
    ] {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StoreBusy);
        let text = error.to_string();
        assert!(
            text.contains("run 00000007") && text.contains("run 00000008"),
            "{text}"
        );
    }
}

/// A segment whose runs are the delta to those of `base`.
fn delta(segment: SegmentId, base: SegmentId, bytes: &[u8], of: &[u8]) -> NewSegment {
    let payload: Vec<u8> = bytes.iter().zip(of).map(|(a, b)| a ^ b).collect();
    let length = u32::try_from(bytes.len()).unwrap();
    let run = |offset, length_bytes| BaseRun {
        offset,
        length_bytes,
        base: Address::new(base, u16::try_from(offset / 64).unwrap()),
    };
    let mut new = stored_whole(segment, id(1), payload);
    new.pieces[0].digest = Digest::of(bytes);
    new.bases = vec![run(0, 6400), run(6400, length - 6400)];
    new
}

#[test]
fn a_delta_is_read_with_its_base_and_a_delta_to_a_delta_is_refused() {
    let device = Arc::new(SimDevice::new());
    let store = ArchiveStore::create_on(device.clone(), &identity(1), &options()).unwrap();
    let base = append(&store, 1, 100_000);
    let (of, bytes) = (content(base.0, 100_000), content(77, 90_000));
    let segment = store.next_segment();
    let new = delta(segment, base, &bytes, &of);
    assert!(store.append(new).unwrap().delta);
    let third = store.next_segment();
    for (other, text) in [
        (segment, "has bases itself"),
        (SegmentId(99), "is not there"),
    ] {
        let error = store.append(delta(third, other, &bytes, &of)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains(text), "{error}");
    }
    store.commit(&Commit::default()).unwrap();
    let read = ArchiveDevice::open_on(device, &DeviceFolder::default(), &reading()).unwrap();
    for reader in [read, store.device()] {
        assert!(*reader.segment(segment).unwrap() == bytes);
        let header = reader.header(segment).unwrap();
        assert_eq!((header.is_base(), header.bases.len()), (false, 2));
        assert_eq!(reader.stored(segment).unwrap().0, header);
    }
}

#[test]
fn segments_that_no_reader_would_take_are_refused() {
    let store = ArchiveStore::create_on(Arc::new(SimDevice::new()), &identity(1), &options());
    let store = store.unwrap();
    let refused = |change: fn(&mut NewSegment)| {
        let mut new = stored_whole(store.next_segment(), id(1), vec![1; 100]);
        change(&mut new);
        let error = store.append(new).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    };
    refused(|new| new.segment = SegmentId(0));
    refused(|new| new.segment = SegmentId(1 << 40));
    refused(|new| new.decoded_bytes = 0);
    refused(|new| new.decoded_bytes = (1 << 18) + 1);
    refused(|new| new.scheme = vec![0; 33]);
    refused(|new| new.variable = "x".repeat(256));
    refused(|new| new.pieces[0].length_bytes = 101);
    refused(|new| new.pieces[0].offset = 1);
    refused(|new| new.pieces = vec![new.pieces[0]; 2]);
    refused(|new| new.payload = vec![0; 8 << 20].into());
    let used = append(&store, 1, 100);
    let again = stored_whole(used, id(1), vec![1]);
    assert_eq!(
        store.append(again).unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
    assert_eq!(
        store.stats().queue_bytes,
        4096,
        "what was refused takes no space"
    );
}

#[test]
fn many_threads_append_and_many_read() {
    let device = Arc::new(SimDevice::new());
    let options = WriteOptions {
        writer_threads: 2,
        ..options()
    };
    let store = ArchiveStore::create_on(device.clone(), &identity(1), &options).unwrap();
    let segments = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (store, segments) = (&store, &segments);
            scope.spawn(move || {
                for number in 0..40 {
                    let length = 1 + (thread * 7919 + number * 104_729) % 200_000;
                    let segment = append(store, 1, length);
                    segments.lock().unwrap().push((segment, length));
                }
            });
        }
    });
    store.commit(&Commit::default()).unwrap();
    let stats = store.stats();
    assert_eq!((stats.queue_bytes, stats.syncs), (0, 2));
    assert!(stats.growths >= 1 && stats.used_bytes + stats.free_bytes < stats.file_bytes);
    let roomy = ReadOptions {
        cache_bytes: 64 << 20,
        ..reading()
    };
    let read = ArchiveDevice::open_on(device.clone(), &DeviceFolder::default(), &roomy).unwrap();
    let segments = segments.into_inner().unwrap();
    let reads = device.read_count();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (read, segments) = (&read, &segments);
            scope.spawn(move || {
                for step in 0..segments.len() {
                    let (segment, length) = segments[(step + thread % 2) % segments.len()];
                    assert!(*read.segment(segment).unwrap() == content(segment.0, length));
                }
            });
        }
    });
    let reads = device.read_count() - reads;
    assert_eq!(reads, 160, "each is read and decoded once");
}

/// Extents that follow each other go out in windows of the write size, each aligned.
#[test]
fn small_extents_become_large_aligned_writes() {
    let device = Arc::new(SimDevice::new());
    let store = ArchiveStore::create_on(device.clone(), &identity(1), &options()).unwrap();
    device.start_log();
    for _ in 0..100 {
        append(&store, 1, 5000);
    }
    store.commit(&Commit::default()).unwrap();
    let mut sizes = Vec::new();
    for operation in device.log() {
        if let backstay_testkit::Operation::Write { offset, bytes } = operation {
            assert!(offset % 4096 == 0 && bytes.len() % 4096 == 0, "{offset}");
            sizes.push(bytes.len());
        }
    }
    let whole = sizes.iter().filter(|&&size| size == 64 << 10).count();
    assert!(whole >= 12 && sizes.len() <= whole + 4, "{sizes:?}");
}

#[test]
fn a_takeover_reads_the_former_files_and_writes_its_own() {
    let (folder, mut devices) = (DeviceFolder::default(), Vec::new());
    let mut kept = Vec::new();
    for epoch in 1..=4 {
        let device = Arc::new(SimDevice::new());
        let name = store_file(3, epoch);
        let store = if epoch == 1 {
            ArchiveStore::create_on(device.clone(), &identity(1), &options()).unwrap()
        } else {
            let former = store_file(3, epoch - 1);
            let too_low = identity(epoch - 1);
            let made = |identity: &Identity| {
                let device = Arc::new(SimDevice::new());
                ArchiveStore::take_over_on(device, &folder, &former, identity, &options())
            };
            assert_eq!(
                made(&too_low).unwrap_err().kind(),
                ErrorKind::InvalidArgument
            );
            let other = Identity {
                run: 8,
                ..identity(epoch)
            };
            assert_eq!(made(&other).unwrap_err().kind(), ErrorKind::StoreBusy);
            let device: Arc<SimDevice> = device.clone();
            ArchiveStore::take_over_on(device, &folder, &former, &identity(epoch), &options())
                .unwrap()
        };
        folder.put(&name, &device);
        let draining = Some(id(u64::from(epoch)));
        if epoch > 1 {
            // The drain that its predecessor began goes on.
            assert_eq!(store.unfinished().unwrap().len(), 2);
        }
        for _ in 0..2 {
            let segment = append(&store, u64::from(epoch), 30_000);
            kept.push((segment, 30_000));
        }
        // The first file is needed no longer from epoch 3 on.
        let free = if epoch == 3 {
            kept.drain(..2).map(|(segment, _)| segment).collect()
        } else {
            Vec::new()
        };
        let commit = Commit {
            draining,
            free,
            ..Commit::default()
        };
        store.commit(&commit).unwrap();
        let files = [0, 1, 1, 2][usize::try_from(epoch).unwrap() - 1];
        assert_eq!(store.root().files.len(), files);
        drop(store);
        let before = device.log_length();
        devices.push((device, before));
        let last = devices.last().unwrap().0.clone();
        let again = ArchiveStore::open_on(last.clone(), &folder, &options()).unwrap();
        let read = ArchiveDevice::open_on(last, &folder, &reading()).unwrap();
        for reader in [again.device(), read] {
            assert_eq!(reader.root().sequence, 2 * u64::from(epoch));
            for &(segment, length) in &kept {
                assert!(*reader.segment(segment).unwrap() == content(segment.0, length));
            }
        }
    }
    // Opening syncs; nobody writes to a file but the store it was made for, except that another goes on.
    for (device, before) in &devices {
        let log = device.log();
        let writes = log[*before..].iter();
        let is_write = |done: &&backstay_testkit::Operation| matches!(done, backstay_testkit::Operation::Write { offset, .. } if *offset != HEIR_OFFSET);
        assert_eq!(writes.filter(is_write).count(), 0);
    }
}

#[test]
fn stores_share_a_file_by_regions() {
    let device: Arc<dyn Device> = Arc::new(SimDevice::new());
    let length = 6 << 20;
    device.reserve(3 * length).unwrap();
    let region = |number| Arc::new(Region::new(device.clone(), number * length, length));
    // What stood there before is no store any more.
    device.write_at(&[0xaa; 9000], length).unwrap();
    let stores: Vec<ArchiveStore> = (0..3)
        .map(|n| ArchiveStore::create_on(region(n), &identity(1), &options()).unwrap())
        .collect();
    for (number, store) in (1..).zip(&stores) {
        append(store, number, 100_000);
        store.commit(&Commit::default()).unwrap();
    }
    let error = loop {
        let segment = stores[1].next_segment();
        let payload = content(segment.0, 200_000);
        if let Err(error) = stores[1].append(stored_whole(segment, id(9), payload)) {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::StoreFull);
    drop(stores);
    for number in 0..3 {
        let read =
            ArchiveDevice::open_on(region(number), &DeviceFolder::default(), &reading()).unwrap();
        let entries = read.entries();
        assert_eq!(entries.len(), 1);
        assert!(*read.segment(entries[0].segment).unwrap() == content(1, 100_000));
    }
}

#[test]
fn a_rate_limits_what_is_written() {
    let limited = WriteOptions {
        rate_bytes: Some(4 << 20),
        writer_threads: 2,
        ..options()
    };
    let device = Arc::new(SimDevice::new());
    let store = ArchiveStore::create_on(device, &identity(1), &limited).unwrap();
    let start = std::time::Instant::now();
    for _ in 0..16 {
        append(&store, 1, 126_000);
    }
    store.commit(&Commit::default()).unwrap();
    let seconds = start.elapsed().as_secs_f64();
    // 2 MiB at 4 MiB/s, less what may go at once.
    assert!(seconds > 0.35, "{seconds}");
}
