// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: which blocks changed since the last commit.

pub mod pages;
