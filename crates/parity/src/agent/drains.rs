// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what brings a node's checkpoints to an archive, as the node's agent has it: it answers at the
//! same endpoint and reads the same store. Protection knows nothing else of archives.
//! In from: whoever starts an agent. Out to: the agent.

use backstay_base::error::Result;
use backstay_net::Endpoint;
use backstay_store::reserve::Reserve;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

/// An agent's part in draining.
pub trait Drains: Debug + Send + Sync {
    /// Whether a request is one of a drain.
    fn is_request(&self, request: &[u8]) -> bool;
    /// Answers such a request.
    fn handle(&self, request: &[u8], within: Duration) -> Result<Vec<u8>>;
    /// The node's store is open: its blocks may be asked for.
    fn attach(&self, reserve: &Reserve);
    /// Lets go of the store, which is about to be opened anew.
    fn detach(&self);
    /// Coordinates the archive of the job as `plan` says, in a thread of its own.
    fn coordinate(&self, plan: &[u8]) -> Result<Box<dyn DrainThread>>;
}

/// The thread that coordinates an archive.
pub trait DrainThread: Debug + Send {
    /// Ends it: when what is committed is in the archive, or after `limit`.
    fn stop(self: Box<Self>, limit: Duration);
    /// Ends it, and with it what it drains.
    fn end(self: Box<Self>);
}

/// Gives the agent `name` at an endpoint its part in draining, where there are archives.
pub type MakeDrains<'a> = dyn Fn(&Arc<dyn Endpoint>, &str) -> Option<Arc<dyn Drains>> + Sync + 'a;
