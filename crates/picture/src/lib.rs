// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Line charts as SVG and PNG.
//!
//! Purpose: one chart description, drawn the same way into both formats.
//! In from: `backstay plan`, the figures of docs/model.md.
//! Out to: two files with the same stem.
//! Invariants: the font travels with the program, so that a picture is the same on every machine;
//! points outside the axes are left out, gaps stay gaps.

use std::error::Error;
use std::path::Path;

use plotters::chart::ChartContext;
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::register_font;

/// How an axis is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Even steps.
    Linear,
    /// Logarithmic, labelled at powers of two.
    Log2,
    /// Logarithmic, labelled at powers of ten and between.
    Log10,
}

/// Where the names of the lines stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Legend {
    /// Above, on the left.
    UpperLeft,
    /// Above, on the right.
    UpperRight,
    /// Below, on the left.
    LowerLeft,
    /// Below, on the right.
    LowerRight,
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
}

/// One line of a chart.
#[derive(Debug, Clone)]
pub struct Line {
    /// As the legend has it.
    pub name: String,
    /// What it connects.
    pub points: Vec<(f64, f64)>,
    /// Lines of the same colour belong together.
    pub colour: usize,
    /// Whether it is broken into dashes.
    pub dashed: bool,
}

/// A chart.
#[derive(Debug, Clone)]
pub struct Chart {
    /// Above it.
    pub title: String,
    /// From left to right.
    pub x: Axis,
    /// From below.
    pub y: Axis,
    /// In the order of the legend.
    pub lines: Vec<Line>,
    /// A point to mark, with its text.
    pub mark: Option<(f64, f64, String)>,
    /// Where the names of the lines stand.
    pub legend: Legend,
}

const SIZE: (u32, u32) = (860, 540);
/// Told apart also without colour vision (Okabe and Ito).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(60, 60, 60),
];

impl Axis {
    /// An axis from `low` to `high`.
    pub fn new(label: &str, scale: Scale, low: f64, high: f64) -> Self {
        Self {
            label: label.to_owned(),
            scale,
            low,
            high,
        }
    }

    fn place(&self, value: f64) -> f64 {
        match self.scale {
            Scale::Linear => value,
            Scale::Log2 => value.log2(),
            Scale::Log10 => value.log10(),
        }
    }

    fn label_of(&self, place: f64) -> String {
        let value = match self.scale {
            Scale::Linear => place,
            Scale::Log2 => place.exp2(),
            Scale::Log10 => 10_f64.powf(place),
        };
        if value != 0.0 && (value.abs() >= 1e6 || value.abs() < 1e-3) {
            return format!("{value:.1e}");
        }
        let digits = match value.abs() {
            large if large >= 100.0 => 0,
            small if small < 0.1 => 4,
            _ => 2,
        };
        let text = format!("{value:.digits$}");
        if text.contains('.') {
            return text.trim_end_matches('0').trim_end_matches('.').to_owned();
        }
        text
    }

    fn holds(&self, value: f64) -> bool {
        value.is_finite() && value >= self.low && value <= self.high
    }
}

impl Chart {
    /// Writes `stem.svg` and `stem.png`.
    pub fn write(&self, stem: &Path) -> Result<(), Box<dyn Error>> {
        let font = epaint_default_fonts::UBUNTU_LIGHT;
        register_font("sans-serif", FontStyle::Normal, font)
            .map_err(|_unusable| "the built-in font cannot be used")?;
        let svg = stem.with_extension("svg");
        let png = stem.with_extension("png");
        self.draw(&SVGBackend::new(&svg, SIZE).into_drawing_area())
            .map_err(|error| format!("{}: {error}", svg.display()))?;
        self.draw(&BitMapBackend::new(&png, SIZE).into_drawing_area())
            .map_err(|error| format!("{}: {error}", png.display()))?;
        Ok(())
    }

    fn draw<B>(&self, area: &DrawingArea<B, Shift>) -> Result<(), Box<dyn Error>>
    where
        B: DrawingBackend,
        B::ErrorType: 'static,
    {
        area.fill(&WHITE)?;
        let x = self.x.place(self.x.low)..self.x.place(self.x.high);
        let y = self.y.place(self.y.low)..self.y.place(self.y.high);
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, ("sans-serif", 21))
            .margin(12)
            .x_label_area_size(46)
            .y_label_area_size(66)
            .build_cartesian_2d(x, y)?;
        chart
            .configure_mesh()
            .x_desc(&self.x.label)
            .y_desc(&self.y.label)
            .x_label_formatter(&|place| self.x.label_of(*place))
            .y_label_formatter(&|place| self.y.label_of(*place))
            .label_style(("sans-serif", 15))
            .axis_desc_style(("sans-serif", 17))
            .light_line_style(TRANSPARENT)
            .bold_line_style(BLACK.mix(0.12))
            .draw()?;
        for line in &self.lines {
            self.draw_line(&mut chart, line)?;
        }
        self.draw_mark(&mut chart)?;
        chart
            .configure_series_labels()
            .label_font(("sans-serif", 15))
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.3))
            .position(match self.legend {
                Legend::UpperLeft => SeriesLabelPosition::UpperLeft,
                Legend::UpperRight => SeriesLabelPosition::UpperRight,
                Legend::LowerLeft => SeriesLabelPosition::LowerLeft,
                Legend::LowerRight => SeriesLabelPosition::LowerRight,
            })
            .draw()?;
        area.present()?;
        Ok(())
    }

    fn draw_line<B>(
        &self,
        chart: &mut ChartContext<'_, B, Cartesian2d<RangedCoordf64, RangedCoordf64>>,
        line: &Line,
    ) -> Result<(), Box<dyn Error>>
    where
        B: DrawingBackend,
        B::ErrorType: 'static,
    {
        let style = COLOURS[line.colour % COLOURS.len()].stroke_width(2);
        let shown = |&(x, y): &(f64, f64)| self.x.holds(x) && self.y.holds(y);
        let mut named = false;
        for run in line
            .points
            .split(|point| !shown(point))
            .filter(|run| !run.is_empty())
        {
            let points = run.iter().map(|&(x, y)| (self.x.place(x), self.y.place(y)));
            let drawn = if line.dashed {
                chart.draw_series(DashedLineSeries::new(points, 6, 5, style))?
            } else {
                chart.draw_series(LineSeries::new(points, style))?
            };
            // One without a name goes on with a line that has one.
            if !named && !line.name.is_empty() {
                let dashed = line.dashed;
                drawn.label(&line.name).legend(move |(x, y)| {
                    let end = if dashed { x + 9 } else { x + 20 };
                    PathElement::new(vec![(x, y), (end, y)], style)
                });
                named = true;
            }
        }
        Ok(())
    }

    fn draw_mark<B>(
        &self,
        chart: &mut ChartContext<'_, B, Cartesian2d<RangedCoordf64, RangedCoordf64>>,
    ) -> Result<(), Box<dyn Error>>
    where
        B: DrawingBackend,
        B::ErrorType: 'static,
    {
        let Some((x, y, text)) = &self.mark else {
            return Ok(());
        };
        let at = (self.x.place(*x), self.y.place(*y));
        chart.draw_series([EmptyElement::at(at)
            + Circle::new((0, 0), 5, BLACK.filled())
            + Text::new(text.clone(), (8, -20), ("sans-serif", 16))])?;
        Ok(())
    }
}
