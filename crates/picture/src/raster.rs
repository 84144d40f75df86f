// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a canvas as PNG, two pixels for each of its own, for print and for fine screens.
//! In from: `canvas`. Out to: the bytes of a file.
//! Invariants: the parts of a shape are united, not added: where they overlap nothing gets darker.

use crate::canvas::{Canvas, Colour, Dash, HALO, Point, Shape, Text, WHITE, weight};
use crate::font::{Font, Piece};
use ab_glyph_rasterizer::{Rasterizer, point};

/// Pixels for one of the canvas.
const SCALE: f64 = 2.0;

/// Contours that are filled together.
type Part = Vec<Vec<Point>>;

struct Page {
    width: usize,
    height: usize,
    /// Red, green, blue of each pixel.
    pixels: Vec<u8>,
}

/// The bytes of a PNG.
pub(crate) fn write(canvas: &Canvas) -> Result<Vec<u8>, String> {
    let (width, height) = (whole(canvas.width * SCALE), whole(canvas.height * SCALE));
    let mut page = Page {
        width,
        height,
        pixels: vec![255; 3 * width * height],
    };
    for shape in &canvas.shapes {
        match shape {
            Shape::Line {
                points,
                colour,
                width,
                dash,
            } => page.fill(&stroked(&dashed(points, *dash), *width), *colour),
            Shape::Area { points, colour } => page.fill(&[vec![points.clone()]], *colour),
            Shape::Text(text) => page.text(&canvas.font, text),
        }
    }
    page.encode()
}

impl Page {
    fn text(&mut self, font: &Font, text: &Text) {
        let scale = font.scale(text.size);
        let place =
            |(x, y): Point, left: f64| (text.at.0 + scale * (left + x), text.at.1 - scale * y);
        let (laid, _) = font.lay(&text.words);
        let glyphs: Vec<Part> = laid
            .into_iter()
            .map(|(glyph, left)| contours(&font.outline(glyph), |at| place(at, left)))
            .collect();
        let with_width = |ems: f64| -> Vec<Part> {
            let edges = glyphs.iter().flatten();
            let mut parts: Vec<Part> = edges
                .flat_map(|edge| stroked(std::slice::from_ref(edge), ems * text.size))
                .collect();
            parts.extend(glyphs.iter().cloned());
            parts
        };
        if text.halo {
            self.fill(&with_width(HALO), WHITE);
        }
        self.fill(&with_width(weight(text.bold)), text.colour);
    }

    /// Fills the union of the parts.
    fn fill(&mut self, parts: &[Part], colour: Colour) {
        let points = || parts.iter().flatten().flatten();
        let Some(bounds) = Bounds::of(points()) else {
            return;
        };
        let mut cover = vec![0.0_f32; bounds.width * bounds.height];
        for part in parts {
            let Some(own) = Bounds::of(part.iter().flatten()) else {
                continue;
            };
            let mut rasterizer = Rasterizer::new(own.width, own.height);
            for contour in part {
                let ends = contour.iter().skip(1).chain(contour.first());
                for (&start, &end) in contour.iter().zip(ends) {
                    rasterizer.draw_line(own.inside(start), own.inside(end));
                }
            }
            rasterizer.for_each_pixel_2d(|x, y, covered| {
                let x = usize::try_from(x).unwrap_or(0) + own.left - bounds.left;
                let y = usize::try_from(y).unwrap_or(0) + own.top - bounds.top;
                if let Some(cell) = cover.get_mut(y * bounds.width + x) {
                    *cell = cell.max(covered.min(1.0));
                }
            });
        }
        for (at, &covered) in cover.iter().enumerate() {
            let (x, y) = (
                bounds.left + at % bounds.width,
                bounds.top + at / bounds.width,
            );
            if covered > 0.0 && x < self.width && y < self.height {
                let first = 3 * (y * self.width + x);
                let pixel = &mut self.pixels[first..first + 3];
                for (below, above) in pixel.iter_mut().zip([colour.0, colour.1, colour.2]) {
                    let mixed =
                        f32::from(*below) + (f32::from(above) - f32::from(*below)) * covered;
                    *below = byte(mixed);
                }
            }
        }
    }

    fn encode(&self) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        let side = |pixels: usize| u32::try_from(pixels).map_err(|error| error.to_string());
        let mut encoder = png::Encoder::new(&mut bytes, side(self.width)?, side(self.height)?);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        encoder.set_compression(png::Compression::Best);
        let mut writer = encoder.write_header().map_err(|error| error.to_string())?;
        writer
            .write_image_data(&self.pixels)
            .map_err(|error| error.to_string())?;
        writer.finish().map_err(|error| error.to_string())?;
        Ok(bytes)
    }
}

/// Pixels around points of the canvas, one more on each side.
struct Bounds {
    left: usize,
    top: usize,
    width: usize,
    height: usize,
}

