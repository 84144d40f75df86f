// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The file format of `backstay model eval`: cases in, results out.
//!
//! Purpose: reads untrusted JSON into validated cases and names what is wrong with the bad ones.
//! In from: a file's text.
//! Out to: [`crate::markov`]; the command line prints the results.
//! Invariants: one bad case never spoils the others; numbers are read from their digits, so that
//! `1e999` and the literals `NaN` and `Infinity` that some writers emit are named as the value of
//! their field; nothing is defaulted where it changes the result.

use serde::Serialize;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::error::ModelError;
use crate::levels::{Case, Completion, Mode, Transfer};
use crate::markov::solve;

const INPUT_KEYS: [&str; 10] = [
    "lam",
    "c",
    "r",
    "t",
    "V",
    "mode",
    "alpha",
    "latency",
    "c_top",
    "completion",
];

/// One line of the results.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Outcome {
    /// The case was solved.
    Solved {
        /// As in the case.
        id: Box<RawValue>,
        /// Intervals of one period.
        intervals: u64,
        /// Useful time of one period, in seconds.
        useful_time: f64,
        /// Expected wall time of one period, in seconds.
        period_time: f64,
        /// Useful time over expected wall time.
        efficiency: f64,
    },
    /// The case is bad.
    Bad {
        /// As in the case; null where it has none.
        id: Box<RawValue>,
        /// Field, value and allowed range.
        error: String,
    },
}

/// All results, in the order of the cases.
#[derive(Debug, Serialize)]
pub struct Results {
    /// One entry per case.
    pub results: Vec<Outcome>,
}

impl Results {
    /// Whether every case was solved.
    pub fn all_solved(&self) -> bool {
        self.results
            .iter()
            .all(|outcome| matches!(outcome, Outcome::Solved { .. }))
    }
}

/// Solves every case of a file. An error means that the text as a whole is not a file of cases.
pub fn evaluate(text: &str) -> Result<Results, ModelError> {
    let text = quote_non_numbers(text);
    let file: Entries = serde_json::from_str(&text).map_err(|e| syntax("file", &e))?;
    let cases = file.only("cases")?.ok_or_else(|| ModelError::Missing {
        field: "cases".into(),
        allowed: "a list of cases".into(),
    })?;
    let cases: Vec<Box<RawValue>> =
        serde_json::from_str(cases.get()).map_err(|e| syntax("cases", &e))?;
    Ok(Results {
        results: cases.iter().map(|case| evaluate_one(case)).collect(),
    })
}

fn evaluate_one(text: &RawValue) -> Outcome {
    let parsed: Result<Entries, _> = serde_json::from_str(text.get());
    let entries = match parsed {
        Ok(entries) => entries,
        Err(error) => return bad(None, &syntax("case", &error)),
    };
    let id = match entries.only("id") {
        Ok(id) => id.map(ToOwned::to_owned),
        Err(error) => return bad(None, &error),
    };
    let solved = entries
        .only("input")
        .and_then(|input| {
            input.ok_or_else(|| ModelError::Missing {
                field: "input".into(),
                allowed: "an object".into(),
            })
        })
        .and_then(|input| parse_case(input.get()))
        .and_then(|case| solve(&case));
    match solved {
        Ok(solution) => Outcome::Solved {
            id: id.unwrap_or_else(null),
            intervals: solution.intervals,
            useful_time: solution.useful_seconds,
            period_time: solution.period_seconds,
            efficiency: solution.efficiency,
        },
        Err(error) => bad(id, &error),
    }
}

fn bad(id: Option<Box<RawValue>>, error: &ModelError) -> Outcome {
    Outcome::Bad {
        id: id.unwrap_or_else(null),
        error: error.to_string(),
    }
}

fn null() -> Box<RawValue> {
    RawValue::NULL.to_owned()
}

/// Reads one `input` object and validates it.
pub fn parse_case(text: &str) -> Result<Case, ModelError> {
    let text = quote_non_numbers(text);
    let input: Entries = serde_json::from_str(&text).map_err(|e| syntax("input", &e))?;
    for (key, _) in &input.0 {
        if !INPUT_KEYS.contains(&key.as_str()) {
            let allowed = INPUT_KEYS.join(", ");
            return Err(ModelError::UnknownKey {
                key: key.clone(),
                allowed,
            });
        }
    }
    let blocking = match word(&input, "mode", "\"blocking\" or \"nonblocking\"")?.as_str() {
        "blocking" => true,
        "nonblocking" => false,
        other => {
            return Err(ModelError::field(
                "mode",
                other,
                "\"blocking\" or \"nonblocking\"",
            ));
        }
    };
    let failures_per_second = numbers(&input, "lam", false)?;
    let case = Case {
        checkpoint_seconds: numbers(&input, "c", !blocking)?,
        recovery_seconds: numbers(&input, "r", false)?,
        interval_seconds: number("t", input.required("t", "seconds")?)?,
        between: counts(&input)?,
        mode: if blocking {
            unused_transfer(&input)?
        } else {
            parse_transfer(&input)?
        },
        failures_per_second,
    };
    case.validate()?;
    Ok(case)
}

