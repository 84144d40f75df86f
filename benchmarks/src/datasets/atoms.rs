// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a crystal of Lennard-Jones atoms that melts, in reduced units.
//! In from: nothing. Out to: `datasets`.
//! Invariants: constant energy, velocity Verlet, cut off at 2.5; atoms are sorted by cell every ten
//! steps, and belong to the rank of their cell until the next time, as usual.

use super::grid::parts;
use super::number::Real;
use super::{Program, State, Variable};
use crate::{as_f64, size_f64};
use backstay_testkit::seeded::Seeded;

const DENSITY: f64 = 0.8442;
const TEMPERATURE: f64 = 1.44;
const CUT: f64 = 2.5;
const TIME_STEP: f64 = 0.004;
const SORT_EVERY: i64 = 10;

type Three<R> = [R; 3];

/// The state of the atoms.
#[derive(Debug)]
pub struct Atoms<R> {
    side: R,
    /// Cells along an edge of the box.
    cells: usize,
    positions: Vec<Three<R>>,
    velocities: Vec<Three<R>>,
    forces: Vec<Three<R>>,
    ids: Vec<i64>,
    /// Where the atoms of each cell begin, as of the last sorting.
    starts: Vec<usize>,
    steps: i64,
}

impl<R: Real> Atoms<R> {
    /// A crystal with random velocities of one temperature.
    pub fn new(quick: bool) -> Self {
        let edge = if quick { 8 } else { 32 };
        let constant = (4.0 / DENSITY).cbrt();
        let side = constant * size_f64(edge);
        let mut positions = Vec::new();
        let corners = [[0.0; 3], [0.0, 0.5, 0.5], [0.5, 0.0, 0.5], [0.5, 0.5, 0.0]];
        for z in 0..edge {
            for y in 0..edge {
                for x in 0..edge {
                    for corner in corners {
                        let at = [z, y, x].map(size_f64);
                        let place =
                            |axis: usize| R::of(constant * (at[axis] + corner[axis] + 0.25));
                        positions.push([place(0), place(1), place(2)]);
                    }
                }
            }
        }
        let velocities = thermal(positions.len());
        let mut atoms = Self {
            side: R::of(side),
            cells: whole(side / CUT, edge * 2),
            forces: vec![[R::ZERO; 3]; positions.len()],
            ids: (0_i64..).take(positions.len()).collect(),
            positions,
            velocities,
            starts: Vec::new(),
            steps: 0,
        };
        atoms.sort();
        atoms.push();
        atoms
    }

    fn cell_of(&self, position: &Three<R>) -> usize {
        let scale = size_f64(self.cells) / self.side.wide();
        let place = |axis: usize| whole(position[axis].wide() * scale, self.cells);
        (place(0) * self.cells + place(1)) * self.cells + place(2)
    }

    /// Order by cell, and where each begins.
    fn by_cell(&self) -> (Vec<usize>, Vec<usize>) {
        let cells: Vec<usize> = self.positions.iter().map(|p| self.cell_of(p)).collect();
        let mut starts = vec![0; self.cells.pow(3) + 1];
        for &cell in &cells {
            starts[cell + 1] += 1;
        }
        for cell in 1..starts.len() {
            starts[cell] += starts[cell - 1];
        }
        let mut next = starts.clone();
        let mut order = vec![0; cells.len()];
        for (atom, &cell) in cells.iter().enumerate() {
            order[next[cell]] = atom;
            next[cell] += 1;
        }
        (order, starts)
    }

    fn sort(&mut self) {
        let (order, starts) = self.by_cell();
        self.positions = order.iter().map(|&atom| self.positions[atom]).collect();
        self.velocities = order.iter().map(|&atom| self.velocities[atom]).collect();
        self.forces = order.iter().map(|&atom| self.forces[atom]).collect();
        self.ids = order.iter().map(|&atom| self.ids[atom]).collect();
        self.starts = starts;
    }

    /// Forces of all pairs nearer than the cut.
    fn push(&mut self) {
        let (order, starts) = self.by_cell();
        let positions: Vec<Three<R>> = order.iter().map(|&atom| self.positions[atom]).collect();
        let mut forces = vec![[R::ZERO; 3]; positions.len()];
        let cells = self.cells;
        for cell in 0..starts.len() - 1 {
            let here = [cell / cells / cells, cell / cells % cells, cell % cells];
            for way in 13..27 {
                let (other, shift) = self.neighbour(here, way);
                for one in starts[cell]..starts[cell + 1] {
                    let first = if way == 13 { one + 1 } else { starts[other] };
                    let at: Three<R> =
                        std::array::from_fn(|axis| positions[one][axis] - shift[axis]);
                    let mut sum = [R::ZERO; 3];
                    for two in first..starts[other + 1] {
                        let apart = std::array::from_fn(|axis| at[axis] - positions[two][axis]);
                        if let Some(force) = force(&apart) {
                            for axis in 0..3 {
                                sum[axis] += force[axis];
                                forces[two][axis] -= force[axis];
                            }
                        }
                    }
                    for axis in 0..3 {
                        forces[one][axis] += sum[axis];
                    }
                }
            }
        }
        for (place, &atom) in order.iter().enumerate() {
            self.forces[atom] = forces[place];
        }
    }

