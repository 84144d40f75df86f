// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: which rank's file of which checkpoint a name is.
//! In: patterns such as `restart.{step}.{rank}.h5`, names. Out: numbers, and what is the same for all ranks.
//! Invariants: a name fits a pattern in one way, the one whose first numbers are the longest.

use std::cmp::Ordering;

/// A pattern of names, below a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pattern {
    text: String,
    words: Vec<Word>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Word {
    Text(String),
    Step,
    Rank,
    /// Anything but a slash.
    Any,
}

/// What a name says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Named {
    pub(crate) step: Option<u64>,
    pub(crate) rank: u64,
    /// The name, with words in the place of numbers.
    pub(crate) same: String,
}

impl Pattern {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut words = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let (word, length) = match first {
                '*' => (Some(Word::Any), 1),
                '{' if rest.starts_with("{step}") => (Some(Word::Step), 6),
                '{' if rest.starts_with("{rank}") => (Some(Word::Rank), 6),
                '{' => return Err("what stands in { } is step or rank".to_owned()),
                _ => (None, first.len_utf8()),
            };
            let (head, tail) = rest.split_at(length);
            rest = tail;
            match word {
                None => literal.push_str(head),
                Some(word) => {
                    if !literal.is_empty() {
                        words.push(Word::Text(std::mem::take(&mut literal)));
                    }
                    words.push(word);
                }
            }
        }
        if !literal.is_empty() {
            words.push(Word::Text(literal));
        }
        if !words.contains(&Word::Rank) {
            return Err(
                "it needs {rank}, where the number of the rank stands in the name".to_owned(),
            );
        }
        Ok(Self {
            text: text.to_owned(),
            words,
        })
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Folders above a file that fits.
    pub(crate) fn depth(&self) -> usize {
        self.text.matches('/').count()
    }

    /// Whether names say of which checkpoint they are.
    pub(crate) fn has_step(&self) -> bool {
        self.words.contains(&Word::Step)
    }

    /// What `name` says, if it fits.
    pub(crate) fn fit(&self, name: &str) -> Option<Named> {
        let mut found = Named::default();
        let mut rank = None;
        fit(&self.words, name, &mut found, &mut rank).then_some(())?;
        found.rank = rank?;
        Some(found)
    }
}

fn fit(words: &[Word], name: &str, found: &mut Named, rank: &mut Option<u64>) -> bool {
    let Some((word, rest)) = words.split_first() else {
        return name.is_empty();
    };
    let before = (found.clone(), *rank);
    let most = match word {
        Word::Text(text) => {
            let Some(tail) = name.strip_prefix(text.as_str()) else {
                return false;
            };
            found.same.push_str(text);
            return fit(rest, tail, found, rank);
        }
        Word::Any => name.find('/').unwrap_or(name.len()),
        Word::Step | Word::Rank => {
            let digits = name.bytes().take_while(u8::is_ascii_digit).count();
            digits.min(18)
        }
    };
    let least = usize::from(*word != Word::Any);
    for length in (least..=most)
        .rev()
        .filter(|&length| name.is_char_boundary(length))
    {
        (*found, *rank) = before.clone();
        let (head, tail) = name.split_at(length);
        let number = head.parse::<u64>().ok();
        let is_same = match word {
            Word::Step => {
                let same = found.step.is_none_or(|known| Some(known) == number);
                found.step = number;
                found.same.push_str("{step}");
                same
            }
            Word::Rank => {
                let same = rank.is_none_or(|known| Some(known) == number);
                *rank = number;
                found.same.push_str("{rank}");
                same
            }
            _ => {
                found.same.push_str(head);
                true
            }
        };
        if is_same && fit(rest, tail, found, rank) {
            return true;
        }
    }
    (*found, *rank) = before;
    false
}

/// Orders names so that 9 comes before 10.
pub(crate) fn natural(one: &str, other: &str) -> Ordering {
    let (mut one_rest, mut other_rest) = (one, other);
    loop {
        let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
        let (first, second) = (digits(one_rest), digits(other_rest));
        if first > 0 && second > 0 {
            let (a, b) = (&one_rest[..first], &other_rest[..second]);
            let (a, b) = (a.trim_start_matches('0'), b.trim_start_matches('0'));
            let order = a.len().cmp(&b.len()).then(a.cmp(b));
            if order != Ordering::Equal {
                return order;
            }
            (one_rest, other_rest) = (&one_rest[first..], &other_rest[second..]);
            continue;
        }
        let (mut left, mut right) = (one_rest.chars(), other_rest.chars());
        match (left.next(), right.next()) {
            (None, None) => return one.cmp(other),
            (a, b) if a != b => return a.cmp(&b),
            _ => (one_rest, other_rest) = (left.as_str(), right.as_str()),
        }
    }
}

/// A name with `#` in the place of each number.
pub(crate) fn without_numbers(name: &str) -> String {
    let mut text = String::new();
    for letter in name.chars() {
        match letter {
            '0'..='9' if text.ends_with('#') => {}
            '0'..='9' => text.push('#'),
            other => text.push(other),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fits(pattern: &str, name: &str) -> Option<(Option<u64>, u64, String)> {
        let named = Pattern::parse(pattern).unwrap().fit(name)?;
        Some((named.step, named.rank, named.same))
    }

    #[test]
    fn names_say_step_and_rank() {
        let same = "restart.{step}.{rank}.h5".to_owned();
        let pattern = &*same;
        assert_eq!(
            fits(pattern, "restart.0020.003.h5"),
            Some((Some(20), 3, same.clone()))
        );
        assert_eq!(fits(pattern, "restart.0020.h5"), None);
        assert_eq!(fits(pattern, "restart.0020.003.h5~"), None);
        let any = fits("*.{step}.{rank}.h5", "pos.1.2.h5");
        assert_eq!(any, Some((Some(1), 2, "pos.{step}.{rank}.h5".to_owned())));
        let folder = fits("ckpt.{step}/{rank}/state.{step}", "ckpt.7/11/state.7");
        assert_eq!(
            folder,
            Some((Some(7), 11, "ckpt.{step}/{rank}/state.{step}".to_owned()))
        );
        assert_eq!(
            fits("ckpt.{step}/{rank}/state.{step}", "ckpt.7/11/state.8"),
            None
        );
        assert_eq!(fits("{rank}*", "12ab").unwrap().1, 12);
        assert_eq!(
            fits("a{step}{rank}", "a123"),
            Some((Some(12), 3, "a{step}{rank}".to_owned()))
        );
        assert_eq!(
            fits("r{rank}", "r99999999999999999999"),
            None,
            "too large a number"
        );
        assert_eq!(fits("*{rank}", "a/1"), None, "no slash");
        assert!(Pattern::parse("restart.{step}").is_err());
        assert!(Pattern::parse("{what}.{rank}").is_err());
    }

    #[test]
    fn names_are_in_the_order_of_their_numbers() {
        let mut names = ["r10", "r9", "r009x", "r1", "q2", "r9a"];
        names.sort_by(|one, other| natural(one, other));
        assert_eq!(names, ["q2", "r1", "r9", "r9a", "r009x", "r10"]);
        assert_eq!(without_numbers("a12.b3.h5"), "a#.b#.h#");
    }
}
