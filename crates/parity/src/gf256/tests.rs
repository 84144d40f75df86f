// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The field against its definition, and every kernel against the naive one.

use super::*;
use proptest::prelude::*;

/// The product as polynomials are multiplied, bit by bit.
fn product_of_polynomials(a: u8, b: u8) -> u8 {
    let mut product = 0_u16;
    for bit in (0..8).rev() {
        product <<= 1;
        if product > 0xff {
            product ^= POLYNOMIAL;
        }
        if b >> bit & 1 == 1 {
            product ^= u16::from(a);
        }
    }
    u8::try_from(product).unwrap()
}

#[test]
fn products_and_inverses_are_those_of_the_field() {
    for a in 0..=255 {
        for b in 0..=255 {
            assert_eq!(multiply(a, b), product_of_polynomials(a, b), "{a} * {b}");
        }
        assert_eq!(multiply(a, invert(a)), u8::from(a != 0), "{a}");
    }
}

/// What a kernel makes of buffers that begin `skew` bytes after where an allocation begins.
fn combined(kernel: Kernel, rows: &[Vec<u8>], bytes: &[u8], case: (usize, usize, Mode)) -> Vec<u8> {
    let (length, skew, mode) = case;
    let count = rows.first().map_or(0, Vec::len);
    let sources: Vec<&[u8]> = (0..count)
        .map(|source| &bytes[source * 7 + skew..][..length])
        .collect();
    let mut held: Vec<Vec<u8>> = (0..rows.len())
        .map(|row| bytes[row * 3..][..=length + skew].to_vec())
        .collect();
    let mut outputs: Vec<&mut [u8]> = held
        .iter_mut()
        .map(|output| &mut output[skew..skew + length])
        .collect();
    let rows: Vec<&[u8]> = rows.iter().map(Vec::as_slice).collect();
    combine(kernel, &rows, &sources, &mut outputs, mode);
    held.concat()
}

fn kernels() -> impl Iterator<Item = Kernel> {
    Kernel::ALL
        .into_iter()
        .filter(|kernel| kernel.is_available())
}

#[test]
fn every_coefficient_gives_its_products_in_every_kernel() {
    let bytes: Vec<u8> = (0..=255).cycle().take(1024).collect();
    for coefficient in 0..=255 {
        let rows = [vec![coefficient]];
        let expected: Vec<u8> = (0..=255).map(|byte| multiply(coefficient, byte)).collect();
        for kernel in kernels() {
            let found = combined(kernel, &rows, &bytes, (256, 0, Mode::Fill));
            assert_eq!(found[..256], expected, "{} by {coefficient}", kernel.name());
        }
    }
}

#[test]
fn nothing_from_nothing_is_zero() {
    for kernel in kernels() {
        let mut output = [7; 5];
        combine(kernel, &[&[]], &[], &mut [&mut output], Mode::Add);
        assert_eq!(output, [7; 5]);
        combine(kernel, &[&[]], &[], &mut [&mut output], Mode::Fill);
        assert_eq!(output, [0; 5]);
    }
}

#[test]
fn all_lengths_around_vectors() {
    let bytes: Vec<u8> = (0..=250).cycle().take(2048).collect();
    let rows = [vec![1, 1, 1], vec![2, 1, 0x8e], vec![0, 255, 3]];
    for length in 0..=300 {
        let case = (length, 1, Mode::Add);
        let expected = combined(Kernel::Naive, &rows, &bytes, case);
        for kernel in kernels() {
            let found = combined(kernel, &rows, &bytes, case);
            assert!(found == expected, "{} of {length} bytes", kernel.name());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]
    #[test]
    fn kernels_give_the_bytes_of_the_naive_one(
        outputs in 1_usize..=9,
        sources in 1_usize..=34,
        length in 0_usize..=9000,
        skew in 0_usize..64,
        add in any::<bool>(),
        ones in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let mut state = seed | 1;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state.to_le_bytes()[6]
        };
        let mut rows: Vec<Vec<u8>> = (0..outputs)
            .map(|_| (0..sources).map(|_| next()).collect())
            .collect();
        if ones {
            rows[0].fill(1);
        }
        let bytes: Vec<u8> = (0..9500).map(|_| next()).collect();
        let case = (length, skew, if add { Mode::Add } else { Mode::Fill });
        let expected = combined(Kernel::Naive, &rows, &bytes, case);
        for kernel in kernels() {
            let found = combined(kernel, &rows, &bytes, case);
            prop_assert!(found == expected, "{}", kernel.name());
        }
    }
}
