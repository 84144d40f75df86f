// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `backstay model eval`, `backstay plan`, `backstay simulate`: output, exit codes, messages.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

fn backstay(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_backstay"))
        .args(arguments)
        .output()
        .unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn good_input() -> Value {
    json!({"lam": [1e-5, 1e-6], "c": [10, 0], "r": [10, 100], "t": 600, "V": [5],
        "mode": "nonblocking", "alpha": 0.1, "latency": 1000, "c_top": 12, "completion": "state"})
}

fn eval(folder: &Path, file: &Value) -> (i32, Value, String) {
    let path = folder.join("cases.json");
    std::fs::write(&path, file.to_string()).unwrap();
    let output = backstay(&["model", "eval", path.to_str().unwrap(), "--json"]);
    let results = serde_json::from_str(&stdout(&output)).unwrap_or(Value::Null);
    (code(&output), results, stderr(&output))
}

#[test]
fn eval_solves_cases_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let daly = json!({"lam": [1e-3], "c": [5], "r": [10], "t": 100, "V": [], "mode": "blocking"});
    let file = json!({"cases": [
        {"id": 7, "input": daly, "note": "keys beside id and input are ignored"},
        {"id": "b", "input": good_input()},
    ], "made": "today"});
    let (code, results, _) = eval(folder.path(), &file);
    assert_eq!(code, 0);
    let results = results["results"].as_array().unwrap();
    assert_eq!(results[0]["id"], 7);
    assert_eq!(results[0]["intervals"], 1);
    let exact = (0.01_f64).exp() * (0.105_f64.exp() - 1.0) / 1e-3;
    let period = results[0]["period_time"].as_f64().unwrap();
    assert!((period / exact - 1.0).abs() < 1e-12);
    assert!((results[0]["efficiency"].as_f64().unwrap() - 100.0 / period).abs() < 1e-12);
    assert_eq!(results[1]["id"], "b");
    assert_eq!(results[1]["useful_time"], 3600.0);
}

#[test]
fn eval_reports_bad_cases_and_solves_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let mut unknown = good_input();
    unknown["lambda"] = json!(1);
    let mut endless = good_input();
    endless["lam"] = json!([10.0, 10.0]);
    let file = json!({"cases": [
        {"id": "unknown", "input": unknown},
        {"id": "endless", "input": endless},
        {"id": "good", "input": good_input()},
    ]});
    let (code, results, _) = eval(folder.path(), &file);
    assert_eq!(code, 1);
    let error = results["results"][0]["error"].as_str().unwrap();
    assert!(error.contains("unknown key \"lambda\""), "{error}");
    assert!(
        results["results"][1]["error"]
            .as_str()
            .unwrap()
            .contains("1e300")
    );
    assert_eq!(results["results"][2]["intervals"], 6);
}

#[test]
fn eval_refuses_what_is_no_file_of_cases() {
    let folder = tempfile::tempdir().unwrap();
    let (status, _, error) = eval(folder.path(), &json!({"case": []}));
    assert_eq!(status, 1);
    assert!(error.contains("cases is missing"), "{error}");
    assert_eq!(
        code(&backstay(&["model", "eval", "/nowhere/cases.json"])),
        1
    );
    assert_eq!(code(&backstay(&["model", "eval"])), 2);
    assert_eq!(code(&backstay(&["model", "guess"])), 2);
}

const QUICK: [&str; 4] = [
    "--json",
    "--simulated-intervals",
    "20000",
    "--job-hours=100",
];

fn plan(arguments: &[&str]) -> (i32, Value, String) {
    let mut all = vec!["plan"];
    all.extend(arguments);
    all.extend(QUICK);
    let output = backstay(&all);
    let report = serde_json::from_str(&stdout(&output)).unwrap_or(Value::Null);
    (code(&output), report, stderr(&output))
}

#[test]
fn plan_takes_a_file_and_flags_over_it() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("job.toml");
    std::fs::write(
        &config,
        "nodes = 1408\nstate-gb-per-node = 29\nchanged-share = 0.5\n",
    )
    .unwrap();
    let config = config.to_str().unwrap();
    let (code, report, error) = plan(&["--config", config, "--changed-share", "1"]);
    assert_eq!(code, 0, "{error}");
    let efficiency = report["efficiency"].as_f64().unwrap();
    assert!((0.90..0.93).contains(&efficiency), "{efficiency}");
    let range =
        [&report["efficiency_low"], &report["efficiency_high"]].map(|v| v.as_f64().unwrap());
    assert!(range[0] < efficiency && efficiency < range[1]);
    assert!(!report["defaults"].to_string().contains("state-gb-per-node"));
    assert!(report["defaults"].to_string().contains("table I"));
    assert_eq!(report["what_ifs"].as_array().unwrap().len(), 8);
    let (_, cheaper, _) = plan(&["--config", config]);
    assert!(cheaper["efficiency"].as_f64().unwrap() > efficiency);
}

