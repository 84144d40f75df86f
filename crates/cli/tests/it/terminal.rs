// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a person sees: lines that fit, colours, ages, versions, completions, pages.

use crate::job::{backstay, command, finish, run_job, store};
use std::path::Path;
use std::process::Command;

/// What a terminal of so many columns is sent, without the ends of lines.
fn on_a_terminal(columns: usize, words: &[&str], path: &Path, variables: &str) -> String {
    let program = env!("CARGO_BIN_EXE_backstay");
    let path = path.display();
    let line = format!(
        "stty cols {columns}; {variables} '{program}' {} '{path}' 2>/dev/null",
        words.join(" ")
    );
    let mut script = Command::new("script");
    script
        .args(["-qec", &line, "/dev/null"])
        .env_remove("COLUMNS");
    script.env("TERM", "xterm").env_remove("NO_COLOR");
    let output = script.output().expect("script of util-linux");
    String::from_utf8(output.stdout).unwrap().replace('\r', "")
}

#[test]
fn every_line_fits_eighty_columns() {
    let folder = tempfile::tempdir().unwrap();
    let nodes = folder.path().join("nodes");
    std::fs::create_dir_all(&nodes).unwrap();
    std::fs::create_dir_all(folder.path().join("other/pfs")).unwrap();
    run_job(&nodes, 2, 4);
    crate::archives::archived_job(&folder.path().join("other"), 2, None, 2);
    let commands: [&[&str]; 4] = [
        &["ls"],
        &["inspect"],
        &["inspect", "-v", "big"],
        &["status"],
    ];
    // `inspect` is of one job's checkpoint; the others show all that is there.
    let path = |words: &[&str]| match words[0] {
        "inspect" => nodes.clone(),
        _ => folder.path().to_owned(),
    };
    for words in commands {
        for columns in [80, 60] {
            let text = on_a_terminal(columns, words, &path(words), "");
            assert!(text.lines().count() > 2, "{words:?}: {text}");
            for line in text.lines() {
                // A word that is longer, as a path may be, is not broken, and stands alone.
                let is_word = line.split_whitespace().count() == 1;
                let fits = line.chars().count() <= columns;
                assert!(fits || is_word, "{words:?} in {columns}: {line:?}\n{text}");
            }
        }
        let wide = on_a_terminal(300, words, &path(words), "");
        let piped = finish(command().args(words).arg(path(words)));
        let cells = |text: &str| -> Vec<usize> {
            let cells = |line: &str| line.split("  ").filter(|cell| !cell.is_empty()).count();
            text.lines().map(cells).collect()
        };
        assert_eq!(cells(&wide), cells(&piped.out), "{wide}\n{piped:?}");
    }
    let stem = folder.path().join("plan");
    let plan = [
        "plan",
        "--simulated-intervals=20000",
        "--job-hours=100",
        "--config",
    ];
    std::fs::write(&stem, "nodes = 1408\n").unwrap();
    let text = on_a_terminal(80, &plan, &stem, "");
    assert!(
        text.contains("bottleneck") && text.contains("interval = "),
        "{text}"
    );
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    let narrow = on_a_terminal(80, &["ls"], folder.path(), "");
    assert!(
        !narrow.contains("COMMITTED") && narrow.contains(" s ago"),
        "{narrow}"
    );
    let wide = on_a_terminal(300, &["ls"], folder.path(), "");
    assert!(
        wide.contains("COMMITTED") && wide.contains("CHANGED"),
        "{wide}"
    );
}

#[test]
fn damage_is_red_on_a_terminal_that_may_show_it() {
    const RED: &str = "\x1b[1;31mDAMAGED\x1b[0m";
    let folder = tempfile::tempdir().unwrap();
    run_job(folder.path(), 4, 1);
    crate::damage::spoil_a_block(&store(folder.path(), 0));
    let shown = on_a_terminal(120, &["verify"], folder.path(), "");
    assert!(shown.contains(RED), "{shown}");
    for variables in ["NO_COLOR=1", "TERM=dumb"] {
        let shown = on_a_terminal(120, &["verify"], folder.path(), variables);
        assert!(
            shown.contains("DAMAGED") && !shown.contains('\x1b'),
            "{shown}"
        );
    }
    let shown = on_a_terminal(120, &["verify", "--json"], folder.path(), "");
    assert!(
        shown.contains("damage") && !shown.contains('\x1b'),
        "{shown}"
    );
    let piped = backstay(&["verify"], &[folder.path()]);
    assert!(
        piped.out.contains("DAMAGED") && !piped.out.contains('\x1b'),
        "{piped:?}"
    );
}

