// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: charts of ratios, as SVG.
//! In from: `page`. Out to: a file.
//! Invariants: the same numbers give the same picture on every machine: the font travels with the
//! program. The axis of ratios is logarithmic.

use crate::Outcome;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, Ranged};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::register_font;
use std::ops::Range;
use std::path::Path;

const SIZE: (u32, u32) = (920, 520);
/// Told apart also without colour vision (Okabe and Ito).
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(60, 60, 60),
    RGBColor(150, 110, 60),
];

/// What stands around a chart.
#[derive(Debug, Clone)]
pub struct Frame<'a> {
    /// Above it.
    pub title: &'a str,
    /// Below it.
    pub x: &'a str,
    /// Beside it.
    pub y: &'a str,
}

/// A line or a kind of bars: its name, and a value for each place.
pub type Series = (String, Vec<f64>);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<RangedCoordf64, Ratios>>;

/// Bars side by side for each of `places`.
pub fn bars(path: &Path, frame: &Frame<'_>, places: &[String], series: &[Series]) -> Outcome<()> {
    let area = open(path)?;
    let axis = Ratios::of(series, true);
    let floor = axis.range.start;
    let mut chart = chart(&area, frame, places, axis)?;
    let width = 0.8 / crate::size_f64(series.len());
    for (number, (name, values)) in series.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let bar = |(place, &value): (usize, &f64)| {
            let left = crate::size_f64(place) + 0.1 + width * crate::size_f64(number);
            let corners = [(left, floor), (left + width * 0.92, value.log2())];
            Rectangle::new(corners, colour.filled())
        };
        chart.draw_series(values.iter().enumerate().map(bar))?;
        key(&area, number, name, false)?;
    }
    Ok(area.present()?)
}

/// A line over `places` for each of `series`.
pub fn lines(path: &Path, frame: &Frame<'_>, places: &[String], series: &[Series]) -> Outcome<()> {
    let area = open(path)?;
    let mut chart = chart(&area, frame, places, Ratios::of(series, false))?;
    for (number, (name, values)) in series.iter().enumerate() {
        let style = COLOURS[number % COLOURS.len()].stroke_width(2);
        let point = |(place, &value): (usize, &f64)| (crate::size_f64(place) + 0.5, value.log2());
        let points: Vec<(f64, f64)> = values.iter().enumerate().map(point).collect();
        let mark = |&at: &(f64, f64)| Circle::new(at, 3, style.color.filled());
        chart.draw_series(points.iter().map(mark))?;
        let dashed = number >= COLOURS.len();
        if dashed {
            chart.draw_series(DashedLineSeries::new(points, 6, 5, style))?;
        } else {
            chart.draw_series(LineSeries::new(points, style))?;
        }
        key(&area, number, name, dashed)?;
    }
    Ok(area.present()?)
}

fn open(path: &Path) -> Outcome<Area<'_>> {
    let font = epaint_default_fonts::UBUNTU_LIGHT;
    register_font("sans-serif", FontStyle::Normal, font)
        .map_err(|_unusable| "the built-in font cannot be used")?;
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    Ok(area)
}

fn chart<'a>(
    area: &Area<'a>,
    frame: &Frame<'_>,
    places: &[String],
    axis: Ratios,
) -> Outcome<Chart<'a>> {
    let (drawing, _) = area.split_horizontally(SIZE.0.saturating_sub(180));
    let floor = axis.range.start;
    let mut chart = ChartBuilder::on(&drawing)
        .caption(frame.title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(58)
        .y_label_area_size(66)
        .build_cartesian_2d(0.0..crate::size_f64(places.len()), axis)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(0)
        .x_desc(frame.x)
        .y_desc(frame.y)
        .y_label_formatter(&|place| label(place.exp2()))
        .label_style(("sans-serif", 15))
        .axis_desc_style(("sans-serif", 17))
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.12))
        .draw()?;
    for (number, place) in places.iter().enumerate() {
        let middle = chart.backend_coord(&(crate::size_f64(number) + 0.5, floor));
        let position = plotters::style::text_anchor::Pos::new(
            plotters::style::text_anchor::HPos::Center,
            plotters::style::text_anchor::VPos::Top,
        );
        let style = ("sans-serif", 13).into_font().color(&BLACK).pos(position);
        area.draw_text(place, &style, (middle.0, middle.1 + 8))?;
    }
    Ok(chart)
}

/// What the colour of a series means, beside the chart.
fn key(area: &Area<'_>, number: usize, name: &str, dashed: bool) -> Outcome<()> {
    let colour = COLOURS[number % COLOURS.len()];
    let row = i32::try_from(number)?;
    let (left, top) = (748, 52 + 22 * row);
    let ends = if dashed {
        vec![(0, 5), (10, 15)]
    } else {
        vec![(0, 15)]
    };
    for (from, to) in ends {
        let corners = [(left + from, top), (left + to, top + 10)];
        area.draw(&Rectangle::new(corners, colour.filled()))?;
    }
    let style = ("sans-serif", 14).into_font().color(&BLACK);
    Ok(area.draw_text(name, &style, (left + 22, top - 2))?)
}

fn label(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A logarithmic axis: its places are logarithms to base 2.
#[derive(Debug, Clone)]
struct Ratios {
    range: Range<f64>,
}

impl Ratios {
    /// Holds all values; from 1 where bars stand on it.
    fn of(series: &[Series], from_one: bool) -> Self {
        let values = series.iter().flat_map(|(_, values)| values);
        let places = values
            .filter(|value| value.is_finite())
            .map(|value| value.log2());
        let (mut low, mut high) = (if from_one { 0.0 } else { f64::MAX }, 0.2_f64);
        for place in places {
            low = low.min(place);
            high = high.max(place);
        }
        let low = if low > high { 0.0 } else { low };
        let margin = 0.04 * (high - low);
        let low = if from_one && low >= 0.0 {
            0.0
        } else {
            low - margin
        };
        Self {
            range: low..high + margin,
        }
    }
}

impl Ranged for Ratios {
    type FormatOption = plotters::coord::ranged1d::DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        RangedCoordf64::from(self.range.clone()).map(value, limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        let span = self.range.end - self.range.start;
        let steps: &[f64] = match span {
            wide if wide > 3.0 => &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0],
            middle if middle > 1.0 => &[0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0],
            _ => &[
                0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5, 1.6, 1.8, 2.0,
            ],
        };
        let places = steps.iter().map(|step| step.log2());
        places.filter(|place| self.range.contains(place)).collect()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}