impl Bounds {
    fn of<'a>(points: impl Iterator<Item = &'a Point>) -> Option<Self> {
        let mut low = (f64::INFINITY, f64::INFINITY);
        let mut high = (f64::NEG_INFINITY, f64::NEG_INFINITY);
        for &(x, y) in points {
            low = (low.0.min(x), low.1.min(y));
            high = (high.0.max(x), high.1.max(y));
        }
        if !(low.0 <= high.0 && low.1 <= high.1) {
            return None;
        }
        let (left, top) = (whole(low.0 * SCALE - 1.0), whole(low.1 * SCALE - 1.0));
        let side = |end: f64, begin: usize| whole(end * SCALE + 3.0).saturating_sub(begin).max(1);
        Some(Self {
            left,
            top,
            width: side(high.0, left),
            height: side(high.1, top),
        })
    }

    fn inside(&self, (x, y): Point) -> ab_glyph_rasterizer::Point {
        point(
            single((x * SCALE).max(0.0)) - single(float(self.left)),
            single((y * SCALE).max(0.0)) - single(float(self.top)),
        )
    }
}

/// Glyphs' contours as polygons.
fn contours(pieces: &[Piece], place: impl Fn(Point) -> Point) -> Part {
    const STEPS: u32 = 6;
    let mut part: Part = Vec::new();
    let mut last = None;
    for piece in pieces {
        let bent = |t: f64| match *piece {
            Piece::Line([a, b]) => mixed(a, b, t),
            Piece::Quad([a, b, c]) => mixed(mixed(a, b, t), mixed(b, c, t), t),
            Piece::Cubic([a, b, c, d]) => {
                let (ab, bc, cd) = (mixed(a, b, t), mixed(b, c, t), mixed(c, d, t));
                mixed(mixed(ab, bc, t), mixed(bc, cd, t), t)
            }
        };
        if last != Some(bent(0.0)) || part.is_empty() {
            part.push(vec![place(bent(0.0))]);
        }
        let steps = if matches!(piece, Piece::Line(_)) {
            1
        } else {
            STEPS
        };
        if let Some(contour) = part.last_mut() {
            contour.extend((1..=steps).map(|at| place(bent(f64::from(at) / f64::from(steps)))));
        }
        last = Some(bent(1.0));
    }
    part
}

fn mixed(a: Point, b: Point, t: f64) -> Point {
    // So that the ends are exactly the ends.
    if t >= 1.0 {
        return b;
    }
    (a.0 + (b.0 - a.0) * t, a.1 + (b.1 - a.1) * t)
}

/// The pieces of a line that are drawn.
fn dashed(points: &[Point], dash: Dash) -> Vec<Vec<Point>> {
    let Some((on, off)) = dash.pattern() else {
        return vec![points.to_vec()];
    };
    let mut pieces = Vec::new();
    let mut piece: Vec<Point> = points.first().copied().into_iter().collect();
    let (mut drawn, mut left) = (true, on);
    for pair in points.windows(2) {
        let (mut from, to) = (pair[0], pair[1]);
        loop {
            let length = (to.0 - from.0).hypot(to.1 - from.1);
            if length < left {
                left -= length;
                if drawn {
                    piece.push(to);
                }
                break;
            }
            let turn = mixed(from, to, left / length.max(f64::MIN_POSITIVE));
            if drawn {
                piece.push(turn);
                pieces.push(std::mem::take(&mut piece));
            } else {
                piece = vec![turn];
            }
            from = turn;
            drawn = !drawn;
            left = if drawn { on } else { off };
        }
    }
    if drawn {
        pieces.push(piece);
    }
    pieces
}

/// What lines of that width cover: a quadrangle for each segment, a disc where two meet.
fn stroked(lines: &[Vec<Point>], width: f64) -> Vec<Part> {
    let half = width / 2.0;
    let mut parts = Vec::new();
    for line in lines {
        for pair in line.windows(2) {
            let ((x, y), (end_x, end_y)) = (pair[0], pair[1]);
            let length = (end_x - x).hypot(end_y - y);
            if length > 0.0 {
                let (across, along) = (half * (y - end_y) / length, half * (end_x - x) / length);
                parts.push(vec![vec![
                    (x + across, y + along),
                    (end_x + across, end_y + along),
                    (end_x - across, end_y - along),
                    (x - across, y - along),
                ]]);
            }
        }
        let inner = line.iter().skip(1).take(line.len().saturating_sub(2));
        parts.extend(inner.map(|&at| vec![disc(at, half)]));
    }
    parts
}

fn disc((x, y): Point, radius: f64) -> Vec<Point> {
    const CORNERS: u32 = 12;
    let corner = |at: u32| {
        let (sin, cos) = (std::f64::consts::TAU * f64::from(at) / f64::from(CORNERS)).sin_cos();
        (x + radius * cos, y + radius * sin)
    };
    (0..CORNERS).map(corner).collect()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "pixels of a page; what is outside goes to its edge"
)]
fn whole(value: f64) -> usize {
    value.max(0.0) as usize
}

#[expect(
    clippy::cast_precision_loss,
    reason = "pixels of a page are few enough"
)]
fn float(value: usize) -> f64 {
    value as f64
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "a thousandth of a pixel does not matter"
)]
fn single(value: f64) -> f32 {
    value as f32
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "rounded, and between 0 and 255"
)]
fn byte(value: f32) -> u8 {
    value.round().clamp(0.0, 255.0) as u8
}
