// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: heat that spreads in a block of layered material with some hot bodies in it.
//! In from: nothing. Out to: `datasets`.
//! Invariants: explicit and conservative; smooth except at layers and bodies.

use super::grid::{Extents, field, parts};
use super::number::Real;
use super::{Program, State, Variable};
use crate::size_f64;

/// The state of the block.
#[derive(Debug)]
pub struct Heat<R> {
    extents: Extents,
    temperature: Vec<R>,
    conductivity: Vec<R>,
    next: Vec<R>,
    steps: i64,
}

/// Of the explicit method; below one sixth.
const RATE: f64 = 0.12;

impl<R: Real> Heat<R> {
    /// The block before heat spreads.
    pub fn new(quick: bool) -> Self {
        let side = if quick { 24 } else { 128 };
        let extents = [side; 3];
        let mut temperature = Vec::with_capacity(side * side * side);
        let mut conductivity = Vec::with_capacity(side * side * side);
        let unit = |at: usize| (size_f64(at) + 0.5) / size_f64(side);
        for z in 0..side {
            for y in 0..side {
                for x in 0..side {
                    let (z, y, x) = (unit(z), unit(y), unit(x));
                    temperature.push(R::of(initial(z, y, x)));
                    conductivity.push(R::of(material(z, y, x)));
                }
            }
        }
        Self {
            extents,
            next: temperature.clone(),
            temperature,
            conductivity,
            steps: 0,
        }
    }

    /// What flows into a cell from its neighbour.
    fn inflow(&self, at: usize, from: usize) -> R {
        let mean = R::of(0.5) * (self.conductivity[at] + self.conductivity[from]);
        mean * (self.temperature[from] - self.temperature[at])
    }
}

/// Kelvin: a slope, a wave, and three bodies.
fn initial(z: f64, y: f64, x: f64) -> f64 {
    let near = |cz: f64, cy: f64, cx: f64, radius: f64| {
        let distance = (z - cz).hypot((y - cy).hypot(x - cx)) / radius;
        1.0 / (1.0 + (20.0 * (distance - 1.0)).exp())
    };
    let wave = (7.0 * x + 3.0 * y).sin() * (5.0 * z - 2.0 * x).cos();
    293.0
        + 40.0 * z
        + 6.0 * wave
        + 500.0 * near(0.3, 0.4, 0.25, 0.12)
        + 300.0 * near(0.6, 0.7, 0.6, 0.2)
        + 700.0 * near(0.8, 0.25, 0.75, 0.08)
}

/// Layers across z, each a little graded, with an inclusion.
fn material(z: f64, y: f64, x: f64) -> f64 {
    let layer = if z < 0.35 {
        1.0
    } else if z < 0.55 {
        0.35
    } else {
        0.7
    };
    let inclusion = if (x - 0.5).hypot(y - 0.5) < 0.15 {
        0.5
    } else {
        1.0
    };
    layer * inclusion * (1.0 - 0.1 * x * y)
}

impl<R: Real> Program for Heat<R> {
    fn step(&mut self) {
        let [depth, height, width] = self.extents;
        let rate = R::of(RATE);
        for z in 0..depth {
            for y in 0..height {
                for x in 0..width {
                    let at = (z * height + y) * width + x;
                    let mut sum = R::ZERO;
                    for (place, extent, stride) in [
                        (z, depth, height * width),
                        (y, height, width),
                        (x, width, 1),
                    ] {
                        if place > 0 {
                            sum += self.inflow(at, at - stride);
                        }
                        if place + 1 < extent {
                            sum += self.inflow(at, at + stride);
                        }
                    }
                    self.next[at] = self.temperature[at] + rate * sum;
                }
            }
        }
        std::mem::swap(&mut self.temperature, &mut self.next);
        self.steps += 1;
    }

    fn state(&self, ranks: usize) -> State {
        let extents = self.extents;
        let parts = parts(extents, ranks);
        let of_rank = |part| {
            vec![
                field("conductivity", extents, &self.conductivity, part),
                Variable::scalar("step", self.steps),
                field("temperature", extents, &self.temperature, part),
            ]
        };
        parts.iter().map(of_rank).collect()
    }
}
