// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the names of the files of an archive.
//! In from: whoever makes, lists or looks for them. Out: the name, or what it says.
//! Invariants: what is written is read back as what it was; another spelling of a number is no name of ours.

use std::fmt;

/// A file in the folder of a job's archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FileName {
    /// The store of an aggregator, in one of its epochs.
    Store {
        /// Its number among those of the job.
        aggregator: u32,
        /// Higher for each that took over.
        epoch: u32,
    },
    /// A catalog.
    Catalog {
        /// Higher for each that took over.
        epoch: u32,
    },
}

impl FileName {
    /// What `name` says, if it is the name of such a file.
    pub fn of(name: &str) -> Option<Self> {
        let middle = name.strip_suffix(".backstay")?;
        let found = if let Some(epoch) = middle.strip_prefix("catalog-") {
            let epoch = epoch.parse().ok()?;
            Self::Catalog { epoch }
        } else {
            let (aggregator, epoch) = middle.strip_prefix("aggregate-")?.split_once('-')?;
            Self::Store {
                aggregator: aggregator.parse().ok()?,
                epoch: epoch.parse().ok()?,
            }
        };
        (found.to_string() == name).then_some(found)
    }

    /// Aggregator and epoch, if `name` is that of a store.
    pub fn store(name: &str) -> Option<(u32, u32)> {
        match Self::of(name)? {
            Self::Store { aggregator, epoch } => Some((aggregator, epoch)),
            Self::Catalog { .. } => None,
        }
    }

    /// The epoch, if `name` is that of a catalog.
    pub fn catalog(name: &str) -> Option<u32> {
        match Self::of(name)? {
            Self::Catalog { epoch } => Some(epoch),
            Self::Store { .. } => None,
        }
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store { aggregator, epoch } => {
                write!(f, "aggregate-{aggregator}-{epoch}.backstay")
            }
            Self::Catalog { epoch } => write!(f, "catalog-{epoch}.backstay"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_they_were_made_of() {
        for (aggregator, epoch) in [(0, 1), (12, 3), (u32::MAX, u32::MAX)] {
            for name in [
                FileName::Store { aggregator, epoch },
                FileName::Catalog { epoch },
            ] {
                assert_eq!(FileName::of(&name.to_string()), Some(name));
            }
        }
        assert_eq!(FileName::store("aggregate-12-3.backstay"), Some((12, 3)));
        assert_eq!(FileName::catalog("catalog-7.backstay"), Some(7));
        for other in [
            "aggregate-12.backstay",
            "aggregate-12-03.backstay",
            "aggregate-+1-3.backstay",
            "aggregate-1-3",
            "catalog-.backstay",
            "catalog-x.backstay",
            "catalog-4294967296.backstay",
            "store.backstay",
        ] {
            assert_eq!(FileName::of(other), None, "{other}");
        }
    }
}
