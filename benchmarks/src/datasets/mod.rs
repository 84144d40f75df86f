// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checkpoints of real programs, small enough to run here: what compression is measured with.
//!
//! Purpose: states of simulations over their course, decomposed over ranks.
//! In from: nothing but code. Out to: `bench-codecs`, and files for programs in other languages.
//! Invariants: the same code gives the same bytes; nothing is drawn at random but where a program of
//! its kind starts with random numbers (velocities of atoms, weights), and what is kept is what the
//! program made of them.
//!
//! | module | the program |
//! |---|---|
//! | [`heat`] | diffusion in a block of layered material |
//! | [`blast`] | an explosion in a gas: Euler's equations, shocks |
//! | [`atoms`] | a Lennard-Jones crystal that melts: positions, velocities, forces, ids, cells |
//! | [`flow`] | decaying turbulence in two dimensions, by a lattice-Boltzmann method |
//! | [`mesh`] | a mesh of tetrahedra that follows a front: connectivity as integers |
//! | [`network`] | a network that learns to read digits, the same on all ranks |
//! | [`plume`] | a tracer that fills a small part of its grid: mostly zeros |
//! | [`number`] | numbers that become bytes |
//! | [`grid`] | a grid cut into boxes |
//! | [`files`] | snapshots in files, and back |

pub mod number;
pub mod grid;
pub mod heat;
pub mod blast;
pub mod atoms;
pub mod flow;
pub mod mesh;
pub mod network;
pub mod plume;
pub mod files;

use backstay::VariableDescriptor;
use number::{Number, to_bytes};

/// A variable of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// What it is.
    pub descriptor: VariableDescriptor,
    /// Its content, row-major, little-endian.
    pub bytes: Vec<u8>,
}

impl Variable {
    /// An array that is no part of a global one.
    pub fn array<T: Number>(name: &str, shape: &[usize], values: &[T]) -> Self {
        let shape = shape.iter().map(|&extent| extent as u64).collect();
        Self {
            descriptor: VariableDescriptor {
                name: name.to_owned(),
                element: T::ELEMENT,
                shape,
                slab: None,
                file: None,
            },
            bytes: to_bytes(values),
        }
    }

    /// One number.
    pub fn scalar<T: Number>(name: &str, value: T) -> Self {
        Self::array(name, &[], &[value])
    }
}

/// What each rank has, in ascending order of names.
pub type State = Vec<Vec<Variable>>;

/// A program that runs.
pub trait Program {
    /// Goes on by one step.
    fn step(&mut self);
    /// What a checkpoint would hold, of each of so many ranks.
    fn state(&self, ranks: usize) -> State;
}

/// A program and when its checkpoints are taken.
#[derive(Clone, Copy)]
#[expect(missing_debug_implementations, reason = "it is functions")]
pub struct Case {
    /// Stable name.
    pub name: &'static str,
    /// Starts it; a quick one is smaller.
    pub start: fn(quick: bool) -> Box<dyn Program>,
    /// Steps after which a checkpoint is taken, over the course of the program.
    pub steps: [u64; COURSE],
    /// Steps from the third and the last of them to another checkpoint close by.
    pub close: u64,
}

/// Checkpoints over the course of a program.
pub const COURSE: usize = 6;
/// Which of them have another one close by.
pub const PAIRED: [usize; 2] = [2, COURSE - 1];

