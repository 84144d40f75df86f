// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The font of all pictures.
//!
//! Purpose: widths and outlines of text.
//! In from: `canvas`, and what lays out a chart. Out to: `svg` and `raster`.
//! Invariants: the font travels with the program, so widths are the same on every machine.

use ab_glyph::{Font as _, FontRef, GlyphId, OutlineCurve};

/// Sizes are in pixels of an em; outlines are in units of the font, y upwards.
#[derive(Debug)]
pub(crate) struct Font {
    face: FontRef<'static>,
    units_per_em: f64,
}

/// A closed contour of straight and bent pieces.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Piece {
    Line([(f64, f64); 2]),
    Quad([(f64, f64); 3]),
    Cubic([(f64, f64); 4]),
}

impl Font {
    pub(crate) fn built_in() -> Result<Self, String> {
        let unusable = "the built-in font cannot be used";
        let face = FontRef::try_from_slice(epaint_default_fonts::UBUNTU_LIGHT)
            .map_err(|error| format!("{unusable}: {error}"))?;
        let units_per_em = face.units_per_em().ok_or(unusable)?.into();
        Ok(Self { face, units_per_em })
    }

    /// The glyphs of a text with where each begins, and where the text ends, in units of the font.
    pub(crate) fn lay(&self, text: &str) -> (Vec<(GlyphId, f64)>, f64) {
        let mut at = 0.0;
        let mut before = None;
        let mut glyphs = Vec::new();
        for glyph in text.chars().map(|letter| self.face.glyph_id(letter)) {
            if let Some(before) = before {
                at += f64::from(self.face.kern_unscaled(before, glyph));
            }
            glyphs.push((glyph, at));
            at += f64::from(self.face.h_advance_unscaled(glyph));
            before = Some(glyph);
        }
        (glyphs, at)
    }

    /// Width of a text in pixels.
    pub(crate) fn width(&self, text: &str, size: f64) -> f64 {
        self.lay(text).1 * self.scale(size)
    }

    /// Pixels a unit of the font.
    pub(crate) fn scale(&self, size: f64) -> f64 {
        size / self.units_per_em
    }

    /// Words of a text in lines of at most `width` pixels; a longer word has a line of its own.
    pub(crate) fn wrap(&self, text: &str, size: f64, width: f64) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        for word in text.split_whitespace() {
            match lines.last_mut() {
                Some(line) if self.width(&format!("{line} {word}"), size) <= width => {
                    line.push(' ');
                    line.push_str(word);
                }
                _ => lines.push(word.to_owned()),
            }
        }
        lines
    }

    /// The contours of a glyph; none of a space.
    pub(crate) fn outline(&self, glyph: GlyphId) -> Vec<Piece> {
        let at = |point: ab_glyph::Point| (f64::from(point.x), f64::from(point.y));
        let curves = self.face.outline(glyph).map(|outline| outline.curves);
        let pieces = curves.into_iter().flatten().map(|curve| match curve {
            OutlineCurve::Line(a, b) => Piece::Line([at(a), at(b)]),
            OutlineCurve::Quad(a, b, c) => Piece::Quad([at(a), at(b), at(c)]),
            OutlineCurve::Cubic(a, b, c, d) => Piece::Cubic([at(a), at(b), at(c), at(d)]),
        });
        pieces.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_of_our_texts_are_in_the_font() {
        let font = Font::built_in().unwrap();
        for letter in ('!'..='~').chain("\u{d7}\u{b7}\u{2013}\u{3b1}\u{3bb}".chars()) {
            let glyph = font.face.glyph_id(letter);
            assert!(glyph.0 != 0 && !font.outline(glyph).is_empty(), "{letter}");
        }
    }

    #[test]
    fn text_wraps_between_words() {
        let font = Font::built_in().unwrap();
        let width = font.width("a bit longer", 16.0);
        let lines = font.wrap("a bit longer than one", 16.0, width + 0.1);
        assert_eq!(lines, ["a bit longer", "than one"]);
        assert!(font.width("AV", 100.0) > 60.0 && font.width("AV", 100.0) < 140.0);
    }
}
