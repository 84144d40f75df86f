// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: values side by side as points in rows, where bars would need an axis from zero.
//! In from: the figures of the documentation. Out to: a canvas.
//! Invariants: points of one row may stand on each other: markers are such that all of them are seen.

use crate::Drawing;
use crate::axis::Axis;
use crate::canvas::{Anchor, BLACK, Canvas, Dash, Marker, PALE, Style, colour};
use crate::plot::{Frame, Heading, Key, LEADING, MARGIN, SIZE, Swatch, WIDTH, heading, note};
use crate::{Scale, canvas};

/// Rows of points.
#[derive(Debug, Clone)]
pub struct Dots {
    /// What stands around it; what the markers mean is put into its key.
    pub heading: Heading,
    /// From left to right.
    pub x: Axis,
    /// Names, and a value for each of `series`.
    pub rows: Vec<(String, Vec<f64>)>,
    /// What the values are, and how they are marked; earlier ones cover later ones.
    pub series: Vec<(String, Marker, usize)>,
}

const ROW: f64 = 29.0;

impl Dots {
    /// Draws it.
    pub fn draw(&self) -> Result<Drawing, String> {
        let mut canvas = Canvas::new(WIDTH)?;
        let key = self.series.iter().map(|(text, marker, colour)| Key {
            text: text.clone(),
            swatch: Swatch::Point(*marker),
            colour: Some(*colour),
        });
        let with_key = Heading {
            key: key.chain(self.heading.key.iter().cloned()).collect(),
            ..self.heading.clone()
        };
        let below = heading(&mut canvas, &with_key);
        let names = self.rows.iter().map(|(name, _)| name);
        let left = names
            .map(|name| canvas.font.width(name, SIZE))
            .fold(0.0, f64::max);
        let left = MARGIN + left + 10.0;
        let none = Axis::new("", Scale::Linear, 0.0, 1.0);
        let rows = f64::from(u32::try_from(self.rows.len()).unwrap_or(u32::MAX));
        let frame = Frame {
            left,
            top: below + 6.0,
            width: WIDTH - MARGIN - 10.0 - left,
            height: ROW * rows,
            x: &self.x,
            y: &none,
            size: SIZE,
        };
        let plain = Style::plain(SIZE, BLACK);
        for (value, label) in self.x.ticks(11) {
            let (x, _) = frame.at((value, 0.0));
            canvas.line(
                vec![(x, frame.top), (x, frame.bottom())],
                PALE,
                1.0,
                Dash::Solid,
            );
            let at = (x, frame.bottom() + 6.0 + SIZE * 0.6);
            canvas.text(&label, at, Anchor::Middle, plain);
        }
        let mut y = frame.top + ROW / 2.0;
        for (name, values) in &self.rows {
            canvas.text(name, (left - 10.0, y), Anchor::End, plain);
            let ends = vec![(frame.left, y), (frame.right(), y)];
            canvas.line(ends, PALE, 1.0, Dash::Solid);
            for (value, (_, marker, own)) in values.iter().zip(&self.series).rev() {
                let (x, _) = frame.at((*value, 0.0));
                canvas.marker(*marker, (x, y), 6.0, colour(*own));
            }
            y += ROW;
        }
        let axis = vec![
            (frame.left, frame.top),
            (frame.left, frame.bottom()),
            (frame.right(), frame.bottom()),
        ];
        canvas.line(axis, canvas::GREY, 1.2, Dash::Solid);
        let row = LEADING * SIZE;
        let y = frame.bottom() + 10.0 + row * 1.5;
        let middle = (frame.left + frame.width / 2.0, y);
        canvas.text(&self.x.caption(), middle, Anchor::Middle, plain);
        canvas.height = note(&mut canvas, &self.heading.note, y + row * 0.75) + MARGIN;
        canvas.description = self.description();
        Ok(Drawing { canvas })
    }

    fn description(&self) -> String {
        let names: Vec<&str> = self.series.iter().map(|(name, ..)| name.as_str()).collect();
        let row = |(name, values): &(String, Vec<f64>)| {
            let values: Vec<String> = values.iter().map(|value| format!("{value:.2}")).collect();
            format!("{name}: {}", values.join(", "))
        };
        let rows: Vec<String> = self.rows.iter().map(row).collect();
        format!(
            "{}: {}. {}. {}",
            self.x.caption(),
            names.join(", "),
            rows.join("; "),
            self.heading.source,
        )
    }
}
