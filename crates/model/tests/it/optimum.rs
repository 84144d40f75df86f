// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The optimizer against a fine grid over interval and counts.

use backstay_model::differential::{ChangedShare, Differential, Hashing};
use backstay_model::optimize::{Bounds, Problem, held, optimize};
use backstay_model::{Completion, Mode, solve};

use crate::configurations::transfer;

fn problem(lam: &[f64], c: &[f64], r: &[f64], mode: Mode) -> Problem {
    Problem {
        failures_per_second: lam.to_vec(),
        checkpoint_seconds: c.to_vec(),
        recovery_seconds: r.to_vec(),
        recovers_by_failure: false,
        mode,
        differential: None,
        bounds: Bounds::default(),
    }
}

/// The best efficiency on a grid: intervals a few per mille apart, the given counts, all subsets of
/// levels.
fn grid_best(problem: &Problem, counts: &[u64], (low, high): (f64, f64)) -> f64 {
    let lower = problem.level_count() - 1;
    let mut best = 0.0_f64;
    for subset in 0..1_u32 << lower {
        let used: Vec<usize> = (1..=lower)
            .filter(|l| subset >> (l - 1) & 1 == 1)
            .chain([lower + 1])
            .collect();
        let mut patterns = vec![vec![]];
        for _ in 1..used.len() {
            let longer = |p: &Vec<u64>| {
                counts
                    .iter()
                    .map(|&v| [p.as_slice(), &[v]].concat())
                    .collect::<Vec<_>>()
            };
            patterns = patterns.iter().flat_map(longer).collect();
        }
        let ratio = if lower > 1 { 1.03 } else { 1.004 };
        for between in patterns {
            let mut t = low;
            while t < high {
                let solved = solve(&problem.case_at(&used, t, &between));
                best = best.max(solved.map_or(0.0, |s| s.efficiency));
                t *= ratio;
            }
        }
    }
    best
}

fn problems() -> Vec<(&'static str, Problem, (f64, f64))> {
    let tsubame = |scale: f64, completion| {
        let lam = [1.757e-5 * scale, 1.3774e-6 * scale];
        let latency = 29.0 * 1408.0 / 6.7;
        let mode = transfer(0.00184, latency, 72.5, completion);
        problem(&lam, &[72.5, latency], &[72.5, latency], mode)
    };
    let blocking = |scale: f64| {
        let mut problem = tsubame(scale, Completion::State);
        problem.mode = Mode::Blocking;
        problem
    };
    let short = |alpha: f64, latency: f64, completion| {
        let mode = transfer(alpha, latency, 4.0, completion);
        problem(&[1e-3, 2e-4], &[2.0, 9.0], &[5.0, 60.0], mode)
    };
    let mut differential = short(0.1, 500.0, Completion::State);
    differential.differential = Some(Differential {
        changed: ChangedShare::Saturating {
            ceiling_share: 0.6,
            time_seconds: 100.0,
        },
        hash_seconds: 0.1,
        hashing: Hashing::Once,
        drains_changes_only: true,
    });
    vec![
        (
            "TSUBAME2.0 x1",
            tsubame(1.0, Completion::State),
            (100.0, 2e4),
        ),
        (
            "TSUBAME2.0 x10",
            tsubame(10.0, Completion::State),
            (50.0, 1e4),
        ),
        (
            "TSUBAME2.0 x4 continuous",
            tsubame(4.0, Completion::Continuous),
            (50.0, 1e4),
        ),
        ("TSUBAME2.0 blocking x1", blocking(1.0), (100.0, 2e4)),
        ("TSUBAME2.0 blocking x16", blocking(16.0), (50.0, 2e4)),
        (
            "slow transfer",
            short(0.1, 2000.0, Completion::State),
            (5.0, 3e3),
        ),
        (
            "fast transfer",
            short(0.1, 50.0, Completion::State),
            (5.0, 3e3),
        ),
        (
            "costly transfer",
            short(0.8, 500.0, Completion::State),
            (5.0, 3e3),
        ),
        (
            "costly transfer continuous",
            short(0.8, 500.0, Completion::Continuous),
            (5.0, 3e3),
        ),
        ("differential", differential, (5.0, 3e3)),
    ]
}

