// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `status`: how a job stands, in words, as JSON, and over HTTP.

use crate::archives::{archived_job, archiving, folder};
use crate::job::{RANKS, Rank, backstay, command};
use backstay::{CheckpointId, Communicator, Config, Level};
use backstay_testkit::comm::{ThreadComm, run_ranks};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

/// Metrics by name: type, and samples by labels.
type Families = BTreeMap<String, (String, BTreeMap<String, f64>)>;

/// Reads the text format, and refuses what its description does not allow.
fn parse(text: &str) -> Families {
    assert!(text.ends_with('\n'), "the last line ends");
    let mut families = Families::new();
    let mut helped = BTreeSet::new();
    let mut current = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a help text");
            assert!(!help.is_empty() && helped.insert(name.to_owned()), "{line}");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a type");
            assert!(["counter", "gauge", "summary"].contains(&kind), "{line}");
            assert!(helped.contains(name), "HELP before TYPE: {line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            let new = families.insert(name.to_owned(), (kind.to_owned(), BTreeMap::new()));
            assert!(new.is_none(), "one TYPE for {name}");
            name.clone_into(&mut current);
        } else {
            let (front, value) = line.rsplit_once(' ').expect("a value");
            let (name, labels) = front.split_once('{').expect("labels");
            let labels = labels.strip_suffix('}').expect("the end of labels");
            check_labels(labels);
            let (kind, samples) = families.get_mut(&current).expect("TYPE before samples");
            let summary = kind == "summary"
                && (name == format!("{current}_sum") || name == format!("{current}_count"));
            assert!(name == current || summary, "{line}");
            let legal = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
            assert!(
                name.chars().all(legal) && name.starts_with("backstay_"),
                "{line}"
            );
            let key = format!("{}{{{labels}}}", &name[current.len()..]);
            let new = samples.insert(key, value.parse().expect("a number"));
            assert!(new.is_none(), "twice: {line}");
        }
    }
    assert!(families.values().all(|(_, samples)| !samples.is_empty()));
    families
}

fn check_labels(mut labels: &str) {
    while !labels.is_empty() {
        let (name, rest) = labels.split_once("=\"").expect("a label");
        assert!(
            name.chars().all(|c| c.is_ascii_lowercase() || c == '_'),
            "{name}"
        );
        let mut escaped = false;
        let end = rest.find(|c| {
            let is_end = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            is_end
        });
        let rest = &rest[end.expect("the end of a value") + 1..];
        labels = rest.strip_prefix(',').unwrap_or_else(|| {
            assert!(rest.is_empty(), "{rest}");
            rest
        });
    }
}

/// The program, serving; it ends with this.
struct Server(Child, String);

impl Server {
    fn start(path: &Path) -> Self {
        let mut child = command()
            .args(["status", "--listen", "127.0.0.1:0"])
            .arg(path)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let line = lines.next().unwrap().unwrap();
        let address = line
            .split("http://")
            .nth(1)
            .unwrap()
            .trim_end_matches("/metrics");
        Self(child, address.to_owned())
    }

    fn ask(&self, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(&self.1).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        // A server that refused may have closed it already.
        drop(stream.write_all(request));
        let mut answer = String::new();
        drop(stream.read_to_string(&mut answer));
        answer
    }

