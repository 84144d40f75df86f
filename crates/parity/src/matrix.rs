// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the inverse of a small square matrix over GF(2^8), by Gauss and Jordan.

use super::gf256::{invert, multiply};

/// The inverse, by rows; `None` if there is none.
pub(super) fn inverse(rows: &[Vec<u8>]) -> Option<Vec<Vec<u8>>> {
    let size = rows.len();
    let unit = |row: usize| (0..size).map(move |column| u8::from(row == column));
    // Each row with its row of the unit matrix behind it, which becomes the inverse's.
    let mut rows: Vec<Vec<u8>> = rows
        .iter()
        .enumerate()
        .map(|(at, row)| row.iter().copied().chain(unit(at)).collect())
        .collect();
    for column in 0..size {
        let pivot = (column..size).find(|&row| rows[row][column] != 0)?;
        rows.swap(column, pivot);
        let scale = invert(rows[column][column]);
        for cell in &mut rows[column] {
            *cell = multiply(*cell, scale);
        }
        let pivot = rows[column].clone();
        for (at, row) in rows.iter_mut().enumerate() {
            let by = row[column];
            if at != column && by != 0 {
                for (cell, &above) in row.iter_mut().zip(&pivot) {
                    *cell ^= multiply(by, above);
                }
            }
        }
    }
    Some(rows.into_iter().map(|row| row[size..].to_vec()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inverse_gives_the_unit_matrix_and_a_singular_one_has_none() {
        let matrix = vec![vec![0, 3, 1], vec![1, 1, 1], vec![7, 0, 200]];
        let inverse = inverse(&matrix).unwrap();
        for (at, row) in matrix.iter().enumerate() {
            for column in 0..3 {
                let cells = row.iter().zip(&inverse);
                let sum = cells.fold(0, |sum, (&a, other)| sum ^ multiply(a, other[column]));
                assert_eq!(sum, u8::from(at == column));
            }
        }
        assert_eq!(super::inverse(&[vec![1, 2], vec![1, 2]]), None);
        assert_eq!(super::inverse(&[]), Some(vec![]));
    }
}
