// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: sums of products as they are defined, a byte at a time: what all other kernels must equal,
//! and what runs where there is none of them.

use super::{Mode, Pass, multiply};

/// One pass.
pub(super) fn run(pass: &mut Pass<'_>) {
    let outputs = pass.outputs[..pass.width].iter_mut();
    for (output, coefficients) in outputs.zip(&pass.coefficients) {
        if pass.mode == Mode::Fill {
            output.fill(0);
        }
        for (source, &coefficient) in pass.sources.iter().zip(coefficients) {
            add_product(coefficient, source, output);
        }
    }
}

/// Adds `coefficient` times `source` to `output`.
fn add_product(coefficient: u8, source: &[u8], output: &mut [u8]) {
    let products: [u8; 256] = std::array::from_fn(|byte| {
        let [byte, ..] = byte.to_le_bytes();
        multiply(coefficient, byte)
    });
    for (to, &from) in output.iter_mut().zip(source) {
        *to ^= products[usize::from(from)];
    }
}
