// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a node's agent with all that it does: protection of the node's store, and its part in draining.
//! In from: `session` (in threads of the node's leader), the command line (a process). Out to:
//! `backstay_parity::agent`, `backstay_archive::drain`.

pub use backstay_parity::agent::process::{Ended, ProcessOptions, Surroundings, run as run_on};

use backstay_archive::drain::{ArchivePlan, ArchiveThread, DrainPoint};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_net::{Endpoint, TcpEndpoint};
use backstay_parity::agent::{DrainThread, Drains};
use backstay_store::reserve::Reserve;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

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

/// Its part in draining, for the agent `name` at `endpoint`.
pub fn drains(endpoint: &Arc<dyn Endpoint>, name: &str) -> Option<Arc<dyn Drains>> {
    let point = Arc::new(DrainPoint::new(Arc::clone(endpoint), name));
    Some(Arc::new(Draining(point)))
}

/// A drain point as an agent has it.
#[derive(Debug)]
pub(crate) struct Draining(pub(crate) Arc<DrainPoint>);

impl Drains for Draining {
    fn is_request(&self, request: &[u8]) -> bool {
        DrainPoint::is_request(request)
    }
    fn handle(&self, request: &[u8], within: Duration) -> Result<Vec<u8>> {
        self.0.handle(request, within)
    }
    fn attach(&self, reserve: &Reserve) {
        self.0.attach(reserve);
    }
    fn detach(&self) {
        self.0.detach();
    }
    fn coordinate(&self, plan: &[u8]) -> Result<Box<dyn DrainThread>> {
        let plan: ArchivePlan = serde_json::from_slice(plan).map_err(|error| {
            let context = "a plan of an archive that this version does not know";
            Error::caused(ErrorKind::Unsupported, context, error)
        })?;
        let catalog = plan.open_catalog_if_room()?;
        let thread = ArchiveThread::start(Arc::clone(&self.0), plan, catalog)?;
        Ok(Box::new(Coordinating(thread)))
    }
}

/// The thread that coordinates the archive, as an agent has it.
#[derive(Debug)]
struct Coordinating(ArchiveThread);

impl DrainThread for Coordinating {
    fn stop(self: Box<Self>, limit: Duration) {
        self.0.stop(limit);
    }
    fn end(self: Box<Self>) {
        self.0.end();
    }
}
