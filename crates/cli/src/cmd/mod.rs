// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The subcommands, one file each.

mod job;
pub(crate) mod model;
mod model_bench;
mod model_figures;
pub(crate) mod plan;
pub(crate) mod simulate;
