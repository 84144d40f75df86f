// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a program's state and its session in one, so that protecting needs no `unsafe`.
//! In from: the program, whose [`State`] names its variables. Out to: `session`, addresses of memory.
//! Invariants: the session reaches the memory of the state only inside calls that have it borrowed whole, and only
//! where it is in that call: what moved, grew or went since the call before is protected anew before anything else.

use crate::session::{Finished, Handle, Level, Report, Restored, Session, Variable};
use crate::{CheckpointId, Config};
use backstay_base::comm::Communicator;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::ElementType;
use backstay_format::width::to_u64;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};

mod sealed {
    pub trait Sealed {}
}

/// What arrays may consist of: every pattern of bits is one of its values.
pub trait Element: sealed::Sealed + Copy + Default + 'static {
    /// What it is called in checkpoints.
    const TYPE: ElementType;
}

macro_rules! elements {
    ($($element:ty: $name:ident,)*) => {$(
        impl sealed::Sealed for $element {}
        impl Element for $element {
            const TYPE: ElementType = ElementType::$name;
        }
    )*};
}

elements! {
    i8: I8, i16: I16, i32: I32, i64: I64, u8: U8, u16: U16, u32: U32, u64: U64, f32: F32, f64: F64,
    [f32; 2]: Complex64, [f64; 2]: Complex128,
}

/// What a program needs to go on: a value that names its variables.
///
/// ```
/// use backstay::{State, Variables};
///
/// struct Heat {
///     plate: Vec<f64>,
///     step: u64,
/// }
///
/// impl State for Heat {
///     fn variables<'a>(&'a mut self, variables: &mut Variables<'a>) {
///         variables.array("plate", &mut self.plate);
///         variables.value("step", &mut self.step);
///     }
/// }
/// ```
///
/// What is named has to be the state's own memory:
///
/// ```compile_fail
/// # use backstay::{State, Variables};
/// # struct Heat;
/// # impl State for Heat {
/// fn variables<'a>(&'a mut self, variables: &mut Variables<'a>) {
///     let mut gone = vec![0.0_f64; 10];
///     variables.array("gone", &mut gone);
/// }
/// # }
/// ```
pub trait State {
    /// Names each variable, with its memory as it is now. Called before every checkpoint and restore; a variable that
    /// is not named any more is not in the checkpoints to come.
    fn variables<'a>(&'a mut self, variables: &mut Variables<'a>);
}

/// Where a [`State`] says what its variables are: memory that it has borrowed for `'a`.
#[derive(Debug)]
pub struct Variables<'a> {
    places: Vec<(Variable, *mut u8)>,
    memory: PhantomData<&'a mut [u8]>,
    wrong: Option<Error>,
    /// Where lengths are asked for first: the session, before a restore.
    stored: Option<&'a mut Session>,
}

impl<'a> Variables<'a> {
    /// A single value.
    pub fn value<T: Element>(&mut self, name: &str, value: &'a mut T) {
        let variable = Variable::new(name, T::TYPE, &[]);
        self.variable(variable, std::slice::from_mut(value));
    }

    /// An array of one dimension, whose length a restore finds as it is here.
    pub fn array<T: Element>(&mut self, name: &str, elements: &'a mut [T]) {
        let variable = Variable::new(name, T::TYPE, &[to_u64(elements.len())]);
        self.variable(variable, elements);
    }

    /// An array that a restore makes as long as it was in the checkpoint that is restored. It may grow and shrink
    /// between checkpoints.
    pub fn vec<T: Element>(&mut self, name: &str, elements: &'a mut Vec<T>) {
        if let Some(session) = &mut self.stored {
            let rank = session.rank();
            // What cannot be had, and why, is for the restore to say.
            if let Ok(&[length]) = session.stored_shape(name, rank).as_deref() {
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                let more = length.saturating_sub(elements.len());
                if elements.try_reserve(more).is_ok() {
                    elements.resize(length, T::default());
                }
            }
        }
        self.array(name, elements);
    }