#[test]
fn plan_says_when_no_bandwidth_is_enough() {
    let scale = [
        "--nodes",
        "22528",
        "--state-gb-per-node",
        "29",
        "--target",
        "0.9",
    ];
    let (code, report, _) = plan(&scale);
    assert_eq!(code, 0);
    assert_eq!(report["required_file_system_gb_per_second"], Value::Null);
    assert!(report["ceiling_efficiency"].as_f64().unwrap() < 0.9);
    let mut all = vec!["plan", "--simulated-intervals", "20000"];
    all.extend(scale);
    let text = stdout(&backstay(&all));
    assert!(text.contains("not reachable at any bandwidth"), "{text}");
    assert!(text.contains("tied"), "{text}");
}

#[test]
fn plan_learns_from_a_run() {
    let folder = tempfile::tempdir().unwrap();
    let metrics = json!({"exposure_seconds": 1e6, "failures": [4, 30, 2], "nodes": 64,
        "checkpoint": {"blocking_seconds": {"p10": 1.0, "p50": 1.5, "p90": 4.0, "count": 90}},
        "changed_share": 0.2, "something_new": true});
    std::fs::write(folder.path().join("metrics.json"), metrics.to_string()).unwrap();
    let (code, report, error) = plan(&["--from-run", folder.path().to_str().unwrap()]);
    assert_eq!(code, 0, "{error}");
    let rate = report["failures_per_second"][1].as_f64().unwrap();
    // 30 failures in 1e6 s, and a prior worth a 961st of a failure at 64 nodes / 20642 h x 0.927.
    let prior_seconds = 20_642.0 * 3600.0 / 64.0 / 0.9273;
    assert!(
        (rate * (prior_seconds / 961.0 + 1e6) / (30.0 + 1.0 / 961.0) - 1.0).abs() < 1e-3,
        "{rate}"
    );
    assert!((report["checkpoint_seconds"][0].as_f64().unwrap() - 1.5).abs() < 1e-9);
    std::fs::write(folder.path().join("metrics.json"), "{}").unwrap();
    assert_eq!(plan(&["--from-run", folder.path().to_str().unwrap()]).0, 0);
    std::fs::write(folder.path().join("metrics.json"), "{\"failures\":-1}").unwrap();
    let (code, _, error) = plan(&["--from-run", folder.path().to_str().unwrap()]);
    assert!(code == 1 && error.contains("failures = -1"), "{error}");
}

#[test]
fn plan_reads_the_example_of_the_format() {
    let text = include_str!("../../../../docs/format/metrics.md");
    let example = text
        .split("```json")
        .nth(1)
        .unwrap()
        .split("```")
        .next()
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("metrics.json"), example).unwrap();
    let (code, report, error) = plan(&["--from-run", folder.path().to_str().unwrap()]);
    assert_eq!(code, 0, "{error}");
    let cost = report["checkpoint_seconds"][0].as_f64().unwrap();
    // The mean of the three.
    assert!((cost - 0.085_355_099 / 3.0).abs() < 1e-12, "{report}");
    for name in ["nodes", "state-gb-per-node", "changed-share"] {
        assert!(
            !report["defaults"]
                .to_string()
                .contains(&format!("\"{name} =")),
            "{name}"
        );
    }
}

