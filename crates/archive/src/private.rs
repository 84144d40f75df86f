// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the folder of a job in an archive, and the files in it, are its user's alone.
//! In from: whoever makes or opens them. Out to: the file system, and errors that say whose they are.
//! Invariants: a folder is made 0700, and at most the last part of the archive's own path with it; what
//! somebody else owns or may write is refused, because it may have been put there.

use backstay_base::error::{Error, ErrorKind, Result};
use std::fs::{DirBuilder, Metadata, Permissions};
use std::io::ErrorKind as Io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;

/// What others than the owner may not have: writing.
const WRITE_OF_OTHERS: u32 = 0o022;

/// Makes the folder of a job, or looks whether the one that is there is this user's alone.
pub fn make_folder(folder: &Path) -> Result<()> {
    let failed = |error| Error::io(format!("making {}", folder.display()), error);
    let make = || DirBuilder::new().mode(0o700).create(folder);
    let made = match make() {
        Err(error) if error.kind() == Io::NotFound => {
            make_archive(folder.parent().unwrap_or(folder))?;
            make()
        }
        made => made,
    };
    match made {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == Io::AlreadyExists => {}
        Err(error) => return Err(failed(error)),
    }
    let about = std::fs::metadata(folder).map_err(failed)?;
    if !about.is_dir() {
        return Err(refused(folder, "is no folder"));
    }
    check(folder, &about, None)?;
    if about.mode() & 0o077 != 0 && about.uid() == me() {
        // One of a former version, or of the user's own making.
        std::fs::set_permissions(folder, Permissions::from_mode(0o700)).map_err(failed)?;
    }
    Ok(())
}

/// The archive itself: its parent has to be there.
fn make_archive(archive: &Path) -> Result<()> {
    match std::fs::create_dir(archive) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == Io::AlreadyExists => Ok(()),
        Err(error) if error.kind() == Io::NotFound => {
            let above = archive.parent().unwrap_or(archive);
            let context = format!(
                "archive {}: {} is not there, and at most the last part of the path is made; is its file \
                 system mounted?",
                archive.display(),
                above.display()
            );
            Err(Error::new(ErrorKind::Configuration, context))
        }
        Err(error) => Err(Error::io(format!("making {}", archive.display()), error)),
    }
}

fn me() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn refused(path: &Path, why: &str) -> Error {
    let context = format!(
        "{} {why}: what is read there may be somebody else's; look what it is, then give it to this user \
         with mode 700 (a folder) or 600 (a file)",
        path.display()
    );
    Error::new(ErrorKind::Configuration, context)
}

/// That a file of an archive's folder was put there by this user; root may read what is its folder's owner's.
pub(crate) fn check_file(path: &Path, about: &Metadata) -> Result<()> {
    let folder = path.parent().filter(|_| me() == 0);
    let owner = folder.and_then(|folder| std::fs::metadata(folder).ok());
    check(path, about, owner.map(|about| about.uid()))
}

fn check(path: &Path, about: &Metadata, owner: Option<u32>) -> Result<()> {
    let uid = about.uid();
    if uid != me() && Some(uid) != owner {
        return Err(refused(
            path,
            &format!("belongs to user {uid}, this is user {}", me()),
        ));
    }
    if about.mode() & WRITE_OF_OTHERS != 0 {
        let mode = about.mode() & 0o777;
        return Err(refused(
            path,
            &format!("may be written by others (mode {mode:03o})"),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn at_most_the_last_part_of_the_archives_path_is_made() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("nope/deep/job");
        let error = make_folder(&deep).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration);
        assert!(error.to_string().contains("nope is not there"), "{error}");
        assert!(!folder.path().join("nope").exists());
        make_folder(&folder.path().join("pfs/job")).unwrap();
        make_folder(&folder.path().join("pfs/job")).unwrap();
    }

    #[test]
    fn a_folder_is_its_users_alone() {
        let folder = tempfile::tempdir().unwrap();
        let job = folder.path().join("pfs/job");
        make_folder(&job).unwrap();
        assert_eq!(mode(&job), 0o700);
        let set = |mode| std::fs::set_permissions(&job, Permissions::from_mode(mode)).unwrap();
        set(0o755);
        make_folder(&job).unwrap();
        assert_eq!(mode(&job), 0o700);
        for open in [0o770, 0o702] {
            set(open);
            let error = make_folder(&job).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Configuration);
            assert!(
                error.to_string().contains("may be written by others"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_file_that_others_may_write_or_own_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("catalog-99.backstay");
        std::fs::write(&path, b"planted").unwrap();
        let check = |mode| {
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            check_file(&path, &std::fs::metadata(&path).unwrap())
        };
        assert!(check(0o600).is_ok() && check(0o644).is_ok());
        assert!(check(0o660).is_err() && check(0o666).is_err());
        if me() == 0 {
            check(0o600).unwrap();
            std::os::unix::fs::chown(&path, Some(12345), None).unwrap();
            let error = check(0o600).unwrap_err().to_string();
            assert!(error.contains("belongs to user 12345"), "{error}");
        }
    }
}
