// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Inputs that nobody should send: never a panic, always a result or an error with a name in it.

use backstay_model::cases::{evaluate, parse_case};
use backstay_model::simulate::{FailureLog, Settings, periods, runs};
use backstay_model::{Case, Completion, Mode, Transfer, solve};
use proptest::prelude::*;

const GOOD: &str = r#"{"lam":[1e-5,1e-6],"c":[10,0],"r":[10,100],"t":600,"V":[5],"mode":"nonblocking",
"alpha":0.1,"latency":1000,"c_top":12,"completion":"state"}"#;

/// Numbers as people and generators write them, extremes included.
fn any_number() -> impl Strategy<Value = f64> {
    prop_oneof![
        Just(0.0),
        Just(-0.0),
        Just(1e-15),
        Just(1e-320),
        Just(f64::NAN),
        Just(f64::INFINITY),
        Just(-1.0),
        Just(1e300),
        Just(f64::MAX),
        0.0..1e-3,
        0.0..100.0,
        any::<f64>(),
    ]
}

fn any_case() -> impl Strategy<Value = Case> {
    let list = || prop::collection::vec(any_number(), 0..10);
    let counts = prop::collection::vec(prop_oneof![0_u64..4, any::<u64>()], 0..9);
    let transfer = (any_number(), any_number(), any_number(), any::<bool>()).prop_map(
        |(slowdown_share, latency_seconds, top_checkpoint_seconds, state)| Transfer {
            slowdown_share,
            latency_seconds,
            top_checkpoint_seconds,
            completion: if state {
                Completion::State
            } else {
                Completion::Continuous
            },
        },
    );
    let mode = prop_oneof![Just(Mode::Blocking), transfer.prop_map(Mode::NonBlocking)];
    (list(), list(), list(), any_number(), counts, mode).prop_map(
        |(lam, c, r, t, between, mode)| Case {
            failures_per_second: lam,
            checkpoint_seconds: c,
            recovery_seconds: r,
            interval_seconds: t,
            between,
            mode,
        },
    )
}

