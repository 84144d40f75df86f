// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a node's part in draining, as its agent has it: with the feature `archive`.
//! In from: `agent`, `session`. Out to: `backstay_archive::drain`.

pub(crate) use backstay_archive::drain::ArchiveThread;

use backstay_archive::Catalog;
use backstay_archive::drain::{ArchivePlan, DrainPoint};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_net::Endpoint;
use backstay_parity::agent::{DrainThread, Drains};
use backstay_store::reserve::Reserve;
use std::sync::Arc;
use std::time::Duration;

/// A node's part in draining.
#[derive(Debug, Clone)]
pub(crate) struct NodeDrains(Arc<DrainPoint>);

impl NodeDrains {
    /// That of the agent `name` at `endpoint`.
    pub(crate) fn new(endpoint: &Arc<dyn Endpoint>, name: &str) -> Self {
        Self(Arc::new(DrainPoint::new(Arc::clone(endpoint), name)))
    }
    /// As the agent has it.
    #[expect(
        clippy::unnecessary_wraps,
        reason = "without the feature there is none"
    )]
    pub(crate) fn for_agent(&self) -> Option<Arc<dyn Drains>> {
        Some(Arc::new(self.clone()))
    }
    /// Coordinates the archive of the job, in a thread of its own.
    pub(crate) fn start(
        &self,
        plan: ArchivePlan,
        catalog: Option<Catalog>,
    ) -> Result<ArchiveThread> {
        ArchiveThread::start(Arc::clone(&self.0), plan, catalog)
    }
}

impl Drains for NodeDrains {
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
        Ok(Box::new(Coordinating(self.start(plan, catalog)?)))
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
