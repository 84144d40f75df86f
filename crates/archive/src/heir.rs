// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: how the writer of a file on shared storage learns that another file goes on from it.
//! In from: `write` and `catalog`: who takes over says so in the file it goes on from, before it reads it; who
//! writes looks there after each commit. Out to: a page in the head of the file.
//! Invariants: the page is written once from zeros and never back; what cannot be understood counts as an heir;
//! a look is one read past the page cache of a file that is open, and no request for metadata.
//! Format: docs/format/archive.md, section "Heir".
//!
//! Why this is a fence: a writer frees space by a root that is durable, looks, and uses the space again only if
//! there is no heir yet. Whoever goes on from the file writes the page before it reads the root; so if the
//! writer saw none, that read comes after the root was durable, and finds it or a later one, which refer to
//! nothing that was freed.

use super::Place;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::ReadAt;
use backstay_base::io::direct::AlignedBytes;
use backstay_format::StoreId;
use backstay_format::heir::{HEIR_BYTES, HEIR_OFFSET, Heir};
use std::sync::Arc;

/// Says in the file `name` that another one goes on from it. When it returned, the writer of `name` knows, or
/// has done all that it will do.
pub(super) fn publish(place: &dyn Place, name: &str, heir: &Heir) -> Result<()> {
    let device = place.open_to_mark(name)?;
    let failed = |error| {
        let what = format!("{}: saying that it is taken over", device.name());
        Error::io(what, error)
    };
    let encoded = heir.encode().map_err(|error| {
        let what = format!("{}: saying that it is taken over", device.name());
        Error::unwritable(what, error)
    })?;
    let mut page = AlignedBytes::new(HEIR_BYTES);
    page[..encoded.len()].copy_from_slice(&encoded);
    if device.length_bytes().map_err(failed)?
        < HEIR_OFFSET + backstay_format::width::to_u64(HEIR_BYTES)
    {
        // Its making just began: nothing is in it, and who makes it sees that the file has a length.
        device
            .reserve(HEIR_OFFSET + backstay_format::width::to_u64(HEIR_BYTES))
            .map_err(failed)?;
    }
    device.write_at(&page, HEIR_OFFSET).map_err(failed)?;
    device.sync().map_err(failed)
}

/// The page of a file that this process writes.
#[derive(Debug)]
pub(super) struct Watch {
    device: Arc<dyn ReadAt>,
}

impl Watch {
    /// By `device`, which is read past the page cache.
    pub(super) fn on(device: Arc<dyn ReadAt>) -> Self {
        Self { device }
    }

    /// The file `name` of `place`.
    pub(super) fn of(place: &dyn Place, name: &str) -> Result<Self> {
        place.open(name).map(Self::on)
    }

    /// That nobody goes on from the file; else [`ErrorKind::StoreBusy`].
    pub(super) fn look(&self) -> Result<()> {
        let name = self.device.name();
        let mut page = AlignedBytes::new(HEIR_BYTES);
        self.device
            .read_at(&mut page, HEIR_OFFSET)
            .map_err(|error| {
                Error::io(format!("{name}: looking whether it is taken over"), error)
            })?;
        if page.iter().all(|&byte| byte == 0) {
            return Ok(());
        }
        let who = match Heir::decode(&page) {
            Ok(heir) => format!(
                "a file of epoch {}, written by {}, took over from it",
                heir.epoch, heir.host
            ),
            Err(_) => "another file took over from it".to_owned(),
        };
        let context = format!("{name}: {who}; what this process writes there counts no more");
        Err(Error::new(ErrorKind::StoreBusy, context))
    }
}

/// Who goes on as `epoch` on `host` from `of`.
pub(super) fn heir(of: StoreId, epoch: u32, host: &str) -> Heir {
    Heir {
        of,
        epoch,
        host: host.to_owned(),
    }
}
