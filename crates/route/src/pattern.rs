// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: patterns of names: `*`, `?`, `[a-z]`, `{step}`, `{rank}`.
//! In from: the words of `--route`. Out to: `table`.
//! Invariants: nothing but a wildcard matches what is not itself; no wildcard matches a `/`; a pattern of a few
//! hundred bytes costs microseconds, whatever the name.

/// What stands for what in one component.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Byte(u8),
    /// Any bytes.
    Any,
    /// One byte.
    One,
    /// One of these ranges of bytes, or none of them.
    Class(bool, Vec<(u8, u8)>),
    /// Digits that name a field.
    Digits(Field),
}

/// What digits in a name say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// Which set it is.
    Step,
    /// Whose file of the set it is.
    Rank,
}

/// One component of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Component {
    tokens: Vec<Token>,
}

impl Component {
    /// Reads one; the error says what is wrong with it.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let mut tokens = Vec::new();
        let mut at = 0;
        while let Some(&byte) = text.get(at) {
            let rest = &text[at..];
            let (token, length) = match byte {
                b'*' => (Token::Any, 1),
                b'?' => (Token::One, 1),
                b'[' => class(rest)?,
                b'{' => field(rest)?,
                b'\\' => match rest.get(1) {
                    Some(&next) => (Token::Byte(next), 2),
                    None => return Err("a \\ stands at the end".to_owned()),
                },
                other => (Token::Byte(other), 1),
            };
            if !(token == Token::Any && tokens.last() == Some(&Token::Any)) {
                tokens.push(token);
            }
            at += length;
        }
        Ok(Self { tokens })
    }

    /// The component's bytes, if it is the same for all names.
    pub fn literal(&self) -> Option<Vec<u8>> {
        let byte = |token: &Token| match token {
            Token::Byte(byte) => Some(*byte),
            _ => None,
        };
        self.tokens.iter().map(byte).collect()
    }

    /// Whether it has such a field.
    pub fn has(&self, field: Field) -> bool {
        self.tokens.contains(&Token::Digits(field))
    }

    /// Whether `name` is one of those that it stands for.
    pub fn matches(&self, name: &[u8]) -> bool {
        self.find(name, &mut |_, _, _| {})
    }

    /// The same; `found` is told where digits of fields stand.
    pub fn find(&self, name: &[u8], found: &mut dyn FnMut(Field, usize, usize)) -> bool {
        // Where to go on when the latest wildcard takes one byte more.
        let mut back: Option<(usize, usize)> = None;
        let (mut token, mut at) = (0, 0);
        loop {
            match self.tokens.get(token) {
                None if at == name.len() => return true,
                Some(Token::Any) => {
                    back = Some((token, at));
                    token += 1;
                    continue;
                }
                Some(Token::Digits(field)) => {
                    let digits = name[at..].iter().take_while(|byte| byte.is_ascii_digit());
                    let length = digits.count();
                    if length > 0 {
                        found(*field, at, at + length);
                        at += length;
                        token += 1;
                        continue;
                    }
                }
                Some(one) if name.get(at).is_some_and(|&byte| one.takes(byte)) => {
                    at += 1;
                    token += 1;
                    continue;
                }
                _ => {}
            }
            match &mut back {
                Some((any, from)) if *from < name.len() => {
                    *from += 1;
                    (token, at) = (*any + 1, *from);
                }
                _ => return false,
            }
        }
    }
}

impl Token {
    fn takes(&self, byte: u8) -> bool {
        match self {
            Self::Byte(own) => *own == byte,
            Self::One => true,
            Self::Class(is_in, ranges) => {
                ranges
                    .iter()
                    .any(|&(low, high)| (low..=high).contains(&byte))
                    == *is_in
            }
            Self::Any | Self::Digits(_) => false,
        }
    }
}

fn class(text: &[u8]) -> Result<(Token, usize), String> {
    let wrong = || "a [ has no ] after it".to_owned();
    let is_out = matches!(text.get(1), Some(b'!' | b'^'));
    let mut at = if is_out { 2 } else { 1 };
    let first = at;
    let mut ranges = Vec::new();
    loop {
        let low = *text.get(at).ok_or_else(wrong)?;
        if low == b']' && at > first {
            return Ok((Token::Class(!is_out, ranges), at + 1));
        }
        match (text.get(at + 1), text.get(at + 2)) {
            (Some(b'-'), Some(&high)) if high != b']' => {
                ranges.push((low, high));
                at += 3;
            }
            _ => {
                ranges.push((low, low));
                at += 1;
            }
        }
    }
}

fn field(text: &[u8]) -> Result<(Token, usize), String> {
    for (word, field) in [("{step}", Field::Step), ("{rank}", Field::Rank)] {
        if text.starts_with(word.as_bytes()) {
            return Ok((Token::Digits(field), word.len()));
        }
    }
    Err("a { begins {step} or {rank}; write \\{ for one that stands for itself".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn component(text: &str) -> Component {
        Component::parse(text.as_bytes()).expect(text)
    }

    #[test]
    fn names_are_those_of_their_pattern() {
        for (pattern, name, expected) in [
            ("restart.*", "restart.", true),
            ("restart.*", "restart.5.tmp", true),
            ("restart.*", "restart", false),
            ("*.h5", "a.h5.h5", true),
            ("*.h5", "a.h5.h6", false),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b*", "xxbxxaxx", false),
            ("?[0-9][!a]", "x5b", true),
            ("?[0-9][!a]", "x5a", false),
            ("[]a]", "]", true),
            ("r.{step}.{rank}", "r.10.3", true),
            ("r.{step}.{rank}", "r.10.", false),
            ("r.{step}.{rank}", "r.10.3x", false),
            ("*{step}", "a1b22", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("", "", true),
        ] {
            assert_eq!(
                component(pattern).matches(name.as_bytes()),
                expected,
                "{pattern} {name}"
            );
        }
        assert!(component("a*").matches(b"a\xff\x01"));
        assert_eq!(component("a\\*b").literal(), Some(b"a*b".to_vec()));
        assert_eq!(component("a?").literal(), None);
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for wrong in ["[a", "{x}", "a\\", "["] {
            assert!(Component::parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn many_wildcards_cost_little() {
        let pattern = component(&"*a".repeat(200));
        assert!(!pattern.matches(&[b'a'; 199]));
        assert!(!pattern.matches(&b"a".repeat(199).repeat(20)) || pattern.matches(&[b'a'; 200]));
    }
}
