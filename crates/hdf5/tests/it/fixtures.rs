// SPDX-License-Identifier: Apache-2.0 OR MIT
//! tests/fixtures/make.py writes the files, and expected.json, with h5py 3.16 (HDF5 2.0) and netCDF4 1.7.5 (HDF5 2.2).

use backstay_hdf5::{Dataset, Structure, describe, plain};
use serde_json::Value;
use std::path::PathBuf;

pub(crate) const FILES: [&str; 6] = [
    "grid.h5",
    "earliest.h5",
    "v110.h5",
    "latest.h5",
    "userblock.h5",
    "netcdf.nc",
];
/// Files whose indexes have more than one page, block and level.
pub(crate) const LARGE: [&str; 2] = ["large_earliest.h5", "large_latest.h5"];

pub(crate) fn read(name: &str) -> Vec<u8> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    std::fs::read(folder.join(name)).unwrap()
}

fn structure(bytes: &[u8]) -> Structure {
    describe(&bytes).unwrap()
}

fn numbers(value: &Value) -> Vec<u64> {
    let list = value.as_array().unwrap();
    list.iter().map(|one| one.as_u64().unwrap()).collect()
}

/// Offset, length and coordinates of all extents, in the order of the file.
fn extents(dataset: &Dataset) -> Vec<(u64, u64, Vec<u64>)> {
    let of = |(at, extent): (usize, &backstay_hdf5::Extent)| {
        let start = if dataset.chunk_shape.is_empty() {
            &[]
        } else {
            dataset.chunk(at)
        };
        (extent.offset, extent.length, start.to_vec())
    };
    let mut all: Vec<_> = dataset.extents.iter().enumerate().map(of).collect();
    all.sort();
    all
}

fn type_name(numpy: &str) -> Option<String> {
    let (order, kind) = match numpy.strip_prefix('>') {
        Some(kind) => (", big-endian", kind),
        None => ("", numpy),
    };
    Some(match kind {
        "bool" => "enumeration of i8".to_owned(),
        "f4" | "float32" => format!("f32{order}"),
        "f8" | "float64" => format!("f64{order}"),
        "float16" => "f16".to_owned(),
        "complex128" => "complex128".to_owned(),
        "|S3" => "string of 3 bytes".to_owned(),
        "object" => "variable length of 16 bytes".to_owned(),
        kind if kind.starts_with("uint") => format!("u{}", &kind[4..]),
        kind if kind.starts_with("int") => format!("i{}", &kind[3..]),
        "i4" => format!("i32{order}"),
        _ => return None,
    })
}

#[test]
fn all_datasets_are_where_the_hdf5_library_says() {
    let expected: Value = serde_json::from_slice(&read("expected.json")).unwrap();
    let mut seen = 0;
    for name in FILES.into_iter().chain(LARGE) {
        let bytes = read(name);
        let found = structure(&bytes);
        assert_eq!(found.left_out, [], "{name}");
        let wanted = expected[name].as_object().unwrap();
        let paths: Vec<&str> = found.datasets.iter().map(|one| &*one.path).collect();
        let mut names: Vec<&str> = wanted.keys().map(|key| &**key).collect();
        names.sort_unstable();
        let mut sorted = paths.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, names, "{name}");
        for dataset in &found.datasets {
            let (what, wanted) = (format!("{name} {}", dataset.path), &wanted[&dataset.path]);
            assert_eq!(dataset.shape, numbers(&wanted["shape"]), "{what}");
            assert_eq!(dataset.layout.name(), wanted["layout"], "{what}");
            let filters = numbers(&wanted["filters"]);
            let own: Vec<u64> = dataset.filters.iter().map(|&id| u64::from(id)).collect();
            assert_eq!(own, filters, "{what}");
            if let Some(kind) = type_name(wanted["dtype"].as_str().unwrap()) {
                assert_eq!(dataset.item.name, kind, "{what}");
            }
            if let Some(chunks) = wanted.get("chunks") {
                assert_eq!(dataset.chunk_shape, numbers(chunks), "{what}");
            }
            if let Some(count) = wanted.get("count") {
                assert_eq!(
                    dataset.extents.len() as u64,
                    count.as_u64().unwrap(),
                    "{what}"
                );
            }
            if let Some(list) = wanted.get("extents") {
                let of = |one: &Value| {
                    let start = one[2].as_array().map(|_| numbers(&one[2]));
                    (
                        one[0].as_u64().unwrap(),
                        one[1].as_u64().unwrap(),
                        start.unwrap_or_default(),
                    )
                };
                let mut list: Vec<_> = list.as_array().unwrap().iter().map(of).collect();
                list.sort();
                assert_eq!(extents(dataset), list, "{what}");
                seen += list.len();
            }
        }
    }
    assert!(seen > 300, "{seen}");
}

