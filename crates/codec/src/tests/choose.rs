// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The choice on data that was made to have one: sensible, repeatable, and made anew when it must be.
#![expect(clippy::cast_precision_loss, reason = "any numbers will do")]

use crate::*;
use backstay_format::ElementType;
use backstay_format::ElementType::{F32, F64, I32};

/// Numbers that look random, always the same.
fn noise(count: usize) -> Vec<u64> {
    let mut seed = 11_u64;
    let step = |_| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        seed ^ (seed >> 29)
    };
    (0..count).map(step).collect()
}

/// About normal, with this deviation.
fn weights(count: usize, deviation: f32) -> Vec<f32> {
    let parts = noise(count * 4);
    let unit = |bits: u64| (bits >> 40) as f32 / 16_777_216.0 - 0.5;
    let sums = parts
        .chunks(4)
        .map(|four| four.iter().map(|&bits| unit(bits)).sum::<f32>());
    sums.map(|sum| sum * deviation).collect()
}

fn bytes_of(numbers: &[f32]) -> Vec<u8> {
    numbers
        .iter()
        .flat_map(|number| number.to_le_bytes())
        .collect()
}

fn smooth(rows: usize, columns: usize) -> Vec<u8> {
    let at = |row: usize, column: usize| {
        let (x, y) = (column as f64 / 90.0, row as f64 / 70.0);
        x.sin() * y.cos() + 3.0
    };
    let values = (0..rows).flat_map(|row| (0..columns).map(move |column| at(row, column)));
    values.flat_map(f64::to_le_bytes).collect()
}

fn chosen(element: ElementType, lags: &[u32], bytes: &[u8], base: Option<&[u8]>) -> Choice {
    let subject = Subject {
        element,
        lags,
        base,
    };
    choose(&subject, bytes, &Policy::default(), &mut Work::new()).unwrap()
}

/// A sum of what the row says, what the column says, and a little that nobody knows: there is nothing
/// to see in one dimension.
fn sums(rows: usize, columns: usize) -> Vec<u8> {
    let unit = |bits: u64| (bits >> 44) as f64 / 1_048_576.0;
    let (of_rows, of_columns) = (noise(rows), noise(columns));
    let cells = noise(rows * columns).into_iter().enumerate();
    let values = cells.map(|(place, bits)| {
        let (row, column) = (of_rows[place / columns], of_columns[place % columns]);
        unit(row) + unit(column) + 4.0 + 1e-9 * unit(bits)
    });
    values.flat_map(f64::to_le_bytes).collect()
}

#[test]
fn smooth_fields_are_predicted_in_all_dimensions() {
    let bytes = sums(400, 300);
    let choice = chosen(F64, &[1, 300], &bytes, None);
    assert!(choice.scheme.lags.as_slice().contains(&300), "{choice:?}");
    let without = chosen(F64, &[], &bytes, None);
    assert!(choice.ratio > 1.1 * without.ratio, "{choice:?} {without:?}");
}

#[test]
fn weights_are_not_predicted_and_gain_by_their_history() {
    let before = weights(200_000, 0.05);
    let change = weights(200_001, 0.0001);
    let pairs = before.iter().zip(&change[1..]);
    let after: Vec<f32> = pairs.map(|(weight, change)| weight + change).collect();
    let (before, after) = (bytes_of(&before), bytes_of(&after));
    let alone = chosen(F32, &[1], &after, None);
    assert!(alone.scheme.lags.is_empty(), "{alone:?}");
    assert!(matches!(alone.scheme.coder, Coder::Zstd | Coder::Pco));
    let with = chosen(F32, &[1], &after, Some(&before));
    assert!(
        with.scheme.needs_base() && with.ratio > 1.4 * alone.ratio,
        "{with:?}"
    );
}

#[test]
fn a_history_must_gain_what_the_policy_asks() {
    let before = weights(200_000, 0.05);
    let change = weights(200_001, 0.0001);
    let pairs = before.iter().zip(&change[1..]);
    let after: Vec<f32> = pairs.map(|(weight, change)| weight + change).collect();
    let (before, after) = (bytes_of(&before), bytes_of(&after));
    let alone = chosen(F32, &[1], &after, None);
    let subject = |base| Subject {
        element: F32,
        lags: &[1],
        base,
    };
    let pipeline = Goal::Pipeline {
        write_bytes_per_second: 50e6,
        cores: 1.0,
    };
    for (goal, history_part_max, base_bytes_per_second, is_used) in [
        (Goal::Ratio, 0.8, f64::INFINITY, true),
        (Goal::Ratio, 0.5, f64::INFINITY, false),
        (pipeline, 0.8, 1e9, true),
        (pipeline, 0.8, 60e6, false),
    ] {
        let policy = Policy {
            goal,
            history_part_max,
            base_bytes_per_second,
            ..Policy::default()
        };
        let choice = choose(&subject(Some(&before)), &after, &policy, &mut Work::new()).unwrap();
        assert_eq!(choice.scheme.needs_base(), is_used, "{policy:?} {choice:?}");
        if goal == Goal::Ratio && !is_used {
            assert_eq!(choice.scheme, alone.scheme);
        }
    }
    // What was chosen with a base is not for a segment without one.
    let (mut chooser, mut work) = (Chooser::new(100), Work::new());
    let policy = Policy::default();
    assert!(chooser.wants_base());
    let with = chooser.next(&subject(Some(&before)), &after, &policy, &mut work);
    assert!(with.unwrap().scheme.needs_base() && chooser.wants_base());
    let without = chooser.next(&subject(None), &after, &policy, &mut work);
    assert!(!without.unwrap().scheme.needs_base() && !chooser.wants_base());
}

