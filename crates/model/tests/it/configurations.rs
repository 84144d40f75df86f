// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Varied cases for comparing the exact chain with other ways to the same number.

use backstay_model::random::Random;
use backstay_model::{Case, Completion, Mode, Transfer};

/// A case with a name for the failing assertion.
pub(crate) type Named = (String, Case);

pub(crate) fn transfer(alpha: f64, latency: f64, top: f64, completion: Completion) -> Mode {
    Mode::NonBlocking(Transfer {
        slowdown_share: alpha,
        latency_seconds: latency,
        top_checkpoint_seconds: top,
        completion,
    })
}

pub(crate) fn case(lam: &[f64], c: &[f64], r: &[f64], t: f64, v: &[u64], mode: Mode) -> Case {
    Case {
        failures_per_second: lam.to_vec(),
        checkpoint_seconds: c.to_vec(),
        recovery_seconds: r.to_vec(),
        interval_seconds: t,
        between: v.to_vec(),
        mode,
    }
}

/// Two levels with one thing extreme: skipped levels, stalls, latency near zero and near the period.
fn two_levels(name: &str, completion: Completion) -> Vec<Named> {
    let two = |latency: f64, v: u64, alpha: f64| {
        let mode = transfer(alpha, latency, 3.0, completion);
        case(&[2e-3, 4e-4], &[2.0, 99.0], &[4.0, 20.0], 30.0, &[v], mode)
    };
    let free = |lam: [f64; 2], cost: f64| {
        let mode = transfer(0.1, 100.0, cost, completion);
        case(
            &lam,
            &[cost / 2.0, 0.0],
            &[cost, 2.0 * cost],
            40.0,
            &[4],
            mode,
        )
    };
    vec![
        (format!("{name} at once"), two(0.0, 3, 0.5)),
        (
            format!("{name} within tolerance of zero"),
            two(5e-10, 3, 0.5),
        ),
        (format!("{name} first interval"), two(20.0, 3, 0.5)),
        (format!("{name} in a checkpoint part"), two(46.0, 3, 0.5)),
        (format!("{name} exactly one interval"), two(47.0, 3, 0.5)),
        (format!("{name} mid period"), two(100.0, 3, 0.5)),
        (format!("{name} in c_top"), two(3.0 * 47.0 + 46.5, 3, 0.5)),
        (
            format!("{name} exactly the period"),
            two(3.0 * 47.0 + 48.0, 3, 0.5),
        ),
        (format!("{name} stall"), two(300.0, 3, 0.5)),
        (format!("{name} stall alone"), two(300.0, 0, 0.0)),
        (format!("{name} no costs"), free([1e-3, 1e-3], 0.0)),
        (format!("{name} no top failures"), free([1e-3, 0.0], 4.0)),
        (format!("{name} only top failures"), free([0.0, 1e-3], 4.0)),
        (format!("{name} no failures"), free([0.0, 0.0], 4.0)),
    ]
}

/// One, three and four levels.
fn other_levels(name: &str, completion: Completion) -> Vec<Named> {
    let one = |latency: f64| {
        let mode = transfer(0.2, latency, 3.0, completion);
        case(&[2e-3], &[99.0], &[20.0], 50.0, &[], mode)
    };
    let three = |latency: f64, v: &[u64]| {
        let mode = transfer(0.1, latency, 6.0, completion);
        let lam = [2e-3, 8e-4, 3e-4];
        case(&lam, &[1.0, 5.0, 0.0], &[3.0, 9.0, 30.0], 25.0, v, mode)
    };
    let four = |latency: f64| {
        let mode = transfer(0.3, latency, 8.0, completion);
        let lam = [1e-3, 6e-4, 4e-4, 2e-4];
        let (c, r) = ([1.0, 2.0, 6.0, 0.0], [2.0, 5.0, 11.0, 40.0]);
        case(&lam, &c, &r, 20.0, &[1, 2, 1], mode)
    };
    vec![
        (format!("{name} L1 at once"), one(0.0)),
        (format!("{name} L1 within"), one(30.0)),
        (format!("{name} L1 in c_top"), one(61.0)),
        (format!("{name} L1 stall"), one(140.0)),
        (format!("{name} L3"), three(120.0, &[2, 3])),
        (format!("{name} L3 skip 1"), three(120.0, &[0, 3])),
        (format!("{name} L3 skip 2"), three(60.0, &[3, 0])),
        (format!("{name} L3 stall"), three(600.0, &[1, 2])),
        (format!("{name} L4"), four(200.0)),
        (format!("{name} L4 stall"), four(900.0)),
    ]
}

fn blocking() -> Vec<Named> {
    let blocking = |lam: &[f64], v: &[u64], t: f64| {
        let count = lam.len();
        let c = [1.0, 3.0, 8.0, 20.0];
        let r = [2.0, 7.0, 15.0, 50.0];
        case(lam, &c[4 - count..], &r[..count], t, v, Mode::Blocking)
    };
    vec![
        ("blocking L1".into(), blocking(&[1e-3], &[], 60.0)),
        ("blocking L2".into(), blocking(&[2e-3, 2e-4], &[4], 40.0)),
        (
            "blocking L2 V=0".into(),
            blocking(&[2e-3, 2e-4], &[0], 40.0),
        ),
        (
            "blocking L3".into(),
            blocking(&[2e-3, 5e-4, 2e-4], &[2, 2], 40.0),
        ),
        (
            "blocking L3 V2=0".into(),
            blocking(&[2e-3, 5e-4, 2e-4], &[2, 0], 40.0),
        ),
        (
            "blocking L4".into(),
            blocking(&[2e-3, 5e-4, 3e-4, 1e-4], &[1, 0, 3], 30.0),
        ),
        ("blocking harsh".into(), blocking(&[2e-2, 1e-2], &[3], 60.0)),
    ]
}

/// Cases drawn from a seed: one to five levels, both modes, latency from none to beyond the period.
fn drawn(count: usize) -> Vec<Named> {
    let mut random = Random::from_seed(20);
    let mut cases = Vec::new();
    for number in 0..count {
        let levels = 1 + number % 5;
        let interval = 10.0 + 60.0 * random.unit();
        let mut costs = |scale: f64| -> Vec<f64> {
            (0..levels).map(|_| scale * random.unit().powi(2)).collect()
        };
        let (rates, writes, reads) = (costs(3e-3), costs(10.0), costs(40.0));
        let between: Vec<u64> = (1..levels).map(|_| random.bits() % 3).collect();
        let count: u64 = between.iter().map(|v| v + 1).product();
        let useful = f64::from(u32::try_from(count).unwrap()) * interval;
        let latency = 1.6 * useful * random.unit();
        let (alpha, top) = (random.unit() * 0.5, 5.0 * random.unit());
        let mode = match number % 3 {
            0 => Mode::Blocking,
            1 => transfer(alpha, latency, top, Completion::State),
            _ => transfer(alpha, latency, top, Completion::Continuous),
        };
        let drawn = case(&rates, &writes, &reads, interval, &between, mode);
        cases.push((format!("drawn {number}"), drawn));
    }
    cases
}

/// Every configuration that the comparisons go through.
pub(crate) fn all() -> Vec<Named> {
    let mut cases = blocking();
    for (name, completion) in [
        ("state", Completion::State),
        ("continuous", Completion::Continuous),
    ] {
        cases.extend(two_levels(name, completion));
        cases.extend(other_levels(name, completion));
    }
    cases.extend(drawn(45));
    cases
}
