// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what a benchmark found: medians and spread, as a table for people and JSON for programs.
//! In from: `ranks` (samples). Out to: standard output and target/bench/NAME.json.
//! Invariants: ids are stable; a figure that was not measured is there and is not reached.

use crate::Outcome;
use crate::machine;
use crate::ranks::Samples;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Which way a figure should go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Less is better.
    Lower,
    /// More is better.
    Higher,
}

/// A figure that a benchmark is to find.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// Stable name.
    pub id: &'static str,
    /// What it is, for people.
    pub what: &'static str,
    /// Unit; "ratio" for a cost over a baseline.
    pub unit: &'static str,
    /// What it should reach.
    pub reach: Option<f64>,
    /// Which way it should go.
    pub better: Better,
}

impl Wanted {
    /// A figure that should be at most `reach`.
    pub const fn at_most(
        id: &'static str,
        what: &'static str,
        unit: &'static str,
        reach: f64,
    ) -> Self {
        Self {
            id,
            what,
            unit,
            reach: Some(reach),
            better: Better::Lower,
        }
    }
    /// A figure that is only shown.
    pub const fn shown(
        id: &'static str,
        what: &'static str,
        unit: &'static str,
        better: Better,
    ) -> Self {
        Self {
            id,
            what,
            unit,
            reach: None,
            better,
        }
    }
}

/// A figure that a benchmark found.
#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    /// Stable name.
    pub id: String,
    /// The median; none if it could not be measured.
    pub value: Option<f64>,
    /// Unit; "ratio" for a cost over a baseline.
    pub unit: String,
    /// What it should reach.
    pub reach: Option<f64>,
    /// Which way it should go.
    pub better: Better,
    /// How often it was measured.
    pub runs: usize,
    /// Least of all runs.
    pub min: Option<f64>,
    /// Greatest of all runs.
    pub max: Option<f64>,
    #[serde(skip)]
    what: String,
}

impl Figure {
    /// The figure that `values` make.
    pub fn of(wanted: &Wanted, values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        Self {
            id: wanted.id.to_owned(),
            value: median(values),
            unit: wanted.unit.to_owned(),
            reach: wanted.reach,
            better: wanted.better,
            runs: values.len(),
            min: sorted.first().copied(),
            max: sorted.last().copied(),
            what: wanted.what.to_owned(),
        }
    }

    /// A figure with an id and a description made at run time.
    pub fn shown(id: String, what: String, unit: &str, better: Better, values: &[f64]) -> Self {
        let wanted = Wanted {
            id: "",
            what: "",
            unit: "",
            reach: None,
            better,
        };
        Self {
            id,
            what,
            unit: unit.to_owned(),
            ..Self::of(&wanted, values)
        }
    }

    /// The same, of which less is better and at most `reach` is asked for.
    pub fn at_most(id: String, what: String, unit: &str, reach: f64, values: &[f64]) -> Self {
        Self {
            reach: Some(reach),
            ..Self::shown(id, what, unit, Better::Lower, values)
        }
    }

    /// Whether it is as good as it should be; `None` where nothing is asked.
    pub fn reached(&self) -> Option<bool> {
        let reach = self.reach?;
        Some(self.value.is_some_and(|value| match self.better {
            Better::Lower => value <= reach,
            Better::Higher => value >= reach,
        }))
    }
}

/// The middle of some values; the mean of both middles of an even number.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        count if count.is_multiple_of(2) => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
        _ => Some(sorted[middle]),
    }
}

/// All figures of one benchmark.
#[derive(Debug, Serialize)]
pub struct Figures {
    machine: String,
    commit: String,
    #[serde(rename = "figures")]
    found: Vec<Figure>,
    #[serde(skip)]
    name: &'static str,
}

impl Figures {
    /// No figures yet of the benchmark `name`.
    pub fn new(name: &'static str) -> Self {
        Self {
            machine: machine::name(),
            commit: machine::commit(),
            found: Vec::new(),
            name,
        }
    }

