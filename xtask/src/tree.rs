// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the files of the tree, as git knows them: committed or about to be.
//! In: git and the file system. Out: paths from the root of the tree, with `/`, and their bytes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

/// All files of the tree.
pub(crate) struct Tree {
    root: PathBuf,
    files: BTreeMap<String, Vec<u8>>,
}

impl Tree {
    /// The tree this program was built from.
    pub(crate) fn read() -> Result<Self, String> {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
        let listed = Command::new("git")
            .args([
                "ls-files",
                "-z",
                "--cached",
                "--others",
                "--exclude-standard",
            ])
            .current_dir(&root)
            .output()
            .map_err(|error| format!("git ls-files: {error}"))?;
        if !listed.status.success() {
            let said = String::from_utf8_lossy(&listed.stderr);
            return Err(format!("git ls-files: {}", said.trim()));
        }
        let names = String::from_utf8_lossy(&listed.stdout).into_owned();
        let mut files = BTreeMap::new();
        for name in names.split('\0').filter(|name| !name.is_empty()) {
            // A file that git knows and that was deleted is no part of the tree any more.
            if let Ok(bytes) = std::fs::read(root.join(name)) {
                files.insert(name.to_owned(), bytes);
            }
        }
        Ok(Self { root, files })
    }

    /// A tree made up for a test.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let files = files
            .iter()
            .map(|&(path, text)| (path.to_owned(), text.as_bytes().to_vec()));
        Self {
            root: PathBuf::new(),
            files: files.collect(),
        }
    }

    /// Paths and bytes, sorted.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.files
            .iter()
            .map(|(path, bytes)| (path.as_str(), bytes.as_slice()))
    }

    /// Paths and texts of the files that are UTF-8.
    pub(crate) fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files()
            .filter_map(|(path, bytes)| Some((path, std::str::from_utf8(bytes).ok()?)))
    }

    /// The text of a file.
    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        std::str::from_utf8(self.files.get(path)?).ok()
    }

    /// Whether `path` is a file or a folder with files.
    pub(crate) fn has(&self, path: &str) -> bool {
        let folder = format!("{}/", path.trim_end_matches('/'));
        self.files.contains_key(path) || self.files.keys().any(|name| name.starts_with(&folder))
    }

    /// Writes a file of the tree.
    pub(crate) fn write(&self, path: &str, text: &str) -> Result<(), String> {
        let full = self.root.join(path);
        full.parent()
            .map_or(Ok(()), std::fs::create_dir_all)
            .and_then(|()| std::fs::write(&full, text))
            .map_err(|error| format!("{path}: {error}"))
    }
}

/// What follows the last dot of a path.
pub(crate) fn extension(path: &str) -> &str {
    path.rsplit_once('.').map_or("", |(_, extension)| extension)
}
