// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: asks a parallel file system how the bytes of new files are to lie on its servers: over how
//! many, in units of how many bytes, and not on a metadata server.
//! In from: `archive::make` (a folder before files are made in it, a file just made). Out to: the file
//! system: `lfs setstripe` on Lustre, an extended attribute on CephFS.
//! Invariants: a hint that cannot be followed is a warning, never an error; a file is asked for before it
//! has a size, since CephFS refuses it later, even when it was made empty again.

use rustix::fs::{XattrFlags, fgetxattr, fsetxattr, fstat, fstatfs, major, minor};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};

const CEPH_MAGIC: i64 = 0x00c3_6400;
const FUSE_MAGIC: i64 = 0x6573_5546;
const LUSTRE_MAGIC: i64 = 0x0bd0_0bd0;
/// Of the layout as one text: `stripe_unit=4194304 stripe_count=1 object_size=4194304 pool=data`.
const CEPH_LAYOUT: &str = "ceph.file.layout";
/// Both file systems take stripes in multiples of this.
const UNIT_BYTES: u64 = 64 << 10;
/// The most that Lustre takes. CephFS takes any count, and no cluster has so many servers.
const COUNT_MAX: u32 = 2000;
/// Both keep the size of a stripe in 32 bits; CephFS that of an object.
const SIZE_MAX: u64 = 1 << 30;

/// How a file's bytes are to lie on the servers; the file system's own choice where `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Layout {
    /// Servers (Lustre) or objects (CephFS) that one after the other take a stripe.
    pub stripe_count: Option<u32>,
    /// Bytes of a stripe: a multiple of 64 KiB.
    pub stripe_size_bytes: Option<u64>,
}

/// A file system, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Ceph,
    Lustre,
    Other,
}

impl Layout {
    /// Asks for the layout of all files that are made in `folder` from now on, where the file system can
    /// only be asked before (Lustre). Also without hints: there no bytes are to lie on a metadata server,
    /// as a site's default may have it. What it does not follow, in words.
    pub fn prepare(&self, folder: &Path) -> Vec<String> {
        self.prepare_with(folder, "lfs", None)
    }

    fn prepare_with(&self, folder: &Path, program: &str, known: Option<Kind>) -> Vec<String> {
        let kind = known.or_else(|| Some(kind_of(&File::open(folder).ok()?)));
        if kind != Some(Kind::Lustre) {
            return Vec::new();
        }
        let (hints, mut warnings) = self.possible();
        let mut command = Command::new(program);
        command.args(hints.lustre_words()).arg(folder);
        let failed = match command.stdin(Stdio::null()).output() {
            Ok(done) if done.status.success() => None,
            Ok(done) => Some(String::from_utf8_lossy(&done.stderr).trim().to_owned()),
            Err(error) => Some(format!("{program}: {error}")),
        };
        warnings.extend(failed.map(|why| {
            let folder = folder.display();
            format!("{folder}: files there get the layout that Lustre chooses: {why}")
        }));
        warnings
    }

    /// Asks for the layout of a file that was just made and never had a size. What the file system does
    /// not follow, in words.
    pub fn apply(&self, file: &File, path: &Path) -> Vec<String> {
        if *self == Self::default() {
            return Vec::new();
        }
        let kind = kind_of(file);
        if kind == Kind::Lustre {
            return Vec::new();
        }
        let (hints, mut warnings) = self.possible();
        let set = match kind {
            Kind::Ceph => hints.set_on_ceph(file),
            _ => Err("it is neither on CephFS nor on Lustre".to_owned()),
        };
        if let Err(why) = set {
            let path = path.display();
            warnings.push(format!(
                "{path}: the stripes asked for are not to be had: {why}"
            ));
        }
        warnings
    }

    /// The hints that some file system can follow, and why the others are left out.
    fn possible(self) -> (Self, Vec<String>) {
        let mut warnings = Vec::new();
        let mut possible = self;
        if let Some(count) = self
            .stripe_count
            .filter(|count| !(1..=COUNT_MAX).contains(count))
        {
            possible.stripe_count = None;
            warnings.push(format!(
                "a stripe count of {count} is not 1 to {COUNT_MAX}: left out"
            ));
        }
        let is_possible =
            |size: &u64| size.is_multiple_of(UNIT_BYTES) && (1..=SIZE_MAX).contains(size);
        if let Some(size) = self.stripe_size_bytes.filter(|size| !is_possible(size)) {
            possible.stripe_size_bytes = None;
            warnings.push(format!(
                "stripes of {size} bytes: not a multiple of {UNIT_BYTES} up to {SIZE_MAX}: left out"
            ));
        }
        (possible, warnings)
    }