/// With the interval held a plan says what that is worth, and takes what restarts cost from the run: means, and of each
/// level its own.
#[test]
fn plan_holds_an_interval_and_takes_restarts_from_a_run() {
    let folder = tempfile::tempdir().unwrap();
    let measured = |sum: f64, count: u64| json!({"sum": sum, "count": count, "p10": 0.0, "p50": 0.0, "p90": 1e6});
    let metrics = json!({"nodes": 3, "exposure_seconds": 1000.0, "failures": 100,
        "checkpoint": {"blocking_seconds": measured(2.0, 100)},
        "protect_seconds": measured(1.0, 10), "relaunch_seconds": measured(30.0, 20),
        "restore_seconds": measured(9.0, 20),
        "restore_seconds_by_level": {"1": measured(0.5, 10), "2": measured(1.0, 5), "3": measured(7.5, 5)}});
    std::fs::write(folder.path().join("metrics.json"), metrics.to_string()).unwrap();
    let second = 1_000_000_000_u64;
    let drain = |began: u64, ended: u64, failed: bool| json!({"began_unix_ns": began * second, "ended_unix_ns": ended * second, "failed": failed});
    let archive = json!({"history": [drain(1, 3, false), drain(4, 8, false), drain(9, 99, true)]});
    std::fs::write(folder.path().join("archive.json"), archive.to_string()).unwrap();
    let run = folder.path().to_str().unwrap();
    let rates = [
        "--node-mtbf-hours",
        "0.0277777777",
        "--process-failures-per-day",
        "6048",
        "--accept-unusual",
        "--failure-shares",
        "0,0.6666666667,0.3333333333",
        "--notice-seconds",
        "0.25",
    ];
    let mut words = vec![
        "--from-run",
        run,
        "--interval-seconds",
        "2",
        "--archive-every",
        "4",
    ];
    words.extend(rates);
    let (code, report, error) = plan(&words);
    assert_eq!(code, 0, "{error}");
    assert_eq!(report["interval_seconds"], 2.0);
    assert_eq!(report["checkpoints_per_period"], json!([0, 3, 1]));
    let numbers = |key: &str| -> Vec<f64> {
        let values = report[key].as_array().unwrap();
        values.iter().map(|value| value.as_f64().unwrap()).collect()
    };
    let near = |one: f64, other: f64| (one - other).abs() < 1e-3;
    assert!(
        numbers("checkpoint_seconds")
            .iter()
            .all(|&cost| near(cost, 0.02)),
        "{report}"
    );
    assert!(
        near(report["latency_seconds"].as_f64().unwrap(), 3.0),
        "{report}"
    );
    // 0.25 s to notice, 1.5 s to start again; a node's recovery and 0.1 s that were not protected; process failures are
    // 70 in 1000 s, those of one node 20.
    let (process, node) = (1.75 + 0.05, 1.75 + 0.2 + 0.1);
    let recovery = numbers("recovery_seconds");
    assert!(
        near(recovery[0], (70.0 * process + 20.0 * node) / 90.0),
        "{report}"
    );
    assert!(near(recovery[1], 1.75 + 1.5), "{report}");
    let mut best = vec!["--from-run", run];
    best.extend(rates);
    let (_, best, _) = plan(&best);
    let efficiency = |report: &Value| report["efficiency"].as_f64().unwrap();
    assert!(
        efficiency(&best) > efficiency(&report) + 0.05,
        "{best} {report}"
    );
    assert_eq!(plan(&["--archive-every", "4"]).0, 2);
}

#[test]
fn plan_names_bad_values_and_asks_about_units() {
    for (flag, value, message) in [
        ("--nodes", "-3", "nodes = -3"),
        ("--nodes", "nan", "nodes = NaN"),
        ("--state-gb-per-node", "0", "state-gb-per-node = 0:"),
        ("--nodes", "0", "allowed is 1 to 100000000"),
        ("--changed-share", "2", "changed-share = 2"),
        ("--failure-shares", "0.5,0.6", "failure-shares"),
        ("--node-mtbf-hours", "1e-5", "a rate where a time belongs"),
        ("--target", "1.5", "target = 1.5"),
    ] {
        let (code, _, error) = plan(&[flag, value]);
        assert_eq!(code, 1, "{flag} {value}");
        assert!(error.contains(message), "{error}");
    }
    for (flag, value, says) in [
        ("--state-gb-per-node", "inf", "write GB, or 512MiB"),
        ("--nodes", "many", "it is not a number"),
        ("--job-hours", "10m", "write hours, or 30min"),
        ("--simulated-intervals", "x", "it is not a whole number"),
    ] {
        let (code, report, error) = plan(&[flag, value]);
        assert!(code == 2 && error.contains(says), "{flag} {value}: {error}");
        assert_eq!(report["error"]["kind"], "usage", "{report}");
    }
    let (code, report, _) = plan(&["--nodes", "0"]);
    assert!(
        code == 1 && report["error"]["kind"] == "bad input",
        "{report}"
    );
    assert_eq!(plan(&["--protection", "raid"]).0, 2);
    assert_eq!(
        plan(&[
            "--node-mtbf-hours",
            "0.05",
            "--accept-unusual",
            "--nodes",
            "1"
        ])
        .0,
        0
    );
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("job.toml");
    std::fs::write(&config, "nodess = 3\n").unwrap();
    let (code, _, error) = plan(&["--config", config.to_str().unwrap()]);
    assert!(code == 1 && error.contains("nodess"), "{error}");
}

