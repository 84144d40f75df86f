// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what stores and archives hold, without a job: lists, and boxes of arrays put together.
//! In from: `backstay.read`. Out to: `backstay-inspect`.
//! Invariants: nothing is locked or written; every byte handed out was verified against its digest.

use crate::buffer::Buffer;
use crate::errors::{invalid, raised};
use backstay_base::error::Result;
use backstay_inspect::{Array, Checkpoint, StoredPart, StoredVariable, Stores as Inspected};
use engine::VariableDescriptor;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Stores and archives at or below some paths, as they were when they were opened.
#[derive(Debug)]
#[pyclass(frozen, module = "backstay._native")]
pub(crate) struct Stores {
    inspected: Inspected,
    checkpoints: Vec<Checkpoint>,
    /// Of the checkpoints that were looked into.
    variables: Mutex<Known>,
}

/// Variables by the place of their checkpoint, by name.
type Known = BTreeMap<usize, BTreeMap<String, StoredVariable>>;

/// Type, shape, and where it begins in which global shape.
type Described = (&'static str, Vec<u64>, Option<Vec<u64>>, Option<Vec<u64>>);

fn described(descriptor: &VariableDescriptor) -> Described {
    let slab = descriptor.slab.as_ref();
    (
        descriptor.element.name(),
        descriptor.shape.clone(),
        slab.map(|slab| slab.start.clone()),
        slab.map(|slab| slab.global_shape.clone()),
    )
}

impl Stores {
    fn checkpoint(&self, py: Python<'_>, index: usize) -> PyResult<&Checkpoint> {
        let found = self.checkpoints.get(index);
        found.ok_or_else(|| invalid(py, format!("there is no checkpoint {index}")))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.variables
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Variables of a checkpoint, which are read the first time.
    fn loaded(&self, py: Python<'_>, index: usize) -> PyResult<MutexGuard<'_, Known>> {
        let checkpoint = self.checkpoint(py, index)?;
        py.detach(|| self.load(index, checkpoint))
            .map_err(|error| raised(py, &error))?;
        Ok(self.known())
    }

    fn load(&self, index: usize, checkpoint: &Checkpoint) -> Result<()> {
        let mut known = self.known();
        if known.contains_key(&index) {
            return Ok(());
        }
        let mut found: BTreeMap<String, StoredVariable> = BTreeMap::new();
        for &rank in checkpoint.ranks.keys() {
            let (store, part) = self.inspected.part(checkpoint, rank)?;
            for (descriptor, stream) in part.descriptors.iter().zip(&part.streams) {
                let name = &descriptor.name;
                let new = || StoredVariable {
                    name: name.clone(),
                    parts: Vec::new(),
                };
                let variable = found.entry(name.clone()).or_insert_with(new);
                variable.parts.push(StoredPart {
                    rank,
                    store,
                    descriptor: descriptor.clone(),
                    stream: *stream,
                    changed: None,
                });
            }
        }
        known.insert(index, found);
        Ok(())
    }

    /// One variable of a checkpoint, with the part of one rank or of all.
    fn variable(&self, py: Python<'_>, index: usize, name: &str) -> PyResult<StoredVariable> {
        let known = self.loaded(py, index)?;
        let found = known.get(&index).and_then(|all| all.get(name)).cloned();
        let id = self.checkpoint(py, index)?.id;
        found.ok_or_else(|| invalid(py, format!("{id} has no variable {name:?}")))
    }
}

#[pymethods]
impl Stores {
    #[new]
    #[expect(clippy::needless_pass_by_value, reason = "what Python hands over")]
    fn new(py: Python<'_>, paths: Vec<PathBuf>) -> Self {
        let (inspected, checkpoints) = py.detach(|| {
            let inspected = Inspected::open(&paths);
            let checkpoints = inspected.checkpoints();
            (inspected, checkpoints)
        });
        Self {
            inspected,
            checkpoints,
            variables: Mutex::default(),
        }
    }

    /// What could not be opened: path and why.
    fn unreadable(&self) -> Vec<(PathBuf, String)> {
        let unreadable = self.inspected.unreadable().iter();
        unreadable
            .map(|found| (found.path.clone(), found.error.to_string()))
            .collect()
    }

    fn checkpoints<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let all = self.checkpoints.iter().map(|checkpoint| {
            let fields = PyDict::new(py);
            fields.set_item("job", &checkpoint.job)?;
            fields.set_item("number", checkpoint.id.number)?;
            fields.set_item("incarnation", checkpoint.id.incarnation)?;
            fields.set_item("ranks", checkpoint.world_size)?;
            fields.set_item("committed_unix_ns", checkpoint.committed_unix_ns)?;
            fields.set_item("bytes_total", checkpoint.bytes_total)?;
            fields.set_item("bytes_changed", checkpoint.bytes_changed)?;
            fields.set_item("pinned", checkpoint.pinned)?;
            fields.set_item("archived", checkpoint.archived.is_some())?;
            fields.set_item("complete", checkpoint.is_complete())?;
            fields.set_item("abandoned", checkpoint.is_abandoned())?;
            Ok(fields)
        });
        all.collect()
    }

    /// Names of the variables of a checkpoint, each with its parts by rank.
    fn variables(
        &self,
        py: Python<'_>,
        index: usize,
    ) -> PyResult<BTreeMap<String, BTreeMap<u32, Described>>> {
        let known = self.loaded(py, index)?;
        let found = known.get(&index).into_iter().flatten();
        let parts = |variable: &StoredVariable| {
            let parts = variable.parts.iter();
            parts
                .map(|part| (part.rank, described(&part.descriptor)))
                .collect()
        };
        Ok(found
            .map(|(name, variable)| (name.clone(), parts(variable)))
            .collect())
    }

    /// Fills the writable, contiguous `into` with a box of a variable: of one rank's part, or of the array
    /// that all parts are of.
    #[expect(
        clippy::too_many_arguments,
        clippy::needless_pass_by_value,
        reason = "what a box of a variable is named by, as Python hands it over"
    )]
    fn read_box(
        &self,
        py: Python<'_>,
        index: usize,
        name: &str,
        rank: Option<u32>,
        start: Vec<u64>,
        shape: Vec<u64>,
        into: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let variable = self.variable(py, index, name)?;
        let buffer = Buffer::get(into)?;
        if buffer.is_read_only() || !buffer.is_row_major() {
            return Err(invalid(
                py,
                "the array to fill is not writable and contiguous",
            ));
        }
        let (id, place, length) = (
            self.checkpoint(py, index)?.id,
            buffer.address(),
            buffer.length_bytes(),
        );
        let read = py.detach(|| {
            let array = match rank {
                None => Array::of_slabs(&self.inspected, id, &variable)?,
                Some(rank) => {
                    let part = variable.parts.iter().find(|part| part.rank == rank);
                    let part = part.ok_or_else(|| missing(name, rank))?;
                    Array::of_part(&self.inspected, id, part)
                }
            };
            let mut done = 0;
            array.read_box(&start, &shape, &mut |bytes| {
                copy(place, length, done, bytes)?;
                done += bytes.len();
                Ok(())
            })?;
            copied_all(done, length)
        });
        drop(buffer);
        read.map_err(|error| raised(py, &error))
    }
}

fn missing(name: &str, rank: u32) -> engine::Error {
    let context = format!("rank {rank} has no variable {name:?}");
    engine::Error::new(engine::ErrorKind::VariableMismatch, context)
}

fn copied_all(done: usize, length: usize) -> Result<()> {
    if done == length {
        return Ok(());
    }
    let context = format!("the array to fill has {length} bytes, what is stored {done}");
    Err(engine::Error::new(
        engine::ErrorKind::InvalidArgument,
        context,
    ))
}

#[expect(unsafe_code, reason = "a numpy array is filled by address")]
fn copy(place: usize, length: usize, at: usize, bytes: &[u8]) -> Result<()> {
    let fits = at.checked_add(bytes.len()).is_some_and(|end| end <= length);
    if !fits {
        return copied_all(at.saturating_add(bytes.len()), length);
    }
    let to = std::ptr::with_exposed_provenance_mut::<u8>(place);
    // SAFETY: the buffer of `length` bytes is held by the caller, who made it for this; `bytes` fits at `at`.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.add(at), bytes.len()) };
    Ok(())
}
