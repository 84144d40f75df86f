// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a node's part in draining without the feature `archive`: there is none.

use backstay_net::Endpoint;
use backstay_parity::agent::Drains;
use std::sync::Arc;
use std::time::Duration;

/// None.
#[derive(Debug, Clone)]
pub(crate) struct NodeDrains;

impl NodeDrains {
    pub(crate) fn new(_: &Arc<dyn Endpoint>, _: &str) -> Self {
        Self
    }
    #[expect(clippy::unused_self, reason = "as where there is one")]
    pub(crate) fn for_agent(&self) -> Option<Arc<dyn Drains>> {
        None
    }
}

/// What coordinates an archive: nothing does.
#[derive(Debug)]
pub(crate) enum ArchiveThread {}

impl ArchiveThread {
    pub(crate) fn stop(self, _: Duration) {
        match self {}
    }
}