fn problems_of_three_levels() -> Vec<(&'static str, Problem, (f64, f64))> {
    let three = |mode| {
        problem(
            &[1e-3, 3e-4, 5e-5],
            &[1.0, 4.0, 40.0],
            &[2.0, 8.0, 80.0],
            mode,
        )
    };
    let background = transfer(0.05, 600.0, 4.0, Completion::State);
    vec![
        ("three blocking", three(Mode::Blocking), (5.0, 1e3)),
        ("three", three(background), (5.0, 1e3)),
    ]
}

#[test]
fn never_worse_than_a_fine_grid() {
    for (name, problem, span) in problems().into_iter().chain(problems_of_three_levels()) {
        let counts: Vec<u64> = if problem.level_count() == 2 {
            (0..60).chain([70, 80, 100, 130, 160]).collect()
        } else {
            (0..8).chain([9, 11, 14, 18, 24, 30]).collect()
        };
        let grid = grid_best(&problem, &counts, span);
        let begun = std::time::Instant::now();
        let best = optimize(&problem).unwrap();
        let took = begun.elapsed();
        let found = best.solution.efficiency;
        println!(
            "{name}: grid {grid:.6}, found {found:.6}, {:?} {:?} t={:.3} in {took:?}",
            best.used_levels, best.case.between, best.case.interval_seconds
        );
        assert!(found >= grid - 1e-4, "{name}: grid {grid}, found {found}");
    }
}

#[test]
fn a_useless_level_is_left_out() {
    // Level 1 survives nothing that happens; level 2 costs about the same as level 1.
    let problem = problem(
        &[0.0, 1e-4, 1e-6],
        &[9.0, 10.0, 100.0],
        &[9.0, 10.0, 100.0],
        Mode::Blocking,
    );
    assert_eq!(optimize(&problem).unwrap().used_levels, [2, 3]);
}

#[test]
fn the_interval_may_be_limited_and_nothing_to_fear_means_the_limit() {
    let mut problem = problem(&[0.0], &[5.0], &[5.0], Mode::Blocking);
    problem.bounds.interval_seconds_max = 7200.0;
    let best = optimize(&problem).unwrap();
    assert!((best.case.interval_seconds - 7200.0).abs() < 1e-6);
}

#[test]
fn levels_put_together_recover_in_the_mean_over_their_failures() {
    let mut problem = problem(
        &[3e-4, 1e-4, 1e-6],
        &[1.0, 2.0, 10.0],
        &[2.0, 10.0, 100.0],
        Mode::Blocking,
    );
    let recovery = |problem: &Problem| problem.case_at(&[2, 3], 50.0, &[4]).recovery_seconds;
    assert_eq!(recovery(&problem), [10.0, 100.0]);
    problem.recovers_by_failure = true;
    let by_failure = recovery(&problem);
    assert!((by_failure[0] - 4.0).abs() < 1e-12, "{by_failure:?}");
    assert!((by_failure[1] - 100.0).abs() < 1e-12);
    // Where nothing fails, that of the level.
    problem.failures_per_second = vec![0.0, 0.0, 1e-6];
    assert_eq!(recovery(&problem), [10.0, 100.0]);
}

#[test]
fn a_held_interval_is_worth_what_the_chain_says() {
    let background = transfer(0.05, 600.0, 4.0, Completion::Continuous);
    let problem = problem(
        &[1e-3, 3e-4, 5e-5],
        &[1.0, 4.0, 40.0],
        &[2.0, 8.0, 80.0],
        background,
    );
    let found = held(&problem, 60.0, 12).unwrap();
    assert_eq!(
        (&found.used_levels[..], &found.case.between[..]),
        (&[2, 3][..], &[11][..])
    );
    let best = optimize(&problem).unwrap();
    assert!(found.solution.efficiency < best.solution.efficiency);
    assert!(found.solution.efficiency > 0.5 * best.solution.efficiency);
    assert!(held(&problem, 0.0, 12).is_err());
}
