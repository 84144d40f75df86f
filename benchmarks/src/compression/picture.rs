// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the pictures of docs/compression.md, as SVG.
//! In from: `page`. Out to: files in its folder of figures.
//! Invariants: the same report gives the same pictures on every machine; a logarithmic axis has points
//! on it and no bars, which would begin at a number chosen at will.

use super::report::Report;
use crate::{Outcome, size_f64};
use backstay_picture::{
    Axis, Dash, Dots, Drawing, Heading, Key, Label, Line, Marker, Panels, Scale, Swatch,
};
use std::path::Path;

/// A report's rows of one program, wide numbers first.
type Programs<'a, Row> = Vec<(String, Vec<(Width, &'a Row)>)>;

/// How wide the numbers of a case are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Width {
    Wide,
    Narrow,
    Several,
}

const WIDTHS: [Width; 3] = [Width::Wide, Width::Narrow, Width::Several];
const RATIO: &str = "ratio: bytes before over bytes stored";
const EACH: &str = "Each block is stored, equal to another or not.";

/// Draws all four.
pub fn draw(report: &Report, folder: &Path) -> Outcome<()> {
    let commit = report.commit.get(..7).unwrap_or(&report.commit);
    let source = |what: &str| format!("{what}. Measured at commit {commit}");
    let pictures: [(&str, Drawing); 4] = [
        ("groups", groups(report, &source)?),
        ("merges", merges(report, &source)?),
        ("passes", passes(report, &source)?),
        ("course", course(report, &source)?),
    ];
    for (name, drawing) in pictures {
        drawing.write_svg(&folder.join(format!("compression-{name}")))?;
    }
    Ok(())
}

impl Width {
    fn colour(self) -> usize {
        match self {
            Self::Wide => 0,
            Self::Narrow => 1,
            Self::Several => 2,
        }
    }

    fn marker(self) -> Marker {
        match self {
            Self::Wide => Marker::Disc,
            Self::Narrow => Marker::Ring,
            Self::Several => Marker::Triangle,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Wide => "64-bit numbers",
            Self::Narrow => "32-bit",
            Self::Several => "16- and 32-bit",
        }
    }

    fn line(self, points: Vec<(f64, f64)>) -> Line {
        Line {
            points,
            colour: self.colour(),
            marker: Some(self.marker()),
            label: Label::None,
            ..Line::default()
        }
    }
}

/// A case is called after its program and its numbers.
fn parts(case: &str) -> (&str, Width) {
    match case.rsplit_once('-') {
        Some((program, "f64" | "i64")) => (program, Width::Wide),
        Some((program, "f32" | "i32")) => (program, Width::Narrow),
        _ => (case, Width::Several),
    }
}

fn programs<'a, Row>(rows: impl Iterator<Item = (&'a str, &'a Row)>) -> Programs<'a, Row> {
    let mut programs: Programs<'a, Row> = Vec::new();
    for (case, row) in rows {
        let (name, width) = parts(case);
        match programs.iter_mut().find(|(known, _)| known == name) {
            Some((_, rows)) => rows.push((width, row)),
            None => programs.push((name.to_owned(), vec![(width, row)])),
        }
    }
    programs
}

fn keys() -> Vec<Key> {
    let key = |width: Width| Key {
        text: width.words().to_owned(),
        swatch: Swatch::Point(width.marker()),
        colour: Some(width.colour()),
    };
    WIDTHS.map(key).to_vec()
}

fn groups(report: &Report, source: &dyn Fn(&str) -> String) -> Outcome<Drawing> {
    let rows = report
        .groups
        .iter()
        .filter(|row| row.merge == "concatenate");
    let panel = |(name, rows): (String, Vec<(Width, &super::report::GroupRow)>)| {
        let line = |(width, row): (Width, &super::report::GroupRow)| {
            let first = row.ratios.first().map_or(1.0, |&(_, value)| value);
            let point =
                |&(size, value): &(u32, f64)| (f64::from(size), 100.0 * (value / first - 1.0));
            width.line(row.ratios.iter().map(point).collect())
        };
        (name, rows.into_iter().map(line).collect())
    };
    let panels: Vec<(String, Vec<Line>)> = programs(rows.map(|row| (row.case.as_str(), row)))
        .into_iter()
        .map(panel)
        .collect();
    let values = || {
        panels
            .iter()
            .flat_map(|(_, lines)| lines)
            .flat_map(|line| &line.points)
    };
    let high = values().map(|point| point.1).fold(5.0, f64::max);
    let low = values().map(|point| point.1).fold(0.0, f64::min);
    let sizes = values().map(|point| point.0).fold(2.0, f64::max);
    Ok(Panels {
        heading: Heading {
            title: "Compression ratio by how many ranks are merged".to_owned(),
            source: source(
                "Backstay's codecs; ranks' variables of one kind, one after the other \
                 (concatenate)",
            ),
            key: keys(),
            note: String::new(),
        },
        x: Axis::new("ranks merged with each other", Scale::Log2, 1.0, sizes),
        y: Axis::new(
            "change of the ratio against ranks by themselves",
            Scale::Linear,
            low - 2.0,
            high + 2.0,
        )
        .with_suffix(" %"),
        columns: 3,
        panels,
    }
    .draw()?)
}

