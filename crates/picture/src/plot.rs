// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what charts have in common: the heading, a frame with ticks, lines in it.
//! In from: `chart`, `panels`, `dots`. Out to: `canvas`.
//! Invariants: what is written above and below a plot has room of its own, so nothing covers a line.

use crate::axis::Axis;
use crate::canvas::{
    Anchor, BLACK, Canvas, Colour, Dash, GREY, Marker, PALE, Point, Style, colour,
};

/// Width of all pictures; at less than half of it, as on a phone, letters are still legible.
pub(crate) const WIDTH: f64 = 640.0;
pub(crate) const MARGIN: f64 = 14.0;
pub(crate) const SIZE: f64 = 17.0;
const TITLE: f64 = 21.0;
/// Height of a line of text, in ems.
pub(crate) const LEADING: f64 = 1.28;

/// What stands around a chart.
#[derive(Debug, Clone, Default)]
pub struct Heading {
    /// What it shows.
    pub title: String,
    /// Whose figures these are.
    pub source: String,
    /// What swatches mean.
    pub key: Vec<Key>,
    /// Below it.
    pub note: String,
}

/// What a swatch means.
#[derive(Debug, Clone)]
pub struct Key {
    /// What it stands for.
    pub text: String,
    /// How it looks.
    pub swatch: Swatch,
    /// Its colour; grey without one.
    pub colour: Option<usize>,
}

/// A piece of a line, or a point.
#[derive(Debug, Clone, Copy)]
pub enum Swatch {
    /// A piece of a line.
    Line(Dash),
    /// A point.
    Point(Marker),
}

/// One line of a chart.
#[derive(Debug, Clone, Default)]
pub struct Line {
    /// What it connects.
    pub points: Vec<(f64, f64)>,
    /// Lines of the same colour belong together.
    pub colour: usize,
    /// How it is broken.
    pub dash: Dash,
    /// What marks its points.
    pub marker: Option<Marker>,
    /// Of how many points one is marked; 0 is all.
    pub marked_every: usize,
    /// What marks its last point that is shown.
    pub end: Option<Marker>,
    /// Its name, where it stands.
    pub label: Label,
}

/// Where the name of a line stands.
#[derive(Debug, Clone, Default)]
pub enum Label {
    /// Nowhere: another one of its colour has it.
    #[default]
    None,
    /// Right of the plot, where the line ends.
    End(String),
    /// In the plot, at a point of the line.
    At(f64, Side, String),
}

/// On which side of a point its text stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Above it.
    Above,
    /// Below it.
    Below,
    /// Left of it.
    Left,
    /// Right of it.
    Right,
}

/// Draws title, source and key; where they end.
pub(crate) fn heading(canvas: &mut Canvas, heading: &Heading) -> f64 {
    canvas.title.clone_from(&heading.title);
    canvas.description = format!("{} {}", heading.source, heading.note);
    let mut y = MARGIN;
    let title = Style::plain(TITLE, BLACK).bold();
    y = paragraph(canvas, &heading.title, y, title);
    y = paragraph(canvas, &heading.source, y + 2.0, Style::plain(15.0, GREY));
    y + 8.0 + key(canvas, &heading.key, y + 8.0)
}

/// Draws the note below a plot; where it ends.
pub(crate) fn note(canvas: &mut Canvas, text: &str, y: f64) -> f64 {
    paragraph(canvas, text, y, Style::plain(15.0, GREY))
}

fn paragraph(canvas: &mut Canvas, text: &str, top: f64, style: Style) -> f64 {
    let height = LEADING * style.size;
    // What is bold is a little wider than measured.
    let width = WIDTH - 2.0 * MARGIN - 8.0;
    let mut y = top;
    for line in canvas.font.wrap(text, style.size, width) {
        canvas.text(&line, (MARGIN, y + height / 2.0), Anchor::Start, style);
        y += height;
    }
    y
}

/// Draws the key in as many rows as it takes; how high that is.
fn key(canvas: &mut Canvas, entries: &[Key], top: f64) -> f64 {
    const SWATCH: f64 = 38.0;
    const ROW: f64 = 24.0;
    if entries.is_empty() {
        return 0.0;
    }
    let (mut x, mut y) = (MARGIN, top + ROW / 2.0);
    for entry in entries {
        let swatch = match entry.swatch {
            Swatch::Line(_) => SWATCH,
            Swatch::Point(_) => 12.0,
        };
        let width = swatch + 7.0 + canvas.font.width(&entry.text, SIZE) + 20.0;
        if x > MARGIN && x + width - 20.0 > WIDTH - MARGIN {
            (x, y) = (MARGIN, y + ROW);
        }
        let own = entry.colour.map_or(GREY, colour);
        match entry.swatch {
            Swatch::Line(dash) => {
                canvas.line(vec![(x, y), (x + swatch, y)], own, 2.6, dash);
            }
            Swatch::Point(marker) => canvas.marker(marker, (x + 6.0, y), 6.0, own),
        }
        let at = (x + swatch + 7.0, y);
        canvas.text(&entry.text, at, Anchor::Start, Style::plain(SIZE, own));
        x += width;
    }
    y + ROW / 2.0 - top + 2.0
}

