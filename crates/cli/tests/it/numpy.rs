// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads .npy and .npz files back, by the format's description and none of the program's code.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

/// An array of a file.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Array {
    pub(crate) dtype: String,
    pub(crate) shape: Vec<u64>,
    pub(crate) bytes: Vec<u8>,
}

impl Array {
    pub(crate) fn parse(file: &[u8]) -> Self {
        assert_eq!(&file[..8], b"\x93NUMPY\x01\x00");
        let length = usize::from(u16::from_le_bytes([file[8], file[9]]));
        let (head, bytes) = file[10..].split_at(length);
        assert_eq!((10 + length) % 64, 0);
        let head = std::str::from_utf8(head).unwrap();
        assert!(head.contains("'fortran_order': False"), "{head}");
        let after = |key: &str| head.split_once(key).unwrap().1;
        let dtype = after("'descr': '").split_once('\'').unwrap().0;
        let shape = after("'shape': (").split_once(')').unwrap().0;
        let shape = shape
            .split(',')
            .map(str::trim)
            .filter(|text| !text.is_empty());
        Self {
            dtype: dtype.to_owned(),
            shape: shape.map(|text| text.parse().unwrap()).collect(),
            bytes: bytes.to_vec(),
        }
    }

    pub(crate) fn words(&self) -> Vec<u64> {
        let words = self.bytes.chunks_exact(8);
        words
            .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
            .collect()
    }

    pub(crate) fn floats(&self) -> Vec<f64> {
        self.words().into_iter().map(f64::from_bits).collect()
    }
}

pub(crate) fn read_npy(path: &Path) -> Array {
    Array::parse(&std::fs::read(path).unwrap())
}

/// The arrays of a .npz file by name. The entries are stored, and their checksums are checked.
pub(crate) fn read_npz(path: &Path) -> BTreeMap<String, Array> {
    let mut archive = zip::ZipArchive::new(std::fs::File::open(path).unwrap()).unwrap();
    let mut arrays = BTreeMap::new();
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index).unwrap();
        assert_eq!(entry.compression(), zip::CompressionMethod::Stored);
        let name = entry.name().strip_suffix(".npy").unwrap().to_owned();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        assert!(arrays.insert(name, Array::parse(&bytes)).is_none());
    }
    arrays
}
