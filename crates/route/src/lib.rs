// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which names of files are routed, and what a program's processes tell the routing agent.
//!
//! Purpose: what the preload library (`bindings/route`), who answers calls that the kernel tells (`backstay-calls`), and the
//! agent (`backstay-service`) have to agree on.
//! In from: the words of `--route`, paths of a program. Out to: places in the memory of the node, messages.
//! Invariants: it stands on nothing, since it is in every routed program; names are bytes; a name has one place.
#![forbid(unsafe_code)]

pub mod message;
pub mod notes;
pub mod pattern;
pub mod place;
pub mod table;

/// The variable of the environment that names the folder of the agent.
pub const VARIABLE: &str = "BACKSTAY_ROUTE";
/// In that folder: the table of what is routed.
pub const TABLE_FILE: &str = "table";
/// The socket of the agent.
pub const SOCKET: &str = "socket";
/// The files as the program sees them.
pub const LIVE: &str = "live";
/// Revisions of them that are complete.
pub const KEPT: &str = "kept";
/// Files of other nodes, to be seen: sizes and times, no bytes. It is there where there are other nodes.
pub const FAR: &str = "far";
/// Copies of files of other nodes, to be read.
pub const NEAR: &str = "near";
/// The socket to which a program that begins hands the calls that the kernel tells.
pub const CALLS: &str = "calls";
/// The variable of the environment by which it is told to, with the folder of the agent.
pub const CALLS_VARIABLE: &str = "BACKSTAY_ROUTE_CALLS";
/// What this node writes of files that several nodes write at once. It is there where there are such.
pub const PARTS: &str = "parts";
/// Hints for ROMIO, for such files.
pub const HINTS_FILE: &str = "romio-hints";
/// A file that has what stands behind a name there.
pub const PART_FILE: &str = "part";
