// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Schemes of archived data: golden, hostile, and docs/format/codec.md, which says what the code does.
//!
//! `BACKSTAY_WRITE_FIXTURES=1 cargo test -p backstay-format --test it codec` writes the fixture. A
//! change in it is a change of the format. Streams have theirs in the engine, which decodes them.

use crate::document::{number, sections_of};
use backstay_format::scheme::{
    Arrangement, Coder, DECODED_BYTES_MAX, History, LAGS_MAX, RESERVED, SCHEME_BYTES, Scheme,
    SecondPass, encoded_bytes_max,
};
use backstay_format::{ElementType, FormatError};
use std::path::PathBuf;

fn bytes_of(scheme: &Scheme) -> Vec<u8> {
    scheme.encode().unwrap()
}

fn read(bytes: &[u8]) -> Result<Scheme, FormatError> {
    Scheme::of_bytes(bytes)
}

/// Each id of each field at least once.
pub(crate) fn samples() -> Vec<Scheme> {
    use ElementType::{Bf16, Bytes, Complex64, F32, F64, I32};
    vec![
        Scheme::raw(Bytes),
        Scheme::of(F32, Arrangement::Bytes, Coder::Lz4).with_second_pass(SecondPass::Zstd),
        Scheme::of(I32, Arrangement::Bits, Coder::Zstd).with_lags(&[1, 8]),
        Scheme::of(Bf16, Arrangement::Bytes, Coder::Zstd).with_history(History::Xor),
        Scheme::of(F64, Arrangement::Plain, Coder::Pco)
            .with_history(History::Subtract)
            .with_lags(&[1, 1, 0x0102_0304]),
        Scheme::of(Complex64, Arrangement::Plain, Coder::Zstd).with_lags(&[
            1,
            2,
            3,
            4,
            5,
            u32::MAX,
        ]),
    ]
}

#[test]
fn schemes_come_back_and_are_those_of_version_1() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/codec-v1/schemes.bin");
    let written: Vec<u8> = samples().iter().flat_map(bytes_of).collect();
    if std::env::var_os("BACKSTAY_WRITE_FIXTURES").is_some_and(|value| value == "1") {
        std::fs::write(&path, &written).unwrap();
    }
    let golden = std::fs::read(&path).unwrap();
    assert!(golden == written, "other bytes than version 1");
    let found: Vec<Scheme> = golden
        .chunks(SCHEME_BYTES)
        .map(|bytes| read(bytes).unwrap())
        .collect();
    assert_eq!(found, samples());
}

#[test]
fn every_damage_is_refused_or_is_another_scheme() {
    for sample in samples() {
        let bytes = bytes_of(&sample);
        for end in 0..bytes.len() {
            assert!(read(&bytes[..end]).is_err());
        }
        for place in 0..bytes.len() {
            for byte in 0..=u8::MAX {
                let mut damaged = bytes.clone();
                damaged[place] = byte;
                if let Ok(scheme) = read(&damaged) {
                    assert_eq!(bytes_of(&scheme), damaged);
                    assert_eq!(scheme == sample, byte == bytes[place]);
                    assert!(scheme.is_valid());
                }
            }
        }
    }
}

#[test]
fn unknown_ids_are_named() {
    let bytes = bytes_of(&Scheme::raw(ElementType::F64));
    let fields = [
        "element type",
        "history",
        "arrangement",
        "coder",
        "second pass",
        "lags",
    ];
    for (place, field) in fields.into_iter().enumerate() {
        let mut unknown = bytes.clone();
        unknown[place] = 99;
        let error = read(&unknown).unwrap_err();
        assert_eq!(
            (error.field, error.found.as_str()),
            (field, "99"),
            "{error}"
        );
        assert_eq!(error.offset, place as u64, "{error}");
    }
    let together = [
        Scheme::of(ElementType::F64, Arrangement::Bits, Coder::Pco),
        Scheme::of(ElementType::U8, Arrangement::Plain, Coder::Pco),
    ];
    for scheme in together {
        assert!(!scheme.is_valid() && scheme.encode().is_err(), "{scheme}");
    }
}

#[test]
fn ids_that_were_given_up_are_named() {
    let bytes = bytes_of(&Scheme::of(
        ElementType::F64,
        Arrangement::Bytes,
        Coder::Zstd,
    ));
    for ((field, id, name), place) in RESERVED.into_iter().zip([2, 3]) {
        let mut old = bytes.clone();
        old[place] = id;
        let error = read(&old).unwrap_err();
        assert!(error.is_unsupported(), "{error}");
        assert_eq!(error.found, format!("{field} {id}, {name}"));
        assert_eq!(error.offset, place as u64, "{error}");
        old[place] = 99;
        assert!(!read(&old).unwrap_err().is_unsupported());
    }
}

/// Ids and names of the first table of a section.
fn listed(section: &str) -> Vec<(u64, String)> {
    let sections = sections_of("codec.md");
    let rows = sections[section].rows.iter().skip(1);
    let ids = rows.map(|row| (number(&row[0]).unwrap_or(u64::MAX), row[1].clone()));
    ids.collect()
}

#[test]
fn the_page_says_what_the_code_does() {
    let named = |id: u8, name: &str| (u64::from(id), name.to_owned());
    let histories = History::ALL.map(|one| named(one.id(), one.name()));
    assert_eq!(listed("History"), histories);
    // Ids that were given up stand in their places among the others.
    let with_reserved = |field: &str, mut all: Vec<(u64, String)>| {
        let reserved = RESERVED.iter().filter(|(of, ..)| *of == field);
        all.extend(reserved.map(|&(_, id, name)| named(id, name)));
        all.sort();
        all
    };
    let arrangements = Arrangement::ALL.map(|one| named(one.id(), one.name()));
    let arrangements = with_reserved("arrangement", arrangements.to_vec());
    assert_eq!(listed("Arrangement"), arrangements);
    let coders = Coder::ALL.map(|one| named(one.id(), one.name()));
    assert_eq!(listed("Coders"), with_reserved("coder", coders.to_vec()));
    let passes = SecondPass::ALL.map(|one| named(one.id(), one.name()));
    assert_eq!(listed("Second pass"), passes);
    let sections = sections_of("codec.md");
    let scheme = &sections["Scheme"];
    let mut end = 0;
    for row in &scheme.rows[1..] {
        assert_eq!(number(&row[0]), Some(end), "{row:?}");
        end += number(&row[1]).unwrap();
    }
    assert_eq!((scheme.total, end), (Some(end), SCHEME_BYTES as u64));
    let limits = sections["Limits"].rows.iter().skip(1);
    let limits: Vec<_> = limits
        .map(|row| (row[0].as_str(), number(&row[1])))
        .collect();
    let wanted = [
        ("DECODED_BYTES_MAX", DECODED_BYTES_MAX),
        ("LAGS_MAX", LAGS_MAX),
    ];
    assert_eq!(
        limits,
        wanted.map(|(name, value)| (name, Some(value as u64)))
    );
    assert_eq!(encoded_bytes_max(6400), 6400 + 100 + 4096);
}
