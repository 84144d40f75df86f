// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: turbulence that decays in a periodic square, by a lattice-Boltzmann method (D2Q9).
//! In from: nothing. Out to: `datasets`.
//! Invariants: one relaxation time; populations are kept as what they differ from rest, as usual, so
//! that low precision does not lose them.

use super::grid::{Extents, parts, stack};
use super::number::Real;
use super::{Program, State, Variable};
use crate::{as_f64, size_f64};
use backstay_testkit::seeded::Seeded;

const WAYS: usize = 9;
const X: [i64; WAYS] = [0, 1, 0, -1, 0, 1, -1, -1, 1];
const Y: [i64; WAYS] = [0, 0, 1, 0, -1, 1, 1, -1, -1];
const WEIGHTS: [f64; WAYS] = [
    4.0 / 9.0,
    1.0 / 9.0,
    1.0 / 9.0,
    1.0 / 9.0,
    1.0 / 9.0,
    1.0 / 36.0,
    1.0 / 36.0,
    1.0 / 36.0,
    1.0 / 36.0,
];
/// Relaxation time; the viscosity is a third of what it exceeds one half by.
const RELAXATION: f64 = 0.508;
/// Root mean square of the first velocities, in cells a step.
const SPEED: f64 = 0.04;
/// First waves: lengths from a side to a side over this.
const WAVES: u64 = 8;

/// The state of the fluid.
#[derive(Debug)]
pub struct Flow<R> {
    side: usize,
    populations: [Vec<R>; WAYS],
    next: [Vec<R>; WAYS],
    steps: i64,
}

/// What populations in rest would differ by at this density (above 1) and velocity.
fn equilibrium<R: Real>(weight: f64, way: usize, density: R, x: R, y: R) -> R {
    let (along_x, along_y) = (signed::<R>(X[way]), signed::<R>(Y[way]));
    let along = along_x * x + along_y * y;
    let squares = x * x + y * y;
    let moving = R::of(3.0) * along + R::of(4.5) * along * along - R::of(1.5) * squares;
    R::of(weight) * (density + (R::of(1.0) + density) * moving)
}

fn signed<R: Real>(way: i64) -> R {
    R::of(match way {
        0 => 0.0,
        1 => 1.0,
        _ => -1.0,
    })
}

impl<R: Real> Flow<R> {
    /// Waves of many lengths and directions, with phases that do not repeat.
    pub fn new(quick: bool) -> Self {
        let side = if quick { 64 } else { 512 };
        let [x, y] = velocities(side);
        let populations = std::array::from_fn(|way| {
            let one = |(&x, &y)| equilibrium(WEIGHTS[way], way, R::ZERO, R::of(x), R::of(y));
            x.iter().zip(&y).map(one).collect::<Vec<R>>()
        });
        Self {
            side,
            next: populations.clone(),
            populations,
            steps: 0,
        }
    }
}

/// Velocities without divergence.
fn velocities(side: usize) -> [Vec<f64>; 2] {
    let mut random = Seeded::new(5);
    let mut found = [vec![0.0; side * side], vec![0.0; side * side]];
    let turn = std::f64::consts::TAU / size_f64(side);
    for waves_x in 0..=WAVES {
        for waves_y in 0..=WAVES {
            let length = as_f64(waves_x * waves_x + waves_y * waves_y);
            for way in [1.0, -1.0] {
                let phase =
                    as_f64(random.below(1 << 20)) / f64::from(1 << 20) * std::f64::consts::TAU;
                if length < 4.0 || length > as_f64(WAVES * WAVES) {
                    continue;
                }
                let (kx, ky) = (turn * as_f64(waves_x), way * turn * as_f64(waves_y));
                let [along_x, along_y] = &mut found;
                for (at, (to_x, to_y)) in along_x.iter_mut().zip(along_y).enumerate() {
                    let (y, x) = (size_f64(at / side), size_f64(at % side));
                    let wave = (kx * x + ky * y + phase).cos() / length;
                    *to_x += ky * wave;
                    *to_y -= kx * wave;
                }
            }
        }
    }
    let squares: f64 = found.iter().flatten().map(|value| value * value).sum();
    let factor = SPEED / (squares / size_f64(side * side)).sqrt();
    for value in found.iter_mut().flatten() {
        *value *= factor;
    }
    found
}

impl<R: Real> Program for Flow<R> {
    fn step(&mut self) {
        let side = self.side;
        let part = R::of(1.0 / RELAXATION);
        for y in 0..side {
            for x in 0..side {
                let at = y * side + x;
                let here: [R; WAYS] = std::array::from_fn(|way| self.populations[way][at]);
                let (mut density, mut along_x, mut along_y) = (R::ZERO, R::ZERO, R::ZERO);
                for way in 0..WAYS {
                    density += here[way];
                    along_x += signed::<R>(X[way]) * here[way];
                    along_y += signed::<R>(Y[way]) * here[way];
                }
                let whole = R::of(1.0) + density;
                let (vx, vy) = (along_x / whole, along_y / whole);
                for way in 0..WAYS {
                    let rest = equilibrium(WEIGHTS[way], way, density, vx, vy);
                    let to_x = moved(x, X[way], side);
                    let to_y = moved(y, Y[way], side);
                    self.next[way][to_y * side + to_x] = here[way] + part * (rest - here[way]);
                }
            }
        }
        std::mem::swap(&mut self.populations, &mut self.next);
        self.steps += 1;
    }

    fn state(&self, ranks: usize) -> State {
        let extents: Extents = [1, self.side, self.side];
        let fields: Vec<&[R]> = self.populations.iter().map(Vec::as_slice).collect();
        let of_rank = |part: &super::grid::Part| {
            vec![
                stack("populations", extents, &fields, part),
                Variable::scalar("step", self.steps),
            ]
        };
        parts(extents, ranks).iter().map(of_rank).collect()
    }
}

fn moved(place: usize, way: i64, side: usize) -> usize {
    match way {
        0 => place,
        1 => (place + 1) % side,
        _ => (place + side - 1) % side,
    }
}