    /// Adds what was wanted, from what was measured.
    pub fn take(&mut self, wanted: &[Wanted], samples: &Samples) {
        let none = Vec::new();
        self.found.extend(
            wanted
                .iter()
                .map(|wanted| Figure::of(wanted, samples.get(wanted.id).unwrap_or(&none))),
        );
    }

    /// Adds a figure.
    pub fn push(&mut self, figure: Figure) {
        self.found.push(figure);
    }

    /// What was measured, where, of which commit.
    pub fn title(&self) -> String {
        format!("{}: {}, commit {}", self.name, self.machine, self.commit)
    }

    /// The table for people, in Markdown.
    pub fn table(&self) -> String {
        let head = ["what", "value", "reach", "min", "max", "runs", ""].map(str::to_owned);
        let mut rows = vec![head.to_vec()];
        rows.extend(self.found.iter().map(|figure| row(figure).to_vec()));
        let text = columns(&rows);
        let asked = self.found.iter().filter_map(Figure::reached);
        let (asked, short) =
            asked.fold((0, 0), |(all, short), ok| (all + 1, short + i32::from(!ok)));
        let reached = asked - short;
        format!(
            "{}\n\n{text}\n{reached} of {asked} figures reached\n",
            self.title()
        )
    }

    /// Writes target/bench/NAME.json and says where.
    pub fn write(&self) -> Outcome<PathBuf> {
        let folder = Path::new("target/bench");
        std::fs::create_dir_all(folder)?;
        let path = folder.join(format!("{}.json", self.name));
        std::fs::write(&path, serde_json::to_string_pretty(self)? + "\n")?;
        Ok(path)
    }
}

/// A Markdown table; the first row is its head.
pub fn columns(rows: &[Vec<String>]) -> String {
    let count = rows.first().map_or(0, Vec::len);
    let width = |at: usize| rows.iter().map(|row| row[at].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut text = String::new();
    for (number, row) in rows.iter().enumerate() {
        for (cell, width) in row.iter().zip(&widths) {
            text = text + "| " + cell + &" ".repeat(width + 1 - cell.len());
        }
        text += "|\n";
        if number == 0 {
            for width in &widths {
                text = text + "|" + &"-".repeat(width + 2);
            }
            text += "|\n";
        }
    }
    text
}

fn row(figure: &Figure) -> [String; 7] {
    let sign = match figure.better {
        Better::Lower => "<=",
        Better::Higher => ">=",
    };
    let unit = if figure.unit == "ratio" {
        ""
    } else {
        &figure.unit
    };
    let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), short);
    let value = match figure.value {
        Some(value) => format!("{} {unit}", short(value)).trim_end().to_owned(),
        None => "not measured".to_owned(),
    };
    let word = figure
        .reached()
        .map_or("", |ok| if ok { "ok" } else { "short" });
    [
        figure.what.clone(),
        value,
        figure
            .reach
            .map_or_else(String::new, |reach| format!("{sign} {reach}")),
        number(figure.min),
        number(figure.max),
        figure.runs.to_string(),
        word.to_owned(),
    ]
}

/// A number with three digits that count.
pub fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 => format!("{value:.2}"),
        size if size >= 0.0001 => format!("{value:.4}"),
        _ => format!("{value:.1e}"),
    }
}

/// Says a line to the person who runs a benchmark.
#[expect(clippy::print_stdout, reason = "the one place where benchmarks speak")]
pub fn say(text: &str) {
    println!("{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_the_median_and_is_reached_in_its_direction() {
        let wanted = Wanted::at_most("a.b", "what", "ratio", 1.5);
        assert_eq!(Figure::of(&wanted, &[1.0, 9.0, 1.5]).reached(), Some(true));
        assert_eq!(Figure::of(&wanted, &[1.6, 1.6]).reached(), Some(false));
        let none = Figure::of(&wanted, &[]);
        assert_eq!((none.reached(), none.value), (Some(false), None));
        let shown = Wanted::shown("a.c", "what", "MB/s", Better::Higher);
        assert_eq!(Figure::of(&shown, &[2.0, 4.0]).value, Some(3.0));
        assert_eq!(Figure::of(&shown, &[1.0]).reached(), None);
    }
}
