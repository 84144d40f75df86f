// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the node's reserved file: where it lies, what is in it, how it commits.

pub mod memory;
pub mod place;
