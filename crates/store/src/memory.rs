// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: how much memory this process's control groups and the machine still give.
//! In from: /proc and the cgroup file systems, version 1, 2 or both. Out to: `place`.
//! Invariants: a file that is missing or has another form limits nothing; page cache that the
//! kernel gives back under pressure counts as free, pages of tmpfs do not.

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Limits from here on mean "none": version 1 writes the largest number of pages.
const UNLIMITED: u64 = 1 << 60;

/// The memory limit that leaves the least room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryLimit {
    /// Bytes of the limit.
    pub limit_bytes: u64,
    /// Bytes used of it that the kernel cannot simply drop.
    pub used_bytes: u64,
    /// The file that holds the limit: of a control group, or `/proc/meminfo` for the machine.
    pub path: PathBuf,
}

impl MemoryLimit {
    /// Bytes left below the limit.
    pub fn free_bytes(&self) -> u64 {
        self.limit_bytes.saturating_sub(self.used_bytes)
    }
}

/// The limit that leaves this process the least memory, among its control groups, those above
/// them, and the machine. Beyond it tmpfs is not a full disk but a killed process.
pub fn memory_limit() -> Option<MemoryLimit> {
    memory_limit_under(Path::new("/"))
}

/// The same with all paths below `root`.
pub fn memory_limit_under(root: &Path) -> Option<MemoryLimit> {
    let mut limits: Vec<_> = machine(root).into_iter().collect();
    let groups = read_text(&below(root, Path::new("/proc/self/cgroup"))).unwrap_or_default();
    let mounts = mounts(root);
    for line in groups.split(|&byte| byte == b'\n') {
        let mut fields = line.splitn(3, |&byte| byte == b':');
        let (Some(number), Some(controllers), Some(group)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let version = if number == b"0" && controllers.is_empty() {
            Version::Two
        } else if controllers
            .split(|&byte| byte == b',')
            .any(|name| name == b"memory")
        {
            Version::One
        } else {
            continue;
        };
        let group = Path::new(OsStr::from_bytes(group));
        for mount in mounts.iter().filter(|mount| mount.version == version) {
            limits.extend(mount.limits(root, group));
        }
    }
    limits.into_iter().min_by_key(MemoryLimit::free_bytes)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// A mounted hierarchy of control groups that may limit memory.
struct Mount {
    version: Version,
    /// The group that is seen at the mount point: not `/` in a container.
    top: PathBuf,
    point: PathBuf,
}

impl Mount {
    /// The limits of a group and of all above it, as far as they are seen here.
    fn limits(&self, root: &Path, group: &Path) -> Vec<MemoryLimit> {
        let point = below(root, &self.point);
        // A group outside of what is mounted is a container's own, seen at the mount point.
        let inside = group.strip_prefix(&self.top).unwrap_or(Path::new(""));
        let parts = inside.components().all(|part| part.as_os_str() != "..");
        let inside = if parts { inside } else { Path::new("") };
        let mut folder = point.join(inside);
        let mut limits = Vec::new();
        loop {
            limits.extend(self.version.limit(&folder));
            if folder == point || !folder.pop() {
                return limits;
            }
        }
    }
}

impl Version {
    fn limit(self, folder: &Path) -> Option<MemoryLimit> {
        let (limit, usage, prefix) = match self {
            Self::One => ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
            Self::Two => ("memory.max", "memory.current", ""),
        };
        let path = folder.join(limit);
        let limit_bytes = number_in(&path).filter(|&bytes| bytes < UNLIMITED)?;
        let used = number_in(&folder.join(usage)).unwrap_or(0);
        let table = read_text(&folder.join("memory.stat")).unwrap_or_default();
        let cache = ["active_file", "inactive_file"]
            .map(|name| field(&table, &format!("{prefix}{name}")).unwrap_or(0));
        Some(MemoryLimit {
            limit_bytes,
            used_bytes: used.saturating_sub(cache[0].saturating_add(cache[1])),
            path,
        })
    }
}

/// The machine itself: `/dev/shm` may be mounted larger than its memory.
fn machine(root: &Path) -> Option<MemoryLimit> {
    let path = Path::new("/proc/meminfo");
    let table = read_text(&below(root, path))?;
    let bytes = |name| field(&table, name)?.checked_mul(1024);
    let total = bytes("MemTotal:")?;
    Some(MemoryLimit {
        limit_bytes: total,
        used_bytes: total.saturating_sub(bytes("MemAvailable:")?),
        path: path.to_owned(),
    })
}

/// The hierarchies that /proc/self/mountinfo lists: "id parent device top point options - type
/// source options", with blanks inside fields as octal escapes.
fn mounts(root: &Path) -> Vec<Mount> {
    let table = read_text(&below(root, Path::new("/proc/self/mountinfo"))).unwrap_or_default();
    let mount = |line: &[u8]| {
        let fields: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
        let dash = fields.iter().position(|&field| field == b"-")?;
        let options = fields.get(dash + 3)?;
        let version = match *fields.get(dash + 1)? {
            b"cgroup2" => Version::Two,
            b"cgroup"
                if options
                    .split(|&byte| byte == b',')
                    .any(|name| name == b"memory") =>
            {
                Version::One
            }
            _ => return None,
        };
        Some(Mount {
            version,
            top: unescape(fields.get(3)?),
            point: unescape(fields.get(4)?),
        })
    };
    table
        .split(|&byte| byte == b'\n')
        .filter_map(mount)
        .collect()
}

/// A path with its octal escapes resolved.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let octal = after
            .get(..3)
            .and_then(|digits| std::str::from_utf8(digits).ok());
        let value = octal.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        let escaped = value.filter(|_value| first == b'\\');
        bytes.push(escaped.unwrap_or(first));
        rest = if escaped.is_some() {
            &after[3..]
        } else {
            after
        };
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

fn read_text(path: &Path) -> Option<Vec<u8>> {
    std::fs::read(path).ok()
}

fn number_in(path: &Path) -> Option<u64> {
    let text = read_text(path)?;
    std::str::from_utf8(&text).ok()?.trim().parse().ok()
}

/// The number after `name` in a table of "name number" lines.
fn field(table: &[u8], name: &str) -> Option<u64> {
    let text = std::str::from_utf8(table).ok()?;
    text.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.next() == Some(name)).then(|| words.next()?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new(files: &[(&str, &str)]) -> Self {
            let tree = Self(tempfile::tempdir().unwrap());
            for (path, text) in files {
                let path = tree.0.path().join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            tree
        }
        fn limit(&self) -> Option<(u64, u64, String)> {
            let limit = memory_limit_under(self.0.path())?;
            let path = limit
                .path
                .strip_prefix(self.0.path())
                .unwrap_or(&limit.path);
            Some((
                limit.limit_bytes,
                limit.used_bytes,
                path.display().to_string(),
            ))
        }
    }

    const TWO: &str = "30 23 0:26 / /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw\n";

    #[test]
    fn nothing_readable_limits_nothing() {
        assert_eq!(Tree::new(&[]).limit(), None);
        let odd = [
            ("proc/self/cgroup", "0::\n::\nx\n0::/a\n4:memory:/../..\n"),
            ("proc/self/mountinfo", "\n1 2 - cgroup2\n- - -\n"),
            ("proc/meminfo", "MemTotal: many kB\n"),
        ];
        assert_eq!(Tree::new(&odd).limit(), None);
    }

    #[test]
    fn version_two_takes_the_tightest_group_upwards_without_page_cache() {
        let tree = Tree::new(&[
            ("proc/self/cgroup", "0::/job.slice/step 1/task\n"),
            ("proc/self/mountinfo", TWO),
            ("sys/fs/cgroup/job.slice/memory.max", "1000000\n"),
            ("sys/fs/cgroup/job.slice/memory.current", "900000\n"),
            (
                "sys/fs/cgroup/job.slice/memory.stat",
                "anon 300000\nfile 600000\nshmem 100000\ninactive_file 400000\nactive_file 100000\n",
            ),
            ("sys/fs/cgroup/job.slice/step 1/memory.max", "max\n"),
            ("sys/fs/cgroup/job.slice/step 1/task/memory.max", "900000\n"),
            (
                "sys/fs/cgroup/job.slice/step 1/task/memory.current",
                "5000\n",
            ),
        ]);
        let path = "sys/fs/cgroup/job.slice/memory.max".to_owned();
        assert_eq!(tree.limit(), Some((1_000_000, 400_000, path)));
    }

    #[test]
    fn hybrid_reads_version_one_and_the_machine() {
        let mounts = "31 24 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      32 24 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
                      33 24 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n";
        let mut files = vec![
            ("proc/self/cgroup", "5:cpu:/\n4:memory:/api/48c1\n0::/\n"),
            ("proc/self/mountinfo", mounts),
            (
                "proc/meminfo",
                "MemTotal: 100000 kB\nMemFree: 1 kB\nMemAvailable: 90000 kB\n",
            ),
            (
                "sys/fs/cgroup/memory/memory.limit_in_bytes",
                "9223372036854771712\n",
            ),
        ];
        let machine = (102_400_000, 10_240_000, "/proc/meminfo".to_owned());
        assert_eq!(Tree::new(&files).limit(), Some(machine));
        let group = "sys/fs/cgroup/memory/api/48c1";
        let paths = ["limit_in_bytes", "usage_in_bytes", "stat"]
            .map(|name| format!("{group}/memory.{name}"));
        let texts = [
            "8000000",
            "7000000",
            "total_inactive_file 500000\nactive_file 77\n",
        ];
        files.extend(paths.iter().map(String::as_str).zip(texts));
        assert_eq!(
            Tree::new(&files).limit(),
            Some((8_000_000, 6_500_000, paths[0].clone()))
        );
    }

    #[test]
    fn a_container_sees_its_group_at_the_mount_point() {
        let mount = "30 23 0:26 /docker/ab\\040c /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        for group in ["0::/docker/ab c/inner\n", "0::/\n", "0::/../../elsewhere\n"] {
            let tree = Tree::new(&[
                ("proc/self/cgroup", group),
                ("proc/self/mountinfo", mount),
                ("sys/fs/cgroup/memory.max", "64000\n"),
            ]);
            let path = "sys/fs/cgroup/memory.max".to_owned();
            assert_eq!(tree.limit(), Some((64_000, 0, path)), "{group}");
        }
    }

    #[test]
    fn the_machine_at_hand_has_a_limit() {
        let limit = memory_limit().unwrap();
        assert!(limit.limit_bytes > limit.used_bytes, "{limit:?}");
    }
}