fn parse_transfer(input: &Entries) -> Result<Mode, ModelError> {
    let seconds = "seconds, when mode is \"nonblocking\"";
    Ok(Mode::NonBlocking(Transfer {
        slowdown_share: number(
            "alpha",
            input.required("alpha", "a share, when nonblocking")?,
        )?,
        latency_seconds: number("latency", input.required("latency", seconds)?)?,
        top_checkpoint_seconds: number("c_top", input.required("c_top", seconds)?)?,
        completion: completion(input)?,
    }))
}

fn completion(input: &Entries) -> Result<Completion, ModelError> {
    let allowed = "\"state\" or \"continuous\"";
    match word(input, "completion", allowed)?.as_str() {
        "state" => Ok(Completion::State),
        "continuous" => Ok(Completion::Continuous),
        other => Err(ModelError::field("completion", other, allowed)),
    }
}

/// In blocking mode the keys of a transfer have no effect, but what they hold must still be sound.
fn unused_transfer(input: &Entries) -> Result<Mode, ModelError> {
    for key in ["alpha", "latency", "c_top"] {
        let Some(value) = input.only(key)?.filter(|value| value.get() != "null") else {
            continue;
        };
        crate::error::check_range(key, number(key, value)?, 0.0, crate::levels::SECONDS_MAX)?;
    }
    if input
        .only("completion")?
        .is_some_and(|value| value.get() != "null")
    {
        completion(input)?;
    }
    Ok(Mode::Blocking)
}

/// A list of numbers; the last entry may be anything where it is ignored.
fn numbers(input: &Entries, key: &str, last_ignored: bool) -> Result<Vec<f64>, ModelError> {
    let list = list(input, key, "a list of numbers, one per level")?;
    let count = list.len();
    let read = |(index, value): (usize, &RawValue)| {
        let parsed = number(&format!("{key}[{index}]"), value);
        if last_ignored && index + 1 == count {
            Ok(parsed.unwrap_or(0.0))
        } else {
            parsed
        }
    };
    list.iter()
        .map(AsRef::as_ref)
        .enumerate()
        .map(read)
        .collect()
}

fn counts(input: &Entries) -> Result<Vec<u64>, ModelError> {
    let read = |(index, value): (usize, Box<RawValue>)| {
        let field = format!("V[{index}]");
        let allowed = "a whole number, 0 or more, with a period of up to 1e12 intervals";
        let text = value.get();
        if let Ok(count) = text.parse::<u64>() {
            return Ok(count);
        }
        let parsed = number(&field, &value)?;
        if parsed.fract() == 0.0 && (0.0..=1e15).contains(&parsed) {
            return Ok(crate::number::floor_count(parsed));
        }
        Err(ModelError::field(field, text, allowed))
    };
    list(input, "V", "a list of L - 1 counts")?
        .into_iter()
        .enumerate()
        .map(read)
        .collect()
}

fn list(input: &Entries, key: &str, allowed: &str) -> Result<Vec<Box<RawValue>>, ModelError> {
    let value = input.required(key, allowed)?;
    if !value.get().starts_with('[') {
        return Err(ModelError::field(key, shown(value.get()), allowed));
    }
    serde_json::from_str(value.get()).map_err(|e| syntax(key, &e))
}

/// A number, read from its digits: too large ones become infinite and are refused by range later.
fn number(field: &str, value: &RawValue) -> Result<f64, ModelError> {
    let text = value.get();
    let digits = text.starts_with(|c: char| c == '-' || c.is_ascii_digit());
    let parsed = if digits {
        text.parse::<f64>().ok()
    } else {
        None
    };
    match parsed {
        Some(number) if number.is_finite() => Ok(number),
        _ => Err(ModelError::field(field, shown(text), "a finite number")),
    }
}

fn word(input: &Entries, key: &str, allowed: &str) -> Result<String, ModelError> {
    let value = input.required(key, allowed)?;
    serde_json::from_str(value.get())
        .ok()
        .ok_or_else(|| ModelError::field(key, shown(value.get()), allowed))
}

/// A value as quoted in a message, cut where it is long.
fn shown(text: &str) -> String {
    const SHOWN_MAX: usize = 60;
    if text.chars().count() <= SHOWN_MAX {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(SHOWN_MAX).collect();
    cut.push_str("...");
    cut
}

fn syntax(place: &str, error: &serde_json::Error) -> ModelError {
    ModelError::Syntax {
        place: place.to_owned(),
        problem: error.to_string(),
    }
}

/// The entries of an object in their order, duplicates included, values unread.
#[derive(Debug)]
struct Entries(Vec<(String, Box<RawValue>)>);

impl Entries {
    /// The value of a key that may be absent but not doubled.
    fn only(&self, key: &str) -> Result<Option<&RawValue>, ModelError> {
        let mut found = self
            .0
            .iter()
            .filter(|(name, _)| name == key)
            .map(|(_, value)| value);
        let first = found.next();
        if let Some(second) = found.next() {
            return Err(ModelError::field(
                key,
                shown(second.get()),
                "one value, not two",
            ));
        }
        Ok(first.map(AsRef::as_ref))
    }

    fn required(&self, key: &str, allowed: &str) -> Result<&RawValue, ModelError> {
        self.only(key)?.ok_or_else(|| ModelError::Missing {
            field: key.to_owned(),
            allowed: allowed.to_owned(),
        })
    }
}

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Entries;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Reader)
    }
}

