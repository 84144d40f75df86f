// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: settings by name over those of the environment.
//! Invariants: keys and limits are those of docs/reference/config.md; an unknown one is an error that
//! names it.

use engine::config::{Form, REFERENCE};
use engine::{Config, Error, ErrorKind, Result};
use serde_json::Value;

/// Every setting.
pub(crate) fn keys() -> Vec<&'static str> {
    REFERENCE.iter().map(|setting| setting.key).collect()
}

/// Settings of the environment, and over them those of `json`, an object.
pub(crate) fn config(json: &str) -> Result<Config> {
    let mut config = into_value(&Config::from_environment()?)?;
    let given: Value = serde_json::from_str(json).map_err(|error| wrong(&error))?;
    if let (Value::Object(all), Value::Object(given)) = (&mut config, given) {
        for (key, value) in given {
            let value = as_text(&key, value);
            all.insert(key, value);
        }
    }
    let config: Config = serde_json::from_value(config).map_err(|error| wrong(&error))?;
    config.validate()?;
    Ok(config)
}

/// A number where the setting is text: `interval = 30`.
fn as_text(key: &str, value: Value) -> Value {
    let form = REFERENCE.iter().find(|setting| setting.key == key);
    let is_text = form.is_some_and(|setting| matches!(setting.form, Form::Text | Form::Word));
    match value {
        Value::Number(number) if is_text => Value::String(number.to_string()),
        other => other,
    }
}

fn into_value(config: &Config) -> Result<Value> {
    serde_json::to_value(config).map_err(|error| wrong(&error))
}

fn wrong(error: &serde_json::Error) -> Error {
    Error::new(ErrorKind::Configuration, error.to_string())
}