fn course(report: &Report, source: &dyn Fn(&str) -> String) -> Outcome<Drawing> {
    let places = |values: Vec<f64>| -> Vec<(f64, f64)> {
        let place = |(at, value)| (size_f64(at) + 1.0, value);
        values.into_iter().enumerate().map(place).collect()
    };
    let panel = |(name, rows): (String, Vec<(Width, &super::report::CourseRow)>)| {
        let pair = |(width, row): (Width, &super::report::CourseRow)| {
            let ours = row.ratios.iter().map(|&(_, ours, _)| ours).collect();
            let agnostic = row.ratios.iter().map(|&(.., agnostic)| agnostic).collect();
            let dotted = Line {
                marker: None,
                dash: Dash::Dotted,
                ..width.line(places(agnostic))
            };
            [dotted, width.line(places(ours))]
        };
        (name, rows.into_iter().flat_map(pair).collect())
    };
    let rows = report.course.iter().map(|row| (row.case.as_str(), row));
    let panels: Vec<(String, Vec<Line>)> = programs(rows).into_iter().map(panel).collect();
    let values = || {
        panels
            .iter()
            .flat_map(|(_, lines)| lines)
            .flat_map(|line| &line.points)
    };
    let high = values().map(|point| point.1).fold(10.0, f64::max);
    let last = values().map(|point| point.0).fold(2.0, f64::max);
    let mut key = keys();
    key.push(Key {
        text: "zstd -3, in the same colours".to_owned(),
        swatch: Swatch::Line(Dash::Dotted),
        colour: None,
    });
    Ok(Panels {
        heading: Heading {
            title: "Compression ratio over the course of a program".to_owned(),
            source: source("Backstay's codecs, 32 ranks, beside zstd -3 on whole checkpoints"),
            key,
            note: String::new(),
        },
        x: Axis::new("checkpoint of the course", Scale::Linear, 0.7, last + 0.3),
        y: Axis::new(RATIO, Scale::Log10, 1.0, 1.5 * high),
        columns: 3,
        panels,
    }
    .draw()?)
}

fn ratios(rows: &[(String, Vec<f64>)]) -> Axis {
    let values = rows.iter().flat_map(|(_, values)| values);
    let high = values.copied().fold(10.0, f64::max);
    Axis::new(RATIO, Scale::Log10, 0.95, 1.15 * high)
}

fn merges(report: &Report, source: &dyn Fn(&str) -> String) -> Outcome<Drawing> {
    let looks = [
        (Marker::Ring, 0),
        (Marker::Dot, 0),
        (Marker::Cross, 1),
        (Marker::Box, 4),
        (Marker::Plus, 4),
    ];
    let names = report.merges.first().map_or(&[][..], |row| &row.ratios);
    let series = names.iter().zip(looks);
    let rows: Vec<(String, Vec<f64>)> = report
        .merges
        .iter()
        .map(|row| {
            let values = row.ratios.iter().map(|&(_, value)| value);
            (row.case.clone(), values.collect())
        })
        .collect();
    Ok(Dots {
        heading: Heading {
            title: "Compression ratio by how ranks are merged".to_owned(),
            source: source("Backstay's codecs and, agnostic, zstd -3, 32 ranks"),
            note: EACH.to_owned(),
            ..Heading::default()
        },
        x: ratios(&rows),
        rows,
        series: series
            .map(|((name, _), (marker, colour))| (name.clone(), marker, colour))
            .collect(),
    }
    .draw()?)
}

fn passes(report: &Report, source: &dyn Fn(&str) -> String) -> Outcome<Drawing> {
    let values = |row: &super::report::PassRow| {
        let values = [row.without, row.with, row.agnostic, row.agnostic_twice];
        (row.case.clone(), values.to_vec())
    };
    let rows: Vec<(String, Vec<f64>)> = report.passes.iter().map(values).collect();
    let series = [
        ("one pass", Marker::Dot, 0),
        ("second pass", Marker::Ring, 0),
        ("zstd -3", Marker::Plus, 4),
        ("zstd -3 twice", Marker::Box, 4),
    ];
    Ok(Dots {
        heading: Heading {
            title: "Compression ratio with one pass and with two".to_owned(),
            source: source("Backstay's codecs and zstd -3, 32 ranks"),
            note: EACH.to_owned(),
            ..Heading::default()
        },
        x: ratios(&rows),
        rows,
        series: series
            .map(|(name, marker, colour)| (name.to_owned(), marker, colour))
            .to_vec(),
    }
    .draw()?)
}

#[cfg(test)]
mod tests {
    use crate::committed;
    use crate::compression::report::Report;

    #[test]
    fn committed_page_and_pictures_are_those_of_the_committed_report() {
        let report: Report = committed::report("codecs-report-xeon-2core-b2c9625.json").unwrap();
        let out = tempfile::tempdir().unwrap();
        crate::compression::page::write(&report, out.path()).unwrap();
        let files = ["groups", "merges", "passes", "course"];
        let files = files.map(|name| format!("figures/compression-{name}.svg"));
        let files = files.each_ref().map(String::as_str);
        committed::check(out.path(), &files, "compression-figures").unwrap();
    }
}
