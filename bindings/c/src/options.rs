// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the settings a C program makes, by their names; they go over file and environment.
//! Reference: docs/reference/config.md.

use crate::boundary::guard;
use crate::keys::Keyed;
use crate::pointer;
use crate::status::invalid;
use engine::{Config, Error, Result};
use std::collections::BTreeMap;
use std::ffi::c_char;
use std::sync::{Mutex, MutexGuard, PoisonError};

static MADE: Keyed<Options> = Keyed::none();

/// Settings of a program.
#[derive(Debug, Default)]
pub struct Options {
    set: Mutex<Set>,
}

#[derive(Debug, Default)]
struct Set {
    named: BTreeMap<String, String>,
    /// The first that could not be set.
    wrong: Option<Error>,
}

/// Makes an empty set of settings, for backstay_option_set, backstay_open and backstay_options_free. What is not set stays
/// as the environment (BACKSTAY_STORE_PATH and so on), the file that BACKSTAY_CONFIG names, or the default has it.
#[unsafe(no_mangle)]
pub extern "C" fn backstay_options_new() -> *mut Options {
    MADE.insert(Options::default())
}

/// Sets one setting of docs/reference/config.md by its name: `backstay_option_set(options, "reserve_bytes", "2GiB")`, its
/// value as the environment would have it. `value` NULL takes back what was set. A name or a value that cannot be is an
/// error here, and once more in backstay_open, so that nobody has to look at each status.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backstay_option_set(
    options: *mut Options,
    name: *const c_char,
    value: *const c_char,
) -> i32 {
    guard("backstay_option_set", || {
        let options = find(options)?;
        let mut set = options.set();
        // SAFETY: the header asks for C strings, or NULL for the value.
        let outcome = unsafe { set.put(name, value) };
        if let Err(error) = &outcome {
            set.wrong.get_or_insert(error.again());
        }
        outcome
    })
}

/// Frees settings; the sessions that were opened with them keep theirs. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn backstay_options_free(options: *mut Options) {
    MADE.remove(options);
}

impl Options {
    fn set(&self) -> MutexGuard<'_, Set> {
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Set {
    /// # Safety
    /// Both are C strings or NULL.
    unsafe fn put(&mut self, name: *const c_char, value: *const c_char) -> Result<()> {
        // SAFETY: the caller says so.
        let name = unsafe { pointer::text(name, "name") }?;
        // SAFETY: as above.
        let value = unsafe { pointer::text_or_none(value, "value") }?;
        let Some(value) = value else {
            self.named.remove(name);
            return Ok(());
        };
        Config::check_named(name, value)?;
        self.named.insert(name.to_owned(), value.to_owned());
        Ok(())
    }
}

fn find(options: *const Options) -> Result<std::sync::Arc<Options>> {
    MADE.get(options).ok_or_else(|| {
        if options.is_null() {
            invalid("options is NULL")
        } else {
            invalid(format!("{options:p} are no options: freed already?"))
        }
    })
}

/// The settings of this process with those of `options` over them; NULL are none.
pub(crate) fn config(options: *const Options) -> Result<Config> {
    if options.is_null() {
        return Config::from_environment();
    }
    let options = find(options)?;
    let set = options.set();
    if let Some(wrong) = &set.wrong {
        return Err(wrong.again());
    }
    let named = set.named.iter();
    Config::from_environment_with(named.map(|(name, value)| (&**name, &**value)))
}
