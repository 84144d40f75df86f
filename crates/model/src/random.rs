// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A small deterministic generator and the distributions the planner draws from.
//!
//! Purpose: reproducible random numbers: the same seed gives the same run on every machine.
//! In from: a seed.
//! Out to: [`crate::simulate`], the posterior of the rates.
//! Invariants: xoshiro256++ (Blackman and Vigna) seeded by `SplitMix64`; never used for secrets.

use crate::number::real;

/// xoshiro256++: 256 bits of state, period 2^256 - 1.
#[derive(Debug, Clone)]
pub struct Random {
    state: [u64; 4],
}

impl Random {
    /// A generator whose whole sequence follows from the seed.
    pub fn from_seed(seed: u64) -> Self {
        let mut mixer = seed;
        let mut next = || {
            mixer = mixer.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut word = mixer;
            word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            word ^ (word >> 31)
        };
        Self {
            state: [next(), next(), next(), next()],
        }
    }

    /// Sixty-four random bits.
    pub fn bits(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let shifted = b << 17;
        let (c, d) = (c ^ a, d ^ b);
        let (b, a) = (b ^ c, a ^ d);
        self.state = [a, b, c ^ shifted, d.rotate_left(45)];
        result
    }

    /// A number above 0 and up to 1, in steps of 2^-53.
    pub fn unit(&mut self) -> f64 {
        real((self.bits() >> 11) + 1) / real(1 << 53)
    }

    /// An exponential waiting time with mean 1.
    pub fn exponential(&mut self) -> f64 {
        -self.unit().ln()
    }

    /// A standard normal number (Marsaglia's polar method).
    pub fn normal(&mut self) -> f64 {
        loop {
            let x = 2.0 * self.unit() - 1.0;
            let y = 2.0 * self.unit() - 1.0;
            let square = x * x + y * y;
            if square > 0.0 && square < 1.0 {
                return x * (-2.0 * square.ln() / square).sqrt();
            }
        }
    }

    /// A gamma-distributed number with scale 1 (Marsaglia and Tsang, with the power for shapes
    /// below 1). A shape of 0 or less gives 0.
    pub fn gamma(&mut self, shape: f64) -> f64 {
        if shape <= 0.0 || !shape.is_finite() {
            return 0.0;
        }
        if shape < 1.0 {
            let lift = self.unit().powf(1.0 / shape);
            return self.gamma(shape + 1.0) * lift;
        }
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let x = self.normal();
            let v = (1.0 + c * x).powi(3);
            if v > 0.0 && self.unit().ln() < 0.5 * x * x + d - d * v + d * v.ln() {
                return d * v;
            }
        }
    }
}

/// The gamma function for positive arguments (Lanczos approximation, about 15 digits).
pub fn gamma_function(x: f64) -> f64 {
    const G: f64 = 7.0;
    const COEFFICIENTS: [f64; 9] = [
        0.999_999_999_999_809_9,
        676.520_368_121_885_1,
        -1_259.139_216_722_402_8,
        771.323_428_777_653_1,
        -176.615_029_162_140_6,
        12.507_343_278_686_905,
        -0.138_571_095_265_720_12,
        9.984_369_578_019_572e-6,
        1.505_632_735_149_311_6e-7,
    ];
    if x < 0.5 {
        let pi = std::f64::consts::PI;
        return pi / ((pi * x).sin() * gamma_function(1.0 - x));
    }
    let x = x - 1.0;
    let mut sum = COEFFICIENTS[0];
    let mut divisor = x;
    for coefficient in &COEFFICIENTS[1..] {
        divisor += 1.0;
        sum += coefficient / divisor;
    }
    let shifted = x + G + 0.5;
    (2.0 * std::f64::consts::PI).sqrt() * shifted.powf(x + 0.5) * (-shifted).exp() * sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_right() {
        let mut random = Random::from_seed(7);
        let count = 200_000;
        let (mut exponential, mut normal, mut square, mut gamma) = (0.0, 0.0, 0.0, 0.0);
        for _ in 0..count {
            exponential += random.exponential();
            let x = random.normal();
            normal += x;
            square += x * x;
            gamma += random.gamma(0.4) + random.gamma(3.0);
        }
        let n = f64::from(count);
        assert!((exponential / n - 1.0).abs() < 0.01);
        assert!((normal / n).abs() < 0.01);
        assert!((square / n - 1.0).abs() < 0.02);
        assert!((gamma / n - 3.4).abs() < 0.03);
    }

    #[test]
    fn gamma_function_matches_known_values() {
        assert!((gamma_function(5.0) - 24.0).abs() < 1e-10);
        assert!((gamma_function(0.5) - std::f64::consts::PI.sqrt()).abs() < 1e-12);
        assert!((gamma_function(1.5) - std::f64::consts::PI.sqrt() / 2.0).abs() < 1e-12);
    }
}
