// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what changed where, as a strip for each array: from its first element to its last, darker where more did.
//! In from: `backstay diff`. Out to: a canvas.
//! Invariants: a share above zero is told from zero, however small it is.

use crate::Drawing;
use crate::canvas::{Anchor, BLACK, Canvas, Colour, Dash, GREY, Style};
use crate::plot::{Heading, LEADING, MARGIN, SIZE, WIDTH, heading, note};

/// Strips below each other.
#[derive(Debug, Clone)]
pub struct Strips {
    /// What stands around them.
    pub heading: Heading,
    /// Names, what is said behind them, and the share of each piece, from the first to the last: none where
    /// nothing is known.
    pub rows: Vec<(String, String, Vec<Option<f64>>)>,
}

const STRIP: f64 = 18.0;
const GAP: f64 = 12.0;
const SMALL: f64 = 15.0;
const NONE: Colour = Colour(238, 238, 238);
const UNKNOWN: Colour = Colour(255, 255, 255);
/// From the least share to all.
const LEAST: Colour = Colour(253, 216, 150);
const MOST: Colour = Colour(150, 20, 10);

/// The colour of a share: by its root, so that few changes are seen.
fn shade(share: f64) -> Colour {
    if share <= 0.0 {
        return NONE;
    }
    let part = share.clamp(0.0, 1.0).sqrt();
    let mix = |low: u8, high: u8| {
        let mixed = f64::from(low) + part * (f64::from(high) - f64::from(low));
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between two bytes"
        )]
        let byte = mixed.round() as u8;
        byte
    };
    Colour(
        mix(LEAST.0, MOST.0),
        mix(LEAST.1, MOST.1),
        mix(LEAST.2, MOST.2),
    )
}

fn number(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

impl Strips {
    /// Draws them.
    pub fn draw(&self) -> Result<Drawing, String> {
        let mut canvas = Canvas::new(WIDTH)?;
        let mut y = heading(&mut canvas, &self.heading) + 4.0;
        let row = LEADING * SMALL;
        let (left, width) = (MARGIN, WIDTH - 2.0 * MARGIN);
        for (name, words, shares) in &self.rows {
            let plain = Style::plain(SMALL, BLACK);
            canvas.text(name, (left, y + row / 2.0), Anchor::Start, plain.bold());
            let grey = Style::plain(SMALL, GREY);
            canvas.text(words, (left + width, y + row / 2.0), Anchor::End, grey);
            y += row + 2.0;
            strip(&mut canvas, (left, y), width, shares);
            y += STRIP + GAP;
        }
        y = legend(&mut canvas, (left, y), width);
        canvas.height = note(&mut canvas, &self.heading.note, y + SIZE) + MARGIN;
        let rows: Vec<String> = self
            .rows
            .iter()
            .map(|(name, words, _)| format!("{name}: {words}"))
            .collect();
        canvas.description = format!("{} {}", rows.join("; "), self.heading.source);
        Ok(Drawing { canvas })
    }
}

fn strip(canvas: &mut Canvas, (left, top): (f64, f64), width: f64, shares: &[Option<f64>]) {
    let bottom = top + STRIP;
    let step = width / number(shares.len()).max(1.0);
    let mut at = 0;
    // Neighbours of one colour are one area.
    for run in shares.chunk_by(|one, next| colour_of(*one) == colour_of(*next)) {
        let (start, end) = (
            left + number(at) * step,
            left + number(at + run.len()) * step,
        );
        let corners = vec![(start, top), (end, top), (end, bottom), (start, bottom)];
        canvas.area(corners, colour_of(run[0]));
        at += run.len();
    }
    let right = left + width;
    let around = vec![
        (left, top),
        (right, top),
        (right, bottom),
        (left, bottom),
        (left, top),
    ];
    canvas.line(around, GREY, 0.8, Dash::Solid);
}

fn colour_of(share: Option<f64>) -> Colour {
    share.map_or(UNKNOWN, shade)
}

/// Where the strips begin and end, and what the colours mean.
fn legend(canvas: &mut Canvas, (left, top): (f64, f64), width: f64) -> f64 {
    let plain = Style::plain(SMALL, BLACK);
    let row = LEADING * SMALL;
    canvas.text(
        "first element",
        (left, top + row / 2.0),
        Anchor::Start,
        plain,
    );
    canvas.text(
        "last element",
        (left + width, top + row / 2.0),
        Anchor::End,
        plain,
    );
    let top = top + row + 6.0;
    let samples = [
        ("none changed", 0.0),
        ("1 %", 0.01),
        ("10 %", 0.1),
        ("half", 0.5),
        ("all", 1.0),
    ];
    let mut x = left;
    for (words, share) in samples {
        let (right, bottom) = (x + STRIP, top + STRIP);
        canvas.area(
            vec![(x, top), (right, top), (right, bottom), (x, bottom)],
            shade(share),
        );
        canvas.text(
            words,
            (right + 6.0, top + STRIP / 2.0),
            Anchor::Start,
            plain,
        );
        x = right + 6.0 + canvas.font.width(words, SMALL) + 18.0;
    }
    top + STRIP
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strip_has_an_area_for_each_run_of_one_colour() {
        let shares = |list: &[f64]| list.iter().map(|&share| Some(share)).collect::<Vec<_>>();
        let rows = vec![
            (
                "heat".to_owned(),
                "3 of 8".to_owned(),
                shares(&[0.0, 0.0, 1.0, 1.0, 0.0, 1e-9, 0.0, 0.0]),
            ),
            ("file".to_owned(), "unknown".to_owned(), vec![None]),
        ];
        let heading = Heading {
            title: "What changed".to_owned(),
            ..Heading::default()
        };
        let drawing = Strips { heading, rows }.draw().unwrap();
        let areas = drawing
            .canvas
            .shapes
            .iter()
            .filter(|shape| matches!(shape, crate::canvas::Shape::Area { .. }));
        assert_eq!(areas.count(), 5 + 1 + 5);
        assert_ne!(shade(1e-9), shade(0.0));
        assert!(drawing.svg().contains("aria-label=\"heat\""));
    }
}