    /// One component over the whole file, which is none on a metadata server.
    fn lustre_words(&self) -> Vec<String> {
        let mut words = vec!["setstripe".to_owned(), "-E".to_owned(), "-1".to_owned()];
        if let Some(count) = self.stripe_count {
            words.extend(["-c".to_owned(), count.to_string()]);
        }
        if let Some(size) = self.stripe_size_bytes {
            words.extend(["-S".to_owned(), size.to_string()]);
        }
        words
    }

    fn set_on_ceph(&self, file: &File) -> Result<(), String> {
        if *self == Self::default() {
            return Ok(());
        }
        let mut bytes = [0; 512];
        let length = fgetxattr(file, CEPH_LAYOUT, &mut bytes[..])
            .map_err(|error| format!("its layout cannot be read: {error}"))?;
        let now = String::from_utf8_lossy(&bytes[..length]).into_owned();
        let wanted = self
            .ceph_words(&now)
            .ok_or_else(|| format!("its layout is \"{now}\""))?;
        fsetxattr(file, CEPH_LAYOUT, wanted.as_bytes(), XattrFlags::empty()).map_err(|error| {
            let why = match error {
                Errno::NOTEMPTY => "it had a size already",
                Errno::INVAL => "the file system does not take this layout",
                Errno::PERM | Errno::ACCESS => "this user may not (capability `p` of CephFS)",
                _ => "",
            };
            format!(
                "{wanted}: {error}{}{why}",
                if why.is_empty() { "" } else { ": " }
            )
        })
    }

    /// The whole layout, after the one that the file has now: fields one by one would each have to fit
    /// the former others. An object holds whole stripes, and is not smaller than it was.
    fn ceph_words(&self, now: &str) -> Option<String> {
        let field = |name: &str| -> Option<u64> {
            let mut words = now.split_whitespace();
            words.find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
        };
        let unit = self.stripe_size_bytes.or_else(|| field("stripe_unit"))?;
        let count = self
            .stripe_count
            .map(u64::from)
            .or_else(|| field("stripe_count"))?;
        let object = field("object_size")?
            .max(unit)
            .checked_next_multiple_of(unit)?;
        Some(format!(
            "stripe_unit={unit} stripe_count={count} object_size={object}"
        ))
    }
}

/// The file system that a file or folder is on.
fn kind_of(file: impl AsFd) -> Kind {
    let file = file.as_fd();
    match fstatfs(file).map(|found| found.f_type) {
        Ok(CEPH_MAGIC) => Kind::Ceph,
        Ok(LUSTRE_MAGIC) => Kind::Lustre,
        Ok(FUSE_MAGIC) => {
            let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
            let device = fstat(file).map(|found| (major(found.st_dev), minor(found.st_dev)));
            match device
                .ok()
                .and_then(|device| type_of_mount(&mounts, device))
            {
                Some("fuse.ceph-fuse" | "fuse.ceph") => Kind::Ceph,
                _ => Kind::Other,
            }
        }
        _ => Kind::Other,
    }
}

