// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The entropy coder against its definition, one symbol at a time, and against damage.
#![expect(clippy::cast_possible_truncation, reason = "only some bits are wanted")]

use super::super::float;
use super::*;
use proptest::prelude::*;

/// The definition: every lane by itself, symbol by symbol.
fn naive(bytes: &[u8], out: &mut [u8]) -> Result<()> {
    let mut rest = bytes;
    let mut table = Reading::new();
    let mut prefix = Prefix::new();
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
                rest = match mode {
                    mode::TABLE => table.build(rest)?,
                    _ => prefix.read(rest)?,
                };
                let (lengths, after) = rest.split_at(4 * LANES);
                rest = after;
                for (lane, field) in lengths.chunks(4).enumerate() {
                    let field = u32::from_le_bytes(field.try_into().unwrap()) as usize;
                    let (stream, after) = rest.split_at(field >> 5);
                    rest = after;
                    let places = (lane..block.len()).step_by(LANES);
                    if mode == mode::TABLE {
                        naive_lane(&table, (stream, field & 31), block, places);
                    } else {
                        naive_codes(&prefix, stream, block, places);
                    }
                }
                assert_eq!(rest[..PADDING], [0; PADDING]);
                rest = &rest[PADDING..];
            }
        }
    }
    assert!(rest.is_empty());
    Ok(())
}

fn bit(stream: &[u8], at: usize) -> u64 {
    u64::from(stream[at / 8] >> (at % 8) & 1)
}

fn naive_lane(
    table: &Reading,
    (stream, skipped): (&[u8], usize),
    block: &mut [u8],
    places: impl Iterator<Item = usize>,
) {
    let bits = |at: usize, count: u32| {
        (0..count as usize).fold(0, |sum, place| sum | bit(stream, at + place) << place)
    };
    let mut state = bits(skipped, table.log());
    let mut at = skipped + table.log() as usize;
    for place in places {
        let step = table.at(state);
        let width = step.widths() & 0xff;
        block[place] = step.symbol();
        (state, _) = step.next(bits(at, width));
        at += width as usize;
    }
    assert_eq!((state, at), (0, stream.len() * 8));
}

/// Bit by bit, until they are the code of a value.
fn naive_codes(
    prefix: &Prefix,
    stream: &[u8],
    block: &mut [u8],
    places: impl Iterator<Item = usize>,
) {
    let mut at = 0;
    for place in places {
        let (mut code, mut length) = (0, 0);
        block[place] = loop {
            code |= bit(stream, at) << length;
            (at, length) = (at + 1, length + 1);
            let is_it = |value: &u8| prefix.code(*value) == (code, length);
            if let Some(value) = (0..=u8::MAX).find(is_it) {
                break value;
            }
        };
    }
    assert_eq!(at.next_multiple_of(8), stream.len() * 8);
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
        assert!(
            taken < 1.01 * least + 0.01 * float(length) + 300.0,
            "{shift}: {taken} for {least}"
        );
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
    assert_eq!(round_trip(&vec![7; BLOCK + 1]), 4);
}

#[test]
fn damage_gives_an_error_or_other_bytes() {
    let rare: Vec<u8> = (0..900_u32).map(|n| u8::from(n % 19 == 0)).collect();
    for (bytes, mode) in [(skewed(900, 1), mode::PREFIX), (rare, mode::TABLE)] {
        damage(&bytes, mode);
    }
}

fn damage(bytes: &[u8], mode: u8) {
    let mut room = Room::new();
    let mut stream = Vec::new();
    encode(bytes, &mut room, &mut stream);
    assert_eq!(stream[0], mode);
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
