// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Charts as SVG and PNG.
//!
//! Purpose: charts that are described once, and drawn the same way into both formats.
//! In from: `backstay plan`, the figures of the documentation.
//! Out to: two files with the same stem, or one.
//! Invariants: the font travels with the program, so that a picture is the same on every machine;
//! gaps stay gaps; names stand beside lines, not over them; letters are legible on a phone.

mod axis;
mod canvas;
mod chart;
mod dots;
mod font;
mod lanes;
mod panels;
mod plot;
mod raster;
mod strips;
mod svg;

pub use axis::{Axis, Scale};
pub use canvas::{Dash, Marker};
pub use chart::{Chart, Mark};
pub use dots::Dots;
pub use lanes::{Lane, Lanes};
pub use panels::Panels;
pub use plot::{Heading, Key, Label, Line, Side, Swatch};
pub use strips::Strips;

use std::path::{Path, PathBuf};

/// A picture that is ready to be written.
#[derive(Debug)]
pub struct Drawing {
    canvas: canvas::Canvas,
}

impl Drawing {
    /// The text of an SVG file.
    pub fn svg(&self) -> String {
        svg::write(&self.canvas)
    }

    /// The bytes of a PNG file.
    pub fn png(&self) -> Result<Vec<u8>, String> {
        raster::write(&self.canvas)
    }

    /// Writes `stem.svg` and `stem.png`.
    pub fn write(&self, stem: &Path) -> Result<(), String> {
        self.write_svg(stem)?;
        save(&with_end(stem, ".png"), &self.png()?)
    }

    /// Writes `stem.svg`.
    pub fn write_svg(&self, stem: &Path) -> Result<(), String> {
        save(&with_end(stem, ".svg"), self.svg().as_bytes())
    }
}

/// A stem may have points of its own, which are no extension.
fn with_end(stem: &Path, end: &str) -> PathBuf {
    let mut name = stem.as_os_str().to_owned();
    name.push(end);
    PathBuf::from(name)
}

fn save(path: &Path, bytes: &[u8]) -> Result<(), String> {
    std::fs::write(path, bytes).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart() -> Chart {
        let line = |end, label| Line {
            points: vec![(1.0, 10.0), (4.0, 1e5), (16.0, 1e6)],
            end,
            label,
            ..Line::default()
        };
        Chart {
            heading: Heading {
                title: "A title".to_owned(),
                source: "Whose <figures> these are".to_owned(),
                ..Heading::default()
            },
            x: Axis::new("nodes", Scale::Log2, 1.0, 16.0).with_suffix("\u{d7}"),
            y: Axis::new("rate, GB/s", Scale::Log10, 1.0, 1e3),
            lines: vec![
                line(Some(Marker::Cross), Label::None),
                line(None, Label::End("a name".to_owned())),
            ],
            marks: Vec::new(),
        }
    }

    #[test]
    fn both_formats_have_the_same_size_and_the_words() {
        let drawing = chart().draw().unwrap();
        let svg = drawing.svg();
        for word in [
            "<rect width=\"640\"",
            "fill=\"#fff\"",
            "aria-label=\"rate, GB/s, log scale\"",
            "aria-label=\"a name\"",
            "Whose &#60;figures&#62; these are",
        ] {
            assert!(svg.contains(word), "{word}");
        }
        assert!(svg.is_ascii());
        let bytes = drawing.png().unwrap();
        let reader = png::Decoder::new(std::io::Cursor::new(bytes))
            .read_info()
            .unwrap();
        let size = (reader.info().width, reader.info().height);
        assert_eq!(size.0, 1280);
        assert!((f64::from(size.1) - 2.0 * drawing.canvas.height).abs() < 2.0);
        assert_eq!(chart().draw().unwrap().svg(), svg);
    }

    #[test]
    fn a_line_that_leaves_is_marked_at_the_edge() {
        let drawing = chart().draw().unwrap();
        let crosses = drawing
            .canvas
            .shapes
            .iter()
            .filter_map(|shape| match shape {
                canvas::Shape::Line { points, width, .. } if points.len() == 2 && *width > 2.9 => {
                    Some(f64::midpoint(points[0].1, points[1].1))
                }
                _ => None,
            });
        let heights: Vec<f64> = crosses.collect();
        let top = drawing.canvas.shapes.iter().find_map(|shape| match shape {
            canvas::Shape::Line { points, width, .. } if points.len() == 3 && *width < 1.3 => {
                Some(points[0].1)
            }
            _ => None,
        });
        assert_eq!(heights.len(), 2);
        assert!((heights[0] - top.unwrap()).abs() < 0.1);
    }

    #[test]
    fn stems_keep_their_points() {
        let path = with_end(Path::new("a/run.7-interval"), ".svg");
        assert_eq!(path, Path::new("a/run.7-interval.svg"));
    }
}
