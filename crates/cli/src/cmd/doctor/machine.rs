// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what this machine and the limits of this process allow: memory, the store's place, pages, processor, limits.
//! In from: the checks of the store and of parity, rlimits. Out to: `doctor`.
//! Invariants: nothing is made.

use super::Line;
use crate::output::human_bytes;
use backstay::Config;
use backstay::config::Transport;
use backstay_base::io::open::file_size_limit;
use backstay_parity::gf256::Kernel;
use backstay_store::place::{self, Look, MemoryLimit};
use backstay_store::track::pages::PageTracker;
use rustix::process::{Resource, getrlimit};
use std::path::Path;

/// Less than this is too little for almost any job.
const LITTLE: u64 = 1 << 30;
/// An agent has up to 256 peers that it serves, as many that wait, 64 of its own and 64 strangers, and its files.
const DESCRIPTORS: u64 = 1024;

pub(super) fn lines(config: &Config) -> Vec<Line> {
    let limit = place::memory_limit();
    let looks = place::look(config.store_path.as_deref());
    vec![
        memory(limit.as_ref()),
        store(&looks, limit.as_ref(), config.store_path.is_some()),
        pages(PageTracker::available()),
        processor(Kernel::best()),
        locked(getrlimit(Resource::Memlock).current, config.transport),
        // `main` has raised the soft limit to the hard one.
        descriptors(getrlimit(Resource::Nofile).current),
        file_size(file_size_limit()),
    ]
}

fn memory(limit: Option<&MemoryLimit>) -> Line {
    const CHECK: &str = "memory";
    let Some(limit) = limit else {
        let advice = "the job is not warned before the kernel kills it; set reserve_bytes";
        return Line::limited(CHECK, "how much there is cannot be read", advice);
    };
    let (free, all) = (
        human_bytes(limit.free_bytes()),
        human_bytes(limit.limit_bytes),
    );
    let found = format!("{free} free of {all}, by {}", limit.path.display());
    if limit.path == Path::new("/proc/meminfo") && limit.free_bytes() >= LITTLE {
        return Line::ok(CHECK, found);
    }
    let advice =
        "a store in /dev/shm counts against it: give the job more, or set store_path to a disk";
    Line::limited(CHECK, found, advice)
}

fn store(looks: &[Look], limit: Option<&MemoryLimit>, is_configured: bool) -> Line {
    const CHECK: &str = "store";
    let refused = |look: &Look| {
        let why = look.found.as_ref().err()?;
        Some(format!("{} ({why})", look.name))
    };
    let Some((at, (bytes, is_memory))) = looks
        .iter()
        .enumerate()
        .find_map(|(at, look)| Some((at, look.found.clone().ok()?)))
    else {
        let all: Vec<String> = looks.iter().filter_map(refused).collect();
        let advice = "set store_path to a folder that can be written, on a file system with room";
        return Line::not(CHECK, format!("no place: {}", all.join(", ")), advice);
    };
    let name = &looks[at].name;
    let room = limit
        .filter(|_| is_memory)
        .map_or(bytes, |limit| limit.free_bytes().min(bytes));
    let sort = if is_memory { "memory" } else { "a disk" };
    let found = format!("{name}: {sort}, {} free", human_bytes(bytes));
    if room < LITTLE {
        let advice = "a job needs what it protects and some more: --shm-size for a container, or store_path elsewhere";
        return Line::limited(CHECK, found, advice);
    }
    if !is_memory && !is_configured {
        let others: Vec<String> = looks[..at].iter().filter_map(refused).collect();
        let advice = format!(
            "checkpoints are as fast as that disk; not {}",
            others.join(", ")
        );
        return Line::limited(CHECK, found, advice);
    }
    Line::ok(CHECK, found)
}

fn pages(available: Result<(), String>) -> Line {
    match available {
        Ok(()) => Line::ok("pages", "the kernel says which pages were written"),
        Err(why) => {
            let advice = "all memory is read and hashed at each checkpoint instead; Linux 6.7 or newer, and \
                          `sysctl vm.unprivileged_userfaultfd=1` where that is refused";
            Line::limited("pages", why, advice)
        }
    }
}

fn processor(kernel: Kernel) -> Line {
    let found = format!("parity is computed by {}", kernel.name());
    if kernel == Kernel::Naive {
        let advice = "redundancy is slow, byte by byte: SSSE3 or newer, and shown to the guest, is needed for more";
        return Line::limited("processor", found, advice);
    }
    Line::ok("processor", found)
}

