// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: keeps background threads to a configured set of CPUs.

use crate::error::{Error, ErrorKind, Result};
use rustix::thread::{CpuSet, sched_setaffinity};

/// The CPUs in a list such as `0-3,8`.
pub fn parse(list: &str) -> Result<Vec<usize>> {
    let wrong = || {
        let context = format!("cpu_set is {list:?}, not a list such as 0-3,8");
        Error::new(ErrorKind::Configuration, context)
    };
    let number = |text: &str| text.trim().parse::<usize>().map_err(|_error| wrong());
    let mut cpus = Vec::new();
    for part in list.split(',') {
        let (low, high) = part.split_once('-').unwrap_or((part, part));
        let (low, high) = (number(low)?, number(high)?);
        if low > high || high >= CpuSet::MAX_CPU {
            return Err(wrong());
        }
        cpus.extend(low..=high);
    }
    Ok(cpus)
}

/// Processors that this process may run on, at least one.
pub fn usable() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Makes the calling thread, and those that it starts, threads of the background.
pub fn background(cpu_set: Option<&str>, nice: i32) {
    restrict_thread(cpu_set);
    lower_thread(nice);
}

/// Keeps the calling thread to a list of CPUs, if there is one; a refusal is said, not an error.
pub fn restrict_thread(list: Option<&str>) {
    let Some(Ok(cpus)) = list.map(parse) else {
        return;
    };
    let mut set = CpuSet::new();
    for cpu in cpus {
        set.set(cpu);
    }
    if let Err(error) = sched_setaffinity(None, &set) {
        crate::notice::warn(&format!("cpu_set cannot be applied: {error}"));
    }
}

/// Makes the calling thread give way to others: niceness 0 to 19.
pub fn lower_thread(nice: i32) {
    let this = Some(rustix::thread::gettid());
    if nice > 0
        && let Err(error) = rustix::process::setpriority_process(this, nice.min(19))
    {
        tracing::debug!("a background thread keeps its priority: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus() {
        assert_eq!(parse("0-2,5").unwrap(), [0, 1, 2, 5]);
        for wrong in ["", "a", "3-1", "0-99999999", "1,,2"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
