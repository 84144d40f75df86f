// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a session of a Python program.
//! In from: `backstay.Session`, from any thread. Out to: the engine's session, one call at a time.
//! Invariants: what is protected is kept alive, and looked at again before each capture and restore: memory
//! that moved is protected where it is now, and where there is none the call fails on all ranks; Python
//! objects are let go with the interpreter's lock held; dropping a session calls no collective.

mod slot;

use crate::communicator::{Caller, Raised};
use crate::errors::{invalid, raised};
use crate::memory::{Hold, Place, is_still, look};
use crate::settings;
use engine::comm::Single;
use engine::config::Tracking;
use engine::{
    CheckpointId, Communicator, Error, ErrorKind, Level, Report, Restored, Session as Engine,
    Variable,
};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use slot::Slot;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Condvar, Mutex};

/// No memory is ever there: the first page is nobody's.
const NOWHERE: usize = 64;

/// The session of a process.
#[derive(Debug)]
#[pyclass(frozen, module = "backstay._native")]
pub(crate) struct Session {
    slot: Mutex<Slot>,
    returned: Condvar,
    raised: Raised,
    process: u32,
    rank: u32,
    size: u32,
    directory: PathBuf,
}

/// An open session and what it protects.
#[derive(Debug)]
struct Open {
    engine: Engine,
    variables: BTreeMap<String, Protected>,
    /// Files are protected besides.
    has_files: bool,
}

/// A variable as the program protects it.
#[derive(Debug)]
struct Protected {
    object: Py<PyAny>,
    /// As the engine has it.
    place: Place,
    slab: Option<(Vec<u64>, Vec<u64>)>,
    tracking: Option<Tracking>,
    block_bytes: Option<u32>,
    /// Its memory was not to be had when it was last looked at, and the engine was told so.
    is_nowhere: bool,
}

/// A checkpoint that was started.
#[derive(Debug)]
#[pyclass(frozen, module = "backstay._native")]
pub(crate) struct Handle(engine::Handle);

#[pymethods]
impl Handle {
    /// Number and incarnation.
    #[getter]
    fn checkpoint(&self) -> (u64, u64) {
        id(self.0.checkpoint())
    }
}

impl Session {
    /// Runs `call` on the open session.
    fn with<T>(&self, py: Python<'_>, call: impl FnOnce(&mut Open) -> PyResult<T>) -> PyResult<T> {
        let mut loan = self.borrow(py)?;
        let open = loan.open.as_mut();
        call(open.ok_or_else(|| invalid(py, "the session is closed"))?)
    }

    /// Runs `call` of the engine without the interpreter's lock.
    fn engine<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut Engine) -> engine::Result<T> + Send,
    ) -> PyResult<T> {
        self.with(py, |open| {
            let engine = &mut open.engine;
            py.detach(|| call(engine))
                .map_err(|error| self.tell(py, &error))
        })
    }

    /// The same after a look at all that is protected, which stays where it is meanwhile. `wrong` is a
    /// variable that could not be brought up to date, and why.
    fn engine_with_memory<T: Send>(
        &self,
        py: Python<'_>,
        wrong: Option<(String, Bound<'_, PyAny>)>,
        call: impl FnOnce(&mut Engine) -> engine::Result<T> + Send,
    ) -> PyResult<T> {
        let wrong = wrong.map(|(name, error)| (name, PyErr::from_value(error)));
        self.with(py, |open| {
            let (holds, wrong) = open.look(py, wrong);
            let engine = &mut open.engine;
            let done = py.detach(|| call(engine));
            drop(holds);
            match (done, wrong) {
                // All ranks failed with this one.
                (Err(error), Some(wrong)) => {
                    wrong.set_cause(py, Some(self.tell(py, &error)));
                    Err(wrong)
                }
                (Ok(_), Some(wrong)) => Err(wrong),
                (done, None) => done.map_err(|error| self.tell(py, &error)),
            }
        })
    }

    fn tell(&self, py: Python<'_>, error: &Error) -> PyErr {
        let told = raised(py, error);
        told.set_cause(py, self.raised.take());
        told
    }
}

