// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `bench-codecs` finds beyond figures, and the page that shows it.
//!
//! | module | what it does |
//! |---|---|
//! | [`report`] | what was found, as it stands in target/bench/codecs.json |
//! | [`picture`] | the pictures of that page |
//! | [`page`] | docs/compression.md and its pictures |

pub mod report;
pub mod picture;
pub mod page;
