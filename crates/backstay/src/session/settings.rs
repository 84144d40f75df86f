// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: all ranks of a job have the same settings, where that matters.
//! In from: `Session::open`, with the configuration of this rank. Out to: the first vote of a session.
//! Invariants: nothing branches on the configuration before it; one call where all is well; every rank
//! leaves with the same error, which names the setting and two of its values.

use super::vote::{share_messages, vote_with};
use super::watch::Watched;
use crate::config::Config;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::hash::checksum;
use backstay_store::place::default_job_name;

/// Settings compared: a fixed number, so that versions of the library with fewer or more of them make
/// the same call and find out that they differ.
const PLACES: usize = 64;
const WHAT: &str = "opening a session";

/// Checks this rank's settings, which may not even be readable, and that all ranks have the same. Returns
/// them with paths that are absolute. Collective.
pub(super) fn agree_on_settings(comm: &Watched, config: Result<Config>) -> Result<Config> {
    let given = config.as_ref().map_or_else(|_wrong| Vec::new(), settings);
    let checked = config.and_then(|config| config.validate().map(|()| config));
    let checked = checked.and_then(Config::absolute);
    let mine = checked.as_ref().map_or(given, settings);
    let mut digests = [0_i64; PLACES];
    for (digest, (_, value)) in digests.iter_mut().zip(&mine) {
        // Positive, so that its negation is a number as well.
        *digest = i64::try_from(checksum(value.as_bytes()) >> 1).unwrap_or(0);
    }
    let mut highest: Vec<i64> = digests.iter().flat_map(|&one| [one, -one]).collect();
    let checked = vote_with(comm, WHAT, 0, checked, &mut highest)?;
    let bounds = || highest.chunks_exact(2).map(|pair| (-pair[1], pair[0]));
    let differing: Vec<usize> = (0..)
        .zip(bounds())
        .filter(|(_, (low, high))| low != high)
        .map(|(place, _)| place)
        .collect();
    let Some(&first) = differing.first() else {
        return Ok(checked);
    };
    let (low, high) = (-highest[2 * first + 1], highest[2 * first]);
    let mine_is = |bound: i64| (digests[first] == bound).then(|| value_at(&mine, first));
    let values = share_messages(comm, WHAT, [mine_is(low), mine_is(high)])?;
    Err(differ(&mine, &differing, &values))
}

/// What is compared: the version of this library, then the settings.
fn settings(config: &Config) -> Vec<(&'static str, String)> {
    let version = ("version of Backstay", env!("CARGO_PKG_VERSION").to_owned());
    let mut named = config.clone();
    named.job = named.job.or_else(|| Some(default_job_name()));
    let mut all = vec![version];
    all.extend(named.same_on_all_ranks());
    all
}

fn value_at<'a>(settings: &'a [(&'static str, String)], place: usize) -> &'a str {
    settings.get(place).map_or("unknown", |(_, value)| value)
}

fn differ(
    settings: &[(&'static str, String)],
    differing: &[usize],
    [one, other]: &[String; 2],
) -> Error {
    let mut names = differing
        .iter()
        .map(|&place| settings.get(place).map_or("a setting", |(key, _)| *key));
    let first = names.next().unwrap_or_default();
    let more: Vec<&str> = names.collect();
    let more = if more.is_empty() {
        String::new()
    } else {
        format!("; {} as well", more.join(", "))
    };
    let context = format!(
        "ranks of one job have different settings: {first} is {one} on some and {other} on others{more}; \
         give every rank the same"
    );
    Error::new(ErrorKind::Configuration, context)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_place_for_every_setting() {
        assert!(settings(&Config::default()).len() <= PLACES);
    }
}
