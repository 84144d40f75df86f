// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: how the blocks of several ranks follow each other in a segment, with frozen ids.
//! Format: docs/format/merge.md, table "Schemes"; a number is never used again.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Order in which a segment holds the blocks of similar variables. The discriminant is its id on disk.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum Merge {
    /// Every rank's variables apart.
    None = 0,
    /// A variable of one rank after that of another.
    #[default]
    Concatenate = 1,
    /// A block of each rank in turn.
    Interleave = 2,
}

impl Merge {
    /// All schemes, in order of their ids.
    pub const ALL: [Self; 3] = [Self::None, Self::Concatenate, Self::Interleave];

    /// The scheme with this id.
    pub fn from_id(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|merge| merge.id() == id)
    }
    /// Its id on disk.
    pub const fn id(self) -> u8 {
        self as u8
    }
    /// Its name in listings and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Concatenate => "concatenate",
            Self::Interleave => "interleave",
        }
    }
}

impl fmt::Display for Merge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
