// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: removes the files of an archive that takeovers left behind, once nothing needs them.
//! In from: `coordinate`, after a checkpoint is recorded. Out to: the folder of the job.
//! Invariants: a file goes only if no listed checkpoint and no store of one refers to it, and a newer one
//! of the same aggregator is recorded; where that cannot be found out, none goes. The catalog before the
//! newest one stays, to fall back to. Who was taken over from removes nothing.

use super::fetch::open_device;
use crate::{Catalog, FileName};
use backstay_base::error::Result;
use backstay_format::width::index;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Removes what is of no use in `folder`, whose catalog is `catalog` and which so many aggregators write;
/// the names of what went.
pub(super) fn sweep(folder: &Path, catalog: &Catalog, aggregators: usize) -> Result<Vec<String>> {
    let listed: Vec<String> = catalog
        .state()
        .stores
        .iter()
        .map(|s| s.name.clone())
        .collect();
    let mut newest: BTreeMap<u32, u32> = BTreeMap::new();
    for (aggregator, epoch) in listed.iter().filter_map(|name| FileName::store(name)) {
        let known = newest.entry(aggregator).or_default();
        *known = epoch.max(*known);
    }
    let own = FileName::catalog(catalog.file()).unwrap_or(0);
    let (mut stores, mut gone) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some((aggregator, epoch)) = FileName::store(&name) {
            let behind = newest
                .get(&aggregator)
                .is_some_and(|newest| epoch < *newest);
            let idle = index(aggregator) >= aggregators && !newest.contains_key(&aggregator);
            if (behind || idle) && !listed.contains(&name) {
                stores.push(name);
            }
        } else if FileName::catalog(&name).is_some_and(|epoch| epoch + 1 < own) {
            gone.push(name);
        }
    }
    // A file that a successor makes is made after it took over: it cannot be among those that were listed if
    // nobody took over until now.
    catalog.is_current()?;
    if !stores.is_empty() {
        let needed = referred_to(folder, &listed)?;
        stores.retain(|name| !needed.contains(name));
        gone.append(&mut stores);
    }
    gone.retain(|name| std::fs::remove_file(folder.join(name)).is_ok());
    Ok(gone)
}

/// Files of predecessors that the stores of listed checkpoints refer to.
fn referred_to(folder: &Path, listed: &[String]) -> Result<BTreeSet<String>> {
    let mut needed = BTreeSet::new();
    for name in listed {
        let root = open_device(folder, name)?.root();
        needed.extend(root.files.iter().map(|file| file.name.clone()));
    }
    Ok(needed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Identity, catalog_file};
    use backstay_format::catalog::SLOT_BYTES_DEFAULT;

    #[test]
    fn only_what_nobody_needs_goes() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let identity = Identity {
            job: "job".to_owned(),
            run: 1,
            aggregator: 0,
            epoch: 0,
            host: "host".to_owned(),
        };
        let catalog = Catalog::create(folder, &identity, SLOT_BYTES_DEFAULT).unwrap();
        for name in [
            "aggregate-0-1.backstay",
            "aggregate-5-1.backstay",
            "notes.txt",
        ] {
            std::fs::write(folder.join(name), b"").unwrap();
        }
        // Nothing is recorded of aggregator 0, which writes; there is no aggregator 5 any more.
        assert_eq!(
            sweep(folder, &catalog, 2).unwrap(),
            ["aggregate-5-1.backstay"]
        );
        assert!(folder.join("aggregate-0-1.backstay").exists());
        assert!(folder.join("notes.txt").exists());
        assert!(folder.join(catalog_file(1)).exists());
    }
}
