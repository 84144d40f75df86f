// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: where a value stands on an axis, and which values are written there.
//! In from: whoever describes a chart. Out to: `plot`.
//! Invariants: ticks are 1, 2 or 5 times a power of ten, powers of two, or round times; an axis that is
//! not even says so.

/// How an axis is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Even steps.
    Linear,
    /// Logarithmic, labelled at powers of two.
    Log2,
    /// Logarithmic, labelled at 1, 2 and 5 times powers of ten.
    Log10,
    /// Logarithmic, of seconds, labelled in seconds, minutes, hours and days.
    Time,
}

/// One axis of a chart.
#[derive(Debug, Clone)]
pub struct Axis {
    /// What it shows, with its unit.
    pub label: String,
    /// How it is divided.
    pub scale: Scale,
    /// Where it begins.
    pub low: f64,
    /// Where it ends.
    pub high: f64,
    /// Behind each number.
    pub suffix: &'static str,
}

const MINUTE: f64 = 60.0;
const HOUR: f64 = 3600.0;
const DAY: f64 = 86_400.0;

impl Axis {
    /// An axis from `low` to `high`.
    pub fn new(label: &str, scale: Scale, low: f64, high: f64) -> Self {
        Self {
            label: label.to_owned(),
            scale,
            low,
            high,
            suffix: "",
        }
    }

    /// The same with something behind each number.
    #[must_use]
    pub fn with_suffix(self, suffix: &'static str) -> Self {
        Self { suffix, ..self }
    }

    /// The label, and that it is not even.
    pub(crate) fn caption(&self) -> String {
        match self.scale {
            Scale::Linear => self.label.clone(),
            Scale::Log2 | Scale::Log10 | Scale::Time => format!("{}, log scale", self.label),
        }
    }

    /// From 0 where the axis begins to 1 where it ends; beyond for what is not on it.
    pub(crate) fn place(&self, value: f64) -> f64 {
        let even = |value: f64| match self.scale {
            Scale::Linear => value,
            Scale::Log2 | Scale::Log10 | Scale::Time => value.ln(),
        };
        (even(value) - even(self.low)) / (even(self.high) - even(self.low))
    }

    /// Where numbers stand, at most about `room` of them.
    pub(crate) fn ticks(&self, room: usize) -> Vec<(f64, String)> {
        let values = match self.scale {
            Scale::Linear => self.even_ticks(room),
            Scale::Log2 => self.powers(2.0, room),
            Scale::Log10 => {
                let between = self.on(self.decades().into_iter().flat_map(|power| {
                    let decade = 10_f64.powi(power);
                    [decade, 2.0 * decade, 5.0 * decade]
                }));
                if between.len() <= room {
                    between
                } else {
                    self.powers(10.0, room)
                }
            }
            Scale::Time => return self.times(room),
        };
        let label = |value: f64| (value, format!("{}{}", number(value), self.suffix));
        values.into_iter().map(label).collect()
    }

    /// Small strokes between the numbers of an axis over decades, where so many pixels have room for them.
    pub(crate) fn strokes(&self, pixels: f64) -> Vec<f64> {
        let decades = (self.high / self.low).log10();
        if self.scale != Scale::Log10 || pixels < 50.0 * decades {
            return Vec::new();
        }
        self.on(self
            .decades()
            .into_iter()
            .flat_map(|power| (1..10).map(move |digit| f64::from(digit) * 10_f64.powi(power))))
    }

    fn on(&self, values: impl Iterator<Item = f64>) -> Vec<f64> {
        let slack = 1e-9;
        let is_on = |value: &f64| (-slack..=1.0 + slack).contains(&self.place(*value));
        values.filter(is_on).collect()
    }

    fn decades(&self) -> Vec<i32> {
        let (low, high) = (self.low.log10().floor(), self.high.log10().ceil());
        (-30..=30)
            .filter(|&power| (low..=high).contains(&f64::from(power)))
            .collect()
    }

    fn powers(&self, base: f64, room: usize) -> Vec<f64> {
        let every = |step: i32| {
            let powers = (-60..=60).filter(|power| power % step == 0);
            self.on(powers.map(|power| base.powi(power)))
        };
        let fits = (1..=6).map(every).find(|values| values.len() <= room);
        fits.unwrap_or_default()
    }