/// The values of a dataset that is not filtered, put together from its extents.
fn values(bytes: &[u8], dataset: &Dataset) -> Vec<u8> {
    let item = usize::try_from(dataset.item.bytes).unwrap();
    let count = usize::try_from(dataset.item_count().unwrap()).unwrap();
    let mut out = vec![0; item * count];
    for (at, extent) in dataset.extents.iter().enumerate() {
        let start = usize::try_from(extent.offset).unwrap();
        let piece = &bytes[start..start + usize::try_from(extent.length).unwrap()];
        if dataset.chunk_shape.is_empty() {
            out.copy_from_slice(piece);
            continue;
        }
        for (number, value) in piece.chunks(item).enumerate() {
            let mut left = u64::try_from(number).unwrap();
            let (mut place, mut step) = (0, 1);
            let mut inside = true;
            for dimension in (0..dataset.shape.len()).rev() {
                let chunk = dataset.chunk_shape[dimension];
                let coordinate = dataset.chunk(at)[dimension] + left % chunk;
                left /= chunk;
                inside &= coordinate < dataset.shape[dimension];
                place += coordinate * step;
                step *= dataset.shape[dimension];
            }
            if inside {
                let place = usize::try_from(place).unwrap() * item;
                out[place..place + item].copy_from_slice(value);
            }
        }
    }
    out
}

#[test]
fn the_extents_have_the_values() {
    let mut seen = 0;
    for name in FILES.into_iter().chain(LARGE) {
        let bytes = read(name);
        for dataset in structure(&bytes).datasets {
            if dataset.path == "holes" {
                let places: Vec<u64> = (3500..3510).collect();
                assert_eq!(dataset.coordinates, places, "{name}");
            }
            let kind = &*dataset.item.name;
            if !dataset.is_plain()
                || dataset.extents.is_empty()
                || kind.starts_with("enum")
                || dataset.path == "holes"
            {
                continue;
            }
            let item = usize::try_from(dataset.item.bytes).unwrap();
            for (number, value) in values(&bytes, &dataset).chunks(item).enumerate() {
                let wanted = i64::try_from(number).unwrap() * 3 + 7;
                #[expect(clippy::cast_precision_loss, reason = "small numbers")]
                let (wide, narrow) = (wanted as f64, wanted as f32);
                let is_right = match kind {
                    "f64" => value == wide.to_le_bytes(),
                    "f64, big-endian" => value.iter().rev().eq(&wide.to_le_bytes()),
                    "f32" => value == narrow.to_le_bytes(),
                    "i32, big-endian" => value.iter().rev().eq(&wanted.to_le_bytes()[..4]),
                    "complex128" => value[..8] == wide.to_le_bytes() && value[8..] == [0; 8],
                    // Whole halves of binary16 up to 2,048 are exact.
                    "f16" => (half(u16::from_le_bytes([value[0], value[1]])) - wide).abs() < 1e-9,
                    _ => *value == wanted.to_le_bytes()[..item],
                };
                assert!(is_right, "{name} {} {number}: {value:?}", dataset.path);
                seen += 1;
            }
        }
    }
    assert!(seen > 20_000, "{seen}");
}

fn half(bits: u16) -> f64 {
    let (exponent, mantissa) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    (1.0 + mantissa / 1024.0) * f64::from(exponent - 15).exp2()
}

#[test]
fn stretches_of_numbers_share_nothing_and_leave_out_what_is_filtered() {
    for name in FILES {
        let bytes = read(name);
        let found = structure(&bytes);
        let all = plain(&found);
        assert!(!all.is_empty(), "{name}");
        assert!(
            all.windows(2)
                .all(|pair| pair[0].start + pair[0].length <= pair[1].start)
        );
        let sum: u64 = all.iter().map(|one| one.length).sum();
        let plain = found.datasets.iter().filter(|one| one.is_plain());
        assert_eq!(sum, plain.map(Dataset::stored_bytes).sum::<u64>(), "{name}");
    }
    let found = structure(&read("latest.h5"));
    let packed = found
        .datasets
        .iter()
        .find(|one| one.path == "blast/level0/packed")
        .unwrap();
    assert!(!packed.is_plain() && packed.stored_bytes() > 0);
}

#[test]
fn a_file_of_numpy_has_one_array() {
    let file = |header: &str, values: &[u8]| {
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend(u16::try_from(header.len()).unwrap().to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(values);
        bytes
    };
    let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }   \n";
    let found = structure(&file(header, &[1; 24]));
    assert_eq!((found.format.name(), found.left_out.len()), ("npy", 0));
    let array = &found.datasets[0];
    assert_eq!(
        (&*array.item.name, &*array.shape, array.is_plain()),
        ("f32", &[2, 3][..], true)
    );
    let start = 10 + header.len() as u64;
    assert_eq!(
        (array.extents[0].offset, array.extents[0].length),
        (start, 24)
    );
    let turned = header.replace("False", "True").replace("<f4", ">i2");
    let found = structure(&file(&turned, &[1; 12]));
    assert_eq!(&*found.datasets[0].shape, [3, 2]);
    assert_eq!(found.datasets[0].item.name, "i16, big-endian");
    for wrong in [
        "",
        "{}",
        "{'descr': '<f4', 'shape': (9999999999999999999999,)",
        "{'descr': 'f'}",
    ] {
        let found = structure(&file(wrong, &[1; 24]));
        assert_eq!(
            (found.datasets.len(), found.left_out.len()),
            (0, 1),
            "{wrong}"
        );
    }
    // Fewer values than its shape says.
    assert!(structure(&file(header, &[1; 23])).datasets.is_empty());
}

#[test]
fn what_is_no_hdf5_file_is_none() {
    assert_eq!(describe(&&b"CDF\x01 netCDF of old"[..]), None);
    assert_eq!(describe(&&[][..]), None);
    assert_eq!(describe(&&*vec![0; 1 << 20]), None);
}
