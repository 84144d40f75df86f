// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: decisions of the way back: how the parts of a global array map to other ranks.
//! In: descriptors. Out: runs of bytes to copy. No input or output of its own.

pub mod redistribute;
pub mod locate;
