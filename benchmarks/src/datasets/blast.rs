// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: an explosion in a gas whose density varies: Euler's equations in three dimensions.
//! In from: nothing. Out to: `datasets`.
//! Invariants: conservative; slopes limited by minmod, fluxes by Harten, Lax and van Leer; one axis
//! after the other, in turn forwards and backwards; what leaves the box is gone.

use super::grid::{Extents, field, parts};
use super::number::Real;
use super::{Program, State, Variable};
use crate::size_f64;

const GAMMA: f64 = 1.4;
const COURANT: f64 = 0.4;

/// Density, momentum along the axis, across it twice, energy.
type Cell<R> = [R; 5];

/// The state of the gas.
#[derive(Debug)]
pub struct Blast<R> {
    extents: Extents,
    /// Density, momentum along z, y and x, energy.
    fields: [Vec<R>; 5],
    time: f64,
    steps: i64,
}

impl<R: Real> Blast<R> {
    /// The gas just after the explosion.
    pub fn new(quick: bool) -> Self {
        let extents = if quick { [16, 16, 24] } else { [96, 96, 96] };
        let [depth, height, width] = extents;
        let mut fields: [Vec<R>; 5] = Default::default();
        let unit = |at: usize, extent: usize| (size_f64(at) + 0.5) / size_f64(extent);
        for z in 0..depth {
            for y in 0..height {
                for x in 0..width {
                    let (z, y, x) = (unit(z, depth), unit(y, height), unit(x, width));
                    let density = 1.0 + 0.3 * (6.0 * x + 2.0 * z).sin() * (5.0 * y).cos() - 0.4 * z;
                    let wind = 0.05 * (4.0 * z).sin();
                    let distance = (z - 0.42).hypot((y - 0.5).hypot(x - 0.45));
                    let pressure = 0.1 + 40.0 / (1.0 + (80.0 * (distance - 0.08)).exp());
                    let energy = pressure / (GAMMA - 1.0) + 0.5 * density * wind * wind;
                    let cell = [density, 0.0, 0.0, density * wind, energy];
                    for (values, value) in fields.iter_mut().zip(cell) {
                        values.push(R::of(value));
                    }
                }
            }
        }
        Self {
            extents,
            fields,
            time: 0.0,
            steps: 0,
        }
    }

    /// The longest step that is stable, in units of a cell.
    fn length(&self) -> R {
        let mut fastest = R::of(1e-6);
        for at in 0..self.fields[0].len() {
            let cell = [0, 1, 2, 3, 4].map(|which: usize| self.fields[which][at]);
            let sound = sound(&primitive(&cell));
            for momentum in &cell[1..4] {
                fastest = fastest.or_more((*momentum / cell[0]).size() + sound);
            }
        }
        R::of(COURANT) / fastest
    }

    /// Moves along one axis.
    fn sweep(&mut self, axis: usize, length: R) {
        let [depth, height, width] = self.extents;
        let strides = [height * width, width, 1];
        let count = self.extents[axis];
        let (one, two) = ((axis + 1) % 3, (axis + 2) % 3);
        let order = [0, 1 + axis, 1 + one, 1 + two, 4];
        let mut line: Vec<Cell<R>> = vec![[R::ZERO; 5]; count];
        let mut fluxes: Vec<Cell<R>> = vec![[R::ZERO; 5]; count + 1];
        let others = [[depth, height, width][one], [depth, height, width][two]];
        for i in 0..others[0] {
            for j in 0..others[1] {
                let base = i * strides[one] + j * strides[two];
                for (at, cell) in line.iter_mut().enumerate() {
                    *cell = order.map(|which| self.fields[which][base + at * strides[axis]]);
                }
                fluxes_of(&line, &mut fluxes);
                for (at, cell) in line.iter().enumerate() {
                    for (place, &which) in order.iter().enumerate() {
                        let change = length * (fluxes[at + 1][place] - fluxes[at][place]);
                        self.fields[which][base + at * strides[axis]] = cell[place] - change;
                    }
                }
            }
        }
    }
}

