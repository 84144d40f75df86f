// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: checks of the tree that no compiler makes.
fn main() {}
