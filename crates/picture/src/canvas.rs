// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a picture is made of: lines, areas and texts, in pixels from the upper left.
//!
//! Purpose: one list of shapes, written as SVG and as PNG.
//! In from: `chart`, `panels`, `dots`. Out to: `svg`, `raster`.
//! Invariants: what comes later covers what came before; below all of it is white.

use crate::font::Font;

pub(crate) type Point = (f64, f64);

/// Red, green, blue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Colour(pub(crate) u8, pub(crate) u8, pub(crate) u8);

pub(crate) const WHITE: Colour = Colour(255, 255, 255);
pub(crate) const BLACK: Colour = Colour(17, 17, 17);
pub(crate) const GREY: Colour = Colour(85, 85, 85);
pub(crate) const PALE: Colour = Colour(222, 222, 222);

/// Told apart also without colour vision (Okabe and Ito), dark enough for letters on white.
const COLOURS: [Colour; 7] = [
    Colour(0, 100, 160),
    Colour(196, 78, 0),
    Colour(0, 122, 88),
    Colour(168, 78, 130),
    Colour(60, 60, 60),
    Colour(150, 105, 0),
    Colour(40, 130, 185),
];

/// The colour of a number; lines of the same one belong together.
pub(crate) fn colour(number: usize) -> Colour {
    COLOURS[number % COLOURS.len()]
}

/// How a line is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dash {
    /// Not at all.
    #[default]
    Solid,
    /// Into dashes.
    Dashed,
    /// Into dots.
    Dotted,
}

impl Dash {
    /// Lengths drawn and left out.
    pub(crate) fn pattern(self) -> Option<(f64, f64)> {
        match self {
            Self::Solid => None,
            Self::Dashed => Some((9.0, 5.0)),
            Self::Dotted => Some((2.5, 3.5)),
        }
    }
}

/// Where a text stands from its point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// A text in one line; `at` is on its baseline, where it begins.
#[derive(Debug, Clone)]
pub(crate) struct Text {
    pub(crate) words: String,
    pub(crate) at: Point,
    pub(crate) size: f64,
    pub(crate) bold: bool,
    pub(crate) colour: Colour,
    /// Whether white surrounds the letters.
    pub(crate) halo: bool,
}

#[derive(Debug, Clone)]
pub(crate) enum Shape {
    Line {
        points: Vec<Point>,
        colour: Colour,
        width: f64,
        dash: Dash,
    },
    /// A polygon.
    Area {
        points: Vec<Point>,
        colour: Colour,
    },
    Text(Text),
}

/// What marks a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marker {
    /// A disc.
    Disc,
    /// A small disc, which fits into a ring or a box.
    Dot,
    /// A circle.
    Ring,
    /// A square that is not filled.
    Box,
    /// A triangle.
    Triangle,
    /// A cross of two slanted lines.
    Cross,
    /// A cross of an upright and a level line.
    Plus,
}

#[derive(Debug)]
pub(crate) struct Canvas {
    pub(crate) width: f64,
    pub(crate) height: f64,
    pub(crate) title: String,
    /// For who cannot see it.
    pub(crate) description: String,
    pub(crate) shapes: Vec<Shape>,
    pub(crate) font: Font,
}

impl Canvas {
    pub(crate) fn new(width: f64) -> Result<Self, String> {
        Ok(Self {
            width,
            height: 0.0,
            title: String::new(),
            description: String::new(),
            shapes: Vec::new(),
            font: Font::built_in()?,
        })
    }

    pub(crate) fn line(&mut self, points: Vec<Point>, colour: Colour, width: f64, dash: Dash) {
        self.shapes.push(Shape::Line {
            points,
            colour,
            width,
            dash,
        });
    }

    pub(crate) fn area(&mut self, points: Vec<Point>, colour: Colour) {
        self.shapes.push(Shape::Area { points, colour });
    }

    /// A text whose anchor is at `at`; its middle is as high as that.
    pub(crate) fn text(&mut self, text: &str, at: Point, anchor: Anchor, style: Style) {
        let width = self.font.width(text, style.size);
        let left = match anchor {
            Anchor::Start => at.0,
            Anchor::Middle => at.0 - width / 2.0,
            Anchor::End => at.0 - width,
        };
        self.shapes.push(Shape::Text(Text {
            words: text.to_owned(),
            at: (left, at.1 + 0.35 * style.size),
            size: style.size,
            bold: style.bold,
            colour: style.colour,
            halo: style.halo,
        }));
    }

    pub(crate) fn marker(&mut self, marker: Marker, at: Point, radius: f64, colour: Colour) {
        let around = |radius: f64, corners: u32, turn: f64| -> Vec<Point> {
            let angle = |corner: u32| {
                std::f64::consts::TAU * (f64::from(corner) / f64::from(corners)) + turn
            };
            let corner = |corner| {
                let (sin, cos) = angle(corner).sin_cos();
                (at.0 + radius * sin, at.1 - radius * cos)
            };
            (0..corners).map(corner).collect()
        };
        let closed = |mut points: Vec<Point>| {
            points.extend_from_within(0..2);
            points
        };
        let stroke = 0.36 * radius;
        match marker {
            Marker::Disc => self.area(around(radius, 32, 0.0), colour),
            Marker::Dot => self.area(around(0.5 * radius, 24, 0.0), colour),
            Marker::Triangle => self.area(around(1.2 * radius, 3, 0.0), colour),
            Marker::Ring => self.line(closed(around(radius, 40, 0.0)), colour, stroke, Dash::Solid),
            Marker::Box => self.line(
                closed(around(1.3 * radius, 4, std::f64::consts::FRAC_PI_4)),
                colour,
                stroke,
                Dash::Solid,
            ),
            Marker::Cross | Marker::Plus => {
                let turn = if marker == Marker::Plus {
                    0.0
                } else {
                    std::f64::consts::FRAC_PI_4
                };
                let ends = around(1.2 * radius, 4, turn);
                for pair in [[ends[0], ends[2]], [ends[1], ends[3]]] {
                    self.line(pair.to_vec(), colour, 1.2 * stroke, Dash::Solid);
                }
            }
        }
    }
}

/// How a text looks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Style {
    pub(crate) size: f64,
    pub(crate) bold: bool,
    pub(crate) colour: Colour,
    pub(crate) halo: bool,
}

impl Style {
    pub(crate) fn plain(size: f64, colour: Colour) -> Self {
        Self {
            size,
            bold: false,
            colour,
            halo: false,
        }
    }

    pub(crate) fn bold(self) -> Self {
        Self { bold: true, ..self }
    }

    pub(crate) fn halo(self) -> Self {
        Self { halo: true, ..self }
    }
}

/// The light font's strokes are made wider by this, in ems.
pub(crate) fn weight(bold: bool) -> f64 {
    if bold { 0.056 } else { 0.02 }
}

/// Width of the white around letters, in ems.
pub(crate) const HALO: f64 = 0.32;