/// The type of the mounted device; a line is "id parent major:minor root point options - type device
/// options", with any number of fields before the dash.
fn type_of_mount(mounts: &str, device: (u32, u32)) -> Option<&str> {
    let wanted = format!("{}:{}", device.0, device.1);
    mounts.lines().find_map(|line| {
        let mut words = line.split(' ');
        (words.nth(2)? == wanted).then_some(())?;
        words.skip_while(|word| *word != "-").nth(1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn layout(count: u32, size: u64) -> Layout {
        Layout {
            stripe_count: (count > 0).then_some(count),
            stripe_size_bytes: (size > 0).then_some(size),
        }
    }

    #[test]
    fn ceph_gets_a_whole_layout_whose_parts_fit() {
        let now = "stripe_unit=4194304 stripe_count=1 object_size=4194304 pool=cephfs_data";
        let words = |count, size| layout(count, size).ceph_words(now).unwrap();
        assert_eq!(
            words(8, 0),
            "stripe_unit=4194304 stripe_count=8 object_size=4194304"
        );
        assert_eq!(
            words(4, 1 << 20),
            "stripe_unit=1048576 stripe_count=4 object_size=4194304"
        );
        assert_eq!(
            words(0, 16 << 20),
            "stripe_unit=16777216 stripe_count=1 object_size=16777216"
        );
        assert_eq!(
            words(2, 3 << 20),
            "stripe_unit=3145728 stripe_count=2 object_size=6291456"
        );
        for now in [
            "",
            "pool=a",
            "stripe_unit=x stripe_count=1 object_size=4194304",
            "object_size=0",
        ] {
            assert_eq!(layout(2, 0).ceph_words(now), None, "{now}");
        }
    }

    #[test]
    fn hints_that_nobody_follows_are_left_out_aloud() {
        for (asked, left, count) in [
            (layout(1, 64 << 10), layout(1, 64 << 10), 0),
            (layout(2001, 1 << 20), layout(0, 1 << 20), 1),
            (layout(3, 100_000), layout(3, 0), 1),
            (layout(3, 2 << 30), layout(3, 0), 1),
        ] {
            let (possible, warnings) = asked.possible();
            assert_eq!(
                (possible, warnings.len()),
                (left, count),
                "{asked:?}: {warnings:?}"
            );
        }
        let zeros = Layout {
            stripe_count: Some(0),
            stripe_size_bytes: Some(0),
        };
        assert_eq!(zeros.possible().0, Layout::default());
        assert_eq!(zeros.possible().1.len(), 2);
    }

    #[test]
    fn mounts_are_told_by_their_device() {
        let mounts = "1 0 8:1 / / rw shared:1 - ext4 /dev/a rw\n\
                      2 1 0:51 / /home rw,nosuid - fuse.sshfs host: rw\n\
                      3 1 0:52 / /with\\040space rw shared:2 master:1 - fuse.ceph-fuse ceph-fuse rw\n4 1 0:53\n";
        assert_eq!(type_of_mount(mounts, (0, 52)), Some("fuse.ceph-fuse"));
        assert_eq!(type_of_mount(mounts, (0, 51)), Some("fuse.sshfs"));
        assert_eq!(type_of_mount(mounts, (0, 5)), None);
        assert_eq!(type_of_mount(mounts, (0, 53)), None);
    }

    #[test]
    fn lustre_is_asked_for_one_component_on_object_servers() {
        let folder = tempfile::tempdir().unwrap();
        let (fake, said) = (folder.path().join("lfs"), folder.path().join("said"));
        let script = format!("#!/bin/sh\necho \"$*\" > {}\n", said.display());
        std::fs::write(&fake, script).unwrap();
        std::fs::set_permissions(&fake, std::fs::Permissions::from_mode(0o755)).unwrap();
        let fake = fake.to_str().unwrap();
        let target = folder.path();
        for (asked, words) in [
            (layout(4, 1 << 20), "setstripe -E -1 -c 4 -S 1048576"),
            (Layout::default(), "setstripe -E -1"),
        ] {
            let warnings = asked.prepare_with(target, fake, Some(Kind::Lustre));
            assert_eq!(warnings, Vec::<String>::new());
            let heard = std::fs::read_to_string(&said).unwrap();
            assert_eq!(heard.trim(), format!("{words} {}", target.display()));
        }
        for program in ["/nowhere/lfs", "false"] {
            let warnings = layout(4, 0).prepare_with(target, program, Some(Kind::Lustre));
            assert_eq!(warnings.len(), 1, "{program}");
        }
    }

    #[test]
    fn other_file_systems_warn_only_about_hints() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let file = File::create(&path).unwrap();
        assert!(Layout::default().prepare(folder.path()).is_empty());
        assert!(Layout::default().apply(&file, &path).is_empty());
        assert!(layout(2, 0).prepare(folder.path()).is_empty());
        let warnings = layout(2, 0).apply(&file, &path);
        assert!(
            warnings.len() == 1 && warnings[0].contains("neither on CephFS"),
            "{warnings:?}"
        );
    }
}
