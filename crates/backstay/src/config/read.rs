// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: settings as people write them, in a file or in the environment, as the values that `Config` takes.
//! In: a TOML table, the text of a variable. Out: a table of numbers, words and texts, or what is wrong in words of
//! settings: which one, what stands there, what could.
//! Invariants: sizes and times may have units, read by the parser of the command line; nothing is clamped.

use super::{Config, Form, REFERENCE, Setting, distance, in_range, wrong};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::units;
use std::path::Path;
use toml::{Table, Value};

/// The table in a file.
pub(super) fn file(path: &Path) -> Result<Table> {
    let place = path.display().to_string();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Error::caused(ErrorKind::Configuration, place.clone(), error))?;
    self::text(&text, &place)
}

/// The table in a text.
pub(super) fn text(text: &str, place: &str) -> Result<Table> {
    text.parse()
        .map_err(|error: toml::de::Error| Error::caused(ErrorKind::Configuration, place, error))
}

/// The settings of `table`, as `place` has them.
pub(super) fn settings(table: Table, place: &str) -> Result<Config> {
    let mut read = Table::new();
    for (key, value) in table {
        let Some(setting) = REFERENCE.iter().find(|setting| setting.key == key) else {
            return Err(wrong(&format!("{place}: {}", unknown(&key))));
        };
        let value = of_file(setting, value).map_err(|why| wrong(&format!("{place}: {why}")))?;
        within_limits(setting, &value)?;
        read.insert(key, value);
    }
    // What is left to be wrong is a word that is none of a setting's.
    read.try_into()
        .map_err(|error| Error::caused(ErrorKind::Configuration, place.to_owned(), error))
}

/// That there is no such setting, and which may be meant.
fn unknown(key: &str) -> String {
    let keys = REFERENCE.iter().map(|setting| setting.key);
    let nearest = keys.min_by_key(|known| distance(known, key));
    match nearest.filter(|known| distance(known, key) <= 2) {
        Some(nearest) => format!("{key} is no setting, and nearly {nearest}"),
        None => format!("{key} is no setting; docs/reference/config.md has them all"),
    }
}

/// What is no number of its setting is told so here, and not by who turns the table into settings.
fn within_limits(setting: &Setting, value: &Value) -> Result<()> {
    let Value::Integer(number) = value else {
        return Ok(());
    };
    match u64::try_from(*number) {
        Ok(number) => in_range(setting.key, number),
        Err(_) => Err(wrong(&format!(
            "{} is {number}: it is below 0",
            setting.key
        ))),
    }
}

/// The value of the setting `name`, as a text.
pub(super) fn named(name: &str, text: &str) -> Result<Value> {
    match REFERENCE.iter().find(|setting| setting.key == name) {
        Some(setting) => {
            let value = of_variable(setting, text, name)?;
            within_limits(setting, &value).map(|()| value)
        }
        None => Err(wrong(&unknown(name))),
    }
}

/// The value of a variable in the environment.
pub(super) fn of_variable(setting: &Setting, text: &str, variable: &str) -> Result<Value> {
    of_text(setting, text).map_err(|why| wrong(&format!("{variable} is {text:?}: {why}")))
}

/// The value of a setting in a file.
fn of_file(setting: &Setting, value: Value) -> std::result::Result<Value, String> {
    let key = setting.key;
    let refused = |why: &str| Err(format!("{key} is {value}: {why}"));
    match (setting.form, &value) {
        (Form::Word, Value::Integer(_) | Value::Float(_)) if setting.unit == "s" => {
            Ok(Value::String(value.to_string()))
        }
        (Form::Flag, Value::Boolean(_))
        | (Form::Whole(..) | Form::PowerOfTwo(..), Value::Integer(_))
        | (Form::Share, Value::Float(_) | Value::Integer(_))
        | (Form::Text, Value::String(_)) => Ok(value),
        (Form::Text | Form::Word, other) if !other.is_str() => refused("a text is in quotes"),
        (Form::Flag, _) => refused("write true or false"),
        (_, Value::String(text)) => of_text(setting, text).or_else(|why| refused(&why)),
        _ => refused("it is not a whole number"),
    }
}

/// The value that a text means.
fn of_text(setting: &Setting, text: &str) -> std::result::Result<Value, String> {
    match setting.form {
        Form::Text => Ok(Value::String(text.to_owned())),
        Form::Word => word(setting, text),
        Form::Flag => match text {
            "true" | "1" => Ok(Value::Boolean(true)),
            "false" | "0" => Ok(Value::Boolean(false)),
            _ => Err("write true or false".to_owned()),
        },
        Form::Share => match text.trim().parse() {
            Ok(number) => Ok(Value::Float(number)),
            Err(_) => Err("it is not a number from 0 to 1".to_owned()),
        },
        Form::Whole(..) | Form::PowerOfTwo(..) => {
            let number = number(setting.unit, text)?;
            let number = i64::try_from(number).map_err(|_| "it is too large".to_owned())?;
            Ok(Value::Integer(number))
        }
    }
}

