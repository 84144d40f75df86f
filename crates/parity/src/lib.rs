// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what protects nodes against the loss of some of them: who protects whom, which extents
//! share parity, and the arithmetic of parity.
//! In: names, lengths, bytes. Out: groups, stripes, parity, rebuilt bytes. No input or output, no
//! threads of its own.
//! Invariants: the same input gives the same groups and stripes on every rank.
//!
//! | module | what it does |
//! |---|---|
//! | [`group`] | which members protect each other, and against how many losses |
//! | [`stripe`] | which extents of a group share parity, who encodes it, who holds it |
//! | [`code`] | parity of data pieces; lost pieces from the others |
//! | [`remake`] | a lost piece of a recorded stripe, checked on the way |
//! | [`gf256`] | arithmetic of bytes as a field, and its kernels |

pub mod agent;
pub mod locate;
pub mod group;
pub mod stripe;
pub mod code;
pub mod remake;
mod matrix;
pub mod gf256;
