// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: lines in one plot, each with its name where it ends.
//! In from: `backstay plan`, the figures of the documentation. Out to: a canvas.
//! Invariants: names do not overlap each other nor the plot; a thin line leads to one that had to move.

use crate::Drawing;
use crate::axis::Axis;
use crate::canvas::{Anchor, BLACK, Canvas, Dash, GREY, Marker, Point, Style, colour};
use crate::plot::{
    Frame, Heading, LEADING, Label, Line, MARGIN, SIZE, Side, WIDTH, beside, heading, note,
};

/// Lines in one plot.
#[derive(Debug, Clone)]
pub struct Chart {
    /// What stands around it.
    pub heading: Heading,
    /// From left to right.
    pub x: Axis,
    /// From below.
    pub y: Axis,
    /// Later ones cover earlier ones.
    pub lines: Vec<Line>,
    /// Points to mark.
    pub marks: Vec<Mark>,
}

/// A point with its text.
#[derive(Debug, Clone)]
pub struct Mark {
    /// Where.
    pub at: (f64, f64),
    /// What marks it, if anything.
    pub marker: Option<Marker>,
    /// What is said of it; several lines are possible.
    pub text: String,
    /// Where that stands.
    pub side: Side,
    /// That of lines; black without one.
    pub colour: Option<usize>,
}

const HEIGHT: f64 = 300.0;

/// A name right of the plot.
struct Name<'a> {
    text: &'a str,
    from: Point,
    /// Where its middle stands.
    y: f64,
    height: f64,
    colour: usize,
}

impl Chart {
    /// Draws it.
    pub fn draw(&self) -> Result<Drawing, String> {
        let mut canvas = Canvas::new(WIDTH)?;
        let below = heading(&mut canvas, &self.heading);
        let caption = Style::plain(SIZE, BLACK);
        let row = LEADING * SIZE;
        let at = (MARGIN, below + 4.0 + row / 2.0);
        canvas.text(&self.y.caption(), at, Anchor::Start, caption);
        let ticks = self.y.ticks(Frame::y_room(HEIGHT, SIZE));
        let left = widest(&canvas, ticks.iter().map(|(_, label)| label.as_str()));
        let names = self.lines.iter().filter_map(|line| match &line.label {
            Label::End(text) => Some(text),
            Label::None | Label::At(..) => None,
        });
        let right = widest(&canvas, names.flat_map(|text| text.lines()));
        let right = if right > 0.0 { right + 24.0 } else { 8.0 };
        let left = MARGIN + left + 7.0;
        let frame = Frame {
            left,
            top: below + 4.0 + row + 8.0,
            width: WIDTH - MARGIN - right - left,
            height: HEIGHT,
            x: &self.x,
            y: &self.y,
            size: SIZE,
        };
        frame.grid(&mut canvas, true, true);
        self.draw_lines(&mut canvas, &frame);
        for mark in &self.marks {
            let (at, own) = (frame.at(mark.at), mark.colour.map_or(BLACK, colour));
            if let Some(marker) = mark.marker {
                canvas.marker(marker, at, 6.0, own);
            }
            beside(&mut canvas, &mark.text, at, mark.side, own);
        }
        let y = frame.bottom() + 10.0 + row * 1.5;
        let middle = (frame.left + frame.width / 2.0, y);
        canvas.text(&self.x.caption(), middle, Anchor::Middle, caption);
        canvas.height = note(&mut canvas, &self.heading.note, y + row * 0.75) + MARGIN;
        canvas.description = self.description();
        Ok(Drawing { canvas })
    }