#[test]
fn the_version_names_commit_and_features() {
    let long = backstay(&["--version"], &[]).out;
    let rest = long.strip_prefix(concat!("backstay ", env!("CARGO_PKG_VERSION"), " (commit "));
    let (commit, rest) = rest.unwrap().split_once("; ").unwrap();
    let is_commit = commit.len() == 12 && commit.chars().all(|c| c.is_ascii_hexdigit());
    assert!(is_commit || commit == "unknown", "{long}");
    assert!(
        rest.contains("features: ") && rest.contains("linux"),
        "{long}"
    );
    let short = backstay(&["-V"], &[]).out;
    assert_eq!(short, concat!("backstay ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn completions_and_pages_know_every_command() {
    let help = backstay(&["--help"], &[]).out;
    let list = help
        .split("Commands:")
        .nth(1)
        .unwrap()
        .split("\n\n")
        .next()
        .unwrap();
    let names: Vec<&str> = list
        .lines()
        .filter_map(|line| line.strip_prefix("  ")?.split(' ').next())
        .filter(|name| !name.is_empty() && *name != "help")
        .collect();
    assert!(names.len() >= 12 && names.contains(&"ls"), "{names:?}");
    for shell in ["bash", "zsh", "fish"] {
        let ran = backstay(&["completions", shell], &[]);
        assert_eq!(ran.status, 0, "{ran:?}");
        assert!(names.iter().all(|name| ran.out.contains(name)), "{shell}");
    }
    assert_eq!(backstay(&["completions", "tcsh"], &[]).status, 2);
    let folder = tempfile::tempdir().unwrap();
    let ran = backstay(&["man"], &[folder.path()]);
    assert_eq!(ran.status, 0, "{ran:?}");
    for name in names {
        let page = folder.path().join(format!("backstay-{name}.1"));
        let text = std::fs::read_to_string(&page).unwrap();
        assert!(text.contains(".SH SYNOPSIS"), "{name}: {text}");
    }
    assert_eq!(backstay(&["man"], &[Path::new("/nowhere")]).status, 1);
}

#[test]
fn wrong_usage_is_two_and_json_where_that_is_asked_for() {
    for words in [
        &["nonsense"][..],
        &[],
        &["ls", "--nonsense"],
        &["agent", "--linger-s", "soon"],
        &["stage", "/tmp"],
        &["agent"],
        &["prune"],
        &["prune", "--retained", "0", "/tmp"],
    ] {
        let ran = backstay(words, &[]);
        assert_eq!(ran.status, 2, "{words:?} {ran:?}");
        assert!(
            ran.out.is_empty() && !ran.err.contains("backstay: backstay:"),
            "{ran:?}"
        );
    }
    for words in [
        &["ls", "--json", "--nonsense"][..],
        &["inspect", "--json", "-c", "x"],
        &["plan", "--json", "--nodes"],
        &["prune", "--json"],
    ] {
        let ran = backstay(words, &[]);
        assert_eq!(ran.status, 2, "{words:?} {ran:?}");
        assert_eq!(ran.json()["error"]["kind"], "usage");
    }
}

/// `status --watch` on a terminal of 80 by 24, which gets `keys` after two looks: what it was sent, and the status.
fn watched(path: &Path, keys: &[u8], variables: &str) -> (String, i32) {
    use std::io::Write;
    use std::process::Stdio;
    let program = env!("CARGO_BIN_EXE_backstay");
    let line = format!(
        "stty cols 80 rows 24; {variables} '{program}' status --watch '{}'",
        path.display()
    );
    let mut script = Command::new("script");
    script.args(["-qec", &line, "/dev/null"]);
    script.env("TERM", "xterm").env_remove("NO_COLOR");
    let script = script.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut running = script.spawn().expect("script of util-linux");
    let mut input = running.stdin.take().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(2500));
    input.write_all(keys).unwrap();
    let output = running.wait_with_output().unwrap();
    drop(input);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (text, output.status.code().unwrap())
}

#[test]
fn the_dashboard_comes_and_goes_and_leaves_the_terminal_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    run_job(folder.path(), 2, 2);
    for (keys, status) in [(&b"q"[..], 0), (b"\x03", 130)] {
        let (text, ended) = watched(folder.path(), keys, "");
        assert_eq!(ended, status, "{text:?}");
        assert!(
            text.contains("timeline") && text.contains("running,"),
            "{text:?}"
        );
        let (begun, left) = (text.find("\x1b[?1049h"), text.find("\x1b[?1049l"));
        assert!(begun.is_some() && left > begun, "{text:?}");
        assert!(text.contains("\x1b[38;5;2"), "{text:?}");
    }
    let (text, _) = watched(folder.path(), b"q", "NO_COLOR=1");
    assert!(text.contains("timeline"), "{text:?}");
    assert!(!text.contains("\x1b[38;5;"), "{text:?}");
    // Where nothing can be drawn there are lines.
    let (text, ended) = watched(folder.path(), b"\x03", "TERM=dumb");
    assert_eq!(ended, 130, "{text:?}");
    assert!(
        text.contains("newest checkpoint") && !text.contains("\x1b[?1049h"),
        "{text:?}"
    );
}
