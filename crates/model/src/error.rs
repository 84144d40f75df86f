// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What can be wrong with an input.
//!
//! Purpose: one error type that names the field, the value found and what is allowed.
//! In from: every module that takes numbers from outside.
//! Out to: the command line and the engine's schedule.
//! Invariants: nothing is clamped silently and nothing panics; a message is complete by itself.

use thiserror::Error;

/// Why a model could not be built or solved.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A value is outside its allowed range or of the wrong kind.
    #[error("{field} = {value}: allowed is {allowed}")]
    Field {
        /// Name of the field, with its index where it is a list.
        field: String,
        /// The value as found.
        value: String,
        /// What would have been accepted.
        allowed: String,
    },
    /// A required field is absent.
    #[error("{field} is missing: expected {allowed}")]
    Missing {
        /// Name of the field.
        field: String,
        /// What would have been accepted.
        allowed: String,
    },
    /// A key that is not part of the format.
    #[error("unknown key {key:?}: allowed are {allowed}")]
    UnknownKey {
        /// The key as found.
        key: String,
        /// The keys that exist.
        allowed: String,
    },
    /// A value looks like one in another unit.
    #[error("{field} = {value} looks like {suspicion}: {question}")]
    Suspicious {
        /// Name of the field.
        field: String,
        /// The value as found.
        value: String,
        /// What it looks like.
        suspicion: String,
        /// What to ask the user.
        question: String,
    },
    /// The expected period is too long to be a number.
    #[error("period_time = {seconds:e} s: allowed is up to 1e300 s; the job would never finish")]
    Endless {
        /// The expected period in seconds, possibly infinite.
        seconds: f64,
    },
    /// The text is not of the expected syntax.
    #[error("{place}: {problem}")]
    Syntax {
        /// Where in the input.
        place: String,
        /// What is wrong there.
        problem: String,
    },
}

impl ModelError {
    /// A value outside its range.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "callers hand over literals and numbers"
    )]
    pub(crate) fn field(
        field: impl Into<String>,
        value: impl ToString,
        allowed: impl Into<String>,
    ) -> Self {
        Self::Field {
            field: field.into(),
            value: value.to_string(),
            allowed: allowed.into(),
        }
    }
}

/// Checks that a number is finite and within bounds, both included.
pub(crate) fn check_range(field: &str, value: f64, low: f64, high: f64) -> Result<(), ModelError> {
    if value.is_finite() && value >= low && value <= high {
        return Ok(());
    }
    Err(ModelError::field(
        field,
        plain(value),
        format!("{} to {}", plain(low), plain(high)),
    ))
}

/// A number as people write it.
fn plain(number: f64) -> String {
    if number == 0.0 || !number.is_finite() || (1e-3..1e9).contains(&number.abs()) {
        return format!("{number}");
    }
    format!("{number:e}")
}

/// Checks every number of a list; the error names the index.
pub(crate) fn check_each(
    field: &str,
    values: &[f64],
    low: f64,
    high: f64,
) -> Result<(), ModelError> {
    let bad = |value: &f64| !(value.is_finite() && *value >= low && *value <= high);
    match values.iter().position(bad) {
        Some(index) => check_range(&format!("{field}[{index}]"), values[index], low, high),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_people_do() {
        let text = |low, high| {
            check_range("nodes", -1.0, low, high)
                .unwrap_err()
                .to_string()
        };
        assert_eq!(text(1.0, 1e8), "nodes = -1: allowed is 1 to 100000000");
        assert_eq!(text(0.05, 20.0), "nodes = -1: allowed is 0.05 to 20");
        assert_eq!(text(1e-6, 1e12), "nodes = -1: allowed is 1e-6 to 1e12");
        assert_eq!(text(0.0, 1.0), "nodes = -1: allowed is 0 to 1");
        let none = check_range("nodes", 0.0, 1.0, 1e8).unwrap_err().to_string();
        assert_eq!(none, "nodes = 0: allowed is 1 to 100000000");
    }
}