impl Open {
    /// Looks where everything is now. What moved is protected anew; what is nowhere fails the call that
    /// follows on all ranks, as they must hear of it.
    fn look(
        &mut self,
        py: Python<'_>,
        wrong: Option<(String, PyErr)>,
    ) -> (Vec<Hold>, Option<PyErr>) {
        let mut holds = Vec::with_capacity(self.variables.len());
        let (spoiled, mut wrong) = wrong.unzip();
        for (name, variable) in &mut self.variables {
            if spoiled.as_ref() == Some(name) {
                variable.tell_nowhere(name, &mut self.engine);
                continue;
            }
            if !variable.is_nowhere && is_still(variable.object.bind(py)) {
                continue;
            }
            let seen = look(name, variable.object.bind(py)).and_then(|(place, hold)| {
                if variable.is_nowhere || place != variable.place {
                    let declared = variable.declare(name, &place);
                    protect(&mut self.engine, declared, place.address)
                        .map_err(|error| raised(py, &error))?;
                    (variable.place, variable.is_nowhere) = (place, false);
                }
                Ok(hold)
            });
            match seen {
                Ok(hold) => holds.push(hold),
                Err(error) => {
                    variable.tell_nowhere(name, &mut self.engine);
                    wrong.get_or_insert(error);
                }
            }
        }
        (holds, wrong)
    }

    fn bytes_of_rows(&self, py: Python<'_>, name: &str) -> PyResult<(u64, u64)> {
        let Some(variable) = self.variables.get(name) else {
            let known: Vec<&String> = self.variables.keys().take(8).collect();
            let context = format!("no variable {name:?} is protected; there are {known:?}");
            return Err(invalid(py, context));
        };
        let width = variable.place.element.width_bytes();
        match variable.place.shape.split_first() {
            None => Ok((1, width)),
            Some((&rows, inner)) => Ok((rows, inner.iter().product::<u64>() * width)),
        }
    }
}

impl Protected {
    /// Has the next checkpoint or restore fail for it, on all ranks.
    fn tell_nowhere(&mut self, name: &str, engine: &mut Engine) {
        let gone = Variable::new(name, engine::ElementType::Bytes, &[1]);
        self.is_nowhere = protect(engine, gone, NOWHERE).is_ok();
    }

    fn declare(&self, name: &str, place: &Place) -> Variable {
        let mut variable = Variable::new(name, place.element, &place.shape);
        if let Some((whole, start)) = &self.slab {
            let (mut whole, mut start) = (whole.clone(), start.clone());
            if let (true, Some(&bytes)) = (place.is_opaque, place.shape.last()) {
                whole.push(bytes);
                start.push(0);
            }
            variable = variable.slab(&whole, &start);
        }
        if let Some(tracking) = self.tracking {
            variable = variable.tracking(tracking);
        }
        match self.block_bytes {
            Some(bytes) => variable.block_bytes(bytes),
            None => variable,
        }
    }
}

#[expect(
    unsafe_code,
    reason = "the memory of a Python object is reached by address"
)]
fn protect(engine: &mut Engine, variable: Variable, address: usize) -> engine::Result<()> {
    let address = std::ptr::with_exposed_provenance_mut(address);
    // SAFETY: the object is kept alive as long as it is protected, and its memory is looked at and held
    // during each call that reads or writes it; where it is nowhere, it is found so before it is touched.
    unsafe { engine.protect(variable, address) }.map(drop)
}

fn id(checkpoint: CheckpointId) -> (u64, u64) {
    (checkpoint.number, checkpoint.incarnation)
}

fn level(py: Python<'_>, word: &str) -> PyResult<Level> {
    match word {
        "node" => Ok(Level::Node),
        "protected" => Ok(Level::Protected),
        "archive" => Ok(Level::Archive),
        other => Err(invalid(
            py,
            format!("level is {other:?}, not node, protected or archive"),
        )),
    }
}

