// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes docs/compression.md and its pictures from a report of `bench-codecs`: REPORT FOLDER.

use backstay_bench::compression::{page, report::Report};
use backstay_bench::{Outcome, committed};

fn main() -> Outcome<()> {
    let (report, folder) = committed::from_arguments::<Report>()?;
    page::write(&report, &folder)
}
