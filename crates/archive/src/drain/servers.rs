// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: where staging servers are, and the secret that they share with the job: files in the job's
//! folder of the archive, which only its user may read.
//! In from: a server that starts, the job that looks and says what the secret of its start is. Out to:
//! `coordinate`, the endpoints.
//! Invariants: looked at when a start begins and when a server is gone, never for a checkpoint.

use crate::private;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::open;
use backstay_base::notice;
use backstay_net::{Peer, Secret};
use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};
use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const SECRET_FILE: &str = "secret";
const SERVER_PREFIX: &str = "server-";

#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    name: String,
    address: String,
}

/// The servers that say they are there, in the order of their names.
pub(super) fn find(folder: &Path) -> Vec<Peer> {
    let mut found: Vec<Peer> = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if !name.to_string_lossy().starts_with(SERVER_PREFIX) {
            continue;
        }
        let path = entry.path();
        let mine = entry
            .metadata()
            .map_err(|error| Error::io(format!("looking at {}", path.display()), error))
            .and_then(|about| private::check_file(&path, &about));
        if let Err(error) = mine {
            notice::warn(&format!("a staging server is not asked: {error}"));
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        if let Ok(entry) = serde_json::from_str::<Entry>(&text) {
            found.push(Peer::new(entry.name, entry.address));
        }
    }
    found.sort();
    found
}

/// Names and addresses of the servers that say in the job's `folder` that they are there.
pub fn servers_in(folder: &Path) -> Vec<(String, String)> {
    let peers = find(folder).into_iter();
    peers.map(|peer| (peer.name, peer.address)).collect()
}

/// A server's entry, which goes with it.
#[derive(Debug)]
pub struct ServerPlace {
    path: PathBuf,
}

impl ServerPlace {
    /// Says in the job's `folder` that the server `name` answers at `address`.
    pub fn take(folder: &Path, name: &str, address: &str) -> Result<Self> {
        let path = folder.join(format!("{SERVER_PREFIX}{name}.json"));
        let failed = |error| Error::io(format!("writing {}", path.display()), error);
        let entry = Entry {
            name: name.to_owned(),
            address: address.to_owned(),
        };
        let text = serde_json::to_string(&entry).unwrap_or_default();
        open::replace(&path, &text).map_err(failed)?;
        Ok(Self { path })
    }
}

impl Drop for ServerPlace {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.path));
    }
}

/// Tells staging servers the secret of a new start of the job. It takes the place of the one before, by
/// which nobody is answered from then on.
pub fn publish_secret(folder: &Path, secret: &Secret) -> Result<()> {
    let path = folder.join(SECRET_FILE);
    let failed = |error| Error::io(format!("the secret {}", path.display()), error);
    let beside = write_beside(folder, secret.bytes()).map_err(failed)?;
    std::fs::rename(&beside, &path).map_err(failed)
}

/// A file with `secret` for the user alone, under a name of its own.
fn write_beside(folder: &Path, secret: &[u8; Secret::BYTES]) -> std::io::Result<PathBuf> {
    let mut drawn = [0; 8];
    getrandom(&mut drawn[..], GetRandomFlags::empty())?;
    let number = u64::from_le_bytes(drawn);
    let beside = folder.join(format!("{SECRET_FILE}-{number:016x}"));
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let mut file = open::open(&options, &beside)?;
    file.write_all(secret).and_then(|()| file.sync_all())?;
    Ok(beside)
}

/// The secret that the job and its staging servers share: that of the newest start, or, before the first
/// one, what whoever comes first draws. Readable by the user alone.
pub fn shared_secret(folder: &Path) -> Result<Secret> {
    let path = folder.join(SECRET_FILE);
    let failed = |error| Error::io(format!("the secret {}", path.display()), error);
    private::make_folder(folder)?;
    if !path.exists() {
        let beside = write_beside(folder, Secret::draw()?.bytes()).map_err(failed)?;
        // Whole or not at all, and the first one stays.
        let linked = std::fs::hard_link(&beside, &path);
        drop(std::fs::remove_file(&beside));
        match linked {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(error)),
        }
    }
    let mut file = open::open_read(&path).map_err(failed)?;
    let about = file.metadata().map_err(failed)?;
    if about.uid() != rustix::process::geteuid().as_raw() || about.mode() & 0o077 != 0 {
        let context = format!(
            "{} is not this user's alone: make the folder of the archive anew, or chmod 600 it",
            path.display()
        );
        return Err(Error::new(ErrorKind::Configuration, context));
    }
    let mut bytes = [0; Secret::BYTES];
    file.read_exact(&mut bytes).map_err(failed)?;
    Ok(Secret::from_bytes(bytes))
}