    /// A variable as it is declared, with its dimensions, its place in a global array, how its changes are found; its
    /// type and size have to be those of `elements`.
    pub fn variable<T: Element>(&mut self, variable: Variable, elements: &'a mut [T]) {
        let declared = variable.descriptor();
        let has = (T::TYPE, Some(to_u64(size_of_val(elements))));
        if (declared.element, declared.length_bytes()) == has {
            self.places.push((variable, elements.as_mut_ptr().cast()));
            return;
        }
        let context = format!(
            "variable {:?} is declared as {} of shape {:?}, and its memory has {} elements of {}",
            declared.name,
            declared.element.name(),
            declared.shape,
            elements.len(),
            T::TYPE.name()
        );
        self.wrong
            .get_or_insert(Error::new(ErrorKind::InvalidArgument, context));
    }
}

/// A program's state with the session that takes checkpoints of it.
///
/// It is used like the state itself. Every process of the job has one, and makes the same collective calls in the
/// same order.
///
/// ```
/// use backstay::comm::Single;
/// use backstay::{Config, Restartable, State, Variables};
/// # struct Heat { plate: Vec<f64>, step: u64 }
/// # impl State for Heat {
/// #     fn variables<'a>(&'a mut self, variables: &mut Variables<'a>) {
/// #         variables.array("plate", &mut self.plate);
/// #         variables.value("step", &mut self.step);
/// #     }
/// # }
/// # fn main() -> backstay::Result<()> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let config = Config { store_path: Some(folder.path().to_owned()), ..Config::default() };
/// let state = Heat { plate: vec![0.0; 1000], step: 0 };
/// let mut heat = Restartable::open(Box::new(Single), config, state)?;
/// heat.restore()?;
/// while heat.step < 20 {
///     for cell in &mut heat.plate {
///         *cell += 1.0;
///     }
///     heat.step += 1;
///     heat.checkpoint()?;
/// }
/// heat.finish().map(drop)
/// # }
/// ```
#[derive(Debug)]
pub struct Restartable<S> {
    // Dropped first, while the memory is still there.
    session: Session,
    state: S,
    protected: BTreeMap<String, (Variable, usize)>,
}

impl<S: State> Restartable<S> {
    /// Opens a session for `state`. Collective.
    pub fn open(comm: Box<dyn Communicator>, config: Config, state: S) -> Result<Self> {
        Ok(Self {
            session: Session::open(comm, config)?,
            state,
            protected: BTreeMap::new(),
        })
    }