    fn even_ticks(&self, room: usize) -> Vec<f64> {
        let steps = (-12..=12).flat_map(|power| {
            let unit = 10_f64.powi(power);
            [unit, 2.0 * unit, 5.0 * unit]
        });
        let of = |step: f64| -> Vec<f64> {
            let first = (self.low / step - 1e-9).ceil();
            (0..64)
                .map(|at| step * (first + f64::from(at)))
                .filter(|&value| value <= self.high + 1e-9 * step)
                .collect()
        };
        let mut fitting = steps.map(of).filter(|values| values.len() <= room);
        fitting
            .find(|values| !values.is_empty())
            .unwrap_or_default()
    }

    fn times(&self, room: usize) -> Vec<(f64, String)> {
        let all = [1.0, 2.0, 5.0, 10.0, 20.0, 30.0]
            .map(|count| (count, 1.0, "s"))
            .into_iter()
            .chain([1.0, 2.0, 5.0, 10.0, 20.0, 30.0].map(|count| (count, MINUTE, "min")))
            .chain([1.0, 2.0, 5.0, 10.0].map(|count| (count, HOUR, "h")))
            .chain([1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0].map(|count| (count, DAY, "d")));
        let fits = |every: &[f64]| -> Vec<(f64, String)> {
            all.clone()
                .filter(|(count, ..)| every.contains(count))
                .map(|(count, unit, name)| (count * unit, format!("{count} {name}")))
                .filter(|(seconds, _)| !self.on(std::iter::once(*seconds)).is_empty())
                .collect()
        };
        let choices: [&[f64]; 3] = [
            &[1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 50.0, 100.0],
            &[1.0, 5.0, 10.0, 30.0, 100.0],
            &[1.0, 10.0, 100.0],
        ];
        let few = fits(&[1.0]);
        let mut fitting = choices.into_iter().map(fits);
        fitting.find(|ticks| ticks.len() <= room).unwrap_or(few)
    }
}

/// A number as one reads it: 0.05, 5, 5k, 5M.
fn number(value: f64) -> String {
    let plain = |value: f64| {
        let text = format!("{value:.4}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    match value.abs() {
        0.0 => "0".to_owned(),
        tiny if tiny < 9.9e-4 => format!("{value:.0e}"),
        small if small < 999.5 => plain(value),
        thousands if thousands < 999.5e3 => format!("{}k", plain(value / 1e3)),
        millions if millions < 999.5e6 => format!("{}M", plain(value / 1e6)),
        large if large < 999.5e9 => format!("{}G", plain(value / 1e9)),
        _ => format!("{value:.0e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: Scale, low: f64, high: f64, room: usize) -> Vec<String> {
        let ticks = Axis::new("", scale, low, high).ticks(room);
        ticks.into_iter().map(|(_, label)| label).collect()
    }

    #[test]
    fn ticks_are_round() {
        let even = labels(Scale::Linear, 0.0, 1.0, 6);
        assert_eq!(even, ["0", "0.2", "0.4", "0.6", "0.8", "1"]);
        assert_eq!(labels(Scale::Linear, -4.0, 16.0, 5), ["0", "5", "10", "15"]);
        assert_eq!(
            labels(Scale::Log2, 1.0, 16.0, 6),
            ["1", "2", "4", "8", "16"]
        );
        let nodes = labels(Scale::Log10, 16.0, 12_000.0, 10);
        assert_eq!(
            nodes,
            ["20", "50", "100", "200", "500", "1k", "2k", "5k", "10k"]
        );
        let rates = labels(Scale::Log10, 0.5, 1e4, 8);
        assert_eq!(rates, ["1", "10", "100", "1k", "10k"]);
        assert_eq!(
            labels(Scale::Log10, 1e-9, 1e6, 6),
            ["1e-9", "1e-6", "0.001", "1", "1k", "1M"]
        );
        assert_eq!(
            labels(Scale::Time, 40.0, 100_000.0, 8),
            [
                "1 min", "5 min", "10 min", "30 min", "1 h", "5 h", "10 h", "1 d"
            ]
        );
    }

    #[test]
    fn a_place_is_a_share_of_the_axis() {
        let axis = Axis::new("x", Scale::Log10, 1.0, 100.0);
        assert!((axis.place(10.0) - 0.5).abs() < 1e-12);
        assert!(axis.place(1000.0) > 1.0 && axis.place(0.1) < 0.0);
        assert_eq!(axis.caption(), "x, log scale");
        assert!(axis.strokes(200.0).len() == 19 && axis.strokes(90.0).is_empty());
    }
}