/// A sound case with up to four levels, rates from none to a failure in every interval.
fn sound_case() -> impl Strategy<Value = Case> {
    let level = (
        prop_oneof![Just(0.0), Just(1e-15), 1e-8..1e-2],
        0.0..20.0,
        0.0..60.0,
        0_u64..4,
    );
    let levels = prop::collection::vec(level, 1..5);
    let transfer = (0.0..1.0, 0.0..2000.0, 0.0..20.0, any::<bool>()).prop_map(
        |(slowdown_share, latency_seconds, top_checkpoint_seconds, state)| Transfer {
            slowdown_share,
            latency_seconds,
            top_checkpoint_seconds,
            completion: if state {
                Completion::State
            } else {
                Completion::Continuous
            },
        },
    );
    let mode = prop_oneof![Just(Mode::Blocking), transfer.prop_map(Mode::NonBlocking)];
    (levels, 1.0..200.0, mode).prop_map(|(levels, interval_seconds, mode)| Case {
        failures_per_second: levels.iter().map(|l| l.0).collect(),
        checkpoint_seconds: levels.iter().map(|l| l.1).collect(),
        recovery_seconds: levels.iter().map(|l| l.2).collect(),
        interval_seconds,
        between: levels[1..].iter().map(|l| l.3).collect(),
        mode,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_numbers_give_a_result_or_a_named_error(case in any_case()) {
        match solve(&case) {
            Ok(solution) => {
                prop_assert!(solution.efficiency >= 0.0 && solution.efficiency <= 1.0 + 1e-9);
                prop_assert!(solution.period_seconds <= 1e300);
            }
            Err(error) => prop_assert!(error.to_string().contains(" = "), "{error}"),
        }
    }

    #[test]
    fn more_failures_never_help(case in sound_case(), factor in 1.0..4.0_f64) {
        let (Ok(calm), mut harsh) = (solve(&case), case.clone()) else { return Ok(()); };
        harsh.failures_per_second.iter_mut().for_each(|rate| *rate *= factor);
        let harsh = solve(&harsh).map_or(0.0, |solution| solution.efficiency);
        prop_assert!(harsh <= calm.efficiency * (1.0 + 1e-9));
    }

    #[test]
    fn any_text_is_survived(text in ".{0,200}") {
        drop(evaluate(&text));
        drop(parse_case(&text));
        drop(FailureLog::from_csv(&text));
    }

    #[test]
    fn changed_bytes_are_survived(at in 0..GOOD.len(), byte in 0x20_u8..0x7f, cut in 0..GOOD.len()) {
        let mut bytes = GOOD.as_bytes().to_vec();
        bytes[at] = byte;
        let text = String::from_utf8(bytes).unwrap();
        drop(parse_case(&text));
        prop_assert!(parse_case(&GOOD[..cut]).is_err());
        if let Ok(case) = parse_case(&text) {
            drop(solve(&case));
        }
    }

    #[test]
    fn changed_tokens_are_survived(
        key in 0..10_usize,
        value in prop_oneof![
            Just("NaN"), Just("-Infinity"), Just("1e999"), Just("-1e-999"), Just("null"), Just("[]"),
            Just("[[]]"), Just("{}"), Just("\"\""), Just("true"), Just("[null,null]"), Just("1"),
            Just("18446744073709551616"), Just("[18446744073709551615]"), Just("0.5"), Just("\"state\""),
        ],
    ) {
        let mut input: serde_json::Map<String, serde_json::Value> = serde_json::from_str(GOOD).unwrap();
        let name = input.keys().nth(key).unwrap().clone();
        input.insert(name.clone(), serde_json::Value::from("HERE"));
        let text = serde_json::to_string(&input).unwrap().replace("\"HERE\"", value);
        if let Err(error) = parse_case(&text) {
            let error = error.to_string();
            prop_assert!(error.contains(&name) || error.contains('='), "{text}: {error}");
        }
    }
}

#[test]
fn deep_nesting_is_survived() {
    let deep = "[".repeat(100_000);
    assert!(evaluate(&deep).is_err());
    assert!(evaluate(&format!("{{\"cases\":[{{\"id\":{deep}")).is_err());
    let nested = format!("{}{}", "[".repeat(50_000), "]".repeat(50_000));
    let results = evaluate(&format!("{{\"cases\":[{{\"id\":1,\"input\":{nested}}}]}}"));
    assert!(results.map_or(true, |results| !results.all_solved()));
}

#[test]
fn bad_failure_logs_name_the_line() {
    for (text, place) in [
        ("", "failure log"),
        ("seconds,level\n", "failure log"),
        ("1,1\nx,1\n", "seconds in line 2"),
        ("1,1\n-1,1\n", "seconds in line 2"),
        ("5,1\n4,1\n", "seconds in line 2"),
        ("1,9\n", "level in line 1"),
        ("1\n", "level in line 1"),
        ("NaN,1\n2,1", "failure log"),
    ] {
        let result = FailureLog::from_csv(text);
        if text.starts_with("NaN") {
            // A first line that begins with a letter is a header.
            assert_eq!(result.unwrap().events, [(2.0, 1)]);
            continue;
        }
        let error = result.unwrap_err().to_string();
        assert!(error.starts_with(place), "{text:?}: {error}");
    }
}

#[test]
fn a_simulation_that_cannot_end_says_so() {
    let case = Case {
        failures_per_second: vec![1.0],
        checkpoint_seconds: vec![0.0],
        recovery_seconds: vec![0.0],
        interval_seconds: 1000.0,
        between: vec![],
        mode: Mode::Blocking,
    };
    let settings = Settings {
        interval_budget: 10_000,
        ..Settings::default()
    };
    let error = periods(&case, &settings, 10).unwrap_err().to_string();
    assert!(error.starts_with("interval_budget"), "{error}");
    // A recovery that never goes through.
    let stuck = Case {
        recovery_seconds: vec![1000.0],
        interval_seconds: 0.5,
        ..case
    };
    assert!(periods(&stuck, &settings, u64::MAX).is_err());
    let lost = runs(&stuck, &settings, 100.0, 3).unwrap();
    assert_eq!(lost.unfinished, 3);
}
