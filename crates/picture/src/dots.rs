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
        let none = Axis::new("", Scale::Linear, 0.0, 1.0);
        let names: Vec<&str> = self.rows.iter().map(|(name, _)| &**name).collect();
        let frame = rows(&mut canvas, &with_key, (&self.x, &none), &names);
        for ((_, values), y) in self.rows.iter().zip(heights(&frame)) {
            for (value, (_, marker, own)) in values.iter().zip(&self.series).rev() {
                let (x, _) = frame.at((*value, 0.0));
                canvas.marker(*marker, (x, y), 6.0, colour(*own));
            }
        }
        close(&mut canvas, &frame, &self.heading.note);
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

/// The frame of rows: heading, numbers below, names beside, and a pale line for each.
pub(crate) fn rows<'a>(
    canvas: &mut Canvas,
    words: &Heading,
    (x, none): (&'a Axis, &'a Axis),
    names: &[&str],
) -> Frame<'a> {
    let below = heading(canvas, words);
    let widths = names.iter().map(|name| canvas.font.width(name, SIZE));
    let left = MARGIN + widths.fold(0.0, f64::max) + 10.0;
    let count = f64::from(u32::try_from(names.len()).unwrap_or(u32::MAX));
    let frame = Frame {
        left,
        top: below + 6.0,
        width: WIDTH - MARGIN - 10.0 - left,
        height: ROW * count,
        x,
        y: none,
        size: SIZE,
    };
    let plain = Style::plain(SIZE, BLACK);
    for (value, label) in x.ticks(11) {
        let (x, _) = frame.at((value, 0.0));
        let line = vec![(x, frame.top), (x, frame.bottom())];
        canvas.line(line, PALE, 1.0, Dash::Solid);
        let at = (x, frame.bottom() + 6.0 + SIZE * 0.6);
        canvas.text(&label, at, Anchor::Middle, plain);
    }
    for (name, y) in names.iter().zip(heights(&frame)) {
        canvas.text(name, (left - 10.0, y), Anchor::End, plain);
        let ends = vec![(frame.left, y), (frame.right(), y)];
        canvas.line(ends, PALE, 1.0, Dash::Solid);
    }
    frame
}

/// The middles of the rows.
pub(crate) fn heights(frame: &Frame<'_>) -> impl Iterator<Item = f64> {
    let top = frame.top + ROW / 2.0;
    (0..).map(move |row: u32| top + ROW * f64::from(row))
}

/// What stands below the rows: the axis, its name, and a note.
pub(crate) fn close(canvas: &mut Canvas, frame: &Frame<'_>, words: &str) {
    let axis = vec![
        (frame.left, frame.top),
        (frame.left, frame.bottom()),
        (frame.right(), frame.bottom()),
    ];
    canvas.line(axis, canvas::GREY, 1.2, Dash::Solid);
    let row = LEADING * SIZE;
    let y = frame.bottom() + 10.0 + row * 1.5;
    let middle = (frame.left + frame.width / 2.0, y);
    let plain = Style::plain(SIZE, BLACK);
    canvas.text(&frame.x.caption(), middle, Anchor::Middle, plain);
    canvas.height = note(canvas, words, y + row * 0.75) + MARGIN;
}