    fn draw_lines(&self, canvas: &mut Canvas, frame: &Frame<'_>) {
        let mut names: Vec<Name<'_>> = Vec::new();
        let mut inside = Vec::new();
        for line in &self.lines {
            let last = frame.line(canvas, line, 2.8);
            match (&line.label, last) {
                (Label::End(text), Some(from)) => {
                    let lines = u32::try_from(text.lines().count()).unwrap_or(1);
                    names.push(Name {
                        text,
                        from,
                        y: from.1,
                        height: LEADING * SIZE * f64::from(lines),
                        colour: line.colour,
                    });
                }
                (Label::At(x, side, text), Some(_)) => {
                    if let Some(y) = height_at(line, *x, &self.y) {
                        inside.push((frame.at((*x, y)), *side, text, line.colour));
                    }
                }
                (Label::None, _) | (_, None) => {}
            }
        }
        for (at, side, text, own) in inside {
            beside(canvas, text, at, side, colour(own));
        }
        part(&mut names, frame.top - 8.0, frame.bottom() + 8.0);
        for name in names {
            let x = frame.right() + 20.0;
            if (name.y - name.from.1).abs() > 2.0 || name.from.0 < frame.right() - 2.0 {
                let near = name.from.0.max(frame.right() - 2.0) + 5.0;
                let ends = vec![(near, name.from.1), (x - 3.0, name.y)];
                canvas.line(ends, GREY, 1.0, Dash::Solid);
            }
            let row = LEADING * SIZE;
            let mut y = name.y - name.height / 2.0 + row / 2.0;
            let style = Style::plain(SIZE, colour(name.colour));
            for text in name.text.lines() {
                canvas.text(text, (x, y), Anchor::Start, style);
                y += row;
            }
        }
    }

    fn description(&self) -> String {
        let names = self.lines.iter().filter_map(|line| match &line.label {
            Label::End(text) | Label::At(_, _, text) => Some(text.replace('\n', " ")),
            Label::None => None,
        });
        let names: Vec<String> = names.collect();
        format!(
            "{}; over {}. Lines: {}. {} {}",
            self.y.caption(),
            self.x.caption(),
            names.join("; "),
            self.heading.source,
            self.heading.note,
        )
    }
}

fn widest<'a>(canvas: &Canvas, texts: impl Iterator<Item = &'a str>) -> f64 {
    texts
        .map(|text| canvas.font.width(text, SIZE))
        .fold(0.0, f64::max)
}

/// How high a line is at `x`: between its points as the axis has them.
fn height_at(line: &Line, x: f64, axis: &Axis) -> Option<f64> {
    let pair = line
        .points
        .windows(2)
        .find(|pair| pair[0].0 <= x && x <= pair[1].0)?;
    let share = (x - pair[0].0) / (pair[1].0 - pair[0].0);
    let nearer = if share < 0.5 { pair[0] } else { pair[1] };
    // Points are close to each other.
    axis.place(nearer.1).is_finite().then_some(nearer.1)
}

/// Moves names apart, each as little as possible, between `top` and `bottom`.
fn part(names: &mut [Name<'_>], top: f64, bottom: f64) {
    names.sort_by(|a, b| a.y.total_cmp(&b.y));
    // Groups that stand close: how many, how high together, and where their first begins.
    let mut groups: Vec<(usize, f64, f64)> = Vec::new();
    for name in names.iter() {
        groups.push((1, name.height, name.y - name.height / 2.0));
        while let [.., above, below] = &groups[..] {
            if above.2 + above.1 <= below.2 {
                break;
            }
            let count = |members: usize| f64::from(u32::try_from(members).unwrap_or(u32::MAX));
            let (many, few) = (count(above.0), count(below.0));
            let begin = (many * above.2 + few * (below.2 - above.1)) / (many + few);
            let joined = (above.0 + below.0, above.1 + below.1, begin);
            groups.truncate(groups.len() - 2);
            groups.push((joined.0, joined.1, begin.max(top).min(bottom - joined.1)));
        }
    }
    let mut rest = names.iter_mut();
    for (members, _, mut y) in groups {
        for name in rest.by_ref().take(members) {
            name.y = y + name.height / 2.0;
            y += name.height;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_moved_apart() {
        let name = |y: f64| Name {
            text: "",
            from: (0.0, y),
            y,
            height: 20.0,
            colour: 0,
        };
        let mut names = [
            name(50.0),
            name(52.0),
            name(200.0),
            name(299.0),
            name(299.0),
        ];
        part(&mut names, 0.0, 310.0);
        let places: Vec<f64> = names.iter().map(|name| name.y).collect();
        assert_eq!(places, [41.0, 61.0, 200.0, 280.0, 300.0]);
    }
}