fn locked(limit: Option<u64>, transport: Transport) -> Line {
    const CHECK: &str = "locked memory";
    let Some(bytes) = limit else {
        return Line::ok(CHECK, "no limit");
    };
    let found = format!("{} at most", human_bytes(bytes));
    // TCP needs none; registrations of libfabric may.
    if transport == Transport::Tcp {
        return Line::ok(CHECK, format!("{found}, which is enough for TCP"));
    }
    let advice = "libfabric may not register more: `ulimit -l unlimited`, or transport = \"tcp\"";
    Line::limited(CHECK, found, advice)
}

fn descriptors(limit: Option<u64>) -> Line {
    match limit {
        None => Line::ok("descriptors", "no limit"),
        Some(count) if count >= DESCRIPTORS => Line::ok("descriptors", format!("{count} at most")),
        Some(count) => {
            let advice =
                format!("an agent of a large job wants {DESCRIPTORS}: `ulimit -Hn {DESCRIPTORS}`");
            Line::limited("descriptors", format!("{count} at most"), advice)
        }
    }
}

fn file_size(limit: Option<u64>) -> Line {
    let Some(bytes) = limit else {
        return Line::ok("file size", "no limit");
    };
    let advice = "no store and no archive file gets larger: `ulimit -f unlimited`";
    let found = format!("{} at most", human_bytes(bytes));
    if bytes < LITTLE {
        return Line::not("file size", found, advice);
    }
    Line::limited("file size", found, advice)
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    fn look(name: &str, found: Result<(u64, bool), &str>) -> Look {
        let (name, found) = (name.to_owned(), found.map_err(str::to_owned));
        Look { name, found }
    }

    fn limit(path: &str, gib: u64) -> MemoryLimit {
        MemoryLimit {
            limit_bytes: gib << 30,
            used_bytes: 0,
            path: path.into(),
        }
    }

    #[test]
    fn little_memory_is_told_with_what_to_do() {
        assert_eq!(memory(Some(&limit("/proc/meminfo", 8))).state, State::Ok);
        assert_eq!(
            memory(Some(&limit("/proc/meminfo", 0))).state,
            State::Limited
        );
        let line = memory(Some(&limit("/sys/fs/cgroup/memory.max", 8)));
        assert_eq!(line.state, State::Limited);
        assert!(
            line.found.contains("8.0 GiB") && line.found.contains("memory.max"),
            "{line:?}"
        );
        assert_eq!(memory(None).state, State::Limited);
    }

    #[test]
    fn the_first_place_that_a_store_may_have_is_told() {
        let (shm, disk) = (
            look("/dev/shm", Ok((4 << 30, true))),
            look("/var/tmp", Ok((4 << 30, false))),
        );
        let line = store(&[shm.clone(), disk.clone()], None, false);
        assert_eq!(
            (line.state, line.found.as_str()),
            (State::Ok, "/dev/shm: memory, 4.0 GiB free")
        );
        let tight = limit("/sys/fs/cgroup/memory.max", 0);
        assert_eq!(store(&[shm], Some(&tight), false).state, State::Limited);
        let none = look("/dev/shm", Err("it is no memory file system"));
        let line = store(&[none.clone(), disk.clone()], None, false);
        assert_eq!(line.state, State::Limited);
        assert!(
            line.advice
                .unwrap()
                .contains("not /dev/shm (it is no memory")
        );
        assert_eq!(store(&[disk], None, true).state, State::Ok);
        let small = look("/dev/shm", Ok((64 << 20, true)));
        assert!(
            store(&[small], None, false)
                .advice
                .unwrap()
                .contains("--shm-size")
        );
        assert_eq!(store(&[none], None, false).state, State::Not);
    }

    #[test]
    fn limits_are_told() {
        assert_eq!(pages(Err("refused".to_owned())).state, State::Limited);
        assert_eq!(processor(Kernel::Naive).state, State::Limited);
        assert_eq!(processor(Kernel::Avx2).state, State::Ok);
        assert_eq!(
            [
                locked(None, Transport::Auto).state,
                locked(Some(1 << 20), Transport::Tcp).state,
                locked(Some(1 << 20), Transport::Auto).state
            ],
            [State::Ok, State::Ok, State::Limited]
        );
        assert_eq!(
            (descriptors(Some(1024)).state, descriptors(Some(256)).state),
            (State::Ok, State::Limited)
        );
        let sizes = [None, Some(2 << 30), Some(1 << 20)].map(|limit| file_size(limit).state);
        assert_eq!(sizes, [State::Ok, State::Limited, State::Not]);
    }
}
