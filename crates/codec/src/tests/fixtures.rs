// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Golden streams: what version 1 wrote is decoded for ever. A writer may write other bytes.
//!
//! `BACKSTAY_WRITE_FIXTURES=1 cargo test -p backstay-codec fixtures` adds those that are
//! not there yet; a stream that is there is never written again.

use super::{round_trip, sample};
use crate::*;
use backstay_format::ElementType;
use backstay_format::scheme::SCHEME_BYTES;
use std::path::PathBuf;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../format/fixtures/codec-v1")
}

/// Planes of every kind, lowest first: noise, some values, few, one.
fn mixed() -> Vec<u8> {
    let mut seed = 3_u64;
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33).to_le_bytes()
    };
    let numbers = (0..6000_u32).flat_map(|number| {
        let [noise, few, ..] = next();
        let rare = u8::from(number.is_multiple_of(97));
        [noise, few.trailing_zeros().to_le_bytes()[0], rare, 0x40]
    });
    numbers.collect()
}

/// Name, element type, scheme of each stream.
fn streams() -> Vec<(&'static str, Scheme)> {
    use Arrangement::{Bits, Bytes, Plain};
    use Coder::{Lz4, Pco, Raw, Zstd};
    use ElementType::{Bf16, Complex64, F32, F64, I8, I32, U64};
    let of = Scheme::of;
    vec![
        ("raw_f64", of(F64, Plain, Raw)),
        ("lz4_f64_bytes", of(F64, Bytes, Lz4)),
        ("zstd_i32_bits_lags", of(I32, Bits, Zstd).with_lags(&[1, 8])),
        ("zstd_u64", of(U64, Plain, Zstd)),
        ("zstd_i8_lag", of(I8, Plain, Zstd).with_lags(&[1])),
        ("zstd_f32_bytes", of(F32, Bytes, Zstd)),
        (
            "zstd_bf16_bytes_xor",
            of(Bf16, Bytes, Zstd).with_history(History::Xor),
        ),
        (
            "zstd_f32_bytes_subtract_lags",
            of(F32, Bytes, Zstd)
                .with_history(History::Subtract)
                .with_lags(&[1, 1, 30]),
        ),
        ("pco_f64", of(F64, Plain, Pco)),
        ("pco_u64", of(U64, Plain, Pco)),
        ("pco_i32", of(I32, Plain, Pco)),
        ("pco_bf16", of(Bf16, Plain, Pco)),
        ("pco_f32_lags", of(F32, Plain, Pco).with_lags(&[1, 30])),
        (
            "pco_complex64_subtract",
            of(Complex64, Plain, Pco).with_history(History::Subtract),
        ),
        (
            "lz4_then_zstd_f64_bits",
            of(F64, Bits, Lz4).with_second_pass(SecondPass::Zstd),
        ),
    ]
}

fn data(scheme: &Scheme) -> (Vec<u8>, Vec<u8>) {
    let bytes = match scheme.element {
        ElementType::F32 => mixed(),
        other => sample(other),
    };
    let mut base = bytes.clone();
    base.rotate_right(scheme.component_bytes());
    (bytes, base)
}

#[test]
fn streams_of_version_1_are_decoded() {
    let writing = std::env::var_os("BACKSTAY_WRITE_FIXTURES").is_some_and(|value| value == "1");
    let mut work = Work::new();
    for (name, scheme) in streams() {
        let path = folder().join(format!("stream_{name}.bin"));
        let (bytes, base) = data(&scheme);
        if writing && !path.exists() {
            let encoded = round_trip(&scheme, &bytes, &base, &mut work);
            let stream = [scheme.encode().unwrap(), encoded].concat();
            std::fs::write(&path, stream).unwrap();
        }
        let golden = std::fs::read(&path).unwrap();
        let (head, encoded) = golden.split_at(SCHEME_BYTES);
        let found = Scheme::of_bytes(head).unwrap();
        assert_eq!(found, scheme, "{name}");
        let mut out = vec![0; bytes.len()];
        decode(&found, encoded, Some(&base), &mut work, &mut out).unwrap();
        assert!(out == bytes, "{name}");
    }
}
