// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: whether a program can be routed: whether the dynamic linker loads a preload library into it, and whether it
//! runs as its user.
//! In from: the command line. Out to: a refusal before anything is started.
//! Invariants: what is not known is not refused.

use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A program's interpreter, among its headers.
const INTERPRETER: u32 = 3;
/// Scripts name scripts: so often is it followed.
const SCRIPTS: usize = 3;

/// That `program`, as a command names it, can be routed, by a preload library or else by the kernel.
pub fn check(program: &str, by_library: bool) -> Result<(), String> {
    let mut path = find(program);
    for _ in 0..=SCRIPTS {
        let Some(at) = path else {
            return Ok(());
        };
        match look(&at, by_library)? {
            Some(next) => path = find(&next),
            None => return Ok(()),
        }
    }
    Ok(())
}

/// Where a command is.
fn find(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(PathBuf::from(name));
    }
    let folders = std::env::var_os("PATH")?;
    let mut paths = std::env::split_paths(&folders).map(|folder| folder.join(name));
    paths.find(|path| path.is_file())
}

/// What runs a script, if it is one.
fn look(path: &Path, by_library: bool) -> Result<Option<String>, String> {
    let Ok(mut file) = File::open(path) else {
        return Ok(None);
    };
    let wrong = |why: &str| Err(format!("{} cannot be routed: {why}", path.display()));
    let mode = file
        .metadata()
        .map_or(0, |about| about.permissions().mode());
    if mode & 0o6000 != 0 && rustix::process::geteuid().as_raw() != 0 {
        return wrong(
            "it runs as another user or group (setuid), for which the system loads no preload library and has no filter of \
             calls",
        );
    }
    let mut head = [0u8; 256];
    let length = file.read(&mut head).unwrap_or(0);
    let head = &head[..length];
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default();
        let line = String::from_utf8_lossy(line);
        let mut words = line
            .split_whitespace()
            .filter(|word| !word.starts_with('-'));
        let first = words.next().unwrap_or_default();
        let is_env = Path::new(first)
            .file_name()
            .is_some_and(|name| name.as_bytes() == b"env");
        let runs = if is_env { words.next() } else { Some(first) };
        return Ok(runs.map(str::to_owned));
    }
    match is_dynamic(&file, head) {
        Some(false) if by_library => wrong(
            "it is a static program, which loads no preload library: --route-by seccomp, or link it dynamically",
        ),
        _ => Ok(None),
    }
}

/// Whether an ELF file of 64 bits names an interpreter; nothing where it is none.
fn is_dynamic(file: &File, head: &[u8]) -> Option<bool> {
    if !head.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let half = |at: usize| Some(u16::from_le_bytes(*head.get(at..)?.first_chunk()?));
    let table = u64::from_le_bytes(*head.get(32..)?.first_chunk()?);
    let (size, count) = (half(54)?, half(56)?);
    for at in 0..count {
        let mut kind = [0u8; 4];
        let place = table.checked_add(u64::from(size) * u64::from(at))?;
        file.read_exact_at(&mut kind, place).ok()?;
        if u32::from_le_bytes(kind) == INTERPRETER {
            return Some(true);
        }
    }
    Some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn static_programs_are_refused_and_scripts_are_followed() {
        let folder = tempfile::tempdir().expect("folder");
        let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
        let mut elf = vec![0u8; 64];
        elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
        elf[32] = 64;
        elf[54] = 56;
        elf[56] = 1;
        elf.extend([1u8; 56]);
        std::fs::write(path("static"), &elf).expect("static");
        elf[64..68].copy_from_slice(&3u32.to_le_bytes());
        std::fs::write(path("dynamic"), &elf).expect("dynamic");
        std::fs::write(path("script"), format!("#!{}\n", path("static"))).expect("script");
        std::fs::write(path("shell"), "#!/usr/bin/env -S sh -e\n").expect("shell");
        std::fs::write(path("circle"), format!("#!{}\n", path("circle"))).expect("circle");
        std::fs::write(path("cut"), &elf[..40]).expect("cut");
        for good in ["dynamic", "shell", "circle", "cut", "none"] {
            assert_eq!(check(&path(good), true), Ok(()), "{good}");
        }
        assert_eq!(check("sh", true), Ok(()));
        for bad in ["static", "script"] {
            let error = check(&path(bad), true).expect_err(bad);
            assert!(error.contains("--route-by"), "{error}");
            assert_eq!(check(&path(bad), false), Ok(()), "{bad}");
        }
    }
}
