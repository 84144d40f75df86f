// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what the daemons of a test CephFS counted: requests at the metadata server by type, and
//! operations at the object servers.
//! In from: admin sockets (a line of JSON with a NUL, then length and JSON). Out to: `main`.
//! Invariants: a snapshot costs about a millisecond and no request of a client.

use backstay_bench::Outcome;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const QUIET: Duration = Duration::from_millis(300);
const SETTLE: Duration = Duration::from_secs(60);

/// Counters by name at one moment, or their differences between two.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counts {
    /// Client requests at the metadata server: `handle_client_request`.
    pub(crate) requests: u64,
    /// The same by type.
    pub(crate) by_type: BTreeMap<String, u64>,
    /// Messages about capabilities from clients; no requests.
    pub(crate) caps: u64,
    /// Write operations at the object servers.
    pub(crate) writes: u64,
    /// Bytes of these.
    pub(crate) bytes: u64,
}

impl Counts {
    /// What was counted since `before`.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let by_type = self.by_type.iter().filter_map(|(name, count)| {
            let more = count - before.by_type.get(name).unwrap_or(&0);
            (more > 0).then(|| (name.clone(), more))
        });
        Self {
            requests: self.requests - before.requests,
            by_type: by_type.collect(),
            caps: self.caps - before.caps,
            writes: self.writes - before.writes,
            bytes: self.bytes - before.bytes,
        }
    }

    /// The types and how many of each.
    pub(crate) fn types(&self) -> String {
        let words: Vec<_> = self
            .by_type
            .iter()
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        words.join(", ")
    }
}

/// The admin sockets of one file system.
#[derive(Debug)]
pub(crate) struct Counters {
    metadata: PathBuf,
    objects: Vec<PathBuf>,
}

impl Counters {
    /// Those in the folder `run`.
    pub(crate) fn of(run: &Path) -> Outcome<Self> {
        let mut objects = Vec::new();
        for entry in std::fs::read_dir(run)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with("osd.") && name.ends_with(".asok") {
                objects.push(path);
            }
        }
        Ok(Self {
            metadata: run.join("mds.a.asok"),
            objects,
        })
    }

    /// All counters now.
    pub(crate) fn read(&self) -> Outcome<Counts> {
        let dump = dump(&self.metadata)?;
        let server = &dump["mds_server"];
        let mut counts = Counts {
            requests: number(&server["handle_client_request"])?,
            caps: number(&dump["mds"]["handle_client_caps"])?,
            ..Counts::default()
        };
        for (key, value) in server.as_object().ok_or("no mds_server")? {
            let name = key
                .strip_prefix("req_")
                .and_then(|key| key.strip_suffix("_latency"));
            if let Some(name) = name {
                counts
                    .by_type
                    .insert(name.to_owned(), number(&value["avgcount"])?);
            }
        }
        for path in &self.objects {
            let osd = &self::dump(path)?["osd"];
            counts.writes += number(&osd["op_w"])? + number(&osd["op_rw"])?;
            counts.bytes += number(&osd["op_w_in_bytes"])? + number(&osd["op_rw_in_bytes"])?;
        }
        Ok(counts)
    }

    /// Waits until nothing is written any more: what was put off by clients and the metadata server.
    pub(crate) fn settle(&self) -> Outcome<Counts> {
        let (begun, mut last) = (Instant::now(), self.read()?);
        let mut changed = Instant::now();
        while changed.elapsed() < QUIET && begun.elapsed() < SETTLE {
            std::thread::sleep(QUIET / 6);
            let now = self.read()?;
            if (now.writes, now.requests, now.caps) != (last.writes, last.requests, last.caps) {
                changed = Instant::now();
            }
            last = now;
        }
        Ok(last)
    }
}

fn number(value: &Value) -> Outcome<u64> {
    Ok(value.as_u64().ok_or("a counter is missing")?)
}

fn dump(path: &Path) -> Outcome<Value> {
    let mut stream =
        UnixStream::connect(path).map_err(|error| format!("{}: {error}", path.display()))?;
    stream.write_all(b"{\"prefix\": \"perf dump\"}\0")?;
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = length
        .iter()
        .fold(0, |sum, &byte| sum << 8 | usize::from(byte));
    let mut text = vec![0; length];
    stream.read_exact(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}
