// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: tables that fit the terminal: columns are left out in an order, then the last one is folded.
//! In: a head, rows, how wide. Out: lines.
//! Invariants: with room enough nothing is left out; the last column, which has words, never is.

use crate::terminal::folded;

/// The last column has at least this width beside the others, else it stands below them.
const LAST_MIN: usize = 16;
/// How far it is moved in there.
const INDENT: usize = 4;

/// A table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Table<'a> {
    /// Names of the columns.
    pub(crate) head: &'a [&'a str],
    /// Columns that are aligned right.
    pub(crate) right: &'a [usize],
    /// Columns that may be missing where there is little room, the first one first.
    pub(crate) less: &'a [usize],
}

impl Table<'_> {
    /// The lines, each at most `width` wide where there is one.
    pub(crate) fn lines(&self, rows: &[Vec<String>], width: Option<usize>) -> Vec<String> {
        let head = self.head.iter().map(|&text| text.to_owned()).collect();
        let all: Vec<&Vec<String>> = std::iter::once(&head).chain(rows).collect();
        let widths = self.widths(&all);
        let columns = self.columns(&widths, width);
        let Some((&last, others)) = columns.split_last() else {
            return Vec::new();
        };
        let before = total(&widths, others) + if others.is_empty() { 0 } else { 2 };
        let room = width.map(|width| width.saturating_sub(before));
        let words = all.iter().flat_map(|row| cell(row, last).split(' '));
        let word = words.map(|word| word.chars().count()).max().unwrap_or(0);
        let is_too_wide = width.is_some_and(|width| total(&widths, &columns) > width);
        let is_below = is_too_wide && room.is_some_and(|room| room < LAST_MIN.max(word));
        let mut lines = Vec::new();
        for row in all {
            let first: String = others
                .iter()
                .map(|&c| self.padded(row, c, widths[c]) + "  ")
                .collect();
            if is_below {
                lines.push(first.trim_end().to_owned());
                let words = " ".repeat(INDENT) + cell(row, last);
                let words = folded(&words, width, INDENT).into_iter();
                lines.extend(words.filter(|line| !line.trim().is_empty()));
                continue;
            }
            // What is aligned right is a number, and never folded; else no blanks behind it.
            let words = if self.right.contains(&last) {
                self.padded(row, last, widths[last])
            } else {
                cell(row, last).to_owned()
            };
            for (at, part) in folded(&words, room, 0).into_iter().enumerate() {
                let blank = " ".repeat(before);
                let front = if at == 0 { &first } else { &blank };
                lines.push(format!("{front}{part}").trim_end().to_owned());
            }
        }
        lines
    }

    fn widths(&self, all: &[&Vec<String>]) -> Vec<usize> {
        let width = |column| {
            let widths = all.iter().map(|row| cell(row, column).chars().count());
            widths.max().unwrap_or(0)
        };
        (0..self.head.len()).map(width).collect()
    }

    /// The columns that are shown.
    fn columns(&self, widths: &[usize], width: Option<usize>) -> Vec<usize> {
        // The last column can be folded: the others make room for a part of it only.
        let last = widths.last().copied().unwrap_or(0);
        let spare = last.saturating_sub(LAST_MIN);
        let mut columns: Vec<usize> = (0..widths.len()).collect();
        for drop in self.less {
            if width.is_some_and(|width| total(widths, &columns) > width + spare) {
                columns.retain(|column| column != drop);
            }
        }
        columns
    }

    fn padded(&self, row: &[String], column: usize, width: usize) -> String {
        let text = cell(row, column);
        if self.right.contains(&column) {
            format!("{text:>width$}")
        } else {
            format!("{text:<width$}")
        }
    }
}

/// A cell; a row that is too short has empty ones.
fn cell(row: &[String], column: usize) -> &str {
    row.get(column).map_or("", |text| text)
}

/// How wide some columns are, with the gaps between them.
fn total(widths: &[usize], columns: &[usize]) -> usize {
    let sum: usize = columns.iter().map(|&column| widths[column]).sum();
    sum + 2 * columns.len().saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: Table<'_> = Table {
        head: &["ID", "WHEN", "SIZE", "WORDS"],
        right: &[2],
        less: &[1],
    };

    fn rows() -> Vec<Vec<String>> {
        let row = |cells: [&str; 4]| cells.map(str::to_owned).to_vec();
        vec![
            row([
                "1.1",
                "2026-01-31T23:59:59Z",
                "1.0 MiB",
                "complete, and more words than fit",
            ]),
            row(["12.1", "2026-01-31T23:59:59Z", "5 B", "-"]),
        ]
    }

    #[test]
    fn with_room_nothing_is_left_out() {
        let wanted = [
            "ID    WHEN                     SIZE  WORDS",
            "1.1   2026-01-31T23:59:59Z  1.0 MiB  complete, and more words than fit",
            "12.1  2026-01-31T23:59:59Z      5 B  -",
        ];
        assert_eq!(TABLE.lines(&rows(), None), wanted);
        assert_eq!(TABLE.lines(&rows(), Some(70)), wanted);
    }

    #[test]
    fn without_room_columns_go_and_the_last_is_folded() {
        let folded = TABLE.lines(&rows(), Some(35));
        let wanted = [
            "ID       SIZE  WORDS",
            "1.1   1.0 MiB  complete, and more",
            "               words than fit",
            "12.1      5 B  -",
        ];
        assert_eq!(folded, wanted);
        let below = TABLE.lines(&rows(), Some(24));
        let wanted = [
            "ID       SIZE",
            "    WORDS",
            "1.1   1.0 MiB",
            "    complete, and more",
            "    words than fit",
            "12.1      5 B",
            "    -",
        ];
        assert_eq!(below, wanted);
    }
}
