// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The exact chain against the Monte Carlo of the same rules.

use backstay_model::simulate::{Settings, periods};
use backstay_model::solve;

use crate::configurations;

#[test]
fn the_chain_lies_within_the_simulators_interval() {
    let cases = configurations::all();
    assert!(cases.len() >= 40);
    let mut squares = 0.0;
    for (number, (name, case)) in (1_u64..).zip(&cases) {
        let exact = solve(case).unwrap().period_seconds;
        let settings = Settings {
            seed: number,
            interval_budget: 400_000,
            ..Settings::default()
        };
        let played = periods(case, &settings, 40_000).unwrap();
        if (played.mean_seconds / exact - 1.0).abs() < 1e-12 {
            continue;
        }
        let deviation = (played.mean_seconds - exact) / played.standard_error_seconds;
        squares += deviation * deviation;
        // Four standard errors: one in 16,000 by chance, and the seeds are fixed.
        assert!(
            deviation.abs() < 4.0,
            "{name}: chain {exact}, played {} +- {} over {} periods",
            played.mean_seconds,
            played.standard_error_seconds,
            played.periods,
        );
    }
    // The deviations as a whole must look like standard normal ones, or the interval is wrong.
    let mean_square = squares / f64::from(u32::try_from(cases.len()).unwrap());
    assert!(
        (0.5..1.6).contains(&mean_square),
        "mean squared deviation {mean_square}"
    );
}