fn word(level: Level) -> &'static str {
    match level {
        Level::Node => "node",
        Level::Protected => "protected",
        Level::Archive => "archive",
    }
}

fn tracking(py: Python<'_>, word: &str) -> PyResult<Tracking> {
    match word {
        "full" => Ok(Tracking::Full),
        "hash" => Ok(Tracking::Hash),
        "pages" => Ok(Tracking::Pages),
        "marked" => Ok(Tracking::Marked),
        other => Err(invalid(
            py,
            format!("tracking is {other:?}, not full, hash, pages or marked"),
        )),
    }
}

fn report<'py>(py: Python<'py>, report: &Report) -> PyResult<Bound<'py, PyDict>> {
    let fields = PyDict::new(py);
    fields.set_item("number", report.checkpoint.number)?;
    fields.set_item("incarnation", report.checkpoint.incarnation)?;
    fields.set_item("blocks_total", report.blocks_total)?;
    fields.set_item("blocks_changed", report.blocks_changed)?;
    fields.set_item("bytes_total", report.bytes_total)?;
    fields.set_item("bytes_changed", report.bytes_changed)?;
    fields.set_item("bytes_manifest", report.bytes_manifest)?;
    fields.set_item("blocking_seconds", report.blocking_time.as_secs_f64())?;
    fields.set_item("capture_seconds", report.capture_time.as_secs_f64())?;
    fields.set_item("commit_seconds", report.commit_time.as_secs_f64())?;
    fields.set_item("protect_seconds", report.protect_time.as_secs_f64())?;
    fields.set_item("archive_seconds", report.archive_time.as_secs_f64())?;
    Ok(fields)
}

fn restored<'py>(py: Python<'py>, restored: &Restored) -> PyResult<Bound<'py, PyDict>> {
    let fields = PyDict::new(py);
    fields.set_item("number", restored.checkpoint.number)?;
    fields.set_item("incarnation", restored.checkpoint.incarnation)?;
    fields.set_item("bytes_read", restored.bytes_read)?;
    fields.set_item("seconds", restored.time.as_secs_f64())?;
    fields.set_item("ranks_then", restored.ranks_then)?;
    fields.set_item("fell_back", restored.fell_back)?;
    fields.set_item("unclaimed", restored.unclaimed)?;
    fields.set_item("level", word(restored.level))?;
    Ok(fields)
}

/// Sorted row numbers as runs.
fn runs(mut rows: Vec<u64>) -> Vec<Range<u64>> {
    rows.sort_unstable();
    let mut runs: Vec<Range<u64>> = Vec::new();
    for row in rows {
        match runs.last_mut() {
            Some(last) if row <= last.end => last.end = last.end.max(row + 1),
            _ => runs.push(row..row + 1),
        }
    }
    runs
}

#[pymethods]
impl Session {
    /// Opens a session; `settings` is a JSON object.
    #[new]
    fn new(py: Python<'_>, comm: Option<&Bound<'_, PyAny>>, settings: &str) -> PyResult<Self> {
        let told = Raised::default();
        let comm: Box<dyn Communicator> = match comm {
            None => Box::new(Single),
            Some(object) => Box::new(Caller::new(object, told.clone())?),
        };
        let config = settings::config(settings);
        let opened = py.detach(|| Engine::open_with(comm, config));
        let engine = opened.map_err(|error| {
            let error = raised(py, &error);
            error.set_cause(py, told.take());
            error
        })?;
        Ok(Self {
            rank: engine.rank(),
            size: engine.size(),
            directory: engine.directory(),
            process: std::process::id(),
            slot: Mutex::new(Slot::Here(Box::new(Open {
                engine,
                variables: BTreeMap::new(),
                has_files: false,
            }))),
            returned: Condvar::new(),
            raised: told,
        })
    }

