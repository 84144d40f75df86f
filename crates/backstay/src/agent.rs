// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a node's agent with all that it does: protection of the node's store, and its part in draining.
//! In from: `session` (in threads of the node's leader), the command line (a process). Out to:
//! `backstay_parity::agent`, `draining`.

pub use backstay_parity::agent::process::{Ended, ProcessOptions, Surroundings, run as run_on};

use crate::draining::NodeDrains;
use backstay_base::error::Result;
use backstay_net::{Endpoint, TcpEndpoint};
use backstay_parity::agent::Drains;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Runs an agent process until its job is over, it has been alone for too long, or `stop` is set.
pub fn run(options: &ProcessOptions, stop: &AtomicBool) -> Result<Ended> {
    let around = Surroundings {
        id: std::process::id(),
        open_endpoint: &|options| Ok(Arc::new(TcpEndpoint::open(options)?)),
        drains: &drains,
        folder: &Path::to_path_buf,
    };
    run_on(options, stop, &around)
}

/// Its part in draining, for the agent `name` at `endpoint`; without the feature `archive` there is none.
pub fn drains(endpoint: &Arc<dyn Endpoint>, name: &str) -> Option<Arc<dyn Drains>> {
    NodeDrains::new(endpoint, name).for_agent()
}
