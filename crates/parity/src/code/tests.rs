// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The code against its definition, and every loss that it covers.

use super::*;
use proptest::prelude::*;

/// Pieces by column.
type Data = Vec<(usize, Vec<u8>)>;

/// Parity by the definition, byte by byte.
fn parity_by_definition(row: usize, data: &[(usize, Vec<u8>)]) -> Vec<u8> {
    let longest = data.iter().map(|(_, piece)| piece.len()).max().unwrap_or(0);
    let byte = |at| {
        data.iter().fold(0, |sum, (column, piece)| {
            sum ^ multiply(
                coefficient(row, *column),
                piece.get(at).copied().unwrap_or(0),
            )
        })
    };
    (0..longest).map(byte).collect()
}

fn encoded(code: Code, data: &[(usize, Vec<u8>)]) -> Vec<Vec<u8>> {
    let longest = data.iter().map(|(_, piece)| piece.len()).max().unwrap_or(0);
    let mut parity = vec![vec![0xa5; longest]; code.parities()];
    let pieces: Vec<(usize, &[u8])> = data.iter().map(|(at, piece)| (*at, &piece[..])).collect();
    let mut rows: Vec<(usize, &mut [u8])> = parity
        .iter_mut()
        .map(|to| &mut to[..])
        .enumerate()
        .collect();
    code.encode(&pieces, &mut rows).unwrap();
    parity
}

/// Loses some pieces, rebuilds them, and compares.
fn lose(code: Code, data: &[(usize, Vec<u8>)], parity: &[Vec<u8>], lost: &[Piece]) -> Result<()> {
    let all: Vec<(Piece, &[u8])> = data
        .iter()
        .map(|(column, piece)| (Piece::Data(*column), &piece[..]))
        .chain(
            parity
                .iter()
                .enumerate()
                .map(|(row, piece)| (Piece::Parity(row), &piece[..])),
        )
        .collect();
    let (gone, present): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|(piece, _)| lost.contains(piece));
    let lengths: Vec<(usize, usize)> = data.iter().map(|(at, piece)| (*at, piece.len())).collect();
    let mut rebuilt: Vec<(Piece, Vec<u8>)> = gone
        .iter()
        .map(|(piece, bytes)| (*piece, vec![0x5a; bytes.len()]))
        .collect();
    let mut buffers: Vec<(Piece, &mut [u8])> = rebuilt
        .iter_mut()
        .map(|(piece, to)| (*piece, &mut to[..]))
        .collect();
    code.rebuild(&lengths, &present, &mut buffers)?;
    for ((piece, bytes), (_, rebuilt)) in gone.iter().zip(&rebuilt) {
        assert!(*bytes == &rebuilt[..], "{piece} differs");
    }
    Ok(())
}

fn bytes(seed: usize, length: usize) -> Vec<u8> {
    let byte = |at: usize| (at + seed + 1).wrapping_mul(0x9e37_79b9).to_le_bytes()[2];
    (0..length).map(byte).collect()
}

#[test]
fn row_0_is_xor_and_one_piece_is_copied() {
    for column in 0..COLUMNS_MAX {
        assert_eq!(coefficient(0, column), 1);
        for row in 0..ROWS_MAX {
            assert_ne!(coefficient(row, column), 0);
        }
    }
    assert_eq!(
        (coefficient(ROWS_MAX, 0), coefficient(0, COLUMNS_MAX)),
        (0, 0)
    );
    let data = [(7, bytes(1, 100))];
    assert_eq!(encoded(Code::new(1).unwrap(), &data)[0], data[0].1);
}

#[test]
fn every_part_of_two_and_three_rows_can_be_inverted() {
    let invertible = |rows: &[usize], columns: &[usize]| {
        let part: Vec<Vec<u8>> = rows
            .iter()
            .map(|&row| columns.iter().map(|&at| coefficient(row, at)).collect())
            .collect();
        matrix::inverse(&part).is_some()
    };
    for a in 0..ROWS_MAX {
        for b in a + 1..ROWS_MAX {
            for left in 0..COLUMNS_MAX {
                for right in left + 1..COLUMNS_MAX {
                    assert!(invertible(&[a, b], &[left, right]));
                }
            }
        }
    }
    for rows in [[0, 1, 2], [1, 4, 7], [5, 6, 7]] {
        for first in 0..COLUMNS_MAX {
            for second in first + 1..COLUMNS_MAX {
                for third in second + 1..COLUMNS_MAX {
                    assert!(invertible(&rows, &[first, second, third]));
                }
            }
        }
    }
}

