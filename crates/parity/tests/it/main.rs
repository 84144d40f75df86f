// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests from outside: parity, beside another implementation.
#![expect(clippy::unwrap_used, reason = "a test may stop where it fails")]

mod parity;