/// A whole number in `unit`.
fn number(unit: &str, text: &str) -> std::result::Result<u64, String> {
    match unit {
        "bytes" => units::bytes(text),
        "bytes/s" => units::bytes_per_second(text),
        "ms" => units::milliseconds(text),
        "h" => units::whole_hours(text),
        _ => text
            .trim()
            .parse()
            .map_err(|_| "it is not a whole number".to_owned()),
    }
}

/// A word, if it is one of the setting's; an interval in seconds.
fn word(setting: &Setting, text: &str) -> std::result::Result<Value, String> {
    if setting.unit == "s" {
        let seconds = match text {
            "auto" => text.to_owned(),
            _ => units::seconds(text)
                .map_err(|why| format!("{why}, or auto"))?
                .to_string(),
        };
        return Ok(Value::String(seconds));
    }
    let value = Value::String(text.to_owned());
    let alone = Table::from_iter([(setting.key.to_owned(), value.clone())]);
    match alone.try_into::<Config>() {
        Ok(_) => Ok(value),
        Err(error) => Err(words_of(error.message())),
    }
}

/// The words that there are, from what the parser of the table says.
fn words_of(message: &str) -> String {
    let listed = message
        .rsplit_once("expected ")
        .map_or("", |(_, listed)| listed);
    let listed = listed.trim_start_matches("one of ").replace('`', "");
    format!("write {listed}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config> {
        settings(text.parse().unwrap(), "test")
    }

    #[test]
    fn sizes_rates_and_times_have_units() {
        let config = parse(
            "reserve_bytes = \"2GiB\"\nblock_bytes = \"16KiB\"\ntimeout_ms = \"90s\"\n\
             node_mtbf_hours = \"5a\"\narchive_rate_bytes = \"500MB/s\"\ninterval = \"10min\"\n",
        );
        let config = config.unwrap();
        assert_eq!(config.reserve_bytes, Some(2 << 30));
        assert_eq!((config.block_bytes, config.timeout_ms), (16_384, 90_000));
        assert_eq!(config.node_mtbf_hours, Some(43_830));
        assert_eq!(config.archive_rate_bytes, Some(500_000_000));
        assert_eq!(config.interval_seconds().unwrap(), Some(600.0));
        assert_eq!(
            parse("interval = 300").unwrap(),
            parse("interval = \"5min\"").unwrap()
        );
        assert_eq!(
            parse("interval = \"auto\"")
                .unwrap()
                .interval_seconds()
                .unwrap(),
            None
        );
    }

    #[test]
    fn what_is_wrong_is_said_in_words_of_settings() {
        for (text, says) in [
            (
                "reserve_bytes = \"2G\"",
                "test: reserve_bytes is \"2G\": \"G\" is no unit here: write bytes, or",
            ),
            (
                "reserve_bytes = 1.5",
                "reserve_bytes is 1.5: it is not a whole number",
            ),
            (
                "timeout_ms = true",
                "timeout_ms is true: it is not a whole number",
            ),
            (
                "retained = \"many\"",
                "retained is \"many\": it is not a whole number",
            ),
            (
                "redundancy = \"raid\"",
                "redundancy is \"raid\": write none, partner, xor, rs",
            ),
            ("tracking = 5", "tracking is 5: a text is in quotes"),
            ("job = 5", "job is 5: a text is in quotes"),
            (
                "leave_on_sigterm = \"yes\"",
                "leave_on_sigterm is \"yes\": write true or false",
            ),
            (
                "changed_share = \"half\"",
                "changed_share is \"half\": it is not a number from 0 to 1",
            ),
            (
                "interval = \"soon\"",
                "interval is \"soon\": it does not begin with a number: write seconds",
            ),
            (
                "retaned = 3",
                "test: retaned is no setting, and nearly retained",
            ),
            (
                "colour = 3",
                "colour is no setting; docs/reference/config.md",
            ),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
            for word in ["u64", "f64", "expected", "invalid", "variant"] {
                assert!(!error.contains(word), "{text}: {error}");
            }
        }
    }

    #[test]
    fn variables_are_read_alike() {
        let setting = |key: &str| REFERENCE.iter().find(|setting| setting.key == key).unwrap();
        let read = |key, text| of_variable(setting(key), text, "BACKSTAY_X");
        assert_eq!(
            read("reserve_bytes", "64MiB").unwrap(),
            Value::Integer(64 << 20)
        );
        assert_eq!(read("timeout_ms", "2min").unwrap(), Value::Integer(120_000));
        assert_eq!(read("leave_on_sigterm", "1").unwrap(), Value::Boolean(true));
        assert_eq!(
            read("interval", "1h").unwrap(),
            Value::String("3600".to_owned())
        );
        let error = read("archive_codec", "zip").unwrap_err().to_string();
        assert!(error.contains("BACKSTAY_X is \"zip\": write "), "{error}");
        let error = read("reserve_bytes", "99999999999999999999").unwrap_err();
        assert!(error.to_string().contains("too large"), "{error}");
    }
}