/// A plot's place on the canvas.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame<'a> {
    pub(crate) left: f64,
    pub(crate) top: f64,
    pub(crate) width: f64,
    pub(crate) height: f64,
    pub(crate) x: &'a Axis,
    pub(crate) y: &'a Axis,
    /// Of the numbers.
    pub(crate) size: f64,
}

impl Frame<'_> {
    pub(crate) fn bottom(&self) -> f64 {
        self.top + self.height
    }

    pub(crate) fn right(&self) -> f64 {
        self.left + self.width
    }

    pub(crate) fn at(&self, (x, y): (f64, f64)) -> Point {
        self.on((self.x.place(x), self.y.place(y)))
    }

    fn on(&self, (x, y): Point) -> Point {
        (self.left + x * self.width, self.bottom() - y * self.height)
    }

    /// As many numbers below as stand apart.
    fn x_ticks(&self, canvas: &Canvas) -> Vec<(f64, String)> {
        let apart = |ticks: &Vec<(f64, String)>| {
            let ends = ticks.iter().map(|(value, label)| {
                let (x, _) = self.at((*value, self.y.low));
                let half = canvas.font.width(label, self.size) / 2.0;
                (x - half, x + half)
            });
            let ends: Vec<(f64, f64)> = ends.collect();
            ends.windows(2)
                .all(|pair| pair[0].1 + 0.7 * self.size < pair[1].0)
        };
        let mut fewer = (2..14).rev().map(|room| self.x.ticks(room));
        fewer.find(apart).unwrap_or_default()
    }

    pub(crate) fn y_room(height: f64, size: f64) -> usize {
        room(height / (2.2 * size) + 1.0)
    }

    /// Draws the lines of a grid, and numbers at them where asked for.
    pub(crate) fn grid(&self, canvas: &mut Canvas, below: bool, beside: bool) {
        let numbers = Style::plain(self.size, BLACK);
        let horizontal = self.y.ticks(Self::y_room(self.height, self.size));
        let vertical = self.x_ticks(canvas);
        for (value, label) in &horizontal {
            let (_, y) = self.at((self.x.low, *value));
            let ends = vec![(self.left, y), (self.right(), y)];
            canvas.line(ends, PALE, 1.0, Dash::Solid);
            if beside {
                canvas.text(label, (self.left - 7.0, y), Anchor::End, numbers);
            }
        }
        for (value, label) in &vertical {
            let (x, _) = self.at((*value, self.y.low));
            let ends = vec![(x, self.top), (x, self.bottom())];
            canvas.line(ends, PALE, 1.0, Dash::Solid);
            if below {
                let at = (x, self.bottom() + 6.0 + self.size * 0.6);
                canvas.text(label, at, Anchor::Middle, numbers);
            }
        }
        let axis = vec![
            (self.left, self.top),
            (self.left, self.bottom()),
            (self.right(), self.bottom()),
        ];
        for value in self.x.strokes(self.width) {
            let (x, y) = self.at((value, self.y.low));
            canvas.line(vec![(x, y), (x, y - 5.0)], GREY, 1.0, Dash::Solid);
        }
        for value in self.y.strokes(self.height) {
            let (x, y) = self.at((self.x.low, value));
            canvas.line(vec![(x, y), (x + 5.0, y)], GREY, 1.0, Dash::Solid);
        }
        canvas.line(axis, GREY, 1.2, Dash::Solid);
    }

    /// Draws a line as far as it is inside; its last point there.
    pub(crate) fn line(&self, canvas: &mut Canvas, line: &Line, width: f64) -> Option<Point> {
        let own = colour(line.colour);
        let runs = clipped(line.points.iter().map(|&(x, y)| {
            let (x, y) = (self.x.place(x), self.y.place(y));
            (x, if y.is_finite() { y } else { f64::NAN })
        }));
        let last = runs.last().and_then(|run| run.last()).copied();
        for run in runs {
            let points = run.into_iter().map(|place| self.on(place)).collect();
            canvas.line(points, own, width, line.dash);
        }
        if let Some(marker) = line.marker {
            for &point in line.points.iter().step_by(line.marked_every.max(1)) {
                let inside = |place: f64| (-1e-9..=1.0 + 1e-9).contains(&place);
                if inside(self.x.place(point.0)) && inside(self.y.place(point.1)) {
                    self.point(canvas, marker, self.at(point), own);
                }
            }
        }
        let last = last.map(|place| self.on(place));
        if let (Some(marker), Some(at)) = (line.end, last) {
            canvas.marker(marker, at, 7.0, own);
        }
        last
    }

    fn point(&self, canvas: &mut Canvas, marker: Marker, at: Point, own: Colour) {
        let radius = 0.29 * self.size;
        if marker == Marker::Ring {
            canvas.marker(Marker::Disc, at, radius, crate::canvas::WHITE);
        }
        canvas.marker(marker, at, radius, own);
    }
}

