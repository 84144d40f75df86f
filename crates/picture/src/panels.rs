// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the same small plot several times, where one would hold too many lines.
//! In from: the figures of the documentation. Out to: a canvas.
//! Invariants: all have the same axes.

use crate::Drawing;
use crate::axis::Axis;
use crate::canvas::{Anchor, BLACK, Canvas, Style};
use crate::plot::{Frame, Heading, LEADING, Line, MARGIN, SIZE, WIDTH, heading, note};

/// Small plots beside and below each other.
#[derive(Debug, Clone)]
pub struct Panels {
    /// What stands around them.
    pub heading: Heading,
    /// From left to right.
    pub x: Axis,
    /// From below.
    pub y: Axis,
    /// How many stand beside each other.
    pub columns: usize,
    /// Names, and what is in them.
    pub panels: Vec<(String, Vec<Line>)>,
}

const HEIGHT: f64 = 130.0;
const SMALL: f64 = 15.5;
const GAP: f64 = 18.0;

impl Panels {
    /// Draws them.
    pub fn draw(&self) -> Result<Drawing, String> {
        let mut canvas = Canvas::new(WIDTH)?;
        let mut top = heading(&mut canvas, &self.heading) + 4.0;
        let row = LEADING * SIZE;
        let caption = Style::plain(SIZE, BLACK);
        let at = (MARGIN, top + row / 2.0);
        canvas.text(&self.y.caption(), at, Anchor::Start, caption);
        top += row + 6.0;
        let ticks = self.y.ticks(Frame::y_room(HEIGHT, SMALL));
        let left = ticks
            .iter()
            .map(|(_, label)| canvas.font.width(label, SMALL))
            .fold(0.0, f64::max);
        let left = MARGIN + left + 7.0;
        let columns = f64::from(u32::try_from(self.columns).unwrap_or(1));
        let width = (WIDTH - MARGIN - 8.0 - left - GAP * (columns - 1.0)) / columns;
        let mut bottom = top;
        for (place, (name, lines)) in self.panels.iter().enumerate() {
            let (line, column) = (place / self.columns, place % self.columns);
            let count = |place: usize| f64::from(u32::try_from(place).unwrap_or(0));
            let is_last = place + self.columns >= self.panels.len();
            let frame = Frame {
                left: left + count(column) * (width + GAP),
                top: top + count(line) * (HEIGHT + 1.5 * row + 4.0) + row,
                width,
                height: HEIGHT,
                x: &self.x,
                y: &self.y,
                size: SMALL,
            };
            frame.grid(&mut canvas, is_last, column == 0);
            let at = (frame.left, frame.top - row / 2.0 - 1.0);
            canvas.text(name, at, Anchor::Start, Style::plain(SIZE, BLACK).bold());
            for line in lines {
                frame.line(&mut canvas, line, 2.4);
            }
            bottom = frame.bottom().max(bottom);
        }
        let y = bottom + 8.0 + row * 1.5;
        let middle = (left + (WIDTH - left - MARGIN) / 2.0, y);
        canvas.text(&self.x.caption(), middle, Anchor::Middle, caption);
        canvas.height = note(&mut canvas, &self.heading.note, y + row * 0.75) + MARGIN;
        let names: Vec<&str> = self.panels.iter().map(|(name, _)| name.as_str()).collect();
        canvas.description = format!(
            "{}; over {}. One plot each for {}. {} {}",
            self.y.caption(),
            self.x.caption(),
            names.join(", "),
            self.heading.source,
            self.heading.note,
        );
        Ok(Drawing { canvas })
    }
}