    #[getter]
    fn rank(&self) -> u32 {
        self.rank
    }
    #[getter]
    fn size(&self) -> u32 {
        self.size
    }
    #[getter]
    fn directory(&self) -> PathBuf {
        self.directory.clone()
    }
    #[getter]
    fn closed(&self) -> bool {
        matches!(*self.lock(), Slot::Gone)
    }

    #[pyo3(signature = (name, object, slab=None, tracking=None, block_bytes=None))]
    fn protect(
        &self,
        py: Python<'_>,
        name: String,
        object: &Bound<'_, PyAny>,
        slab: Option<(Vec<u64>, Vec<u64>)>,
        tracking: Option<&str>,
        block_bytes: Option<u32>,
    ) -> PyResult<()> {
        let (place, hold) = look(&name, object)?;
        let tracking = tracking.map(|word| self::tracking(py, word)).transpose()?;
        let variable = Protected {
            object: object.clone().unbind(),
            place,
            slab,
            tracking,
            block_bytes,
            is_nowhere: false,
        };
        let declared = variable.declare(&name, &variable.place);
        self.with(py, |open| {
            let done = protect(&mut open.engine, declared, variable.place.address);
            drop(hold);
            done.map_err(|error| self.tell(py, &error))?;
            open.variables.insert(name, variable);
            Ok(())
        })
    }

    fn unprotect(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.with(py, |open| {
            let done = open.engine.unprotect(name);
            done.map_err(|error| self.tell(py, &error))?;
            open.variables.remove(name);
            Ok(())
        })
    }

    /// Rows of a variable: elements of its first dimension.
    fn rows(&self, py: Python<'_>, name: &str) -> PyResult<u64> {
        self.with(py, |open| Ok(open.bytes_of_rows(py, name)?.0))
    }

    /// Marks rows, elements of the first dimension, one by one or from the first to before the second.
    #[pyo3(signature = (name, rows=None, range=None))]
    fn mark_dirty(
        &self,
        py: Python<'_>,
        name: &str,
        rows: Option<Vec<u64>>,
        range: Option<(u64, u64)>,
    ) -> PyResult<()> {
        self.with(py, |open| {
            let (count, row_bytes) = open.bytes_of_rows(py, name)?;
            let variable = open.engine.variable(name);
            let variable = variable.map_err(|error| self.tell(py, &error))?;
            let runs = match (rows, range) {
                (Some(rows), _) => runs(rows),
                (None, Some((from, to))) => std::iter::once(from..to).collect(),
                (None, None) => std::iter::once(0..count).collect(),
            };
            for run in runs {
                if run.start > run.end || run.end > count {
                    let context = format!(
                        "rows {} to {} of variable {name:?}, which has {count}",
                        run.start, run.end
                    );
                    return Err(invalid(py, context));
                }
                let bytes = run.start * row_bytes..run.end * row_bytes;
                let done = open.engine.mark_dirty(variable, bytes);
                done.map_err(|error| self.tell(py, &error))?;
            }
            Ok(())
        })
    }

    #[pyo3(signature = (wrong=None))]
    fn checkpoint<'py>(
        &self,
        py: Python<'py>,
        wrong: Option<(String, Bound<'py, PyAny>)>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let done = self.engine_with_memory(py, wrong, Engine::checkpoint)?;
        report(py, &done)
    }

