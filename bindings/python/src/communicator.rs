// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the communicator of a Python program, one of the adapters of `backstay._comm`.
//! In from: the engine, on the thread that called the session. Out to: mpi4py, torch.distributed, or the
//! program's own object.
//! Invariants: the interpreter's lock is held during its calls only; what they raise is kept for the
//! exception that the call of the session becomes.

use engine::comm::{broadcast_by_max, gather_by_allgather};
use engine::format::width::index;
use engine::{Communicator, Error, ErrorKind, Result};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::{Arc, Mutex, PoisonError};

/// What the last call of the communicator raised.
#[derive(Debug, Clone, Default)]
pub(crate) struct Raised(Arc<Mutex<Option<PyErr>>>);

impl Raised {
    fn put(&self, error: PyErr) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }
    /// It, once.
    pub(crate) fn take(&self) -> Option<PyErr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// An object with `allgather`, `allreduce_max` and `barrier`, and perhaps `gather` and `broadcast`.
#[derive(Debug)]
pub(crate) struct Caller {
    object: Py<PyAny>,
    rank: u32,
    size: u32,
    gathers: bool,
    broadcasts: bool,
    raised: Raised,
}

impl Caller {
    /// The communicator `object`, which has `rank` and `size` as well.
    pub(crate) fn new(object: &Bound<'_, PyAny>, raised: Raised) -> PyResult<Self> {
        Ok(Self {
            rank: object.getattr("rank")?.extract()?,
            size: object.getattr("size")?.extract()?,
            gathers: object.hasattr("gather")?,
            broadcasts: object.hasattr("broadcast")?,
            object: object.clone().unbind(),
            raised,
        })
    }

    fn call<T>(
        &self,
        function: &str,
        call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>,
    ) -> Result<T> {
        let done = Python::attach(|py| {
            call(self.object.bind(py)).map_err(|error| {
                let context = format!("{function} of rank {} raised {error}", self.rank);
                self.raised.put(error);
                context
            })
        });
        done.map_err(|context| Error::new(ErrorKind::Communicator, context))
    }

    fn wrong_length(&self, function: &str, got: usize, wanted: usize) -> Error {
        let context = format!(
            "{function} of rank {} returned {got} items, not {wanted}",
            self.rank
        );
        Error::new(ErrorKind::Communicator, context)
    }
}

impl Communicator for Caller {
    fn rank(&self) -> u32 {
        self.rank
    }
    fn size(&self) -> u32 {
        self.size
    }
    fn allgather(&self, mine: &[u8], all: &mut [u8]) -> Result<()> {
        let gathered: Vec<Vec<u8>> = self.call("allgather", |object| {
            let mine = PyBytes::new(object.py(), mine);
            object.call_method1("allgather", (mine,))?.extract()
        })?;
        if usize::try_from(self.size) != Ok(gathered.len()) {
            return Err(self.wrong_length(
                "allgather",
                gathered.len(),
                all.len() / mine.len().max(1),
            ));
        }
        for (part, place) in gathered.iter().zip(all.chunks_mut(mine.len().max(1))) {
            if part.len() != place.len() {
                return Err(self.wrong_length("allgather", part.len(), place.len()));
            }
            place.copy_from_slice(part);
        }
        Ok(())
    }
    fn allreduce_max(&self, values: &mut [i64]) -> Result<()> {
        let greatest: Vec<i64> = self.call("allreduce_max", |object| {
            object
                .call_method1("allreduce_max", (values.to_vec(),))?
                .extract()
        })?;
        if greatest.len() != values.len() {
            return Err(self.wrong_length("allreduce_max", greatest.len(), values.len()));
        }
        values.copy_from_slice(&greatest);
        Ok(())
    }
    fn barrier(&self) -> Result<()> {
        self.call("barrier", |object| object.call_method0("barrier").map(drop))
    }
    fn gather(&self, mine: &[u8], root: u32) -> Result<Vec<Vec<u8>>> {
        if !self.gathers || root >= self.size {
            return gather_by_allgather(self, mine, root);
        }
        let gathered: Option<Vec<Vec<u8>>> = self.call("gather", |object| {
            let mine = PyBytes::new(object.py(), mine);
            object.call_method1("gather", (mine, root))?.extract()
        })?;
        let parts = gathered.unwrap_or_default();
        if self.rank != root {
            return Ok(Vec::new());
        }
        let wanted = index(self.size);
        let own = parts.get(index(root)).map_or(0, Vec::len);
        if parts.len() != wanted {
            return Err(self.wrong_length("gather", parts.len(), wanted));
        }
        if own != mine.len() {
            return Err(self.wrong_length("gather", own, mine.len()));
        }
        Ok(parts)
    }
    fn broadcast(&self, bytes: &mut [u8], root: u32) -> Result<()> {
        if !self.broadcasts || root >= self.size {
            return broadcast_by_max(self, bytes, root);
        }
        let got: Vec<u8> = self.call("broadcast", |object| {
            let mine = PyBytes::new(object.py(), bytes);
            object.call_method1("broadcast", (mine, root))?.extract()
        })?;
        if got.len() != bytes.len() {
            return Err(self.wrong_length("broadcast", got.len(), bytes.len()));
        }
        bytes.copy_from_slice(&got);
        Ok(())
    }
}
