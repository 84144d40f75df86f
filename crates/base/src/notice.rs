// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what must be said aloud, to the `tracing` subscriber and to standard error.
//! Invariants: one line each; `BACKSTAY_LOG` = quiet, warn or info (default) says how much.

use std::io::Write;
use std::sync::{Mutex, OnceLock, PoisonError};

#[derive(PartialEq, PartialOrd)]
enum Loudness {
    Quiet,
    Warn,
    Info,
}

fn loudness() -> &'static Loudness {
    static LOUDNESS: OnceLock<Loudness> = OnceLock::new();
    LOUDNESS.get_or_init(|| match std::env::var("BACKSTAY_LOG").as_deref() {
        Ok("quiet") => Loudness::Quiet,
        Ok("warn") => Loudness::Warn,
        _ => Loudness::Info,
    })
}

fn line(text: &str) {
    let mut stream = std::io::stderr().lock();
    let line = format!("backstay: {text}\n");
    // Nowhere to report that standard error is closed, and no reason to end the program by a signal.
    if crate::io::open::can_take(&stream, line.len()) {
        drop(stream.write_all(line.as_bytes()));
    }
}

/// Says what a user wants to know: where the store is, what was restored.
pub fn info(text: &str) {
    tracing::info!("{text}");
    if *loudness() >= Loudness::Info {
        line(text);
    }
}

/// Says what a user must know: damage, fallbacks, less than was asked for.
pub fn warn(text: &str) {
    tracing::warn!("{text}");
    if *loudness() >= Loudness::Warn {
        line(&format!("warning: {text}"));
    }
}

/// Says once what is wrong, not at every try.
#[derive(Debug, Default)]
pub struct SaidOnce(Mutex<Option<String>>);

impl SaidOnce {
    /// Says it, unless it is what was said last.
    pub fn warn(&self, text: &str) {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if said.as_deref() != Some(text) {
            warn(text);
            *said = Some(text.to_owned());
        }
    }
    /// All is well again; true if it was not.
    pub fn clear(&self) -> bool {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
            .is_some()
    }
}