    fn metrics(&self) -> Families {
        let answer = self.ask(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(
            head.contains("Content-Type: text/plain; version=0.0.4"),
            "{head}"
        );
        assert!(
            head.contains(&format!("Content-Length: {}", body.len())),
            "{head}"
        );
        parse(body)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn a_running_job_is_shown_in_words_as_json_and_over_http() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path();
    run_ranks(ThreadComm::new(RANKS), |comm| {
        let rank = usize::try_from(comm.rank()).unwrap();
        let mut one = Rank::open(comm, archiving(path, rank, 4));
        for _ in 0..3 {
            one.compute();
            let handle = one.session.checkpoint_start().unwrap();
            one.session.wait(handle, Level::Archive).unwrap();
        }
        if rank == 0 {
            std::thread::sleep(Duration::from_millis(1200));
            look(path);
        }
        one.compute();
        one.session.checkpoint().unwrap();
        one.session.close().unwrap();
    });
    let json = backstay(&["status", "--json"], &[path]).json();
    assert_eq!(json["jobs"][0]["running"], false, "{json}");
}

#[expect(clippy::float_cmp, reason = "whole numbers")]
fn look(path: &Path) {
    let ran = backstay(&["status"], &[&path.join("test job")]);
    assert_eq!(ran.status, 0, "{ran:?}");
    for text in [
        "job test job: running, start 1",
        "node       newest checkpoint 3.1",
        "archive    newest checkpoint 3.1",
    ] {
        assert!(ran.out.contains(text), "{text}: {ran:?}");
    }
    let json = backstay(&["status", "--json"], &[path]).json();
    let job = &json["jobs"][0];
    let newest = json!({ "number": 3, "incarnation": 1 });
    assert_eq!(
        (&job["levels"]["node"], &job["levels"]["archive"]),
        (&newest, &newest),
        "{json}"
    );
    assert_eq!(job["archive"]["behind"], 0);
    assert_eq!(job["archive"]["drains"], 3, "{json}");
    assert_eq!(json["archives"][0]["newest"], newest);
    assert_eq!(json["archives"][0]["servers"], json!([]));

    let server = Server::start(path);
    let families = server.metrics();
    let (_, numbers) = &families["backstay_checkpoint_number"];
    assert_eq!(numbers["{job=\"test job\",level=\"node\"}"], 3.0);
    assert_eq!(numbers["{job=\"test job\",level=\"archive\"}"], 3.0);
    assert_eq!(
        families["backstay_job_running"].1["{job=\"test job\"}"],
        1.0
    );
    let drains = &families["backstay_archive_drains_total"].1;
    assert_eq!(drains["{job=\"test job\",outcome=\"archived\"}"], 3.0);
    assert!(families.contains_key("backstay_archive_checkpoint_number"));
}

#[test]
#[expect(clippy::float_cmp, reason = "whole numbers")]
fn checkpoints_that_are_not_due_are_not_missing() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path();
    run_ranks(ThreadComm::new(1), |comm| {
        let third = Config {
            archive_every: Some(3),
            ..archiving(path, 0, 4)
        };
        let mut one = Rank::open(comm, third);
        for number in 1..=8 {
            one.compute();
            one.session.checkpoint().unwrap();
            let due = |id: CheckpointId| number % 3 == 0 && id.number < number;
            while one.session.archived_checkpoint().is_none_or(due) {
                std::thread::yield_now();
            }
        }
        let ran = backstay(&["status"], &[path]);
        for text in [
            "checkpoint 8.1",
            "checkpoint 6.1",
            "one of 3 checkpoints is drained",
        ] {
            assert!(ran.out.contains(text), "{text}: {ran:?}");
        }
        assert!(!ran.out.contains("not there yet"), "{ran:?}");
        let json = backstay(&["status", "--json"], &[path]).json();
        let archive = &json["jobs"][0]["archive"];
        assert_eq!(
            (&archive["behind"], &archive["every"]),
            (&json!(0), &json!(3))
        );
        let families = Server::start(path).metrics();
        let behind = &families["backstay_archive_behind_checkpoints"].1;
        assert_eq!(behind["{job=\"test job\"}"], 0.0);
        one.session.close().unwrap();
    });
}

#[test]
fn an_archive_alone_shows_its_newest_checkpoint() {
    let root = tempfile::tempdir().unwrap();
    archived_job(root.path(), 4, None, 2);
    let archive = folder(root.path());
    let server = archive.join("server-s1.json");
    std::fs::write(server, r#"{"name":"s1","address":"10.0.0.1:5"}"#).unwrap();
    let ran = backstay(&["status"], &[&archive]);
    assert_eq!(ran.status, 0, "{ran:?}");
    assert!(
        ran.out.contains("newest complete checkpoint 2.1"),
        "{ran:?}"
    );
    assert!(
        ran.out.contains("staging server s1 at 10.0.0.1:5"),
        "{ran:?}"
    );
}

#[test]
fn the_endpoint_refuses_what_is_not_a_short_get_of_its_page() {
    let root = tempfile::tempdir().unwrap();
    archived_job(root.path(), 4, None, 1);
    let server = Server::start(&folder(root.path()));
    let begins = |request: &[u8], with: &str| {
        let answer = server.ask(request);
        assert!(answer.starts_with(with), "{answer:?}");
    };
    begins(b"GET / HTTP/1.1\r\n\r\n", "HTTP/1.1 404");
    begins(b"POST /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 405");
    begins(b"hello\r\n\r\n", "HTTP/1.1 400");
    // Too long: refused, and the next one is served all the same.
    let long = [
        b"GET /metrics HTTP/1.1\r\nX: ".as_slice(),
        &vec![b'x'; 20_000],
        b"\r\n\r\n",
    ]
    .concat();
    let answer = server.ask(&long);
    assert!(!answer.starts_with("HTTP/1.1 200"), "{answer:?}");
    // Slow: given up after 5 s.
    begins(b"GET /metrics", "HTTP/1.1 400");
    assert!(!server.metrics().is_empty());
}
