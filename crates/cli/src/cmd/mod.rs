// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The subcommands, one file each.

pub(crate) mod model;
