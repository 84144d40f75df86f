// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the limits of values that were read, each with the name of its field.
//! In: values. Out: an error where one is beyond its limit; the reader says which structure, and where.

use crate::bytes::FormatError;
use crate::ids::{CheckpointId, SegmentId};
use crate::limits::COUNTER_MAX;
use std::fmt::Display;

/// Nothing, or what is beyond a limit.
pub(crate) type Checked = Result<(), FormatError>;

/// What has limits.
pub(crate) trait Check {
    /// Refuses what is beyond one.
    fn check(&self) -> Checked;
}

/// That `field` should be `expected`.
pub(crate) fn refuse(
    field: &'static str,
    expected: impl ToString,
    found: impl ToString,
) -> Checked {
    Err(FormatError::new("value", field, 0, expected, found))
}

/// A number in `low..=high`.
pub(crate) fn within(
    field: &'static str,
    value: impl TryInto<u64> + Display + Copy,
    low: u64,
    high: impl TryInto<u64>,
) -> Checked {
    let high = high.try_into().unwrap_or(u64::MAX);
    match value.try_into() {
        Ok(number) if (low..=high).contains(&number) => Ok(()),
        _ => refuse(field, format!("{low} to {high}"), value),
    }
}

/// A number that travels as a signed one.
pub(crate) fn counter(field: &'static str, value: u64) -> Checked {
    within(field, value, 0, COUNTER_MAX)
}

/// A list of at most `max`, and each of it.
pub(crate) fn list<T: Check>(field: &'static str, all: &[T], max: impl TryInto<u64>) -> Checked {
    within(field, all.len(), 0, max)?;
    all.iter().try_for_each(T::check)
}

/// The length of a text.
pub(crate) fn text(field: &'static str, text: &str, max: usize) -> Checked {
    if text.len() <= max {
        return Ok(());
    }
    refuse(field, format!("at most {max} bytes"), text.len())
}

impl Check for CheckpointId {
    fn check(&self) -> Checked {
        counter("incarnation", self.incarnation)?;
        counter("number", self.number)
    }
}

/// 0 is none.
impl Check for SegmentId {
    fn check(&self) -> Checked {
        within("segment id", self.0, 1, Self::MAX.0)
    }
}