#[test]
fn noise_stays_raw_and_nothing_becomes_tiny() {
    let random: Vec<u8> = noise(100_000)
        .iter()
        .flat_map(|bits| bits.to_le_bytes())
        .collect();
    assert_eq!(chosen(F64, &[1], &random, None).scheme, Scheme::raw(F64));
    let constant = bytes_of(&vec![1.5; 300_000]);
    let choice = chosen(F32, &[1], &constant, None);
    assert!(choice.ratio > 5000.0, "{choice:?}");
    for bytes in [&constant[..0], &constant[..1], &constant[..63]] {
        assert_eq!(chosen(F32, &[1], bytes, None).scheme, Scheme::raw(F32));
    }
}

#[test]
fn connectivity_is_seen_through() {
    let cells = (0..40_000_i32).flat_map(|cell| [cell, cell + 1, cell + 202, cell + 201]);
    let bytes: Vec<u8> = cells.flat_map(i32::to_le_bytes).collect();
    let choice = chosen(I32, &[1, 4], &bytes, None);
    assert!(choice.ratio > 500.0, "{choice:?}");
}

#[test]
fn the_same_segment_gives_the_same_choice() {
    for (element, bytes) in [
        (F64, smooth(200, 300)),
        (F32, bytes_of(&weights(90_000, 1.0))),
    ] {
        let first = chosen(element, &[1, 300], &bytes, None);
        let mut work = Work::new();
        let subject = Subject {
            element,
            lags: &[1, 300],
            base: None,
        };
        for _ in 0..2 {
            let again = choose(&subject, &bytes, &Policy::default(), &mut work).unwrap();
            assert_eq!(again, first);
        }
    }
}

#[test]
fn a_pipeline_compresses_no_slower_than_storage_writes() {
    let bytes = smooth(400, 300);
    let subject = Subject {
        element: F64,
        lags: &[1, 300],
        base: None,
    };
    let with = |write_bytes_per_second, cores| {
        let goal = Goal::Pipeline {
            write_bytes_per_second,
            cores,
        };
        let policy = Policy {
            goal,
            ..Policy::default()
        };
        choose(&subject, &bytes, &policy, &mut Work::new()).unwrap()
    };
    let slow = with(10e6, 1.0);
    let middle = with(300e6, 1.0);
    assert!(slow.ratio > middle.ratio, "{slow:?} {middle:?}");
    assert!(slow.encode_bytes_per_second < middle.encode_bytes_per_second);
    assert!(middle.encode_bytes_per_second > 1.1 * 300e6, "{middle:?}");
    assert_eq!(with(20e9, 1.0).scheme, Scheme::raw(F64));
    assert_ne!(with(20e9, 64.0).scheme, Scheme::raw(F64));
}

#[test]
fn a_slow_decoder_is_not_chosen() {
    let bytes = smooth(400, 300);
    let subject = Subject {
        element: F64,
        lags: &[1, 300],
        base: None,
    };
    let policy = Policy {
        decode_bytes_per_second_min: 1.5e9,
        ..Policy::default()
    };
    let choice = choose(&subject, &bytes, &policy, &mut Work::new()).unwrap();
    assert!(choice.decode_bytes_per_second >= 1.5e9, "{choice:?}");
}

#[test]
fn a_change_of_character_is_noticed() {
    let mut work = Work::new();
    let mut chooser = Chooser::new(100);
    let policy = Policy::default();
    let subject = Subject {
        element: F32,
        lags: &[1],
        base: None,
    };
    let mut out = Vec::new();
    let repeated = bytes_of(&weights(1000, 1.0).repeat(50));
    let rough = bytes_of(&weights(100_000, 1.0));
    let mut step = |chooser: &mut Chooser, bytes: &[u8]| {
        let choice = chooser.next(&subject, bytes, &policy, &mut work).unwrap();
        work.set_effort(choice.effort);
        encode(&choice.scheme, bytes, None, &mut work, &mut out).unwrap();
        chooser.note(bytes.len(), out.len(), None);
        choice.scheme
    };
    let first = step(&mut chooser, &repeated);
    assert_eq!(step(&mut chooser, &repeated), first);
    // The first rough segment is encoded as before, and is missed by far.
    assert_eq!(step(&mut chooser, &rough), first);
    let second = step(&mut chooser, &rough);
    assert_ne!(second, first);
    assert_eq!(step(&mut chooser, &rough), second);
}

#[test]
fn a_choice_that_stays_is_looked_at_ever_more_seldom() {
    let mut work = Work::new();
    let mut chooser = Chooser::new(2);
    let policy = Policy::default();
    let subject = Subject {
        element: F64,
        lags: &[1],
        base: None,
    };
    let rough = bytes_of(&weights(20_000, 1.0));
    // Segments that a choice stood for, before the next one was made.
    let mut stood = |chooser: &mut Chooser, bytes: &[u8], times: usize| {
        let mut all = Vec::new();
        for _ in 0..times {
            let choice = choose(&subject, bytes, &chooser.corrected(&policy), &mut work).unwrap();
            chooser.learn(choice);
            let mut count = 1;
            while chooser.known(&subject, bytes.len()).is_some() {
                count += 1;
            }
            all.push(count);
        }
        all
    };
    assert_eq!(stood(&mut chooser, &rough, 6), [2, 4, 8, 16, 16, 16]);
    let smooth = smooth(200, 300);
    assert_eq!(stood(&mut chooser, &smooth, 2), [2, 4], "it became another");
    chooser.note(smooth.len(), smooth.len(), None);
    assert_eq!(
        chooser.known(&subject, smooth.len()),
        None,
        "it was missed by far"
    );
    assert_eq!(stood(&mut chooser, &smooth, 1), [4]);
}
