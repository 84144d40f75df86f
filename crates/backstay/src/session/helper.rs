// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the agent of a node as its leader uses it: a process that was there before, or threads of
//! this rank.
//! In from: `session::protection`. Out to: `agent`.
//! Invariants: an agent process that cannot begin a start is ended and replaced by threads, loudly.

use super::node::Node;
use crate::config::Config;
use crate::draining::{ArchiveThread, NodeDrains};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::notice;
use backstay_format::StoreId;
use backstay_format::local::{LocalAnswer, LocalRequest};
use backstay_net::{Endpoint, Secret, Transports};
use backstay_parity::agent::coordinate::{GroupPlan, RoundCoordinator, RoundCoordinatorThread};
use backstay_parity::agent::local::AgentClient;
use backstay_parity::agent::process::scheme_numbers;
use backstay_parity::agent::{Agent, Ask, Asker};
use backstay_store::reserve::Reserve;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// What is asked of an agent process that is done at once.
const PROMPT: Duration = Duration::from_secs(10);

/// The agent of this node.
#[derive(Debug)]
pub(super) enum NodeAgent {
    /// In threads of this rank.
    Here {
        agent: Arc<Agent>,
        /// Its part in draining.
        #[cfg(feature = "archive")]
        drains: NodeDrains,
        coordinator: Option<RoundCoordinatorThread>,
        archive: Option<ArchiveThread>,
    },
    /// A process.
    Process {
        client: AgentClient,
        address: String,
        endpoint: Arc<dyn Endpoint>,
        timeout: Duration,
    },
}

/// What an agent has to know of the start of the job.
pub(super) struct Known<'a> {
    pub(super) secret: &'a Secret,
    /// Where to listen, if it is said.
    pub(super) listen: Option<&'a str>,
    /// By what it reads of other nodes.
    pub(super) transports: &'a Transports,
}

/// A store on this node.
#[derive(Debug)]
pub(super) struct StoreHere {
    pub(super) store: StoreId,
    pub(super) directory: PathBuf,
    pub(super) rebuilt: bool,
}

impl NodeAgent {
    /// Begins a start: in the agent process of the node, if there is one.
    pub(super) fn begin(
        config: &Config,
        node: &Node,
        known: &Known<'_>,
        endpoint: &Arc<dyn Endpoint>,
    ) -> Self {
        if let Some(client) = node.agent.borrow_mut().take() {
            match Self::begin_process(client, config, node, known, endpoint) {
                Ok(agent) => return agent,
                Err(error) => notice::warn(&format!(
                    "the agent process of this node does not take part, threads of rank {} do: \
                     {error}",
                    node.ranks.first().copied().unwrap_or(0)
                )),
            }
        }
        let directory = node.store_directory();
        let drains = NodeDrains::new(endpoint, &node.name);
        let agent = Agent::start(
            Arc::clone(endpoint),
            config.agent_settings(),
            &node.name,
            &directory,
            drains.for_agent(),
        );
        Self::Here {
            agent,
            #[cfg(feature = "archive")]
            drains,
            coordinator: None,
            archive: None,
        }
    }

