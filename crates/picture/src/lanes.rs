// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what lasted from when to when, and what happened at a moment, in rows over one time.
//! In from: `backstay timeline`. Out to: a canvas.
//! Invariants: what is shorter than a pixel is seen all the same; points stand on spans, not under them.

use crate::Drawing;
use crate::Scale;
use crate::axis::Axis;
use crate::canvas::{Canvas, Dash, Marker, colour};
use crate::dots::{close, heights, rows};
use crate::plot::{Heading, WIDTH};

/// One row.
#[derive(Debug, Clone, Default)]
pub struct Lane {
    /// Its name.
    pub name: String,
    /// From when to when, and the number of a colour.
    pub spans: Vec<(f64, f64, usize)>,
    /// When, how it is marked, and the number of a colour.
    pub points: Vec<(f64, Marker, usize)>,
}

/// Rows over one time.
#[derive(Debug, Clone)]
pub struct Lanes {
    /// What stands around them.
    pub heading: Heading,
    /// The time.
    pub x: Axis,
    /// From above to below.
    pub lanes: Vec<Lane>,
}

const THICK: f64 = 11.0;
/// The least that a span is wide.
const LEAST: f64 = 1.5;

impl Lanes {
    /// Draws them.
    pub fn draw(&self) -> Result<Drawing, String> {
        let mut canvas = Canvas::new(WIDTH)?;
        let none = Axis::new("", Scale::Linear, 0.0, 1.0);
        let names: Vec<&str> = self.lanes.iter().map(|lane| &*lane.name).collect();
        let frame = rows(&mut canvas, &self.heading, (&self.x, &none), &names);
        for (lane, y) in self.lanes.iter().zip(heights(&frame)) {
            for &(from, to, own) in &lane.spans {
                let (left, right) = (frame.at((from, 0.0)).0, frame.at((to, 0.0)).0);
                let right = right.max(left + LEAST);
                canvas.line(vec![(left, y), (right, y)], colour(own), THICK, Dash::Solid);
            }
            for &(at, marker, own) in &lane.points {
                canvas.marker(marker, (frame.at((at, 0.0)).0, y), 5.0, colour(own));
            }
        }
        close(&mut canvas, &frame, &self.heading.note);
        let said = |lane: &Lane| {
            let (spans, points) = (lane.spans.len(), lane.points.len());
            format!("{}: {spans} spans, {points} points", lane.name)
        };
        let lanes: Vec<String> = self.lanes.iter().map(said).collect();
        canvas.description = format!(
            "{}: {}. {}",
            self.x.caption(),
            lanes.join("; "),
            self.heading.source
        );
        Ok(Drawing { canvas })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::canvas::Shape;

    #[test]
    fn a_short_span_is_seen_and_each_point_is_there() {
        let lane = Lane {
            name: "archive".to_owned(),
            spans: vec![(10.0, 10.001, 1), (20.0, 60.0, 1)],
            points: vec![(30.0, Marker::Disc, 2)],
        };
        let heading = Heading {
            title: "A job".to_owned(),
            ..Heading::default()
        };
        let x = Axis::new("minutes", Scale::Linear, 0.0, 60.0);
        let lanes = vec![lane];
        let drawing = Lanes { heading, x, lanes }.draw().unwrap();
        let widths = drawing
            .canvas
            .shapes
            .iter()
            .filter_map(|shape| match shape {
                Shape::Line { points, width, .. } if (*width - THICK).abs() < 1e-9 => {
                    Some(points[1].0 - points[0].0)
                }
                _ => None,
            });
        let widths: Vec<f64> = widths.collect();
        assert_eq!(widths.len(), 2);
        assert!(
            (widths[0] - LEAST).abs() < 1e-9 && widths[1] > 100.0,
            "{widths:?}"
        );
        let svg = drawing.svg();
        assert!(svg.contains("aria-label=\"archive\"") && svg.contains("2 spans, 1 points"));
    }
}
