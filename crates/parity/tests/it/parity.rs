// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The erasure code against ISA-L: the same parity from the same coefficients, and the way back by
//! ISA-L's own inverse. The library has to be there: `make setup` installs it.

use backstay_parity::code::{COLUMNS_MAX, Code, Piece, coefficient};
use backstay_parity::gf256::Kernel;
use backstay_testkit::isal::Isal;
use backstay_testkit::seeded::Seeded;

/// Parity rows, and columns of the data.
const SHAPES: [(usize, &[usize]); 7] = [
    (1, &[0]),
    (1, &[0, 1, 2, 3, 4, 5, 6]),
    (2, &[0, 1, 2, 3, 4, 5, 6, 7]),
    (2, &[3, 31]),
    (3, &[1, 4, 9, 16, 25]),
    (4, &[0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22]),
    (8, &[5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19]),
];
const LENGTHS: [usize; 6] = [1, 63, 64, 4096, 10_007, 300_001];

fn random_pieces(count: usize, length: usize) -> Vec<Vec<u8>> {
    let mut random = Seeded::new(7);
    let mut piece = || -> Vec<u8> {
        let words = (0..length.div_ceil(8)).flat_map(|_| random.next_u64().to_le_bytes());
        words.take(length).collect()
    };
    (0..count).map(|_| piece()).collect()
}

fn slices(pieces: &[Vec<u8>]) -> Vec<&[u8]> {
    pieces.iter().map(Vec::as_slice).collect()
}

fn slices_mut(pieces: &mut [Vec<u8>]) -> Vec<&mut [u8]> {
    pieces.iter_mut().map(Vec::as_mut_slice).collect()
}

fn our_parity(code: Code, columns: &[usize], data: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut parity = vec![vec![0; data[0].len()]; code.parities()];
    let pieces: Vec<(usize, &[u8])> = columns.iter().copied().zip(slices(data)).collect();
    let mut rows: Vec<(usize, &mut [u8])> =
        slices_mut(&mut parity).into_iter().enumerate().collect();
    code.encode(&pieces, &mut rows).unwrap();
    parity
}

#[test]
fn parity_is_that_of_isal() {
    let isal = Isal::load().unwrap();
    let kernels = Kernel::ALL
        .into_iter()
        .filter(|kernel| kernel.is_available());
    for kernel in kernels {
        for (parities, columns) in SHAPES {
            let code = Code::with_kernel(parities, kernel).unwrap();
            let row = |row| columns.iter().map(|&at| coefficient(row, at)).collect();
            let tables = isal
                .tables(&(0..parities).map(row).collect::<Vec<_>>())
                .unwrap();
            for length in LENGTHS {
                let data = random_pieces(columns.len(), length);
                let mut expected = vec![vec![0; length]; parities];
                isal.encode(&tables, &slices(&data), &mut slices_mut(&mut expected))
                    .unwrap();
                let parity = our_parity(code, columns, &data);
                assert!(
                    parity == expected,
                    "{} of {parities} rows, {columns:?}, {length} bytes",
                    kernel.name()
                );
            }
        }
    }
}

#[test]
fn isal_rebuilds_what_we_encoded_and_we_agree() {
    let isal = Isal::load().unwrap();
    for (parities, columns) in SHAPES {
        let code = Code::new(parities).unwrap();
        let data = random_pieces(columns.len(), 5000);
        let parity = our_parity(code, columns, &data);
        // The first data pieces are lost; what is left stands in the order of ISA-L's matrix.
        let lost = parities.min(columns.len());
        let unit = |row: usize| (0..columns.len()).map(|at| u8::from(at == row)).collect();
        let weights = |row| columns.iter().map(|&at| coefficient(row, at)).collect();
        let left: Vec<Vec<u8>> = (lost..columns.len())
            .map(unit)
            .chain((0..lost).map(weights))
            .collect();
        let inverse = isal.inverse(&left).unwrap().unwrap();
        let tables = isal.tables(&inverse[..lost]).unwrap();
        let sources: Vec<&[u8]> = slices(&data[lost..])
            .into_iter()
            .chain(slices(&parity[..lost]))
            .collect();
        let mut rebuilt = vec![vec![0; 5000]; lost];
        isal.encode(&tables, &sources, &mut slices_mut(&mut rebuilt))
            .unwrap();
        assert!(rebuilt == data[..lost], "{parities} rows, {columns:?}");

        let present: Vec<(Piece, &[u8])> = (lost..columns.len())
            .map(|at| (Piece::Data(columns[at]), &data[at][..]))
            .chain((0..lost).map(|row| (Piece::Parity(row), &parity[row][..])))
            .collect();
        let lengths: Vec<(usize, usize)> = columns.iter().map(|&at| (at, 5000)).collect();
        let mut ours = vec![vec![0; 5000]; lost];
        let mut wanted: Vec<(Piece, &mut [u8])> = slices_mut(&mut ours)
            .into_iter()
            .enumerate()
            .map(|(at, to)| (Piece::Data(columns[at]), to))
            .collect();
        code.rebuild(&lengths, &present, &mut wanted).unwrap();
        assert!(ours == rebuilt, "{parities} rows, {columns:?}");
    }
}

#[test]
fn isal_finds_an_inverse_of_every_pair_of_rows() {
    let isal = Isal::load().unwrap();
    for second in 1..8 {
        for right in 1..COLUMNS_MAX {
            let part = |row| vec![coefficient(row, 0), coefficient(row, right)];
            assert!(isal.inverse(&[part(0), part(second)]).unwrap().is_some());
        }
    }
}

/// docs/format/parity.md lists some coefficients; they are those of the code.
#[test]
fn coefficients_are_those_of_the_format() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/format/parity.md");
    let page = std::fs::read_to_string(path).unwrap();
    let cells = |line: &str| -> Vec<String> {
        let cells = line.trim_matches('|').split('|');
        cells.map(|cell| cell.trim().to_owned()).collect()
    };
    let mut rows = page
        .lines()
        .skip_while(|line| !line.starts_with("| row |"))
        .take_while(|line| line.starts_with('|'));
    let number = |text: &str| text.parse::<usize>().unwrap();
    let columns: Vec<usize> = cells(rows.next().unwrap())[1..]
        .iter()
        .map(|name| number(name.trim_start_matches("column ")))
        .collect();
    let mut checked = 0;
    for row in rows.skip(1).map(cells) {
        for (&column, value) in columns.iter().zip(&row[1..]) {
            let found = usize::from(coefficient(number(&row[0]), column));
            assert_eq!(found, number(value), "row {}, column {column}", row[0]);
            checked += 1;
        }
    }
    assert_eq!(checked, 24);
}
