// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a network that learns to read digits that a program draws, the same on all ranks.
//! In from: nothing. Out to: `datasets`.
//! Invariants: three layers, Adam, a rate that falls along a cosine; computes with weights in bfloat16
//! and keeps them in binary32, as usual; gradients are averaged, so that all ranks stay equal, and
//! what differs is which samples a rank draws.

use super::number::Bf16;
use super::{Program, State, Variable};
use crate::{as_f64, size_f64};
use backstay_testkit::seeded::Seeded;

const SIDE: usize = 16;
const INPUTS: usize = SIDE * SIDE;
const DIGITS: usize = 10;
const BATCH: usize = 96;
const SAMPLES: usize = 4096;
/// Steps after which the rate no longer falls.
const SCHEDULE: f64 = 400.0;

/// Five columns of seven dots, a row of dots in each number.
const GLYPHS: [[u8; 7]; DIGITS] = [
    [14, 17, 19, 21, 25, 17, 14],
    [4, 12, 4, 4, 4, 4, 14],
    [14, 17, 1, 2, 4, 8, 31],
    [31, 2, 4, 2, 1, 17, 14],
    [2, 6, 10, 18, 31, 2, 2],
    [31, 16, 30, 1, 1, 17, 14],
    [6, 8, 16, 30, 17, 17, 14],
    [31, 1, 2, 4, 8, 8, 8],
    [14, 17, 17, 14, 17, 17, 14],
    [14, 17, 17, 15, 1, 2, 12],
];

/// Numbers that are learned together, with what Adam keeps of them.
#[derive(Debug, Clone)]
struct Tensor {
    name: &'static str,
    shape: Vec<usize>,
    master: Vec<f32>,
    /// The nearest ones in bfloat16, as binary32.
    used: Vec<f32>,
    first: Vec<f32>,
    second: Vec<f32>,
    gradient: Vec<f32>,
}

/// The network and its training.
#[derive(Debug)]
pub struct Network {
    /// Weights and biases of each layer.
    layers: Vec<[Tensor; 2]>,
    random: Seeded,
    steps: i64,
}

impl Tensor {
    fn new(name: &'static str, shape: &[usize], spread: f64, random: &mut Seeded) -> Self {
        let count: usize = shape.iter().product();
        let mut unit = || as_f64(random.below(1 << 32)) / as_f64(1 << 31) - 1.0;
        let master: Vec<f32> = (0..count).map(|_| narrow(spread * unit())).collect();
        let mut tensor = Self {
            name,
            shape: shape.to_vec(),
            used: Vec::new(),
            first: vec![0.0; count],
            second: vec![0.0; count],
            gradient: vec![0.0; count],
            master,
        };
        tensor.round();
        tensor
    }

    fn halves(&self) -> Vec<Bf16> {
        self.master
            .iter()
            .map(|&value| Bf16::nearest(value))
            .collect()
    }

    fn round(&mut self) {
        let wide = |half: Bf16| f32::from_bits(u32::from(half.0) << 16);
        self.used = self.halves().into_iter().map(wide).collect();
    }

    fn learn(&mut self, rate: f32, step: i64) {
        let step = i32::try_from(step).unwrap_or(i32::MAX);
        let (one, two) = (1.0 - 0.9_f32.powi(step), 1.0 - 0.999_f32.powi(step));
        for at in 0..self.master.len() {
            let gradient = self.gradient[at];
            self.first[at] = 0.9 * self.first[at] + 0.1 * gradient;
            self.second[at] = 0.999 * self.second[at] + 0.001 * gradient * gradient;
            let change = self.first[at] / one / ((self.second[at] / two).sqrt() + 1e-8);
            self.master[at] -= rate * (change + 0.01 * self.master[at]);
        }
        self.gradient.fill(0.0);
        self.round();
    }