/// All cases.
pub const CASES: [Case; 12] = [
    Case {
        name: "heat-f64",
        start: |quick| Box::new(heat::Heat::<f64>::new(quick)),
        steps: [25, 75, 150, 250, 350, 450],
        close: 1,
    },
    Case {
        name: "heat-f32",
        start: |quick| Box::new(heat::Heat::<f32>::new(quick)),
        steps: [25, 75, 150, 250, 350, 450],
        close: 1,
    },
    Case {
        name: "blast-f64",
        start: |quick| Box::new(blast::Blast::<f64>::new(quick)),
        steps: [10, 25, 45, 65, 85, 105],
        close: 1,
    },
    Case {
        name: "blast-f32",
        start: |quick| Box::new(blast::Blast::<f32>::new(quick)),
        steps: [10, 25, 45, 65, 85, 105],
        close: 1,
    },
    Case {
        name: "atoms-f64",
        start: |quick| Box::new(atoms::Atoms::<f64>::new(quick)),
        steps: [2, 20, 50, 90, 130, 170],
        close: 1,
    },
    Case {
        name: "atoms-f32",
        start: |quick| Box::new(atoms::Atoms::<f32>::new(quick)),
        steps: [2, 20, 50, 90, 130, 170],
        close: 1,
    },
    Case {
        name: "flow-f64",
        start: |quick| Box::new(flow::Flow::<f64>::new(quick)),
        steps: [50, 300, 600, 1000, 1400, 1800],
        close: 1,
    },
    Case {
        name: "flow-f32",
        start: |quick| Box::new(flow::Flow::<f32>::new(quick)),
        steps: [50, 300, 600, 1000, 1400, 1800],
        close: 1,
    },
    Case {
        name: "mesh-i32",
        start: |quick| Box::new(mesh::Mesh::new(quick, mesh::Width::Narrow)),
        steps: [1, 5, 10, 15, 20, 25],
        close: 1,
    },
    Case {
        name: "mesh-i64",
        start: |quick| Box::new(mesh::Mesh::new(quick, mesh::Width::Wide)),
        steps: [1, 5, 10, 15, 20, 25],
        close: 1,
    },
    Case {
        name: "network",
        start: |quick| Box::new(network::Network::new(quick)),
        steps: [10, 50, 120, 200, 300, 400],
        close: 5,
    },
    Case {
        name: "plume-f64",
        start: |quick| Box::new(plume::Plume::new(quick)),
        steps: [5, 20, 40, 60, 80, 100],
        close: 1,
    },
];

/// When a checkpoint of a course was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct When {
    /// Which of the course, from 0.
    pub place: usize,
    /// Whether it is the one close behind that.
    pub close: bool,
    /// Steps made before.
    pub step: u64,
}

impl Case {
    /// The case with this name.
    pub fn find(name: &str) -> Option<Self> {
        CASES.into_iter().find(|case| case.name == name)
    }

    /// Runs the program, and hands over each checkpoint.
    pub fn run<E>(
        &self,
        quick: bool,
        ranks: usize,
        mut take: impl FnMut(When, State) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut program = (self.start)(quick);
        let mut done = 0;
        for (place, &asked) in self.steps.iter().enumerate() {
            let last = if quick { asked.div_ceil(5) } else { asked };
            for close in [false, true] {
                if close && !PAIRED.contains(&place) {
                    continue;
                }
                let wanted = if close { done + self.close } else { last };
                while done < wanted {
                    program.step();
                    done += 1;
                }
                let when = When {
                    place,
                    close,
                    step: done,
                };
                take(when, program.state(ranks))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    #[test]
    fn states_are_whole_and_the_same_again() {
        for case in CASES {
            let mut first: Vec<State> = Vec::new();
            let mut places = 0;
            let infallible: Result<(), Infallible> = case.run(true, 5, |when, state| {
                assert_eq!(state.len(), 5, "{}", case.name);
                for variables in &state {
                    let names = variables.iter().map(|found| &found.descriptor.name);
                    assert!(names.is_sorted_by(|one, next| one < next), "{}", case.name);
                    for variable in variables {
                        variable.descriptor.validate().unwrap();
                        let bytes = variable.bytes.len() as u64;
                        assert_eq!(variable.descriptor.length_bytes(), Some(bytes));
                    }
                }
                places += 1;
                if when.place == 0 {
                    first.push(state);
                }
                Ok(())
            });
            assert_eq!((infallible, places), (Ok(()), COURSE + PAIRED.len()));
            let mut program = (case.start)(true);
            for _ in 0..case.steps[0].div_ceil(5) {
                program.step();
            }
            assert!(program.state(5) == first[0], "{} differs", case.name);
        }
    }

    #[test]
    fn floats_are_numbers_and_change() {
        for case in CASES {
            let mut program = (case.start)(true);
            let before = program.state(1);
            for _ in 0..case.steps[COURSE - 1].div_ceil(5) {
                program.step();
            }
            let after = program.state(1);
            assert!(before != after, "{}", case.name);
            for variable in &after[0] {
                let finite = number::all_finite(variable.descriptor.element, &variable.bytes);
                assert!(finite, "{}: {}", case.name, variable.descriptor.name);
            }
        }
    }
}