/// Puts the literals `NaN`, `Infinity` and `-Infinity`, which JSON does not have but some writers
/// emit, in quotes, so that the case they stand in is refused by field and not the whole file.
fn quote_non_numbers(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    let (mut in_string, mut escaped) = (false, false);
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let literal = ["NaN", "-NaN", "Infinity", "-Infinity"];
        let literal = literal
            .iter()
            .find(|literal| !in_string && rest.starts_with(**literal));
        if let Some(literal) = literal {
            result.push('"');
            result.push_str(literal);
            result.push('"');
            rest = &rest[literal.len()..];
            continue;
        }
        match next {
            _ if escaped => escaped = false,
            '\\' => escaped = in_string,
            '"' => in_string = !in_string,
            _ => {}
        }
        result.push(next);
        rest = &rest[next.len_utf8()..];
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"lam":[1e-5,1e-6],"c":[10,null],"r":[10,100],"t":600,"V":[5],
        "mode":"nonblocking","alpha":0.1,"latency":1000,"c_top":12,"completion":"state"}"#;

    #[test]
    fn a_good_input_is_read() {
        let case = parse_case(GOOD).unwrap();
        assert_eq!(case.between, [5]);
        assert_eq!(case.checkpoint_seconds, [10.0, 0.0]);
    }

    #[test]
    fn every_bad_field_is_named() {
        let spoil = [
            ("\"t\":600", "\"t\":0", "t = 0"),
            ("\"t\":600", "\"t\":-5", "t = -5"),
            ("\"t\":600", "\"t\":NaN", "t = \"NaN\""),
            ("\"t\":600", "\"t\":-Infinity", "t = \"-Infinity\""),
            ("\"t\":600", "\"t\":1e999", "t = 1e999"),
            ("\"t\":600", "\"t\":\"600\"", "t = \"600\""),
            ("\"t\":600,", "", "t is missing"),
            ("\"t\":600", "\"t\":600,\"t\":601", "t = 601"),
            ("\"t\":600", "\"t\":600,\"x\":1", "unknown key \"x\""),
            ("[1e-5,1e-6]", "[1e-5]", "c = 2 values"),
            ("[1e-5,1e-6]", "[-1e-5,1e-6]", "lam[0] = -1e-5"),
            ("[1e-5,1e-6]", "[]", "lam = 0 levels"),
            ("[1e-5,1e-6]", "1e-5", "lam = 1e-5"),
            ("[1e-5,1e-6]", "[1e-5,null]", "lam[1] = null"),
            ("[10,null]", "[null,null]", "c[0] = null"),
            ("[10,100]", "[10,1e300]", "r[1] = 1e300"),
            ("[5]", "[5.5]", "V[0] = 5.5"),
            ("[5]", "[-1]", "V[0] = -1"),
            ("[5]", "[1e14]", "V = [100000000000000]"),
            ("[5]", "[]", "V = 0 values"),
            ("\"alpha\":0.1", "\"alpha\":-0.1", "alpha = -0.1"),
            ("\"alpha\":0.1,", "", "alpha is missing"),
            ("\"latency\":1000", "\"latency\":true", "latency = true"),
            ("\"c_top\":12", "\"c_top\":-1", "c_top = -1"),
            ("\"state\"", "\"State\"", "completion = State"),
            ("\"nonblocking\"", "\"non-blocking\"", "mode = non-blocking"),
            ("\"nonblocking\"", "7", "mode = 7"),
        ];
        for (good, bad, message) in spoil {
            let text = GOOD.replacen(good, bad, 1);
            let error = parse_case(&text).unwrap_err().to_string();
            assert!(error.starts_with(message), "{text}: {error}");
        }
    }

    #[test]
    fn bad_cases_leave_the_others_alone() {
        let text = format!(
            r#"{{"note":NaN,"cases":[{{"id":"a","input":{GOOD},"more":1}},{{"id":{{"n":2}},"input":{{}}}},
            {{"input":{GOOD}}},7]}}"#
        );
        let results = evaluate(&text).unwrap();
        assert!(!results.all_solved());
        let text = serde_json::to_string(&results).unwrap();
        assert!(text.starts_with(r#"{"results":[{"id":"a","intervals":6,"useful_time":3600.0"#));
        assert!(
            text.contains(r#"{"id":{"n":2},"error":"mode is missing"#),
            "{text}"
        );
        assert!(text.contains(r#"{"id":null,"intervals":6"#));
        assert!(text.contains(r#"{"id":null,"error":"case: "#));
    }

    #[test]
    fn endless_periods_are_errors() {
        let text = GOOD.replace("[1e-5,1e-6]", "[1e-5,1.5]");
        let case = parse_case(&text).unwrap();
        let error = solve(&case).unwrap_err().to_string();
        assert!(error.starts_with("period_time = "), "{error}");
    }
}
