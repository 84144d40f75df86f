// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the extension module `backstay._native`: a session over Python objects, and a reader of stores.
//! In from: the package `backstay`, which is what programs import. Out to: the engine.
//! Invariants: whatever may wait is called without the interpreter's lock; every error is one of
//! `backstay._errors`; no call of the engine happens while Python code runs on its behalf, but those of a
//! communicator.

mod buffer;
mod communicator;
mod dlpack;
mod errors;
mod memory;
mod reading;
mod session;
mod settings;

use pyo3::prelude::*;

/// The module.
#[pymodule(name = "_native")]
mod backstay_native {
    #[pymodule_export]
    use super::reading::Stores;
    #[pymodule_export]
    use super::session::{Handle, Session};
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("version", env!("CARGO_PKG_VERSION"))?;
        module.add("kinds", super::errors::kinds())?;
        module.add("settings", super::settings::keys())
    }
}