#[test]
fn every_loss_within_the_parities_of_4_and_3_is_rebuilt_and_no_greater_one() {
    let code = Code::new(3).unwrap();
    // Columns with gaps, lengths that differ.
    let data: Vec<(usize, Vec<u8>)> = [(1, 300), (4, 0), (9, 1000), (31, 129)]
        .map(|(column, length)| (column, bytes(column, length)))
        .to_vec();
    let parity = encoded(code, &data);
    for (row, parity) in parity.iter().enumerate() {
        assert_eq!(*parity, parity_by_definition(row, &data));
    }
    let pieces: Vec<Piece> = data
        .iter()
        .map(|&(column, _)| Piece::Data(column))
        .chain((0..3).map(Piece::Parity))
        .collect();
    for pattern in 0_u32..1 << pieces.len() {
        let lost: Vec<Piece> = (0..pieces.len())
            .filter(|at| pattern >> at & 1 == 1)
            .map(|at| pieces[at])
            .collect();
        let outcome = lose(code, &data, &parity, &lost);
        assert_eq!(outcome.is_ok(), lost.len() <= 3, "{lost:?}: {outcome:?}");
    }
}

#[test]
fn all_32_pieces_by_any_division() {
    for parities in [1, 2, 5, 8, 16, 31] {
        let code = Code::new(parities).unwrap();
        let data: Vec<(usize, Vec<u8>)> = (0..COLUMNS_MAX - parities)
            .map(|column| (column, bytes(column, 700 + column)))
            .collect();
        let parity = encoded(code, &data);
        let lost: Vec<Piece> = data
            .iter()
            .map(|&(column, _)| Piece::Data(column))
            .take(parities)
            .collect();
        lose(code, &data, &parity, &lost).unwrap();
    }
}

#[test]
fn too_many_losses_say_how_many() {
    let code = Code::new(2).unwrap();
    let present = [Piece::Data(0), Piece::Parity(1)];
    let error = code
        .plan(&[0, 1, 2], &present, &[Piece::Data(1)])
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let words = "3 of the 5 pieces of a stripe are missing, 2 are covered";
    assert_eq!(error.context(), words);
}

#[test]
fn wrong_calls_are_refused() {
    assert!(Code::new(0).is_err() && Code::new(ROWS_MAX + 1).is_err());
    let code = Code::new(2).unwrap();
    let (data, mut short, mut long) = ([0_u8; 8], [0_u8; 7], [0_u8; 8]);
    let refused = |data: &[(usize, &[u8])], row: usize, to: &mut [u8]| {
        let kind = code.encode(data, &mut [(row, to)]).unwrap_err().kind();
        assert_eq!(kind, ErrorKind::InvalidArgument);
    };
    refused(&[(0, &data)], 0, &mut short);
    refused(&[(0, &data)], 2, &mut long);
    refused(&[(32, &data)], 0, &mut long);
    refused(&[(3, &data), (3, &data)], 0, &mut long);
    assert!(
        code.accumulate(&[(0, &data)], &mut [(0, &mut short)])
            .is_err()
    );
    for (present, lost) in [
        (Piece::Data(2), Piece::Data(1)),
        (Piece::Data(0), Piece::Data(0)),
        (Piece::Data(0), Piece::Parity(2)),
    ] {
        assert!(
            code.plan(&[0, 1], &[present, Piece::Parity(0)], &[lost])
                .is_err()
        );
    }
    let here = [(Piece::Data(0), &data[..]), (Piece::Parity(0), &data[..])];
    let mut lost = [(Piece::Data(1), &mut short[..])];
    assert!(code.rebuild(&[(0, 8), (1, 8)], &here, &mut lost).is_err());
}

