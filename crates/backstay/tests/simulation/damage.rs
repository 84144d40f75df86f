// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: harms the files of a node between two starts.
//! In: a `Damage`, random numbers. Out: changed files.

use crate::counts;
use crate::scenario::Damage;
use crate::world::{copy_tree, node_name};
use backstay_base::clock::Deadline;
use backstay_format::StripeLogHead;
use backstay_parity::agent::survey::stores_in;
use backstay_store::place::STORE_FILE;
use backstay_store::stripe_log::LOG_FILES;
use backstay_testkit::seeded::Seeded;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where copies of a node's folder are kept for a later return.
pub(crate) fn kept(root: &Path, node: usize, start: usize) -> PathBuf {
    root.join(format!("kept-{node}-{start}"))
}

pub(crate) fn inflict(
    damage: Damage,
    root: &Path,
    folder: &Path,
    random: &mut Seeded,
) -> std::io::Result<()> {
    let node = folder.join(node_name(damage.node()));
    let inside = node.join("job").join(node_name(damage.node()));
    match damage {
        Damage::Wipe(_) => remove(&node),
        Damage::Flip(_, count) => {
            let path = inside.join(STORE_FILE);
            flip(&path, count, random)
        }
        Damage::FlipLog(_) => match newest_log(&inside) {
            Some(path) => flip(&path, 1, random),
            None => Ok(()),
        },
        Damage::TearLog(_) => match newest_log(&inside) {
            Some(path) => tear(&path, random),
            None => Ok(()),
        },
        Damage::Return(node_number, start) => {
            remove(&node)?;
            let copy = kept(root, node_number, start);
            if copy.exists() {
                copy_tree(&copy, &node)?;
            }
            Ok(())
        }
    }
}

pub(crate) fn count(damage: Damage) {
    counts::one(match damage {
        Damage::Wipe(_) => "nodes lost with all they held",
        Damage::Flip(..) => "stores with bits flipped",
        Damage::FlipLog(_) => "stripe logs with a bit flipped",
        Damage::TearLog(_) => "stripe logs torn",
        Damage::Return(..) => "nodes that came back with a store of an earlier start",
    });
}

/// Removes a folder with all it holds, if it is there. Threads of a start that just ended may still make files in it,
/// which stops soon.
pub(crate) fn remove(path: &Path) -> std::io::Result<()> {
    let limit = Deadline::after(Duration::from_secs(10));
    loop {
        match std::fs::remove_dir_all(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error)
                if error.kind() == ErrorKind::DirectoryNotEmpty && limit.left().is_some() => {}
            done => return done,
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Flips bits where the file holds something.
fn flip(path: &Path, count: u64, random: &mut Seeded) -> std::io::Result<()> {
    let Ok(mut bytes) = std::fs::read(path) else {
        return Ok(());
    };
    let used: Vec<usize> = (0..bytes.len())
        .step_by(512)
        .filter(|&at| bytes[at..].iter().take(512).any(|byte| *byte != 0))
        .collect();
    if used.is_empty() {
        return Ok(());
    }
    // The head of a file is small, and worth more than its share.
    let head = used.len().min(12);
    for _ in 0..count {
        let among = if random.chance(1, 3) {
            head
        } else {
            used.len()
        };
        let at = used[random.index(among)] + random.index(512);
        if let Some(byte) = bytes.get_mut(at) {
            *byte ^= 1 << random.below(8);
        }
    }
    std::fs::write(path, bytes)
}

/// The one of the logs that was written last.
fn newest_log(folder: &Path) -> Option<PathBuf> {
    let store = stores_in(folder).first()?.survey.store;
    let generation = |path: &PathBuf| {
        let bytes = std::fs::read(path).ok()?;
        StripeLogHead::decode(&bytes, store)
            .ok()
            .map(|head| head.generation)
    };
    LOG_FILES
        .map(|name| folder.join(name))
        .into_iter()
        .max_by_key(|path| generation(path))
}

/// The last bytes that were written never arrived.
fn tear(path: &Path, random: &mut Seeded) -> std::io::Result<()> {
    let Ok(mut bytes) = std::fs::read(path) else {
        return Ok(());
    };
    let end = bytes
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |at| at + 1);
    let most = if random.chance(1, 2) { 64 } else { 2000 };
    let start = end.saturating_sub(1 + random.index(most));
    bytes[start..end].fill(0);
    std::fs::write(path, bytes)
}