    fn variables(&self) -> Vec<Variable> {
        let name = |suffix: &str| format!("{}{suffix}", self.name);
        vec![
            Variable::array(self.name, &self.shape, &self.halves()),
            Variable::array(&name(".first"), &self.shape, &self.first),
            Variable::array(&name(".master"), &self.shape, &self.master),
            Variable::array(&name(".second"), &self.shape, &self.second),
        ]
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the nearest is meant")]
fn narrow(value: f64) -> f32 {
    value as f32
}

impl Network {
    /// The network before it learns.
    pub fn new(quick: bool) -> Self {
        let sizes = if quick {
            [INPUTS, 24, 16, DIGITS]
        } else {
            [INPUTS, 320, 160, DIGITS]
        };
        let names = [
            ["layer1.bias", "layer1.weight"],
            ["layer2.bias", "layer2.weight"],
            ["layer3.bias", "layer3.weight"],
        ];
        let mut random = Seeded::new(23);
        let mut layers = Vec::new();
        for (pair, names) in sizes.windows(2).zip(names) {
            let spread = (3.0 / size_f64(pair[0])).sqrt();
            layers.push([
                Tensor::new(names[1], &[pair[1], pair[0]], spread, &mut random),
                Tensor::new(names[0], &[pair[1]], 0.01, &mut random),
            ]);
        }
        Self {
            layers,
            random: Seeded::new(29),
            steps: 0,
        }
    }

    /// Values of all layers for one image.
    fn forward(&self, image: Vec<f32>) -> Vec<Vec<f32>> {
        let mut values = vec![image];
        for (number, [weights, biases]) in self.layers.iter().enumerate() {
            let inputs = &values[number];
            let mut outputs = biases.used.clone();
            for (output, row) in outputs
                .iter_mut()
                .zip(weights.used.chunks_exact(inputs.len()))
            {
                let products = row.iter().zip(inputs).map(|(weight, input)| weight * input);
                *output += sum(products);
                if number + 1 < self.layers.len() {
                    *output = output.max(0.0);
                }
            }
            values.push(outputs);
        }
        values
    }

    /// Adds gradients of the cross entropy of one image.
    fn backward(&mut self, values: &[Vec<f32>], digit: usize) {
        let outputs = &values[self.layers.len()];
        let most = outputs.iter().copied().fold(f32::MIN, f32::max);
        let powers: Vec<f32> = outputs.iter().map(|output| (output - most).exp()).collect();
        let all: f32 = powers.iter().sum();
        let share = 1.0 / narrow(size_f64(BATCH));
        let of =
            |(at, power): (usize, f32)| share * (power / all - f32::from(u8::from(at == digit)));
        let mut errors: Vec<f32> = powers.into_iter().enumerate().map(of).collect();
        for number in (0..self.layers.len()).rev() {
            let inputs = &values[number];
            let [weights, biases] = &mut self.layers[number];
            let mut before = vec![0.0; inputs.len()];
            let width = inputs.len();
            for (at, &error) in errors.iter().enumerate() {
                biases.gradient[at] += error;
                let row = at * width..(at + 1) * width;
                let gradients = &mut weights.gradient[row.clone()];
                for (gradient, input) in gradients.iter_mut().zip(inputs) {
                    *gradient += error * input;
                }
                for (sum, weight) in before.iter_mut().zip(&weights.used[row]) {
                    *sum += error * weight;
                }
            }
            if number > 0 {
                for (sum, &input) in before.iter_mut().zip(inputs) {
                    *sum *= f32::from(u8::from(input > 0.0));
                }
            }
            errors = before;
        }
    }
}

/// A sum in an order that vector instructions can follow.
fn sum(products: impl Iterator<Item = f32>) -> f32 {
    let mut lanes = [0.0_f32; 16];
    for (at, product) in products.enumerate() {
        lanes[at % 16] += product;
    }
    lanes.iter().sum()
}

/// A digit, moved, turned, stretched and with noise on it.
fn image(digit: usize, random: &mut Seeded) -> Vec<f32> {
    let mut unit = || as_f64(random.below(1 << 24)) / f64::from(1 << 23) - 1.0;
    let (turn, size) = (0.25 * unit(), 1.9 + 0.3 * unit());
    let (right, down) = (1.5 * unit(), 1.2 * unit());
    let glyph = &GLYPHS[digit];
    let dot = |row: f64, column: f64| -> f64 {
        let inside = (0.0..7.0).contains(&row) && (0.0..5.0).contains(&column);
        let lit = |row: &u8, column: usize| f64::from(row >> (4 - column) & 1);
        if inside {
            lit(&glyph[floor(row)], floor(column))
        } else {
            0.0
        }
    };
    let mut found = Vec::with_capacity(INPUTS);
    for at in 0..INPUTS {
        let y = size_f64(at / SIDE) - 7.5 - down;
        let x = size_f64(at % SIDE) - 7.5 - right;
        let row = (y * turn.cos() - x * turn.sin()) / size + 3.5;
        let column = (y * turn.sin() + x * turn.cos()) / size + 2.5;
        let near = [
            (0.0, 0.0),
            (0.25, 0.0),
            (0.0, 0.25),
            (-0.25, 0.0),
            (0.0, -0.25),
        ];
        let light: f64 = near.iter().map(|(dr, dc)| dot(row + dr, column + dc)).sum();
        found.push(narrow((0.2 * light + 0.08 * unit()).clamp(0.0, 1.0)));
    }
    found
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it is in the glyph"
)]
fn floor(value: f64) -> usize {
    value as usize
}

impl Program for Network {
    fn step(&mut self) {
        for _ in 0..BATCH {
            let digit = self.random.index(DIGITS);
            let drawn = image(digit, &mut self.random);
            let values = self.forward(drawn);
            self.backward(&values, digit);
        }
        self.steps += 1;
        let done = (size_f64(usize::try_from(self.steps).unwrap_or(0)) / SCHEDULE).min(1.0);
        let rate = 1e-5 + 1e-3 * 0.5 * (1.0 + (std::f64::consts::PI * done).cos());
        for tensor in self.layers.iter_mut().flatten() {
            tensor.learn(narrow(rate), self.steps);
        }
    }

    fn state(&self, ranks: usize) -> State {
        let shared: Vec<Variable> = self
            .layers
            .iter()
            .flatten()
            .flat_map(Tensor::variables)
            .collect();
        let of_rank = |rank: usize| {
            let mut order: Vec<i32> = (0_i32..).take(SAMPLES / ranks).collect();
            let mut random = Seeded::of(&[rank as u64, self.steps.unsigned_abs() / 64]);
            random.shuffle(&mut order);
            let mut variables = shared.clone();
            variables.push(Variable::array("sampler.order", &[order.len()], &order));
            variables.push(Variable::scalar("sampler.state", random.next_u64()));
            variables.push(Variable::scalar("step", self.steps));
            variables.sort_by(|one, next| one.descriptor.name.cmp(&next.descriptor.name));
            variables
        };
        (0..ranks).map(of_rank).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_learns() {
        let mut network = Network::new(true);
        for _ in 0..120 {
            network.step();
        }
        let mut random = Seeded::new(1);
        let mut right = 0;
        for at in 0..200 {
            let digit = at % DIGITS;
            let values = network.forward(image(digit, &mut random));
            let outputs = &values[3];
            let best = (0..DIGITS).max_by(|&a, &b| outputs[a].total_cmp(&outputs[b]));
            right += usize::from(best == Some(digit));
        }
        assert!(right > 120, "{right} of 200");
    }
}
