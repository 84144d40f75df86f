// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what the supervisor does and why, as lines for people and as lines of JSON for programs.
//! Out to: standard error, a file.
//! Invariants: one event is one line; a line that cannot be written is lost, and stops nothing.

use serde::Serialize;
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Where events go.
#[derive(Debug, Default)]
pub struct Events {
    /// JSON instead of words on standard error.
    json: bool,
    file: Option<File>,
}

impl Events {
    /// Words or JSON on standard error, and JSON to a file if one is given, behind what is in it: a job that its
    /// scheduler starts again goes on with one log.
    pub fn new(json: bool, file: Option<&Path>) -> std::io::Result<Self> {
        let open = |file| File::options().create(true).append(true).open(file);
        let file = file.map(open).transpose()?;
        Ok(Self { json, file })
    }

    /// Says that something happened: its name, in words, and as values.
    pub(crate) fn tell(&mut self, event: &str, words: &str, values: &Value) {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let mut line = Map::new();
        line.insert("event".to_owned(), json!(event));
        line.insert(
            "unix_ms".to_owned(),
            json!(u64::try_from(since.as_millis()).unwrap_or(u64::MAX)),
        );
        line.insert("text".to_owned(), json!(words));
        if let Value::Object(values) = values {
            line.extend(values.clone());
        }
        let line = Value::Object(line).to_string();
        if let Some(file) = &mut self.file {
            drop(writeln!(file, "{line}"));
        }
        let mut out = std::io::stderr().lock();
        if self.json {
            drop(writeln!(out, "{line}"));
        } else if is_loud(event) {
            drop(writeln!(out, "backstay: run: {words}"));
        }
    }
}

/// `BACKSTAY_LOG`: quiet says nothing, warn leaves out what is only information.
fn is_loud(event: &str) -> bool {
    match std::env::var("BACKSTAY_LOG").as_deref() {
        Ok("quiet") => false,
        Ok("warn") => !matches!(
            event,
            "plan" | "start" | "again" | "end" | "summary" | "agents"
        ),
        _ => true,
    }
}

/// What became of it all.
#[derive(Clone, Debug, Default, Serialize, PartialEq, Eq)]
pub struct Summary {
    /// How often the application was started.
    pub starts: u32,
    /// How often it died.
    pub failures: u32,
    /// Hosts that were left out at least once.
    pub left_out: Vec<String>,
    /// Milliseconds between a death and the next start.
    pub down_ms: u64,
    /// Exit code of the last start.
    pub code: u8,
}