    fn begin_process(
        client: AgentClient,
        config: &Config,
        node: &Node,
        known: &Known<'_>,
        endpoint: &Arc<dyn Endpoint>,
    ) -> Result<Self> {
        let request = LocalRequest::Begin {
            secret: *known.secret.bytes(),
            job: node.job.clone(),
            node: node.name.clone(),
            listen: known.listen.unwrap_or_default().to_owned(),
            threads: config.encode_threads,
            rate_bytes: config.encode_rate_bytes.unwrap_or(0),
            nice: config.encode_nice,
            cpu_set: config.cpu_set.clone().unwrap_or_default(),
            timeout_ms: config.timeout_ms,
            transport: known.transports.transport.word().to_owned(),
            fabric_provider: known.transports.provider.clone().unwrap_or_default(),
        };
        let LocalAnswer::Ready { address } = client.ask(&request, PROMPT)? else {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "an answer of another version",
            ));
        };
        let agent = Self::Process {
            client,
            address,
            endpoint: Arc::clone(endpoint),
            timeout: Duration::from_millis(config.timeout_ms),
        };
        // It looks where the store is, or is going to be.
        agent.tell(&attach(node))?;
        Ok(agent)
    }

    pub(super) fn tell(&self, request: &LocalRequest) -> Result<LocalAnswer> {
        match self {
            Self::Here { .. } => Ok(LocalAnswer::Done),
            Self::Process { client, .. } => client.ask(request, PROMPT),
        }
    }

    /// Where others reach it.
    pub(super) fn address(&self) -> String {
        match self {
            Self::Here { agent, .. } => agent.endpoint().address(),
            Self::Process { address, .. } => address.clone(),
        }
    }

    /// What asks other agents in its place.
    pub(super) fn asker(&self) -> Box<dyn Ask + '_> {
        match self {
            Self::Here { agent, .. } => Box::new(Arc::clone(agent)),
            Self::Process { endpoint, .. } => Box::new(Asker(Arc::clone(endpoint))),
        }
    }

    /// Takes the store, which is open.
    pub(super) fn attach(&self, reserve: &Reserve, node: &Node) -> Result<()> {
        match self {
            Self::Here { agent, .. } => agent.attach(reserve, &node.store_directory()),
            Self::Process { .. } => self.tell(&attach(node)).map(|_| ()),
        }
    }

    /// An agent process copies the store that it holds to `home`, where it was deleted. False where there
    /// is no such process, or it cannot.
    pub(super) fn put_back(&self, node: &Node, home: &Path) -> bool {
        let Self::Process {
            client, timeout, ..
        } = self
        else {
            return false;
        };
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let request = LocalRequest::Attach {
            directory: text(&node.directory),
            store_directory: text(home.parent().unwrap_or(&node.directory)),
        };
        let asked = client.ask(&request, *timeout);
        let done = asked.is_ok() && home.exists();
        said(asked);
        done
    }

    /// Coordinates the rounds of the node's group.
    pub(super) fn coordinate(&mut self, plan: GroupPlan) -> Result<()> {
        if let Self::Here {
            agent, coordinator, ..
        } = self
        {
            let work = RoundCoordinator::new(Arc::clone(agent), plan);
            *coordinator = RoundCoordinatorThread::start(Arc::clone(agent), work);
            return Ok(());
        }
        let (scheme, parity) = scheme_numbers(plan.scheme);
        let place = |&at: &usize| u32::try_from(at).unwrap_or(u32::MAX);
        self.tell(&LocalRequest::Coordinate {
            scheme,
            parity,
            epoch: plan.epoch,
            members: plan.members.iter().map(place).collect(),
            nodes: plan.seats,
        })
        .map(|_| ())
    }

    /// The stores on this node.
    pub(super) fn stores(&self) -> Vec<StoreHere> {
        match self {
            Self::Here { agent, .. } => {
                let stores = agent.local_stores().into_iter();
                stores
                    .map(|found| StoreHere {
                        store: found.survey.store,
                        directory: found.directory,
                        rebuilt: found.survey.rebuilt,
                    })
                    .collect()
            }
            Self::Process { .. } => match self.tell(&LocalRequest::Stores) {
                Ok(LocalAnswer::Stores(stores)) => stores
                    .into_iter()
                    .map(|entry| StoreHere {
                        store: entry.store,
                        directory: PathBuf::from(entry.directory),
                        rebuilt: entry.rebuilt,
                    })
                    .collect(),
                _ => Vec::new(),
            },
        }
    }

    /// Removes stores that were made again for reading.
    pub(super) fn drop_rebuilt(&self) {
        match self {
            Self::Here { agent, .. } => agent.drop_rebuilt(),
            Self::Process { .. } => said(self.tell(&LocalRequest::DropRebuilt)),
        }
    }

    /// Ends the coordination: when what is committed is protected, or after `limit`.
    pub(super) fn stop(&mut self, limit: Duration) {
        match self {
            Self::Here {
                coordinator,
                archive,
                ..
            } => {
                if let Some(coordinator) = coordinator.take() {
                    coordinator.stop(limit);
                }
                if let Some(archive) = archive.take() {
                    archive.stop(limit);
                }
            }
            Self::Process {
                client, timeout, ..
            } => {
                let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
                said(client.ask(&LocalRequest::Stop { limit_ms }, limit * 2 + *timeout));
            }
        }
    }

    /// The job is over: an agent process ends.
    pub(super) fn goodbye(&self) {
        said(self.tell(&LocalRequest::Goodbye));
    }

    /// The session ends without a goodbye: threads end with it, a process goes on.
    pub(super) fn leave(&mut self) {
        if matches!(self, Self::Here { .. }) {
            self.stop(Duration::ZERO);
        }
    }
}

/// To an agent process that the start had no use for.
pub(super) fn say_goodbye(client: &AgentClient) {
    said(client.ask(&LocalRequest::Goodbye, PROMPT));
}

fn attach(node: &Node) -> LocalRequest {
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    LocalRequest::Attach {
        directory: text(node.directory.clone()),
        store_directory: text(node.store_directory()),
    }
}

fn said(outcome: Result<LocalAnswer>) {
    if let Err(error) = outcome {
        notice::warn(&format!("this node's agent: {error}"));
    }
}
