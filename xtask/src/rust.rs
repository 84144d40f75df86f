// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: as much of Rust as the rules need: what is code, what is a comment, a text, a test.
//! Invariants: lines and columns (in characters) stay where they are: what is taken out is blanked.

/// `text` with comments, texts and character literals blanked.
pub(crate) fn code(text: &str) -> String {
    let from: Vec<char> = text.chars().collect();
    let mut to = from.clone();
    let mut at = 0;
    while at < from.len() {
        let end = match from[at] {
            '/' if from.get(at + 1) == Some(&'/') => line_end(&from, at),
            '/' if from.get(at + 1) == Some(&'*') => comment_end(&from, at),
            '"' => text_end(&from, at),
            '\'' => character_end(&from, at),
            'r' if starts_word(&from, at) => raw_end(&from, at),
            _ => at,
        };
        if end == at {
            at += 1;
            continue;
        }
        for blanked in &mut to[at..end] {
            if *blanked != '\n' {
                *blanked = ' ';
            }
        }
        at = end;
    }
    to.into_iter().collect()
}

fn line_end(from: &[char], at: usize) -> usize {
    let rest = from[at..].iter().position(|&c| c == '\n');
    rest.map_or(from.len(), |length| at + length)
}

fn comment_end(from: &[char], at: usize) -> usize {
    let mut depth = 0;
    let mut next = at;
    while next < from.len() {
        match (from[next], from.get(next + 1)) {
            ('/', Some('*')) => (depth, next) = (depth + 1, next + 2),
            ('*', Some('/')) => (depth, next) = (depth - 1, next + 2),
            _ => next += 1,
        }
        if depth == 0 {
            break;
        }
    }
    next.min(from.len())
}

fn text_end(from: &[char], at: usize) -> usize {
    let mut next = at + 1;
    while next < from.len() && from[next] != '"' {
        next += if from[next] == '\\' { 2 } else { 1 };
    }
    (next + 1).min(from.len())
}

/// The end of a character literal; `at` for a lifetime.
fn character_end(from: &[char], at: usize) -> usize {
    if from.get(at + 1) == Some(&'\\') {
        let quote = from[(at + 3).min(from.len())..]
            .iter()
            .position(|&c| c == '\'');
        return quote.map_or(at, |length| at + 3 + length + 1);
    }
    if from.get(at + 2) == Some(&'\'') {
        at + 3
    } else {
        at
    }
}

/// Whether the raw-text prefix at `at` is no part of a longer word; `br` and `cr` are prefixes too.
fn starts_word(from: &[char], at: usize) -> bool {
    let before = |back: usize| at.checked_sub(back).map(|index| from[index]);
    match before(1) {
        Some('b' | 'c') => !before(2).is_some_and(is_word),
        other => !other.is_some_and(is_word),
    }
}

fn raw_end(from: &[char], at: usize) -> usize {
    let hashes = from[at + 1..].iter().take_while(|&&c| c == '#').count();
    if from.get(at + 1 + hashes) != Some(&'"') {
        return at;
    }
    let mut next = at + 2 + hashes;
    while next < from.len() {
        let closed = from[next] == '"'
            && from[next + 1..].iter().take_while(|&&c| c == '#').count() >= hashes;
        if closed {
            return next + 1 + hashes;
        }
        next += 1;
    }
    from.len()
}

fn is_word(character: char) -> bool {
    character == '_' || character.is_alphanumeric()
}

/// Bytes up to and with the bracket that closes the one `code` begins with.
pub(crate) fn closing(code: &str) -> usize {
    let mut depth = 0;
    for (at, character) in code.char_indices() {
        match character {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + character.len_utf8();
        }
    }
    code.len()
}

/// Where `word` stands in `text` as a word of its own, in bytes.
pub(crate) fn words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    text.match_indices(word)
        .map(|(at, _)| at)
        .filter(move |&at| {
            let before = text[..at].chars().next_back();
            let after = text[at + word.len()..].chars().next();
            !before.is_some_and(is_word) && !after.is_some_and(is_word)
        })
}

/// The number of the line, from 1, in which byte `at` stands.
pub(crate) fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_is_left() {
        let text = "a /* b /* c */ d */ e // f\n'\"' g \"h \\\" i\" r#\"j \" k\"# 'l m\nb'\\'' n";
        let words: Vec<String> = code(text).split_whitespace().map(str::to_owned).collect();
        assert_eq!(words, ["a", "e", "g", "'l", "m", "b", "n"]);
        assert_eq!(code(text).matches('\n').count(), 2);
    }

    #[test]
    fn words_are_whole() {
        assert_eq!(
            words("unsafe_code unsafe", "unsafe").collect::<Vec<_>>(),
            [12]
        );
    }
}