#[test]
fn sizes_and_times_have_units() {
    let bare = plan(&[
        "--state-gb-per-node",
        "2.147483648",
        "--relaunch-seconds",
        "120",
    ]);
    let units = plan(&["--state-gb-per-node", "2GiB", "--relaunch-seconds", "2min"]);
    assert_eq!((bare.0, &bare.2), (0, &units.2), "{bare:?}");
    assert_eq!(bare.1, units.1);
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("job.toml");
    let name = config.to_str().unwrap();
    std::fs::write(
        &config,
        "state-gb-per-node = \"2GiB\"\nrelaunch-seconds = \"2min\"\n",
    )
    .unwrap();
    assert_eq!(plan(&["--config", name]).1, bare.1);
    std::fs::write(&config, "nodes = \"2GB\"\n").unwrap();
    let (code, _, error) = plan(&["--config", name]);
    assert!(code == 1 && error.contains("expected a number"), "{error}");
    assert!(!error.contains("f64"), "{error}");
    let output = backstay(&["simulate", "--weibull", "0"]);
    assert!(
        stderr(&output).contains("weibull = 0: allowed is 0.05 to 20"),
        "{output:?}"
    );
}

#[test]
fn a_plan_ends_in_settings_that_a_job_reads() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("backstay.toml");
    for more in [
        vec!["--nodes", "1408", "--changed-share", "0.2"],
        vec!["--nodes", "1", "--protection", "partner"],
    ] {
        let (code, report, error) = plan(&more);
        assert_eq!(code, 0, "{error}");
        let settings = report["settings"].as_str().unwrap();
        std::fs::write(&file, settings).unwrap();
        let config = backstay::Config::from_file(&file).unwrap();
        let interval = config.interval_seconds().unwrap().unwrap();
        let planned = report["interval_seconds"].as_f64().unwrap();
        assert!((interval - planned).abs() <= 0.5, "{interval} {planned}");
        if let Some(every) = config.archive_every {
            assert_eq!(report["intervals_per_period"], every);
        }
        let words = [
            &["plan", "--simulated-intervals=20000", "--job-hours=100"],
            &*more,
        ]
        .concat();
        let text = stdout(&backstay(&words));
        assert!(text.trim_end().ends_with(settings.trim_end()), "{text}");
    }
}

#[test]
fn simulate_runs_jobs_and_logs() {
    assert_eq!(
        code(&backstay(&["simulate", "--lives", "10"])),
        0,
        "the old name"
    );
    let common = [
        "simulate",
        "--nodes",
        "1408",
        "--state-gb-per-node",
        "29",
        "--json",
        "--runs",
        "200",
    ];
    let run = |more: &[&str]| {
        let output = backstay(&[&common, more].concat());
        (
            code(&output),
            serde_json::from_str(&stdout(&output)).unwrap_or(Value::Null),
            stderr(&output),
        )
    };
    let (code, report, error) = run(&[]);
    assert_eq!(code, 0, "{error}");
    let efficiency = report["mean_efficiency"].as_f64().unwrap();
    assert!((efficiency - report["chain_efficiency"].as_f64().unwrap()).abs() < 0.02);
    assert_eq!(run(&[]).1, report, "one seed, one output");
    assert_ne!(run(&["--weibull", "0.5"]).1, report);
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("failures.csv");
    std::fs::write(&log, "seconds,level\n50000,2\n90000,1\n200000,3\n").unwrap();
    assert_eq!(run(&["--failure-log", log.to_str().unwrap()]).0, 0);
    std::fs::write(&log, "50000,2\n40000,2\n").unwrap();
    let (code, _, error) = run(&["--failure-log", log.to_str().unwrap()]);
    assert!(code == 1 && error.contains("line 2"), "{error}");
    assert_eq!(run(&["--weibull", "0"]).0, 1);
    assert_eq!(run(&["--seed", "-1"]).0, 2);
}

#[test]
#[ignore = "half a minute in the test profile; `make figures` draws with the same code"]
fn plan_draws_pictures() {
    let folder = tempfile::tempdir().unwrap();
    let stem = folder.path().join("job");
    let (code, _, error) = plan(&["--picture", stem.to_str().unwrap()]);
    assert_eq!(code, 0, "{error}");
    for name in [
        "job-interval.svg",
        "job-interval.png",
        "job-file-system.svg",
        "job-file-system.png",
    ] {
        assert!(
            folder.path().join(name).metadata().unwrap().len() > 2000,
            "{name}"
        );
    }
}
