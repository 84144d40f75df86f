// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sources of failures and transfer policies of the simulator, beyond what the chain covers.

use backstay_model::simulate::{FailureLog, Failures, Settings, TransferPolicy, periods, runs};
use backstay_model::{Case, Completion, Mode};

use crate::configurations::{case, transfer};

fn draining() -> Case {
    let mode = transfer(0.05, 900.0, 4.0, Completion::Continuous);
    case(&[5e-4, 5e-5], &[4.0, 0.0], &[8.0, 120.0], 60.0, &[19], mode)
}

fn efficiency(failures: Failures, policy: TransferPolicy) -> (f64, f64) {
    let settings = Settings {
        failures,
        policy,
        seed: 9,
        interval_budget: 2_000_000,
    };
    let played = periods(&draining(), &settings, u64::MAX).unwrap();
    (
        played.efficiency,
        played.efficiency * played.standard_error_seconds / played.mean_seconds,
    )
}

#[test]
fn a_weibull_of_shape_one_is_exponential() {
    let (exponential, error) = efficiency(Failures::Exponential, TransferPolicy::Tied);
    let (weibull, other) = efficiency(Failures::Weibull { shape: 1.0 }, TransferPolicy::Tied);
    let off = (exponential - weibull).abs() / error.hypot(other);
    assert!(
        off < 4.0,
        "{exponential} and {weibull} are {off} standard errors apart"
    );
}

/// A failure soon after another loses little work, so bursts cost less than even failures.
#[test]
fn bursts_lose_less_work() {
    let play = |lam: &[f64], shape: f64| {
        let mut case = draining();
        case.failures_per_second = lam.to_vec();
        case.recovery_seconds = vec![0.0, 0.0];
        case.interval_seconds = 200.0;
        let settings = Settings {
            failures: Failures::Weibull { shape },
            interval_budget: 2_000_000,
            ..Settings::default()
        };
        periods(&case, &settings, u64::MAX).unwrap().efficiency
    };
    let (even, bursts) = (play(&[5e-4, 0.0], 1.0), play(&[5e-4, 0.0], 0.5));
    assert!(bursts > even + 0.002, "{bursts} {even}");
}

#[test]
fn resumed_is_at_least_tied_and_restarted_is_worst() {
    let (tied, error) = efficiency(Failures::Exponential, TransferPolicy::Tied);
    let (resumed, _) = efficiency(Failures::Exponential, TransferPolicy::Resume);
    let (restarted, _) = efficiency(Failures::Exponential, TransferPolicy::Restart);
    assert!(resumed > tied - 4.0 * error, "{resumed} {tied}");
    assert!(restarted < tied, "{restarted} {tied}");
}

#[test]
fn a_log_is_played_as_written() {
    // One failure in the third interval: two are kept, part of the third is lost.
    let log = FailureLog {
        events: vec![(149.0, 1)],
        span_seconds: 1e9,
    };
    let case = case(
        &[0.0, 0.0],
        &[5.0, 9.0],
        &[7.0, 70.0],
        60.0,
        &[9],
        Mode::Blocking,
    );
    let settings = Settings {
        failures: Failures::Log(log),
        ..Settings::default()
    };
    // A run enters the log at a random place, most likely after its only event: no failure.
    let calm = runs(&case, &settings, 600.0, 1).unwrap();
    assert!(
        (calm.wall_seconds[0] - (9.0 * 65.0 + 69.0)).abs() < 1e-9,
        "{calm:?}"
    );
    // A period starts at the start of the log: 149 - 130 s of work are lost, then 7 s of recovery.
    let two = periods(&case, &settings, 2).unwrap();
    let expected = 9.0 * 65.0 + 69.0 + f64::midpoint(19.0, 7.0);
    assert!((two.mean_seconds - expected).abs() < 1e-9, "{two:?}");
}

#[test]
fn logs_are_read_with_and_without_header() {
    let text = "seconds,level\n# a comment\n100, 1\n\n300,2,extra\n";
    let log = FailureLog::from_csv(text).unwrap();
    assert_eq!(log.events, [(100.0, 1), (300.0, 2)]);
    assert!((log.span_seconds - 450.0).abs() < 1e-9);
}

#[test]
fn the_same_seed_gives_the_same_runs() {
    let settings = Settings {
        seed: 4,
        ..Settings::default()
    };
    let first = runs(&draining(), &settings, 36_000.0, 50).unwrap();
    let second = runs(&draining(), &settings, 36_000.0, 50).unwrap();
    assert_eq!(first, second);
    assert_eq!(first.wall_seconds.len(), 50);
    assert!(first.wall_seconds.iter().all(|&wall| wall >= 36_000.0));
}