/// Lines of text on a side of a point, with white around the letters.
pub(crate) fn beside(canvas: &mut Canvas, text: &str, at: Point, side: Side, own: Colour) {
    let style = Style::plain(SIZE, own).halo();
    let lines: Vec<&str> = text.lines().collect();
    let height = LEADING * SIZE;
    let total = height * f64::from(u32::try_from(lines.len()).unwrap_or(1));
    let (x, first, anchor) = match side {
        Side::Above => (at.0, at.1 - 11.0 - total, Anchor::Middle),
        Side::Below => (at.0, at.1 + 11.0, Anchor::Middle),
        Side::Left => (at.0 - 12.0, at.1 - total / 2.0, Anchor::End),
        Side::Right => (at.0 + 12.0, at.1 - total / 2.0, Anchor::Start),
    };
    let mut y = first + height / 2.0;
    for line in lines {
        canvas.text(line, (x, y), anchor, style);
        y += height;
    }
}

fn room(count: f64) -> usize {
    let fitting = (2..40_u32).rev().find(|&ticks| f64::from(ticks) <= count);
    fitting
        .and_then(|ticks| usize::try_from(ticks).ok())
        .unwrap_or(2)
}

/// Pieces of a line that are between 0 and 1 both ways; what is no number parts them.
fn clipped(points: impl Iterator<Item = Point>) -> Vec<Vec<Point>> {
    let mut runs: Vec<Vec<Point>> = Vec::new();
    let mut before: Option<Point> = None;
    for point in points {
        if !(point.0.is_finite() && point.1.is_finite()) {
            before = None;
            continue;
        }
        if let Some((from, to)) = before.and_then(|before| inside(before, point)) {
            match runs.last_mut() {
                Some(run) if run.last() == Some(&from) => run.push(to),
                _ => runs.push(vec![from, to]),
            }
        }
        before = Some(point);
    }
    runs
}

/// The part of a segment that is inside (Liang and Barsky).
fn inside(from: Point, to: Point) -> Option<(Point, Point)> {
    let (dx, dy) = (to.0 - from.0, to.1 - from.1);
    let (mut enters, mut leaves) = (0.0_f64, 1.0_f64);
    for (slope, room) in [
        (-dx, from.0),
        (dx, 1.0 - from.0),
        (-dy, from.1),
        (dy, 1.0 - from.1),
    ] {
        // Rounding may put what ends at the edge a little outside.
        let room = room + 1e-9;
        if slope == 0.0 && room < 0.0 {
            return None;
        }
        if slope < 0.0 {
            enters = enters.max(room / slope);
        } else if slope > 0.0 {
            leaves = leaves.min(room / slope);
        }
    }
    if enters >= leaves {
        return None;
    }
    let at = |t: f64, end: Point| {
        if t <= 0.0 {
            from
        } else if t >= 1.0 {
            end
        } else {
            (from.0 + t * dx, from.1 + t * dy)
        }
    };
    Some((at(enters, to), at(leaves, to)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_where_it_leaves() {
        let points = [(0.0, 0.5), (0.5, 1.5), (1.0, 0.5)];
        let runs = clipped(points.into_iter());
        assert_eq!(runs.len(), 2);
        let near = |a: Point, b: Point| (a.0 - b.0).abs() < 1e-6 && (a.1 - b.1).abs() < 1e-6;
        assert!(near(runs[0][1], (0.25, 1.0)) && near(runs[1][0], (0.75, 1.0)));
        let gap = [(0.0, 0.1), (0.2, f64::NAN), (0.4, 0.1), (0.6, 0.2)];
        assert_eq!(clipped(gap.into_iter()), [vec![(0.4, 0.1), (0.6, 0.2)]]);
        let straight = [(0.0, 0.1), (0.2, 0.2), (1.0, 0.3)];
        assert_eq!(clipped(straight.into_iter()), [straight.to_vec()]);
    }
}
