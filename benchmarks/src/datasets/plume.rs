// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: smoke from two sources in a wind that turns, in a grid that is mostly without smoke.
//! In from: nothing. Out to: `datasets`.
//! Invariants: upwind; what is less than a threshold is set to zero, as programs of chemistry do.

use super::grid::{Extents, field, parts};
use super::{Program, State, Variable};
use crate::size_f64;

const THRESHOLD: f64 = 1e-9;
const RATE: f64 = 0.25;

/// The state of the air.
#[derive(Debug)]
pub struct Plume {
    extents: Extents,
    smoke: Vec<f64>,
    next: Vec<f64>,
    /// What fell to the ground, as a field of two dimensions.
    fallen: Vec<f64>,
    /// How many steps each cell has had smoke in it.
    age: Vec<i32>,
    steps: i64,
}

impl Plume {
    /// Air without smoke.
    pub fn new(quick: bool) -> Self {
        let extents = if quick { [8, 32, 32] } else { [64, 192, 192] };
        let count = extents.iter().product();
        Self {
            extents,
            smoke: vec![0.0; count],
            next: vec![0.0; count],
            fallen: vec![0.0; extents[1] * extents[2]],
            age: vec![0; count],
            steps: 0,
        }
    }

    fn sources(&mut self) {
        let [depth, height, width] = self.extents;
        let bound = if depth > 8 { 3 } else { 1 };
        for (cy, cx, strength) in [(0.3, 0.25, 1.0), (0.65, 0.4, 0.35)] {
            for z in 1..=bound {
                for y in 0..height {
                    for x in 0..width {
                        let (dy, dx) = (
                            size_f64(y) / size_f64(height) - cy,
                            size_f64(x) / size_f64(width) - cx,
                        );
                        let near = (0.0004 - dy * dy - dx * dx) / 0.0004;
                        if near > 0.0 {
                            self.smoke[(z * height + y) * width + x] += strength * near;
                        }
                    }
                }
            }
        }
    }

    /// Velocity in cells a step: around the middle, faster above, and up.
    fn wind(&self, z: usize, y: usize, x: usize) -> [f64; 3] {
        let [depth, height, width] = self.extents;
        let height_part = size_f64(z) / size_f64(depth);
        let dy = size_f64(y) / size_f64(height) - 0.5;
        let dx = size_f64(x) / size_f64(width) - 0.5;
        let speed = 0.6 + 0.8 * height_part;
        [
            0.25 * (1.0 - height_part),
            speed * (0.3 + dx),
            speed * (0.8 - dy),
        ]
    }
}

impl Program for Plume {
    fn step(&mut self) {
        self.sources();
        let [depth, height, width] = self.extents;
        let strides = [height * width, width, 1];
        for z in 0..depth {
            for y in 0..height {
                for x in 0..width {
                    let at = z * strides[0] + y * strides[1] + x;
                    let here = self.smoke[at];
                    let wind = self.wind(z, y, x);
                    let mut change = 0.0;
                    let places = [(z, depth), (y, height), (x, width)];
                    for ((velocity, (place, extent)), stride) in
                        wind.into_iter().zip(places).zip(strides)
                    {
                        let before = if place > 0 {
                            self.smoke[at - stride]
                        } else {
                            0.0
                        };
                        let after = if place + 1 < extent {
                            self.smoke[at + stride]
                        } else {
                            here
                        };
                        let upwind = if velocity > 0.0 {
                            here - before
                        } else {
                            after - here
                        };
                        change -= RATE * velocity * upwind;
                        change += 0.01 * (before - 2.0 * here + after);
                    }
                    let value = here + change;
                    self.next[at] = if value < THRESHOLD { 0.0 } else { value };
                    self.age[at] += i32::from(self.next[at] > 0.0);
                }
            }
        }
        for (fallen, smoke) in self.fallen.iter_mut().zip(&self.next) {
            *fallen += 0.05 * smoke;
        }
        std::mem::swap(&mut self.smoke, &mut self.next);
        self.steps += 1;
    }

    fn state(&self, ranks: usize) -> State {
        let [_, height, width] = self.extents;
        let of_rank = |part: &super::grid::Part| {
            let below = [0..1, part[1].clone(), part[2].clone()];
            vec![
                field("age", self.extents, &self.age, part),
                field("fallen", [1, height, width], &self.fallen, &below),
                field("smoke", self.extents, &self.smoke, part),
                Variable::scalar("step", self.steps),
            ]
        };
        parts(self.extents, ranks).iter().map(of_rank).collect()
    }
}
