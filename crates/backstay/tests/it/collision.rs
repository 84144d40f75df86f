// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Blocks that collide in the digest that tells blocks apart: whoever supplies data can make them, and they
//! are not taken for one.

use crate::job::config;
use backstay::format::Digest;
use backstay::{Communicator, Config, ElementType, Level, Session, Variable};
use backstay_testkit::comm::{ThreadComm, run_ranks};
use std::path::Path;
use std::time::{Duration, Instant};

/// Words of a block.
const BLOCK_WORDS: usize = 2048;
/// Blocks of a rank: the collision, and one that is equal on both.
const BLOCKS: usize = 2;

/// A block of which the digest is the same for all `first`: XXH3 multiplies the halves of a word after an
/// exclusive or with a secret that is public. Where that makes the lower half 0, the product is 0 whatever
/// the upper half is, and the word itself is only added up. So two such words of one lane may change if
/// their sum does not.
fn block(first: u64) -> Vec<u64> {
    let mut words: Vec<u64> = (0..BLOCK_WORDS as u64).map(|word| word * word).collect();
    let second = 0x1000 - first;
    words[0] = 0x396c_feb8 | first << 32;
    words[8] = 0x2c81_017c | second << 32;
    words
}

fn memory(rank: u32) -> Vec<u64> {
    let mut words = block(u64::from(rank) + 1);
    words.extend((0..BLOCK_WORDS as u64).map(|word| !word));
    words
}

fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn protect(session: &mut Session, memory: &mut [u64]) {
    let shape = [u64::try_from(memory.len()).unwrap()];
    let variable = Variable::new("input", ElementType::U64, &shape);
    // SAFETY: the memory outlives the session, and is not moved.
    unsafe { session.protect(variable, memory.as_mut_ptr().cast()) }.unwrap();
}

fn start(folder: &Path, body: impl Fn(&mut Session, &mut [u64], u32) + Sync) {
    run_ranks(ThreadComm::new(2), |comm| {
        let rank = comm.rank();
        let config = Config {
            listen_address: Some("127.0.0.1:0".to_owned()),
            archive: Some(folder.join("pfs")),
            archive_reserve_bytes: Some(8 << 20),
            ..config(folder)
        };
        let mut session = Session::open(Box::new(comm), config).unwrap();
        let mut memory = vec![0; BLOCK_WORDS * BLOCKS];
        protect(&mut session, &mut memory);
        body(&mut session, &mut memory, rank);
        session.close().unwrap();
    });
}

fn archived(session: &mut Session) {
    let handle = session.checkpoint_start().unwrap();
    session.wait(handle, Level::Archive).unwrap();
}

/// Bytes that were compared and found equal, as the file of the archive's state has them.
fn compared(status: &Path) -> (u64, u64) {
    let text = std::fs::read_to_string(status).unwrap();
    let shown: serde_json::Value = serde_json::from_str(&text).unwrap();
    let number = |name: &str| shown["aggregators"][0][name].as_u64().unwrap();
    (number("bytes_compared"), number("bytes_equal"))
}

#[test]
fn blocks_of_two_ranks_that_collide_both_come_back() {
    let (one, other) = (bytes(&block(1)), bytes(&block(2)));
    assert_ne!(one, other);
    assert_eq!(
        Digest::of(&one),
        Digest::of(&other),
        "this is the collision"
    );
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    start(folder, |session, words, rank| {
        words.copy_from_slice(&memory(rank));
        archived(session);
        if rank == 0 {
            // Two pairs were compared, of which one was equal. The file is written a little later.
            let block = to_u64(BLOCK_WORDS * 8);
            let path = folder.join("test job/node0").join("archive.json");
            let since = Instant::now();
            let mut shown = compared(&path);
            while shown == (0, 0) && since.elapsed() < Duration::from_secs(20) {
                std::thread::sleep(Duration::from_millis(20));
                shown = compared(&path);
            }
            assert_eq!(shown, (2 * block, block));
        }
    });
    std::fs::remove_dir_all(folder.join("test job")).unwrap();
    start(folder, |session, words, rank| {
        session.restore().unwrap();
        assert!(words == memory(rank), "rank {rank}");
    });
}

fn to_u64(value: usize) -> u64 {
    u64::try_from(value).unwrap()
}
