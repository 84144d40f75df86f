// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a restore reads from memory: blocks side by side at once, each of them verified.

use backstay_base::error::ErrorKind;
use backstay_base::io::shared::SharedWords;
use backstay_base::io::{Device, ReadAt};
use backstay_format::{
    CheckpointId, ElementType, StoreId, StreamRoot, Superblock, VariableDescriptor,
};
use backstay_store::control::Control;
use backstay_store::read_back::read_streams;
use backstay_store::region::Region;
use backstay_store::reserve::{Reserve, ReserveSettings};
use backstay_store::revision::{Part, RankStore};
use backstay_store::space::Space;
use backstay_store::track::Candidates;
use backstay_store::tree::read_blocks;
use backstay_testkit::SimDevice;
use backstay_testkit::seeded::Seeded;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const BLOCK_BYTES: usize = 16 << 10;

/// Memory of the node, and how often it was read.
#[derive(Debug, Default)]
struct Memory {
    device: SimDevice,
    reads: AtomicUsize,
}

impl ReadAt for Memory {
    fn length_bytes(&self) -> std::io::Result<u64> {
        self.device.length_bytes()
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.device.read_at(buffer, offset)
    }
    fn is_memory(&self) -> bool {
        true
    }
    fn name(&self) -> String {
        "memory".to_owned()
    }
}

impl Device for Memory {
    fn write_at(&self, bytes: &[u8], offset: u64) -> std::io::Result<()> {
        self.device.write_at(bytes, offset)
    }
    fn sync(&self) -> std::io::Result<()> {
        self.device.sync()
    }
    fn reserve(&self, length_bytes: u64) -> std::io::Result<()> {
        self.device.reserve(length_bytes)
    }
}

struct Store {
    memory: Arc<Memory>,
    rank: RankStore,
}

impl Store {
    fn new() -> Self {
        let memory = Arc::new(Memory::default());
        let control = Control::start(SharedWords::heap(Control::words_for(512)), 512).unwrap();
        let superblock = Superblock {
            store: StoreId(*b"blocks read back"),
            segment_bytes: 1 << 18,
            run: 1,
            created_unix_ns: 1,
            job: "read".to_owned(),
            node: "node".to_owned(),
        };
        let settings = ReserveSettings {
            reserve_bytes_max: None,
            wait: Duration::from_secs(5),
            space_later: false,
        };
        let shared: Arc<dyn Device> = memory.clone();
        let reserve = Reserve::create(shared, control, &superblock, 2, settings).unwrap();
        let rank = RankStore::new(reserve, 0, 0, 1, 1, Space::new(1 << 18));
        Self { memory, rank }
    }

    fn checkpoint(&mut self, number: u64, bytes: &[u8]) {
        let descriptor = VariableDescriptor {
            name: "field".to_owned(),
            element: ElementType::Bytes,
            shape: vec![u64::try_from(bytes.len()).unwrap()],
            slab: None,
            file: None,
        };
        let part = Part {
            descriptor: &descriptor,
            block_bytes: u32::try_from(BLOCK_BYTES).unwrap(),
            source: &bytes,
            candidates: Candidates::All,
        };
        let id = CheckpointId::new(1, number);
        let pending = self.rank.capture(id, &mut [part], 1).unwrap();
        self.rank.commit(id, pending);
    }

    fn root(&self) -> StreamRoot {
        *self.rank.tree("field").unwrap().root()
    }

    /// What comes back on so many threads, and in how many reads.
    fn read(&self, threads: usize) -> backstay_base::error::Result<(Vec<u8>, usize)> {
        let root = self.root();
        let mut bytes = vec![0; usize::try_from(root.length_bytes).unwrap()];
        let region = region(&mut bytes);
        let before = self.memory.reads.load(Ordering::Relaxed);
        read_streams(self.rank.reserve().reader(), &[(root, region)], threads)?;
        let reads = self.memory.reads.load(Ordering::Relaxed) - before;
        Ok((bytes, reads))
    }
}

#[expect(unsafe_code, reason = "a region is named by its address")]
fn region(bytes: &mut [u8]) -> Region {
    // SAFETY: the vector behind it stays, and is not touched, while the region is used.
    unsafe { Region::new(bytes.as_mut_ptr(), bytes.len().try_into().unwrap()) }
}

fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut random = Seeded::of(&[seed]);
    let words = std::iter::repeat_with(|| random.next_u64().to_le_bytes());
    words.flatten().take(length).collect()
}

#[test]
fn blocks_come_back_wherever_they_stand() {
    // Above what one thread reads alone, and not a whole number of blocks.
    let length = (9 << 20) + 1000;
    let mut store = Store::new();
    let mut bytes = noise(length, 1);
    store.checkpoint(1, &bytes);
    for threads in [1, 3] {
        let (found, reads) = store.read(threads).unwrap();
        assert!(found == bytes, "{threads} threads");
        // Blocks in fours, and pages of the tree.
        let blocks = length.div_ceil(BLOCK_BYTES);
        assert!(reads < blocks / 2, "{reads} reads of {blocks} blocks");
    }
    let mut random = Seeded::of(&[2]);
    for number in 2..6 {
        for block in bytes.chunks_mut(BLOCK_BYTES) {
            if random.index(3) == 0 {
                block.reverse();
            }
        }
        store.checkpoint(number, &bytes);
        for threads in [1, 3] {
            assert!(
                store.read(threads).unwrap().0 == bytes,
                "checkpoint {number}"
            );
        }
    }
}

#[test]
fn a_damaged_block_is_named_and_not_those_read_with_it() {
    let length = 40 * BLOCK_BYTES;
    let mut store = Store::new();
    store.checkpoint(1, &noise(length, 3));
    let (reader, root) = (store.rank.reserve().reader(), store.root());
    let mut blocks = Vec::new();
    read_blocks(reader, &root, &mut |_, block| {
        blocks.push(*block);
        Ok(())
    })
    .unwrap();
    for at in [0, 1, 2, 3, 17, 39] {
        let address = blocks[at].address;
        let offset = reader.offset_of(address, BLOCK_BYTES).unwrap() + 4711;
        let mut byte = [0];
        store.memory.read_at(&mut byte, offset).unwrap();
        store.memory.write_at(&[byte[0] ^ 16], offset).unwrap();
        let error = store.read(1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        let text = error.to_string();
        assert!(text.contains(&address.to_string()), "block {at}: {text}");
        store.memory.write_at(&byte, offset).unwrap();
    }
    assert!(store.read(1).is_ok());
}