    /// Restores the newest checkpoint that every process can have; nothing where the job begins, for the first time
    /// or anew. After an error the state is unspecified. Collective.
    pub fn restore(&mut self) -> Result<Option<Restored>> {
        self.look(true);
        match self.session.restore() {
            Ok(restored) => Ok(Some(restored)),
            Err(error) if error.kind() == ErrorKind::NoCheckpoint => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Restores checkpoint `number`, and abandons those after it. Arrays keep their lengths: [`Variables::vec`] asks for
    /// those of the newest checkpoint. Collective.
    pub fn restore_from(&mut self, number: u64) -> Result<Restored> {
        self.look(false);
        self.session.restore_from(number)
    }

    /// Takes a checkpoint, as [`Session::checkpoint`] does. Collective.
    pub fn checkpoint(&mut self) -> Result<Report> {
        self.look(false);
        self.session.checkpoint()
    }

    /// Captures a checkpoint, which is committed in the background ([`Session::checkpoint_start`]): the state may be
    /// changed at once. Collective.
    pub fn checkpoint_start(&mut self) -> Result<Handle> {
        self.look(false);
        self.session.checkpoint_start()
    }

    /// Waits until a checkpoint is safe at `level` ([`Session::wait`]). Collective.
    pub fn wait(&mut self, handle: Handle, level: Level) -> Result<Report> {
        self.session.wait(handle, level)
    }

    /// Whether a checkpoint is worth its cost now, and of which level ([`Session::due`]). Collective where it says so.
    pub fn due(&mut self) -> Result<Option<Level>> {
        self.session.due()
    }

    /// Says which elements of a variable that is tracked by marks changed ([`Session::mark_dirty`]). Local.
    pub fn mark_dirty(&mut self, name: &str, elements: Range<u64>) -> Result<()> {
        let width = self.protected.get(name).map_or(1, |(variable, _)| {
            variable.descriptor().element.width_bytes()
        });
        let byte = |element: u64| element.saturating_mul(width);
        let variable = self.session.variable(name)?;
        self.session
            .mark_dirty(variable, byte(elements.start)..byte(elements.end))
    }

    /// Keeps checkpoint `number` until it is unpinned. Collective.
    pub fn pin(&mut self, number: u64) -> Result<()> {
        self.session.pin(number)
    }

    /// Lets a pinned checkpoint go. Collective.
    pub fn unpin(&mut self, number: u64) -> Result<()> {
        self.session.unpin(number)
    }

    /// What of the session can be asked without taking part in anything.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The checkpoints that [`Restartable::restore`] may take ([`Session::stored_checkpoints`]).
    pub fn stored_checkpoints(&self) -> Result<Vec<CheckpointId>> {
        self.session.stored_checkpoints()
    }

    /// Ends the session; the next start resumes from the newest checkpoint. Collective.
    pub fn close(self) -> Result<S> {
        self.session.close()?;
        Ok(self.state)
    }

    /// Takes a last checkpoint and says that the program is done: the next start begins anew ([`Session::finish`]).
    /// Collective.
    pub fn finish(mut self) -> Result<(S, Finished)> {
        self.look(false);
        let finished = self.session.finish()?;
        Ok((self.state, finished))
    }

    /// Asks the state what it consists of and where that is, and protects it so. What is wrong with it fails the
    /// call that follows, on all ranks, as they must hear of it.
    fn look(&mut self, sizes: bool) {
        let mut variables = Variables {
            places: Vec::new(),
            memory: PhantomData,
            wrong: None,
            stored: sizes.then_some(&mut self.session),
        };
        self.state.variables(&mut variables);
        let Variables {
            places, mut wrong, ..
        } = variables;
        let mut former = std::mem::take(&mut self.protected);
        for (variable, address) in places {
            let name = variable.descriptor().name.clone();
            let place = (variable, address.addr());
            if self.protected.contains_key(&name) {
                let context = format!("two variables are named {name:?}");
                wrong.get_or_insert(Error::new(ErrorKind::InvalidArgument, context));
                continue;
            }
            if former.remove(&name).as_ref() != Some(&place)
                && let Err(error) = self.protect(place.0.clone(), address)
            {
                wrong.get_or_insert(error);
                // It may be protected where it was.
                drop(self.session.unprotect(&name));
                continue;
            }
            self.protected.insert(name, place);
        }
        for name in former.keys() {
            // Of a variable that is protected, so there is nothing to go wrong.
            drop(self.session.unprotect(name));
        }
        self.session.refuse(wrong);
    }

    #[expect(
        unsafe_code,
        reason = "the session is given the address of what it is kept together with"
    )]
    fn protect(&mut self, variable: Variable, address: *mut u8) -> Result<()> {
        // SAFETY: the memory is the state's, as long as the variable says (`Variables::variable`). The session reaches it
        // in calls of this type alone that borrow the state exclusively, each after `look` has found it where it is;
        // `session` gives out no call that reads or writes variables. The session is dropped before the state.
        unsafe { self.session.protect(variable, address) }.map(drop)
    }
}

impl<S> Deref for Restartable<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.state
    }
}

impl<S> DerefMut for Restartable<S> {
    fn deref_mut(&mut self) -> &mut S {
        &mut self.state
    }
}