    /// The cell that lies in one of 27 ways, and how far it was moved around the box.
    fn neighbour(&self, here: [usize; 3], way: usize) -> (usize, Three<R>) {
        let ways = [way / 9, way / 3 % 3, way % 3];
        let mut shift = [R::ZERO; 3];
        let mut cell = 0;
        for axis in 0..3 {
            let place = here[axis] + ways[axis];
            let wrapped = (place + self.cells - 1) % self.cells;
            if place == 0 {
                shift[axis] = -self.side;
            } else if place > self.cells {
                shift[axis] = self.side;
            }
            cell = cell * self.cells + wrapped;
        }
        (cell, shift)
    }

    fn kick(&mut self) {
        let half = R::of(0.5 * TIME_STEP);
        for (velocity, force) in self.velocities.iter_mut().zip(&self.forces) {
            for axis in 0..3 {
                velocity[axis] += half * force[axis];
            }
        }
    }
}

/// Random velocities of one temperature, whose sum is zero.
fn thermal<R: Real>(count: usize) -> Vec<Three<R>> {
    let mut random = Seeded::new(11);
    let mut unit = || (as_f64(random.below(1 << 53)) + 0.5) / as_f64(1 << 53);
    let mut drawn: Vec<Three<f64>> = Vec::with_capacity(count);
    for _ in 0..count {
        drawn.push(std::array::from_fn(|_| {
            let radius = (-2.0 * TEMPERATURE * unit().ln()).sqrt();
            radius * (std::f64::consts::TAU * unit()).cos()
        }));
    }
    let mean: Three<f64> = std::array::from_fn(|axis| {
        drawn.iter().map(|velocity| velocity[axis]).sum::<f64>() / size_f64(count)
    });
    let moved = |velocity: &Three<f64>| std::array::from_fn(|a| R::of(velocity[a] - mean[a]));
    drawn.iter().map(moved).collect()
}

/// The whole part, below a bound.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "positions are kept inside the box"
)]
fn whole(value: f64, bound: usize) -> usize {
    (value as usize).min(bound - 1)
}

#[inline]
fn force<R: Real>(apart: &Three<R>) -> Option<Three<R>> {
    let square = apart[0] * apart[0] + apart[1] * apart[1] + apart[2] * apart[2];
    if square >= R::of(CUT * CUT) {
        return None;
    }
    let inverse = R::of(1.0) / square;
    let sixth = inverse * inverse * inverse;
    let factor = R::of(48.0) * inverse * sixth * (sixth - R::of(0.5));
    Some([factor * apart[0], factor * apart[1], factor * apart[2]])
}

impl<R: Real> Program for Atoms<R> {
    fn step(&mut self) {
        self.kick();
        for (position, velocity) in self.positions.iter_mut().zip(&self.velocities) {
            for axis in 0..3 {
                position[axis] += R::of(TIME_STEP) * velocity[axis];
                if position[axis] < R::ZERO {
                    position[axis] += self.side;
                } else if position[axis] >= self.side {
                    position[axis] -= self.side;
                }
            }
        }
        self.push();
        self.kick();
        self.steps += 1;
        if self.steps % SORT_EVERY == 0 {
            self.sort();
        }
    }

    fn state(&self, ranks: usize) -> State {
        let cells = self.cells;
        let of_rank = |[z, y, x]: &super::grid::Part| {
            let mut mine: Vec<usize> = Vec::new();
            let mut starts = vec![0_i32];
            for cz in z.clone() {
                for cy in y.clone() {
                    for cx in x.clone() {
                        let cell = (cz * cells + cy) * cells + cx;
                        mine.extend(self.starts[cell]..self.starts[cell + 1]);
                        starts.push(i32::try_from(mine.len()).unwrap_or(i32::MAX));
                    }
                }
            }
            let flat = |values: &[Three<R>]| -> Vec<R> {
                mine.iter().flat_map(|&atom| values[atom]).collect()
            };
            let ids: Vec<i64> = mine.iter().map(|&atom| self.ids[atom]).collect();
            let shape = [mine.len(), 3];
            vec![
                Variable::array("cell_starts", &[starts.len()], &starts),
                Variable::array("forces", &shape, &flat(&self.forces)),
                Variable::array("ids", &[ids.len()], &ids),
                Variable::array("positions", &shape, &flat(&self.positions)),
                Variable::scalar("step", self.steps),
                Variable::array("velocities", &shape, &flat(&self.velocities)),
            ]
        };
        parts([cells; 3], ranks).iter().map(of_rank).collect()
    }
}
