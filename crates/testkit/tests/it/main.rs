// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suites of the testkit on what the engine and the testkit itself offer.

mod communicators;
mod devices;
mod fabric;
mod stalling;
mod transports;
