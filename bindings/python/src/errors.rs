// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the engine's errors as exceptions of `backstay._errors`.
//! Invariants: there is a class for every kind, by its number; what a communicator raised is the cause.

use engine::error::Advice;
use engine::{Error, ErrorKind};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// Number, meaning and advice of every kind of error.
pub(crate) fn kinds() -> Vec<(i32, &'static str, &'static str, &'static str)> {
    let kinds = ErrorKind::ALL.into_iter();
    kinds
        .map(|kind| (kind.code(), kind.c_name(), kind.meaning(), kind.remedy()))
        .collect()
}

/// An argument that is wrong, as an exception.
pub(crate) fn invalid(py: Python<'_>, context: impl Into<String>) -> PyErr {
    raised(py, &Error::new(ErrorKind::InvalidArgument, context))
}

/// The exception for `error`.
pub(crate) fn raised(py: Python<'_>, error: &Error) -> PyErr {
    let class = py
        .import("backstay._errors")
        .and_then(|module| module.getattr("by_code"))
        .and_then(|by_code| by_code.get_item(error.kind().code()));
    let instance = class.and_then(|class| class.call1((error.to_string(), advice(error))));
    match instance {
        Ok(instance) => PyErr::from_value(instance),
        // Half torn down at the interpreter's exit.
        Err(_) => PyRuntimeError::new_err(error.to_string()),
    }
}

fn advice(error: &Error) -> &'static str {
    match error.kind().advice() {
        Advice::StartFresh => "start_fresh",
        Advice::Retry => "retry",
        Advice::FallBack => "fall_back",
        Advice::Degrade => "degrade",
        Advice::Reconfigure => "reconfigure",
        Advice::Fatal => "fatal",
        Advice::Bug => "bug",
    }
}