/// Density, velocities, pressure.
fn primitive<R: Real>(cell: &Cell<R>) -> Cell<R> {
    let velocity = [cell[1], cell[2], cell[3]].map(|momentum| momentum / cell[0]);
    let squares = velocity[0] * velocity[0] + velocity[1] * velocity[1] + velocity[2] * velocity[2];
    let inner = cell[4] - R::of(0.5) * cell[0] * squares;
    let pressure = (R::of(GAMMA - 1.0) * inner).or_more(R::of(1e-6));
    [cell[0], velocity[0], velocity[1], velocity[2], pressure]
}

fn sound<R: Real>(of: &Cell<R>) -> R {
    (R::of(GAMMA) * of[4] / of[0]).root()
}

fn minmod<R: Real>(one: R, other: R) -> R {
    if one * other <= R::ZERO {
        R::ZERO
    } else if one.size() < other.size() {
        one
    } else {
        other
    }
}

/// Fluxes through both ends of each cell of a line.
fn fluxes_of<R: Real>(line: &[Cell<R>], fluxes: &mut [Cell<R>]) {
    let last = line.len() - 1;
    let values: Vec<Cell<R>> = line.iter().map(primitive).collect();
    let slope = |at: usize, place: usize| {
        let here = values[at][place];
        let (before, after) = (values[at.saturating_sub(1)], values[(at + 1).min(last)]);
        R::of(0.5) * minmod(here - before[place], after[place] - here)
    };
    for (face, flux) in fluxes.iter_mut().enumerate() {
        let (left, right) = (face.saturating_sub(1), face.min(last));
        let mut from = values[left];
        let mut to = values[right];
        for place in 0..5 {
            from[place] += slope(left, place);
            to[place] -= slope(right, place);
        }
        *flux = through(&from, &to);
    }
}

fn through<R: Real>(left: &Cell<R>, right: &Cell<R>) -> Cell<R> {
    let (heard_left, heard_right) = (sound(left), sound(right));
    let slow = (left[1] - heard_left).or_less(right[1] - heard_right);
    let fast = (left[1] + heard_left).or_more(right[1] + heard_right);
    let (state_left, flux_left) = conserved(left);
    let (state_right, flux_right) = conserved(right);
    if slow >= R::ZERO {
        return flux_left;
    }
    if fast <= R::ZERO {
        return flux_right;
    }
    [0, 1, 2, 3, 4].map(|place: usize| {
        let difference = slow * fast * (state_right[place] - state_left[place]);
        (fast * flux_left[place] - slow * flux_right[place] + difference) / (fast - slow)
    })
}

fn conserved<R: Real>(of: &Cell<R>) -> (Cell<R>, Cell<R>) {
    let [density, along, one, two, pressure] = *of;
    let squares = along * along + one * one + two * two;
    let energy = pressure / R::of(GAMMA - 1.0) + R::of(0.5) * density * squares;
    let mass = density * along;
    let state = [density, mass, density * one, density * two, energy];
    let flux = [
        mass,
        mass * along + pressure,
        mass * one,
        mass * two,
        along * (energy + pressure),
    ];
    (state, flux)
}

impl<R: Real> Program for Blast<R> {
    fn step(&mut self) {
        let length = self.length();
        let axes = if self.steps % 2 == 0 {
            [0, 1, 2]
        } else {
            [2, 1, 0]
        };
        for axis in axes {
            self.sweep(axis, length);
        }
        self.time += length.wide() / size_f64(self.extents[2]);
        self.steps += 1;
    }

    fn state(&self, ranks: usize) -> State {
        let extents = self.extents;
        let [density, z, y, x, energy] = &self.fields;
        let of_rank = |part: &super::grid::Part| {
            vec![
                field("density", extents, density, part),
                field("energy", extents, energy, part),
                field("momentum_x", extents, x, part),
                field("momentum_y", extents, y, part),
                field("momentum_z", extents, z, part),
                Variable::scalar("step", self.steps),
                Variable::scalar("time", self.time),
            ]
        };
        parts(extents, ranks).iter().map(of_rank).collect()
    }
}
