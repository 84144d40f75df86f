// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: one-sided reads over a connection: the side that owns the bytes, and the one that wants them.
//! In from: `server` for the owner, calls of this endpoint for the other. Out to: exposures; memory of
//! the caller.
//! Invariants: each side hashes what it sends or receives, piece by piece while it is in the cache; what
//! arrives never goes beyond what was asked for; no byte counts before the MAC of its piece was right.
//! Format: docs/format/wire.md, section "Pulls".

use super::link::{Broken, Link};
use super::{Ended, failure, microseconds, server};
use crate::{Exposed, ExposureId, Exposures, Peer, agree, same_node};
use backstay_base::clock::Deadline;
use backstay_base::error::{Error, ErrorKind};
use backstay_format::width::{index, to_u64, to_usize};
use backstay_format::wire::{Kind, Located, Pull, Pulled};
use backstay_format::{Digest, Digester};

/// Sent in one piece, and hashed at once: what stays in the processor's own cache.
///
/// A device is read into memory of our own, hashed and sent from there. Measured by bench-transport on
/// a Xeon of 2 cores, over the plain copy through a socket: 1.39 so; 1.36 from a mapping made for the
/// purpose; 1.94 by sendfile, which needs the mapping for the hash as well, and raises SIGPIPE.
const PIECE_BYTES: usize = 256 << 10;

/// What is to be pulled, and where to.
pub(super) struct Wanted<'a> {
    pub(super) peer: &'a Peer,
    pub(super) exposure: ExposureId,
    pub(super) offset: u64,
    pub(super) into: &'a mut [u8],
    pub(super) deadline: &'a Deadline,
}

impl Wanted<'_> {
    /// Pulls; `None` where the bytes are in a file that this process cannot open as the same one.
    pub(super) fn receive(
        &mut self,
        link: &mut Link,
        same_machine: bool,
    ) -> Result<Option<Digest>, Ended> {
        let pull = Pull {
            exposure: self.exposure.0,
            offset: self.offset,
            length: to_u64(self.into.len()),
            within_us: microseconds(self.deadline.left()),
            same_machine,
        };
        // A pull may be done again: it changes nothing.
        let broken = |broken| Ended::Broken(broken, true);
        link.send(Kind::Pull, &[&pull.encode()?], self.deadline)
            .map_err(broken)?;
        let (mut digester, mut filled) = (Digester::new(), 0);
        loop {
            let (head, kind) = link.receive_head(self.deadline).map_err(broken)?;
            if kind == Kind::Piece {
                let length = index(head.body_bytes);
                let piece = self.into.get_mut(filled..filled + length);
                // Empty ones would come without end.
                let Some(piece) = piece.filter(|piece| !piece.is_empty()) else {
                    let wanted = format!("{} bytes", pull.length);
                    return Err(broken(Broken::unexpected(&wanted, filled + length)));
                };
                let mut hash = |bytes: &[u8]| digester.update(bytes);
                link.receive_into(&head, piece, &mut hash, self.deadline)
                    .map_err(broken)?;
                filled += length;
                continue;
            }
            let body = link.receive_body(&head, self.deadline).map_err(broken)?;
            return match kind {
                Kind::Pulled if filled == self.into.len() => {
                    let owner = Pulled::decode(&head, &body)?.digest;
                    self.agree(owner, digester.finish()).map(Some)
                }
                Kind::Failure => {
                    let frame = super::Frame { head, kind, body };
                    Err(Ended::Failed(failure(self.peer, &frame)?))
                }
                Kind::Located if same_machine && filled == 0 => {
                    self.read_file(&Located::decode(&head, &body)?)
                }
                Kind::Refused => {
                    let refused = backstay_format::wire::Refused::decode(&head, &body)?;
                    Err(broken(Broken::Refused(refused)))
                }
                other => Err(broken(Broken::unexpected("the next piece", other))),
            };
        }
    }

    fn agree(&self, owner: Digest, here: Digest) -> Result<Digest, Ended> {
        let range = (self.offset, self.into.len());
        agree(self.peer, self.exposure, range, (owner, here)).map_err(Ended::Failed)
    }

    fn read_file(&mut self, located: &Located) -> Result<Option<Digest>, Ended> {
        let Some(file) = same_node::open(located) else {
            return Ok(None);
        };
        match same_node::read(&file, self.offset, self.into, self.deadline) {
            Ok(Some(digest)) => Ok(Some(digest)),
            Ok(None) => {
                let context = format!("{}: reading {} took too long", self.peer, located.path);
                Err(Ended::Failed(Error::new(ErrorKind::Timeout, context)))
            }
            Err(error) => {
                let what = format!("{}: {}", self.peer, located.path);
                Err(Ended::Failed(Error::io(what, error)))
            }
        }
    }
}

/// Answers a pull from what is exposed here.
pub(super) fn answer(
    exposures: &Exposures,
    link: &mut Link,
    pull: &Pull,
    deadline: &Deadline,
    scratch: &mut Vec<u8>,
) -> Result<(), Broken> {
    let found = exposures.find(ExposureId(pull.exposure), pull.offset, pull.length);
    let exposed = match found {
        Ok(exposed) => exposed,
        Err(error) => return server::fail(link, &error, deadline),
    };
    if pull.same_machine
        && pull.length > 0
        && let Some(located) = same_node::locate(&exposed)
    {
        return link.send(Kind::Located, &[&located.encode()?], deadline);
    }
    let mut digester = Digester::new();
    let mut done = 0;
    while done < pull.length {
        let size = to_usize(pull.length - done).min(PIECE_BYTES);
        let piece = match piece(&exposed, pull.offset + done, size, scratch) {
            Ok(piece) => piece,
            Err(error) => return server::fail(link, &error, deadline),
        };
        // Hashed first: this brings it into the cache, from where it is sent.
        digester.update(piece);
        link.send(Kind::Piece, &[piece], deadline)?;
        done += to_u64(size);
    }
    let digest = digester.finish();
    link.send(Kind::Pulled, &[&Pulled { digest }.encode()], deadline)
}

/// The bytes of one piece: where they stand, or copied from a device.
fn piece<'a>(
    exposed: &'a Exposed,
    offset: u64,
    size: usize,
    scratch: &'a mut Vec<u8>,
) -> backstay_base::error::Result<&'a [u8]> {
    if let Exposed::Memory(bytes) = exposed {
        let start = to_usize(offset);
        // The range was checked, and these bytes do not change.
        return Ok(bytes.get(start..start + size).unwrap_or_default());
    }
    if let Exposed::Sealed(view) = exposed
        && let Some(bytes) = view.lend_sealed(offset, size)
    {
        return Ok(bytes);
    }
    scratch.resize(PIECE_BYTES, 0);
    let place = &mut scratch[..size];
    exposed.read_at(place, offset)?;
    Ok(place)
}
