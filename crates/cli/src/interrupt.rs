// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: SIGINT and SIGTERM end a command that has something to take back first.
//! In from: the kernel. Out to: whoever asks between two steps.
//! Invariants: a second signal of a kind ends the process at once, as without this.

use crate::output::Failure;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// The number of the first signal that came.
static CAME: OnceLock<Arc<AtomicUsize>> = OnceLock::new();

/// Watches for them from now on.
pub(crate) fn watch() -> Result<(), Failure> {
    let came = Arc::clone(CAME.get_or_init(Arc::default));
    for (signal, number) in [(SIGINT, 2), (SIGTERM, 15)] {
        let again = Arc::new(AtomicBool::new(false));
        // In this order: the first signal finds the switch off, and turns it on.
        let registered =
            signal_hook::flag::register_conditional_default(signal, Arc::clone(&again))
                .and_then(|_| signal_hook::flag::register(signal, again))
                .and_then(|_| signal_hook::flag::register_usize(signal, Arc::clone(&came), number));
        registered.map_err(|error| Failure::output("watching for signals", &error))?;
    }
    Ok(())
}

/// The number of the signal that came, if one did.
pub(crate) fn came() -> Option<u8> {
    let number = CAME.get()?.load(Ordering::Relaxed);
    u8::try_from(number).ok().filter(|&number| number > 0)
}

/// An error once a signal came.
pub(crate) fn check() -> std::io::Result<()> {
    match came() {
        None => Ok(()),
        // Not `Interrupted`: that is tried again.
        Some(_) => Err(std::io::Error::other("a signal came")),
    }
}