#[test]
fn what_is_added_twice_is_taken_out() {
    let code = Code::new(2).unwrap();
    let data = [(0, bytes(0, 500)), (5, bytes(5, 400)), (6, bytes(6, 500))];
    let mut parity = encoded(code, &data);
    let [first, second] = &mut parity[..] else {
        panic!("two rows");
    };
    let mut rows = [(0, &mut first[..]), (1, &mut second[..])];
    code.accumulate(&[(5, &data[1].1)], &mut rows).unwrap();
    assert_eq!(parity, encoded(code, &[data[0].clone(), data[2].clone()]));
}

/// Data pieces in some columns, the number of parities, and an order to lose pieces in.
fn stripes() -> impl Strategy<Value = (Data, usize, Vec<usize>)> {
    (1_usize..=8).prop_flat_map(|parities| {
        let count = 1..=COLUMNS_MAX - parities;
        let columns = proptest::sample::subsequence((0..COLUMNS_MAX).collect::<Vec<_>>(), count);
        columns.prop_flat_map(move |columns| {
            let lengths = proptest::collection::vec(0_usize..3000, columns.len());
            let order: Vec<usize> = (0..columns.len() + parities).collect();
            let order = Just(order).prop_shuffle();
            (Just(columns), lengths, order).prop_map(move |(columns, lengths, order)| {
                let pieces = columns.iter().zip(lengths);
                let data = pieces.map(|(&column, length)| (column, bytes(column, length)));
                (data.collect(), parities, order)
            })
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn any_losses_that_are_covered_are_rebuilt((data, parities, order) in stripes()) {
        let code = Code::new(parities).unwrap();
        let parity = encoded(code, &data);
        for (row, parity) in parity.iter().enumerate() {
            prop_assert_eq!(parity, &parity_by_definition(row, &data));
        }
        let piece = |&at: &usize| match data.get(at) {
            Some(&(column, _)) => Piece::Data(column),
            None => Piece::Parity(at - data.len()),
        };
        let lost: Vec<Piece> = order.iter().take(parities).map(piece).collect();
        lose(code, &data, &parity, &lost).unwrap();
        let lost: Vec<Piece> = order.iter().take(parities + 1).map(piece).collect();
        if lost.iter().any(|piece| matches!(piece, Piece::Data(_))) {
            prop_assert!(lose(code, &data, &parity, &lost).is_err());
        }
    }

    #[test]
    fn pieces_that_come_one_by_one_give_the_same((data, parities, order) in stripes()) {
        let code = Code::new(parities).unwrap();
        let whole = encoded(code, &data);
        let longest = whole[0].len();
        let mut parity = vec![vec![0; longest]; parities];
        let mut rows: Vec<(usize, &mut [u8])> =
            parity.iter_mut().map(|to| &mut to[..]).enumerate().collect();
        for &at in order.iter().filter(|&&at| at < data.len()) {
            code.accumulate(&[(data[at].0, &data[at].1)], &mut rows).unwrap();
        }
        prop_assert_eq!(&parity, &whole);

        // The way back, one source at a time.
        let columns: Vec<usize> = data.iter().map(|&(column, _)| column).collect();
        let lost = Piece::Data(columns[0]);
        let mut present: Vec<Piece> = columns[1..].iter().map(|&at| Piece::Data(at)).collect();
        present.push(Piece::Parity(parities - 1));
        let plan = code.plan(&columns, &present, &[lost]).unwrap();
        let mut rebuilt = vec![0; data[0].1.len()];
        for (source, piece) in plan.sources().iter().enumerate() {
            let bytes = match piece {
                Piece::Data(at) => &data.iter().find(|(column, _)| column == at).unwrap().1,
                Piece::Parity(row) => &whole[*row],
            };
            plan.accumulate(source, bytes, &mut [&mut rebuilt]).unwrap();
        }
        prop_assert_eq!(&rebuilt, &data[0].1);
        let beyond = plan.sources().len();
        prop_assert!(plan.accumulate(beyond, &[], &mut [&mut rebuilt]).is_err());
    }
}
