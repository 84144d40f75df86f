// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The subcommands, one file each.

pub(crate) mod agent;
pub(crate) mod changes;
pub(crate) mod diff;
pub(crate) mod doctor;
pub(crate) mod export;
pub(crate) mod generate;
pub(crate) mod import;
pub(crate) mod inspect;
mod job;
pub(crate) mod ls;
pub(crate) mod model;
pub(crate) mod plan;
pub(crate) mod prune;
mod remote;
pub(crate) mod rm;
pub(crate) mod route;
pub(crate) mod run;
pub(crate) mod simulate;
pub(crate) mod stage;
pub(crate) mod status;
pub(crate) mod timeline;
pub(crate) mod verify;
