// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The archive store from outside: what is appended and committed is read again, through the layout of a
//! node's store, by many threads, after a takeover, on a full device, and never wrong when damaged.

use backstay::archive::{
    ArchiveDevice, ArchiveStore, Commit, Identity, NewSegment, Place, RawDecode, ReadOptions,
    WriteOptions, fence, store_file,
};
use backstay::io::Device;
use backstay::io::region::Region;
use backstay::store::reader::StoreReader;
use backstay::store::revision::read_ranks;
use backstay::store::tree::{Tree, read_internal};
use backstay::{CheckpointId, Error, ErrorKind};
use backstay_format::stream::StreamRoot;
use backstay_format::{
    Address, BaseRun, BlockRef, Digest, Encoder, Page, RankEntry, RevisionEntry, SegmentClass,
    SegmentId, SegmentPiece,
};
use backstay_testkit::SimDevice;
use backstay_testkit::device::{EIO, ENOSPC};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// Files in memory, by name.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shelf(Arc<Mutex<BTreeMap<String, SimDevice>>>);

impl Shelf {
    pub(crate) fn put(&self, name: &str, device: &SimDevice) {
        let mut files = self.0.lock().unwrap();
        files.insert(name.to_owned(), device.clone());
    }
}

impl Place for Shelf {
    fn open(&self, name: &str) -> backstay::Result<Arc<dyn Device>> {
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

/// A key that is one piece.
pub(crate) fn key(segment: SegmentId, checkpoint: CheckpointId, payload: Vec<u8>) -> NewSegment {
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
        payload,
    }
}

/// Appends a key of so many bytes.
pub(crate) fn append(store: &ArchiveStore, number: u64, length: usize) -> SegmentId {
    let segment = store.next_segment();
    let payload = content(segment.0, length);
    store.append(key(segment, id(number), payload)).unwrap();
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
        let mut segment = key(self.segment, id(number), self.bytes);
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
            Page { level, entries }.encode()
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
    let mut table = Encoder::new();
    RankEntry { rank: 0, root }.encode(&mut table);
    let table = table.finish();
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
    let opened = ArchiveDevice::open_on(device, &Shelf::default(), &reading()).unwrap();
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
        let ranks = read_ranks(&reader, &newest.revisions[0]).unwrap();
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
