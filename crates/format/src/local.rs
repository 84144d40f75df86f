// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what the leader of a node's ranks and an agent process on the same node say to each other.
//! Invariants: the secret is in no text that is printed; a reader allocates nothing that the bytes it has
//! do not pay for.
//! Format: docs/format/agent.md, section "On one node".

use crate::agent::{Seat, put_seats, take_flag, take_kind, take_list, take_seat};
use crate::bytes::{Decoder, Encoder, FormatError, open};
use crate::ids::StoreId;
use crate::limits::{ENDPOINT_BYTES_MAX, LABEL_BYTES_MAX};
use crate::width::index;

const LOCAL_REQUEST: &str = "request of a rank to its node's agent";
const LOCAL_REQUEST_MAGIC: [u8; 8] = *b"BKSTLREQ";
const LOCAL_ANSWER: &str = "answer of an agent to a rank of its node";
const LOCAL_ANSWER_MAGIC: [u8; 8] = *b"BKSTLANS";
/// Most bytes of a path or a text between a rank and its node's agent.
const LOCAL_TEXT_BYTES_MAX: usize = 4096;

/// What the leader of a node's ranks asks of an agent process on the same node.
#[derive(Clone, PartialEq, Eq)]
pub enum LocalRequest {
    /// A life of the job begins: answer other agents that know this secret.
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
    /// Coordinate the rounds of the job.
    Coordinate {
        /// 1 partner, 2 XOR, 3 Reed-Solomon.
        scheme: u8,
        /// Parities of Reed-Solomon.
        parity: u8,
        /// Nodes of a group.
        group_size: u32,
        /// All nodes; stores are not named.
        nodes: Vec<Seat>,
    },
    /// Coordinate the archive of the job.
    Archive {
        /// What, from where, how: JSON.
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
#[derive(Debug, Clone, PartialEq, Eq)]
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
#[derive(Debug, Clone, PartialEq, Eq)]
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

impl LocalRequest {
    /// Its bytes.
    pub fn encode(&self) -> Result<Vec<u8>, FormatError> {
        let mut body = Encoder::framed(LOCAL_REQUEST, LOCAL_REQUEST_MAGIC);
        match self {
            Self::Begin {
                secret,
                job,
                node,
                listen,
                threads,
                rate_bytes,
                nice,
                cpu_set,
                timeout_ms,
            } => {
                body.u8(1).raw(secret).text(job).text(node).text(listen);
                body.u32(*threads).u64(*rate_bytes).u32(*nice);
                body.text(cpu_set).u64(*timeout_ms);
            }
            Self::Attach {
                directory,
                store_directory,
            } => {
                body.u8(2).text(directory).text(store_directory);
            }
            Self::Detach => {
                body.u8(3);
            }
            Self::Coordinate {
                scheme,
                parity,
                group_size,
                nodes,
            } => {
                body.u8(4).u8(*scheme).u8(*parity).u32(*group_size);
                put_seats(&mut body, nodes);
            }
            Self::Archive { plan } => {
                body.u8(9);
                body.count(plan.len());
                body.raw(plan);
            }
            Self::Stop { limit_ms } => {
                body.u8(5).u64(*limit_ms);
            }
            Self::Stores => {
                body.u8(6);
            }
            Self::DropRebuilt => {
                body.u8(7);
            }
            Self::Goodbye => {
                body.u8(8);
            }
        }
        body.finish(self, Self::decode)
    }

    /// The request at the front of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut body = open(LOCAL_REQUEST, LOCAL_REQUEST_MAGIC, bytes)?;
        let text = |body: &mut Decoder<'_>, field| body.text(field, LOCAL_TEXT_BYTES_MAX);
        let request = match body.u8("kind")? {
            1 => Self::Begin {
                secret: body.array("secret")?,
                job: body.text("job", LABEL_BYTES_MAX)?,
                node: body.text("node", LABEL_BYTES_MAX)?,
                listen: body.text("listen", ENDPOINT_BYTES_MAX)?,
                threads: body.u32("threads")?,
                rate_bytes: body.u64("rate")?,
                nice: body.u32("niceness")?,
                cpu_set: text(&mut body, "CPUs")?,
                timeout_ms: body.u64("timeout")?,
            },
            2 => Self::Attach {
                directory: text(&mut body, "folder")?,
                store_directory: text(&mut body, "folder of the store")?,
            },
            3 => Self::Detach,
            4 => Self::Coordinate {
                scheme: body.u8("scheme")?,
                parity: body.u8("parity")?,
                group_size: body.u32("group size")?,
                nodes: take_list(&mut body, "nodes", 22, take_seat)?,
            },
            5 => Self::Stop {
                limit_ms: body.u64("limit")?,
            },
            6 => Self::Stores,
            7 => Self::DropRebuilt,
            8 => Self::Goodbye,
            9 => {
                let length = body.u32("plan")?;
                let plan = body.raw("plan", index(length))?.to_vec();
                Self::Archive { plan }
            }
            other => return Err(body.refuse("kind", 1, "1 to 9", other)),
        };
        body.end()?;
        Ok(request)
    }
}

impl LocalAnswer {
    /// Its bytes.
    pub fn encode(&self) -> Result<Vec<u8>, FormatError> {
        let mut body = Encoder::framed(LOCAL_ANSWER, LOCAL_ANSWER_MAGIC);
        match self {
            Self::Done => {
                body.u8(1);
            }
            Self::Ready { address } => {
                body.u8(2).text(address);
            }
            Self::Stores(stores) => {
                body.u8(3);
                body.count(stores.len());
                for entry in stores {
                    body.raw(&entry.store.0)
                        .text(&entry.directory)
                        .u8(u8::from(entry.rebuilt));
                }
            }
            Self::Failed { kind, text } => {
                body.u8(4)
                    .u32(u32::try_from(*kind).unwrap_or(u32::MAX))
                    .text(text);
            }
        }
        body.finish(self, Self::decode)
    }

    /// The answer at the front of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut body = open(LOCAL_ANSWER, LOCAL_ANSWER_MAGIC, bytes)?;
        let answer = match body.u8("kind")? {
            1 => Self::Done,
            2 => Self::Ready {
                address: body.text("address", ENDPOINT_BYTES_MAX)?,
            },
            3 => Self::Stores(take_list(&mut body, "stores", 19, |body| {
                Ok(LocalStoreEntry {
                    store: StoreId(body.array("store id")?),
                    directory: body.text("folder", LOCAL_TEXT_BYTES_MAX)?,
                    rebuilt: take_flag(body, "rebuilt")?,
                })
            })?),
            4 => Self::Failed {
                kind: take_kind(&mut body)?,
                text: body.text("text", LOCAL_TEXT_BYTES_MAX)?,
            },
            other => return Err(body.refuse("kind", 1, "1 to 4", other)),
        };
        body.end()?;
        Ok(answer)
    }
}
