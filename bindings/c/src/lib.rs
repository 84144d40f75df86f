// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the C interface of Backstay, thin over the engine; one file per thing a C program holds.
//! In from: a C, C++ or Fortran program, through `include/backstay/backstay.h`, which is generated
//! from the documentation here. Out to: the engine's `Session`.
//! Invariants: no panic and no abort crosses the boundary; every pointer is checked before it is
//! used; a status is 0 or the number of an `ErrorKind`; structs that may grow begin with their size.
#![expect(
    unsafe_code,
    reason = "this crate is the boundary: C hands it raw pointers"
)]
#![expect(
    clippy::missing_safety_doc,
    reason = "the header states the contract of all calls once, at its top"
)]
#![expect(
    clippy::doc_markdown,
    reason = "these comments become the header's, where names stand without backticks"
)]

pub mod status;
pub mod comm;
mod keys;
pub mod options;
pub mod session;
pub mod variable;
pub mod checkpoint;
pub mod restore;
pub mod files;
mod boundary;
mod pointer;
mod sized;
#[cfg(test)]
mod tests;
