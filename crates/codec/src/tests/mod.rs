// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every scheme there and back, and damaged streams.
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "any numbers will do"
)]

mod choose;
mod fixtures;

use super::*;
use backstay_format::ElementType;
use backstay_format::scheme::{Arrangement, Coder};
use proptest::prelude::*;

/// Every combination a reader accepts, of one element type.
pub(super) fn schemes(element: ElementType) -> Vec<Scheme> {
    let mut all = Vec::new();
    for history in History::ALL {
        for lags in [&[][..], &[1], &[3], &[1, 17], &[1, 1, 17]] {
            for arrangement in Arrangement::ALL {
                for coder in Coder::ALL {
                    for second_pass in SecondPass::ALL {
                        let scheme = Scheme::of(element, arrangement, coder)
                            .with_history(history)
                            .with_lags(lags)
                            .with_second_pass(second_pass);
                        if scheme.is_valid() {
                            all.push(scheme);
                        }
                    }
                }
            }
        }
    }
    all
}

fn round_trip(scheme: &Scheme, bytes: &[u8], base: &[u8], work: &mut Work) -> Vec<u8> {
    let mut encoded = Vec::new();
    encode_exactly(scheme, bytes, Some(base), work, &mut encoded).unwrap();
    assert!(encoded.len() <= encoded_bytes_max(bytes.len()), "{scheme}");
    let mut out = vec![0x5a; bytes.len()];
    decode(scheme, &encoded, Some(base), work, &mut out).unwrap();
    assert!(out == bytes, "{scheme}: {} bytes", bytes.len());
    encoded
}

/// Floats that arithmetic stumbles over, as bits of 64.
const ADVERSARIAL: [u64; 12] = [
    0,
    1 << 63,
    0x7ff0_0000_0000_0000,
    0xfff0_0000_0000_0000,
    0x7ff8_0000_0000_0001,
    0x7ff0_0000_0000_0001,
    0xffff_ffff_ffff_ffff,
    1,
    0x8000_0000_0000_0001,
    0x000f_ffff_ffff_ffff,
    0x7fef_ffff_ffff_ffff,
    0x3ff0_0000_0000_0000,
];

fn numbers() -> impl Strategy<Value = Vec<u8>> {
    let number = prop_oneof![
        any::<u64>(),
        prop::sample::select(&ADVERSARIAL[..]),
        (0_u64..1000).prop_map(|number| (number as f64).to_bits()),
        0_u64..5,
    ];
    let bytes = prop::collection::vec(number, 0..90).prop_map(|numbers| {
        numbers
            .iter()
            .flat_map(|n| n.to_le_bytes())
            .collect::<Vec<u8>>()
    });
    (bytes, 0_usize..9).prop_map(|(mut bytes, cut)| {
        bytes.truncate(bytes.len().saturating_sub(cut));
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn every_scheme_of_every_element_comes_back(bytes in numbers(), shift in 0_usize..40) {
        let mut work = Work::new();
        let mut base = bytes.clone();
        base.rotate_left(shift.min(bytes.len()));
        for element in ElementType::ALL {
            for scheme in schemes(element) {
                round_trip(&scheme, &bytes, &base, &mut work);
            }
        }
    }
}

#[test]
fn what_is_kept_is_never_longer() {
    let mut work = Work::new();
    let mut out = Vec::new();
    for length in [0, 1, 7, 8, 100] {
        let bytes: Vec<u8> = (0..length)
            .map(|n: u32| (n.wrapping_mul(167) >> 1) as u8)
            .collect();
        for scheme in schemes(ElementType::F32) {
            let used = encode(&scheme, &bytes, Some(&bytes), &mut work, &mut out).unwrap();
            assert!(out.len() <= bytes.len());
            assert!(used == scheme || used == Scheme::raw(ElementType::F32));
            let mut again = vec![0; bytes.len()];
            decode(&used, &out, Some(&bytes), &mut work, &mut again).unwrap();
            assert_eq!(again, bytes);
        }
    }
}

#[test]
fn wrong_calls_are_refused() {
    let mut work = Work::new();
    let scheme = Scheme::of(ElementType::F32, Arrangement::Bytes, Coder::Zstd);
    let xor = scheme.with_history(History::Xor);
    let mut out = Vec::new();
    let bytes = [0; 64];
    let kind = |result: Result<Scheme>| result.unwrap_err().kind();
    let wrong = ErrorKind::InvalidArgument;
    assert_eq!(kind(encode(&xor, &bytes, None, &mut work, &mut out)), wrong);
    let short = Some(&bytes[..60]);
    assert_eq!(
        kind(encode(&xor, &bytes, short, &mut work, &mut out)),
        wrong
    );
    let invalid = Scheme::of(ElementType::F32, Arrangement::Bits, Coder::Pco);
    assert_eq!(
        kind(encode(&invalid, &bytes, None, &mut work, &mut out)),
        wrong
    );
    let long = vec![0; DECODED_BYTES_MAX + 1];
    assert_eq!(
        kind(encode(&scheme, &long, None, &mut work, &mut out)),
        wrong
    );
}

/// Numbers with something to find for every coder.
fn sample(element: ElementType) -> Vec<u8> {
    let width = usize::try_from(element.width_bytes()).unwrap();
    let mut bytes = Vec::new();
    for number in 0..120_u32 {
        let wide = f64::from(number * number).sqrt().to_bits() + u64::from(number % 5);
        let narrow = (number as f32).to_bits();
        let element = [wide.to_le_bytes(), wide.to_le_bytes()].concat();
        match width {
            4 => bytes.extend(narrow.to_le_bytes()),
            2 => bytes.extend(&narrow.to_le_bytes()[2..]),
            _ => bytes.extend(&element[..width]),
        }
    }
    bytes.extend([1, 2, 3].iter().take(width - 1));
    bytes
}

#[test]
fn every_damage_to_a_stream_gives_an_error_or_other_bytes() {
    let mut work = Work::new();
    for element in [
        ElementType::F64,
        ElementType::F32,
        ElementType::Bf16,
        ElementType::I8,
    ] {
        let bytes = sample(element);
        let mut out = vec![0; bytes.len()];
        for scheme in schemes(element) {
            // The lags and the history do not change what is parsed.
            if scheme.lags.as_slice().len() > 1 || scheme.history == History::Xor {
                continue;
            }
            let encoded = round_trip(&scheme, &bytes, &bytes, &mut work);
            for end in 0..encoded.len() {
                drop(decode(
                    &scheme,
                    &encoded[..end],
                    Some(&bytes),
                    &mut work,
                    &mut out,
                ));
            }
            for place in 0..encoded.len() {
                for flip in [1, 2, 4, 8, 16, 32, 64, 128, 0xff] {
                    let mut damaged = encoded.clone();
                    damaged[place] ^= flip;
                    drop(decode(&scheme, &damaged, Some(&bytes), &mut work, &mut out));
                }
            }
        }
    }
}
