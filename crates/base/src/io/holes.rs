// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: where a file has data, and where holes.
//! In from: whoever reads or copies files of a program. Out to: the kernel.
//! Invariants: what is left out reads as zeros; where the file system does not say, all of a file is data.

use rustix::fs::{SeekFrom, Stat, fstat, seek};
use rustix::io::Errno;
use std::fs::File;
use std::io::Result;
use std::ops::Range;

/// The stretches of `file` that have data, ascending.
pub fn data_of(file: &File) -> Result<Vec<Range<u64>>> {
    data_of_known(file, &fstat(file)?)
}

/// The same of a file about which that much is known.
pub fn data_of_known(file: &File, about: &Stat) -> Result<Vec<Range<u64>>> {
    let length = u64::try_from(about.st_size).unwrap_or(0);
    let allocated = u64::try_from(about.st_blocks).unwrap_or(0);
    let whole = || -> Vec<Range<u64>> { std::iter::once(0..length).collect() };
    if allocated.saturating_mul(512) >= length {
        return Ok(whole());
    }
    let mut data = Vec::new();
    let mut at = 0;
    while at < length {
        let start = match seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            // No more data: the rest is a hole.
            Err(Errno::NXIO) => break,
            // This file system does not say where holes are.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(whole()),
            Err(error) => return Err(error.into()),
        };
        let end = match seek(file, SeekFrom::Hole(start)) {
            Ok(end) => end.min(length),
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        if end <= at {
            break;
        }
        data.push(start..end);
        at = end;
    }
    Ok(data)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn holes_are_left_out() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let file = File::create_new(folder.path().join("file")).unwrap();
        assert_eq!(data_of(&file).unwrap(), vec![Range { start: 0, end: 0 }]);
        file.set_len(8 << 20).unwrap();
        file.write_all_at(b"in the middle", 4 << 20).unwrap();
        let data = data_of(&file).unwrap();
        let [stretch] = &data[..] else {
            panic!("{data:?}")
        };
        assert!(stretch.contains(&(4 << 20)) && stretch.end - stretch.start < 1 << 20);
        file.write_all_at(&vec![1; 8 << 20], 0).unwrap();
        assert_eq!(
            data_of(&file).unwrap(),
            vec![Range {
                start: 0,
                end: 8 << 20
            }]
        );
    }
}
