// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Integration tests of the model crate, in one binary.

mod configurations;
mod dense;
mod agreement;
mod optimum;
