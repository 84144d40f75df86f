// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what the terminal is like: how wide, whether it shows colours; and text made to fit it.
//! In from: `output`. Out to: the same.
//! Invariants: what goes to a file or a pipe has no colours and is as wide as it likes, unless COLUMNS says
//! how wide.

use std::io::IsTerminal;

/// Columns of a terminal that does not say how many it has.
const COLUMNS: usize = 80;
/// Words that are shown in colour, longest first.
const LOUD: [&str; 2] = ["LESS THAN ASKED", "DAMAGED"];

/// Columns that a line may take: `None` where nobody looks at lines.
pub(crate) fn columns() -> Option<usize> {
    let named = std::env::var("COLUMNS").ok();
    let named = named.and_then(|text| text.parse().ok()).filter(|&n| n > 0);
    if named.is_some() || !std::io::stdout().is_terminal() {
        return named;
    }
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok();
    let columns = size.map(|size| usize::from(size.ws_col));
    Some(columns.filter(|&n| n > 0).unwrap_or(COLUMNS))
}

/// Whether standard output shows colours: a terminal that can, and nobody said no (<https://no-color.org>).
pub(crate) fn has_colours() -> bool {
    let no_colour = std::env::var("NO_COLOR").is_ok_and(|text| !text.is_empty());
    std::io::stdout().is_terminal() && !no_colour && !is_dumb()
}

/// Whether the terminal says that it can do nothing but print.
pub(crate) fn is_dumb() -> bool {
    std::env::var("TERM").is_ok_and(|text| text == "dumb")
}

/// `text` with what must not be overlooked in red, where there are colours.
pub(crate) fn painted(text: &str) -> String {
    if !has_colours() {
        return text.to_owned();
    }
    LOUD.iter().fold(text.to_owned(), |text, word| {
        text.replace(word, &format!("\x1b[1;31m{word}\x1b[0m"))
    })
}

/// `text` in lines of at most `width` characters, the second and later ones behind `indent` blanks. A word
/// that is longer than a line stands alone.
pub(crate) fn folded(text: &str, width: Option<usize>, indent: usize) -> Vec<String> {
    let Some(width) = width.filter(|&width| text.chars().count() > width) else {
        return vec![text.to_owned()];
    };
    let kept = text.len() - text.trim_start().len();
    let mut lines = Vec::new();
    let mut line = text[..kept].to_owned();
    let mut is_begun = false;
    for (at, word) in text[kept..].split(' ').enumerate() {
        let blank = usize::from(at > 0);
        if is_begun && line.chars().count() + blank + word.chars().count() > width {
            lines.push(line.trim_end().to_owned());
            line = " ".repeat(indent) + word;
        } else {
            line += if at > 0 { " " } else { "" };
            line += word;
        }
        is_begun = true;
    }
    lines.push(line);
    lines
}

/// Where the text of a line begins that has a name in front, as in `  node       newest`: there the
/// lines that it is folded into go on.
pub(crate) fn text_column(line: &str) -> usize {
    let kept = line.len() - line.trim_start().len();
    let gap = line[kept..].find("  ").map(|at| kept + at);
    let behind = gap.map(|gap| line.len() - line[gap..].trim_start().len());
    behind.filter(|&at| at <= 26).unwrap_or(kept + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_folded_between_words() {
        let fold = |text, width| folded(text, Some(width), 4);
        assert_eq!(fold("short", 10), ["short"]);
        assert_eq!(fold("one two three", 8), ["one two", "    three"]);
        assert_eq!(fold("  one two", 6), ["  one", "    two"]);
        assert_eq!(fold("averylongword b", 4), ["averylongword", "    b"]);
        assert_eq!(folded("one two three", None, 4), ["one two three"]);
        for width in 10..60 {
            let text =
                "a job that has a line of many words in it, and a longer one: incomprehensible";
            let lines = folded(text, Some(width), 2);
            assert!(
                lines.iter().all(|l| l.chars().count() <= width.max(18)),
                "{lines:?}"
            );
            let words: Vec<&str> = lines.iter().flat_map(|l| l.split_whitespace()).collect();
            assert_eq!(words.join(" "), text);
        }
    }

    #[test]
    fn a_name_in_front_is_left_alone() {
        assert_eq!(text_column("  node       newest checkpoint 3"), 13);
        assert_eq!(text_column("             6 checkpoints, 0 failed"), 15);
        assert_eq!(text_column("job a: running"), 2);
    }
}
