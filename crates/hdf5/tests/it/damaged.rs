// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files that are cut off, or of which bytes are others: something is found or not, in bounded time, and what is
//! found lies in the file.

use crate::fixtures::{FILES, LARGE, read};
use backstay_hdf5::{Source, describe, plain};
use proptest::prelude::*;
use std::cell::Cell;

/// Counts how often a file is read.
struct Counted<'a> {
    bytes: &'a [u8],
    reads: Cell<u64>,
}

impl Source for Counted<'_> {
    fn length_bytes(&self) -> u64 {
        self.bytes.length_bytes()
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<()> {
        self.reads.set(self.reads.get() + 1);
        self.bytes.read_at(offset, buffer)
    }
}

fn check(bytes: &[u8]) {
    let reads = Cell::new(0);
    let source = Counted { bytes, reads };
    let Some(found) = describe(&source) else {
        return;
    };
    assert!(source.reads.get() < 1 << 18);
    let length = bytes.length_bytes();
    for dataset in &found.datasets {
        for extent in &dataset.extents {
            assert!(extent.offset + extent.length <= length, "{dataset:?}");
        }
        let rank = dataset.shape.len();
        let chunks = if dataset.chunk_shape.is_empty() {
            0
        } else {
            dataset.extents.len()
        };
        assert_eq!(dataset.coordinates.len(), chunks * rank);
    }
    let all = plain(&found);
    assert!(
        all.windows(2)
            .all(|pair| pair[0].start + pair[0].length <= pair[1].start)
    );
}

#[test]
fn every_byte_of_the_structure_may_be_another() {
    // Each byte of what is not zero, in three ways: numbers that are too large, one more, a flipped bit.
    for name in FILES {
        let mut bytes = read(name);
        for at in (0..bytes.len()).filter(|at| at % 29 == 0) {
            let was = bytes[at];
            for other in [0xff, was.wrapping_add(1), was ^ 0x10] {
                bytes[at] = other;
                check(&bytes);
            }
            bytes[at] = was;
        }
    }
}

#[test]
fn a_file_may_end_anywhere() {
    for name in FILES {
        let bytes = read(name);
        for end in (0..bytes.len()).step_by(211) {
            check(&bytes[..end]);
        }
    }
}

#[test]
fn a_group_that_contains_itself_is_looked_at_once() {
    let found = describe(&&*read("earliest.h5")).unwrap();
    let names: Vec<&str> = found.datasets.iter().map(|one| &*one.path).collect();
    assert!(names.contains(&"blast/level0/density"), "{names:?}");
    assert!(
        !names.iter().any(|name| name.starts_with("loop")),
        "{names:?}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn many_bytes_may_be_others(
        file in prop::sample::select([&FILES[..], &LARGE[..]].concat()),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..40),
        cut in any::<prop::sample::Index>(),
        is_cut in any::<bool>(),
    ) {
        let mut bytes = read(file);
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if is_cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        check(&bytes);
    }
}
