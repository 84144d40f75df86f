// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The entropy coder against its definition, one symbol at a time, and against damage.

use super::super::float;
use super::*;
use proptest::prelude::*;

/// The definition: every lane by itself, symbol by symbol.
fn naive(bytes: &[u8], out: &mut [u8]) -> Result<()> {
    let mut rest = bytes;
    let mut table = Reading::new();
    for block in out.chunks_mut(BLOCK) {
        let mode = rest[0];
        rest = &rest[1..];
        match mode {
            mode::RAW => {
                block.copy_from_slice(&rest[..block.len()]);
                rest = &rest[block.len()..];
            }
            mode::CONSTANT => {
                block.fill(rest[0]);
                rest = &rest[1..];
            }
            _ => {
                rest = table.build(rest)?;
                let (lengths, after) = rest.split_at(4 * LANES);
                rest = after;
                for (lane, field) in lengths.chunks(4).enumerate() {
                    let field = u32::from_le_bytes(field.try_into().unwrap()) as usize;
                    let (stream, after) = rest.split_at(field >> 5);
                    rest = after;
                    let bit = |at: usize| u64::from(stream[at / 8] >> (at % 8) & 1);
                    let bits = |at: usize, count: usize| {
                        (0..count).fold(0, |sum, place| sum | bit(at + place) << place)
                    };
                    let mut at = field & 31;
                    let mut state = u32::try_from(bits(at, table.log())).unwrap();
                    at += table.log();
                    for place in (lane..block.len()).step_by(LANES) {
                        let width = table.step(state, 0).width;
                        let step = table.step(state, bits(at, width));
                        block[place] = step.symbol;
                        state = step.state;
                        at += width;
                    }
                    assert_eq!((state, at), (0, stream.len() * 8));
                }
                assert_eq!(rest[..PADDING], [0; PADDING]);
                rest = &rest[PADDING..];
            }
        }
    }
    assert!(rest.is_empty());
    Ok(())
}

fn round_trip(bytes: &[u8]) -> usize {
    let mut room = Room::new();
    let mut stream = Vec::new();
    encode(bytes, &mut room, &mut stream);
    let mut out = vec![0; bytes.len()];
    assert_eq!(decode(&stream, &mut room, &mut out).unwrap(), stream.len());
    assert!(out == bytes);
    out.fill(0);
    naive(&stream, &mut out).unwrap();
    assert!(out == bytes);
    stream.len()
}

/// Bytes whose values are as rare as their number is high.
fn skewed(length: usize, shift: u32) -> Vec<u8> {
    let mut seed = 1_u64;
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        seed >> 33
    };
    (0..length)
        .map(|_| {
            ((next() | 1 << 31).trailing_zeros() << shift | (next() & ((1 << shift) - 1)) as u32)
                as u8
        })
        .collect()
}

proptest! {
    #[test]
    fn all_bytes_come_back(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
        round_trip(&bytes);
    }

    #[test]
    fn few_values_come_back(bytes in prop::collection::vec(0_u8..4, 0..3000)) {
        round_trip(&bytes);
    }
}

#[test]
fn streams_come_close_to_what_is_least() {
    for (shift, length) in [(0, 300_000), (2, 300_000), (3, 131_073), (1, 131_072)] {
        let bytes = skewed(length, shift);
        let least = least_bytes(&count(&bytes));
        let taken = float(round_trip(&bytes));
        assert!(taken < 1.01 * least + 300.0, "{shift}: {taken} for {least}");
    }
    let rare: Vec<u8> = (0..200_000_u32)
        .map(|n| u8::from(n.is_multiple_of(700)))
        .collect();
    let least = least_bytes(&count(&rare));
    assert!(float(round_trip(&rare)) < 1.3 * least + 300.0);
}

#[test]
fn what_cannot_be_fewer_takes_one_byte_more() {
    let mut bytes = skewed(BLOCK, 0);
    let mut state = 7_u32;
    for byte in &mut bytes {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *byte = state.to_le_bytes()[3];
    }
    assert_eq!(round_trip(&bytes), BLOCK + 1);
    assert_eq!(round_trip(&[7; BLOCK + 1]), 4);
}

#[test]
fn damage_gives_an_error_or_other_bytes() {
    let bytes = skewed(700, 1);
    let mut room = Room::new();
    let mut stream = Vec::new();
    encode(&bytes, &mut room, &mut stream);
    assert_eq!(stream[0], mode::TABLE);
    let mut out = vec![0; bytes.len()];
    for end in 0..stream.len() {
        assert!(decode(&stream[..end], &mut room, &mut out).is_err());
    }
    for place in 0..stream.len() {
        for bit in 0..8 {
            let mut stream = stream.clone();
            stream[place] ^= 1 << bit;
            drop(decode(&stream, &mut room, &mut out));
        }
    }
}
