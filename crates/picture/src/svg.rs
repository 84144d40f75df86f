// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a canvas as SVG.
//! In from: `canvas`. Out to: a file's text.
//! Invariants: letters are outlines, each glyph once, so no viewer's font moves anything; texts stand
//! beside them as labels. A white rectangle lies below, for dark pages.

use crate::canvas::{Canvas, Colour, Dash, HALO, Shape, Text, WHITE, weight};
use crate::font::{Font, Piece};
use std::collections::BTreeMap;
use std::fmt::Write as _;

type Glyphs = BTreeMap<u16, String>;

pub(crate) fn write(canvas: &Canvas) -> String {
    let (width, height) = (number(canvas.width), number(canvas.height));
    let mut glyphs = Glyphs::new();
    let mut body = String::new();
    for shape in &canvas.shapes {
        match shape {
            Shape::Line {
                points,
                colour,
                width,
                dash,
            } => line(&mut body, points, *colour, *width, *dash),
            Shape::Area { points, colour } => {
                let _infallible = writeln!(
                    body,
                    "<path d=\"{}Z\" fill=\"{}\"/>",
                    path(points),
                    hex(*colour)
                );
            }
            Shape::Text(text) => letters(&mut body, &mut glyphs, &canvas.font, text),
        }
    }
    let mut head = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\" role=\"img\" aria-labelledby=\"title description\">\n\
         <title id=\"title\">{}</title>\n<desc id=\"description\">{}</desc>\n<defs>\n",
        escaped(&canvas.title),
        escaped(&canvas.description),
    );
    for (glyph, outline) in &glyphs {
        let _infallible = writeln!(head, "<path id=\"g{glyph}\" d=\"{outline}\"/>");
    }
    format!(
        "{head}</defs>\n<rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n{body}</svg>\n"
    )
}

fn line(body: &mut String, points: &[(f64, f64)], colour: Colour, width: f64, dash: Dash) {
    let dashes = dash.pattern().map_or_else(String::new, |(on, off)| {
        format!(" stroke-dasharray=\"{} {}\"", number(on), number(off))
    });
    let _infallible = writeln!(
        body,
        "<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" stroke-linejoin=\"round\"{dashes}/>",
        path(points),
        hex(colour),
        number(width),
    );
}

fn letters(body: &mut String, glyphs: &mut Glyphs, font: &Font, text: &Text) {
    let scale = font.scale(text.size);
    let (laid, _) = font.lay(&text.words);
    let mut uses = String::new();
    for (glyph, at) in laid {
        let outline = outline(&font.outline(glyph));
        if !outline.is_empty() {
            let _infallible = write!(uses, "<use href=\"#g{}\" x=\"{}\"/>", glyph.0, number(at));
            glyphs.insert(glyph.0, outline);
        }
    }
    let mut layer = |colour: Colour, ems: f64, label: &str| {
        let _infallible = writeln!(
            body,
            "<g transform=\"translate({} {}) scale({scale:.5})\" fill=\"{colour}\" stroke=\"{colour}\" \
             stroke-width=\"{}\" stroke-linejoin=\"round\"{label}>{uses}</g>",
            number(text.at.0),
            number(text.at.1),
            number(ems * text.size / scale),
            colour = hex(colour),
        );
    };
    if text.halo {
        layer(WHITE, HALO, "");
    }
    let label = format!(" aria-label=\"{}\"", escaped(&text.words));
    layer(text.colour, weight(text.bold), &label);
}

/// A glyph's outline, y downwards.
fn outline(pieces: &[Piece]) -> String {
    let mut text = String::new();
    let mut last = None;
    let at = |(x, y): (f64, f64)| format!("{} {}", number(x), number(-y));
    for piece in pieces {
        let (start, end) = match *piece {
            Piece::Line([a, b]) | Piece::Quad([a, _, b]) | Piece::Cubic([a, _, _, b]) => (a, b),
        };
        if last != Some(start) {
            let close = if last.is_some() { "Z" } else { "" };
            let _infallible = write!(text, "{close}M{}", at(start));
        }
        let _infallible = match *piece {
            Piece::Line(_) => write!(text, "L{}", at(end)),
            Piece::Quad([_, b, _]) => write!(text, "Q{} {}", at(b), at(end)),
            Piece::Cubic([_, b, c, _]) => write!(text, "C{} {} {}", at(b), at(c), at(end)),
        };
        last = Some(end);
    }
    if last.is_some() {
        text.push('Z');
    }
    text
}

fn path(points: &[(f64, f64)]) -> String {
    let mut text = String::new();
    for (place, &(x, y)) in points.iter().enumerate() {
        let letter = if place == 0 { "M" } else { "L" };
        let _infallible = write!(text, "{letter}{} {}", number(x), number(y));
    }
    text
}

/// With two digits after the point, and no zeros at the end.
fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0" } else { text }.to_owned()
}

fn hex(Colour(red, green, blue): Colour) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// As ASCII, so that no reader can take it for another encoding.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for letter in text.chars() {
        if letter.is_ascii() && !"&<>\"".contains(letter) {
            escaped.push(letter);
        } else {
            let _infallible = write!(escaped, "&#{};", u32::from(letter));
        }
    }
    escaped
}