    /// With `stays`, all that is protected stays as it is until the next call of the session returns, which waits for
    /// a thread that captures it. `settle` is called when all else is done before the capture.
    #[pyo3(signature = (wrong=None, stays=false, settle=None))]
    fn checkpoint_start(
        &self,
        py: Python<'_>,
        wrong: Option<(String, Bound<'_, PyAny>)>,
        stays: bool,
        settle: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Handle> {
        if stays && wrong.is_none() {
            return self.start_behind(py, settle).map(Handle);
        }
        settle.map(Bound::call0).transpose()?;
        self.engine_with_memory(py, wrong, Engine::checkpoint_start)
            .map(Handle)
    }

    /// Waits until what was started is captured.
    fn captured(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |_| Ok(()))
    }

    fn test(&self, py: Python<'_>, handle: &Handle, level: &str) -> PyResult<bool> {
        let (handle, level) = (handle.0, self::level(py, level)?);
        if self.is_capturing() {
            return Ok(false);
        }
        self.engine(py, move |engine| engine.test(&handle, level))
    }

    fn wait<'py>(
        &self,
        py: Python<'py>,
        handle: &Handle,
        level: &str,
    ) -> PyResult<Bound<'py, PyDict>> {
        let (handle, level) = (handle.0, self::level(py, level)?);
        let done = self.engine(py, move |engine| engine.wait(handle, level))?;
        report(py, &done)
    }

    #[pyo3(signature = (number=None))]
    fn restore<'py>(&self, py: Python<'py>, number: Option<u64>) -> PyResult<Bound<'py, PyDict>> {
        let done = self.engine_with_memory(py, None, move |engine| match number {
            None => engine.restore(),
            Some(number) => engine.restore_from(number),
        })?;
        restored(py, &done)
    }

    fn protect_file(&self, py: Python<'_>, name: &str, path: PathBuf) -> PyResult<()> {
        self.with(py, |open| {
            open.has_files = true;
            let engine = &mut open.engine;
            py.detach(|| engine.protect_file(name, path))
                .map_err(|error| self.tell(py, &error))
        })
    }

    /// Names of files, whether they are routed, and their lengths.
    fn stored_files(&self, py: Python<'_>, rank: u32) -> PyResult<Vec<(PathBuf, bool, u64)>> {
        let files = self.engine(py, move |engine| engine.stored_files(rank))?;
        let fields = files.into_iter();
        Ok(fields
            .map(|file| (file.name, file.routed, file.length_bytes))
            .collect())
    }

    fn restore_file(
        &self,
        py: Python<'_>,
        name: PathBuf,
        rank: u32,
        path: PathBuf,
    ) -> PyResult<u64> {
        self.engine(py, move |engine| engine.restore_file(name, rank, path))
    }

    fn output_start(&self, py: Python<'_>) -> PyResult<()> {
        self.engine(py, Engine::output_start)
    }

    fn route_file(&self, py: Python<'_>, name: PathBuf) -> PyResult<PathBuf> {
        self.engine(py, move |engine| engine.route_file(name))
    }

    #[pyo3(signature = (valid, wrong=None))]
    fn output_complete<'py>(
        &self,
        py: Python<'py>,
        valid: bool,
        wrong: Option<(String, Bound<'_, PyAny>)>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let complete = move |engine: &mut Engine| engine.output_complete(valid);
        let done = self.engine_with_memory(py, wrong, complete)?;
        report(py, &done)
    }

    fn restart_start<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let done = self.engine_with_memory(py, None, Engine::restart_start)?;
        restored(py, &done)
    }

    fn restart_complete(&self, py: Python<'_>, valid: bool) -> PyResult<()> {
        self.engine(py, move |engine| engine.restart_complete(valid))
    }

    fn due(&self, py: Python<'_>) -> PyResult<Option<&'static str>> {
        Ok(self.engine(py, Engine::due)?.map(word))
    }

    fn should_leave(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, |open| Ok(open.engine.should_leave()))
    }

    fn stored_checkpoints(&self, py: Python<'_>) -> PyResult<Vec<(u64, u64)>> {
        let found = self.engine(py, |engine| engine.stored_checkpoints())?;
        Ok(found.into_iter().map(id).collect())
    }

    fn earlier_checkpoints(&self, py: Python<'_>) -> PyResult<Vec<(u64, u64)>> {
        let found = self.engine(py, |engine| Ok(engine.earlier_checkpoints()))?;
        Ok(found.into_iter().map(id).collect())
    }

    fn stored_shape(&self, py: Python<'_>, name: &str, rank: u32) -> PyResult<Vec<u64>> {
        self.engine(py, |engine| engine.stored_shape(name, rank))
    }

    /// The bytes of a variable of bytes as `rank` stored it.
    fn read_bytes<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        rank: u32,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = self.engine(py, |engine| {
            let length = engine.stored_shape(name, rank)?.iter().product::<u64>();
            let room = usize::try_from(length).map_err(|error| {
                Error::caused(ErrorKind::InvalidArgument, format!("{length} bytes"), error)
            })?;
            let mut bytes = vec![0; room];
            read_rank(engine, name, rank, &mut bytes)?;
            Ok(bytes)
        })?;
        Ok(PyBytes::new(py, &bytes))
    }

    fn pin(&self, py: Python<'_>, number: u64) -> PyResult<()> {
        self.engine(py, |engine| engine.pin(number))
    }

    fn unpin(&self, py: Python<'_>, number: u64) -> PyResult<()> {
        self.engine(py, |engine| engine.unpin(number))
    }

    fn pins_left(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |open| Ok(open.engine.pins_left()))
    }

    fn protection<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let status = self.engine(py, |engine| Ok(engine.protection()))?;
        let fields = PyDict::new(py);
        fields.set_item("asked", status.asked)?;
        fields.set_item("covered", status.covered)?;
        fields.set_item("node", status.node.map(id))?;
        fields.set_item("protected", status.protected.map(id))?;
        fields.set_item("encoding", status.encoding.map(id))?;
        fields.set_item("shortfall", status.shortfall)?;
        Ok(fields)
    }

    /// Names of what is protected, with the address at which the engine has it.
    fn variables(&self, py: Python<'_>) -> PyResult<Vec<(String, usize)>> {
        self.with(py, |open| {
            let variables = open.variables.iter();
            Ok(variables
                .map(|(name, variable)| (name.clone(), variable.place.address))
                .collect())
        })
    }

    /// Ends the session with the other ranks.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let mut loan = self.borrow(py)?;
        let Some(open) = loan.open.take() else {
            return Ok(());
        };
        let Open {
            engine, variables, ..
        } = *open;
        let closed = py.detach(|| engine.close());
        drop((variables, loan));
        closed.map_err(|error| self.tell(py, &error))
    }

    /// Takes a last checkpoint, says that the program is done, and ends the session with the other ranks.
    #[pyo3(signature = (wrong=None))]
    fn finish<'py>(
        &self,
        py: Python<'py>,
        wrong: Option<(String, Bound<'py, PyAny>)>,
    ) -> PyResult<(Bound<'py, PyDict>, &'static str)> {
        let last = self.engine_with_memory(py, wrong, Engine::take_last_checkpoint);
        let Ok(last) = last else {
            let closed = self.close(py);
            return Err(last
                .err()
                .or(closed.err())
                .unwrap_or_else(|| invalid(py, "it ended")));
        };
        let mut loan = self.borrow(py)?;
        let Some(open) = loan.open.take() else {
            return Err(invalid(py, "the session is closed"));
        };
        let Open {
            engine, variables, ..
        } = *open;
        let (told, level) = (report(py, &last.report)?, word(last.level));
        let finished = py.detach(|| engine.finish_with(&last));
        drop((variables, loan));
        finished.map_err(|error| self.tell(py, &error))?;
        Ok((told, level))
    }

    /// Ends the session on this rank alone, as if the process had died.
    fn abandon(&self, py: Python<'_>) -> PyResult<()> {
        if self.closed() || !self.is_ours() {
            return Ok(());
        }
        let mut loan = self.borrow(py)?;
        if let Some(open) = loan.open.take() {
            let Open {
                engine, variables, ..
            } = *open;
            py.detach(|| drop(engine));
            drop(variables);
        }
        Ok(())
    }
}

#[expect(unsafe_code, reason = "the engine fills memory by address")]
fn read_rank(engine: &mut Engine, name: &str, rank: u32, bytes: &mut [u8]) -> engine::Result<()> {
    let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    // SAFETY: the slice is as long as its length says.
    unsafe { engine.read_rank(name, rank, bytes.as_mut_ptr(), length) }
}
