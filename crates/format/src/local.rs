// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what the leader of a node's ranks and an agent process on the same node say to each other.
//! Invariants: the secret is in no text that is printed; a reader allocates nothing that the bytes it has
//! do not pay for.
//! Format: docs/format/agent.md, section "On one node".

use crate::agent::Seat;
use crate::bytes::FormatError;
use crate::check::{Check, Checked, list, text, within};
use crate::ids::StoreId;
use crate::limits::{ENDPOINT_BYTES_MAX, GROUP_MEMBERS_MAX, LABEL_BYTES_MAX, STRIPES_MAX};
use crate::message::{carried, message};
use serde::{Deserialize, Serialize};

/// Most bytes of a path or a text between a rank and its node's agent.
const LOCAL_TEXT_BYTES_MAX: usize = 4096;

/// What the leader of a node's ranks asks of an agent process on the same node.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LocalRequest {
    /// A start of the job begins: answer other agents that know this secret.
    Begin {
        /// The job secret.
        secret: [u8; 32],
        /// The job.
        job: String,
        /// The node.
        node: String,
        /// Where to listen; empty: any port.
        listen: String,
        /// Threads that gather and encode.
        threads: u32,
        /// Bytes a second to gather at most; 0: no limit.
        rate_bytes: u64,
        /// Niceness of background threads.
        nice: u32,
        /// CPUs of background threads; empty: all.
        cpu_set: String,
        /// Longest wait, in milliseconds.
        timeout_ms: u64,
        /// By what sealed bytes of other nodes are read: `auto`, `tcp` or `libfabric`.
        transport: String,
        /// The provider of libfabric; empty: the first of network hardware.
        fabric_provider: String,
    },
    /// The store is open and its ranks have claimed what is theirs.
    Attach {
        /// Folder of the control file.
        directory: String,
        /// Folder of the store.
        store_directory: String,
    },
    /// Let go of store and control file: they are about to be opened anew.
    Detach,
    /// Coordinate the rounds of the node's group.
    Coordinate {
        /// 1 partner, 2 XOR, 3 Reed-Solomon.
        scheme: u8,
        /// Parities of Reed-Solomon.
        parity: u8,
        /// Its epoch, if it is a new group.
        epoch: u64,
        /// The members: places in `nodes`, by column.
        members: Vec<u32>,
        /// All nodes, with the stores that they have.
        nodes: Vec<Seat>,
    },
    /// Coordinate the archive of the job.
    Archive {
        /// What, from where, how: JSON.
        #[serde(with = "carried")]
        plan: Vec<u8>,
    },
    /// End the coordination when what is committed is protected, or after this time.
    Stop {
        /// In milliseconds.
        limit_ms: u64,
    },
    /// Which stores are on the node?
    Stores,
    /// Remove stores that were made again for reading.
    DropRebuilt,
    /// The job is over.
    Goodbye,
}

/// What an agent process answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LocalAnswer {
    /// Done.
    Done,
    /// To `Begin`: where others reach the agent.
    Ready {
        /// Its address.
        address: String,
    },
    /// To `Stores`.
    Stores(Vec<LocalStoreEntry>),
    /// It cannot be done.
    Failed {
        /// The kind of the error.
        kind: i32,
        /// What to tell.
        text: String,
    },
}

/// A store on the node of an agent process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalStoreEntry {
    /// Which.
    pub store: StoreId,
    /// Its folder.
    pub directory: String,
    /// Made again for reading.
    pub rebuilt: bool,
}

/// The secret is not for logs.
impl std::fmt::Debug for LocalRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Begin { .. } => "Begin",
            Self::Attach { .. } => "Attach",
            Self::Detach => "Detach",
            Self::Coordinate { .. } => "Coordinate",
            Self::Archive { .. } => "Archive",
            Self::Stop { .. } => "Stop",
            Self::Stores => "Stores",
            Self::DropRebuilt => "DropRebuilt",
            Self::Goodbye => "Goodbye",
        })
    }
}

message!(
    LocalRequest,
    "request of a rank to its node's agent",
    b"BKSTLREQ"
);

impl Check for LocalRequest {
    fn check(&self) -> Checked {
        match self {
            Self::Begin {
                job,
                node,
                listen,
                cpu_set,
                transport,
                fabric_provider,
                ..
            } => {
                text("job", job, LABEL_BYTES_MAX)?;
                text("node", node, LABEL_BYTES_MAX)?;
                text("listen", listen, ENDPOINT_BYTES_MAX)?;
                text("CPUs", cpu_set, LOCAL_TEXT_BYTES_MAX)?;
                text("transport", transport, LABEL_BYTES_MAX)?;
                text("provider", fabric_provider, LABEL_BYTES_MAX)
            }
            Self::Attach {
                directory,
                store_directory,
            } => {
                text("folder", directory, LOCAL_TEXT_BYTES_MAX)?;
                text("folder of the store", store_directory, LOCAL_TEXT_BYTES_MAX)
            }
            Self::Coordinate { members, nodes, .. } => {
                within("members", members.len(), 1, GROUP_MEMBERS_MAX)?;
                list("nodes", nodes, STRIPES_MAX)
            }
            Self::Detach
            | Self::Archive { .. }
            | Self::Stop { .. }
            | Self::Stores
            | Self::DropRebuilt
            | Self::Goodbye => Ok(()),
        }
    }
}

message!(
    LocalAnswer,
    "answer of an agent to a rank of its node",
    b"BKSTLANS"
);

impl Check for LocalAnswer {
    fn check(&self) -> Checked {
        match self {
            Self::Done => Ok(()),
            Self::Ready { address } => text("address", address, ENDPOINT_BYTES_MAX),
            Self::Stores(stores) => list("stores", stores, STRIPES_MAX),
            Self::Failed { kind, text: words } => {
                within("error kind", *kind, 0, i32::MAX)?;
                text("text", words, LOCAL_TEXT_BYTES_MAX)
            }
        }
    }
}

impl Check for LocalStoreEntry {
    fn check(&self) -> Checked {
        text("folder", &self.directory, LOCAL_TEXT_BYTES_MAX)
    }
}
