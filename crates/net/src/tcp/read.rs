// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: one-sided reads over a connection: the side that owns the bytes, and the one that wants them.
//! In from: `server` for the owner, reads of this endpoint for the other. Out to: exposures; memory of
//! the caller.
//! Invariants: what arrives never goes beyond what was asked for; sealed bytes come bare, and count when their
//! fingerprint was compared; of all others no byte counts before the MAC of its piece was right, which is of
//! a copy.
//! Format: docs/format/wire.md, section "Reads".

use super::link::{Broken, Link};
use super::{Ended, failure, microseconds, server};
use crate::expose::Asker;
use crate::one_sided::OneSided;
use crate::{Described, Exposed, ExposureId, Exposures, Peer, same_node};
use backstay_base::clock::Deadline;
use backstay_base::error::{Error, ErrorKind, Result as EngineResult};
use backstay_format::KeyedFingerprint;
use backstay_format::width::{index, to_u64, to_usize};
use backstay_format::wire::{Describe, Kind, Located, Read, Refused};

/// Copied, authenticated and sent at once: what stays in the processor's own cache.
const PIECE_BYTES: usize = 256 << 10;

/// Has the bytes of `range` from the peer; the fingerprint of what came bare, which is to be compared.
pub(super) fn receive(
    link: &mut Link,
    peer: &Peer,
    range: &Described,
    into: &mut [u8],
    deadline: &Deadline,
) -> Result<Option<KeyedFingerprint>, Ended> {
    // A read may be done again: it changes nothing.
    let broken = |broken| Ended::Broken(broken, true);
    let read = Read {
        exposure: range.exposure.0,
        span: range.span,
        within_us: microseconds(deadline.left()),
        bare: range.fingerprint.is_some(),
    };
    link.send(Kind::Read, &[&read.encode()?], deadline)
        .map_err(broken)?;
    let mut filled = 0;
    while filled < into.len() {
        let (head, kind) = link.receive_head(deadline).map_err(broken)?;
        if kind == Kind::Piece && !read.bare {
            let length = index(head.body_bytes);
            let piece = into.get_mut(filled..filled + length);
            // Empty ones would come without end.
            let Some(piece) = piece.filter(|piece| !piece.is_empty()) else {
                let wanted = format!("{} bytes", read.span.length);
                return Err(broken(Broken::unexpected(&wanted, filled + length)));
            };
            link.receive_into(&head, piece, deadline).map_err(broken)?;
            filled += length;
            continue;
        }
        let body = link.receive_body(&head, deadline).map_err(broken)?;
        match (kind, range.fingerprint) {
            (Kind::Bare, Some(known)) => {
                let mut fingerprinter = known.key.begin();
                let mut each = |bytes: &[u8]| fingerprinter.update(bytes);
                link.receive_bare(into, &mut each, deadline)
                    .map_err(broken)?;
                return Ok(Some(fingerprinter.finish()));
            }
            (Kind::Failure, _) => {
                let frame = super::Frame { head, kind, body };
                return Err(Ended::Failed(failure(peer, &frame)?));
            }
            (Kind::Refused, _) => {
                let refused = Refused::decode(&head, &body)?;
                return Err(broken(Broken::Refused(refused)));
            }
            (other, _) => return Err(broken(Broken::unexpected("the next piece", other))),
        }
    }
    Ok(None)
}

/// Reads a file of this machine; `false` where this process cannot open it as the same one.
pub(super) fn receive_file(
    peer: &Peer,
    located: &Located,
    offset: u64,
    into: &mut [u8],
    deadline: &Deadline,
) -> EngineResult<bool> {
    let Some(file) = same_node::open(located) else {
        return Ok(false);
    };
    match same_node::read(&file, offset, into, deadline) {
        Ok(true) => Ok(true),
        Ok(false) => {
            let context = format!("{peer}: reading {} took too long", located.path);
            Err(Error::new(ErrorKind::Timeout, context))
        }
        Err(error) => Err(Error::io(format!("{peer}: {}", located.path), error)),
    }
}

/// Says what is known of ranges of what is exposed here.
pub(super) fn answer_describe(
    (exposures, one_sided): (&Exposures, Option<&dyn OneSided>),
    link: &mut Link,
    asked: &Describe,
    deadline: &Deadline,
) -> Result<(), Broken> {
    let id = ExposureId(asked.exposure);
    let spans = (&asked.spans[..], asked.afresh);
    let asker = Asker {
        same_machine: asked.same_machine,
        one_sided: one_sided.filter(|way| way.provider() == asked.provider),
        key: link.fingerprint_key()?,
    };
    match exposures.describe(asker, id, spans, deadline) {
        Ok(description) => link.send(Kind::Description, &[&description.encode()?], deadline),
        Err(error) => server::fail(link, &error, deadline),
    }
}

/// Answers a read from what is exposed here.
pub(super) fn answer_read(
    exposures: &Exposures,
    link: &mut Link,
    read: &Read,
    deadline: &Deadline,
    scratch: &mut Vec<u8>,
) -> Result<(), Broken> {
    let exposed = match exposures.find(ExposureId(read.exposure), read.span) {
        Ok(exposed) => exposed,
        Err(error) => return server::fail(link, &error, deadline),
    };
    if read.bare {
        return answer_bare(&exposed, link, read, deadline);
    }
    let mut done = 0;
    scratch.resize(PIECE_BYTES, 0);
    while done < read.span.length {
        let size = to_usize(read.span.length - done).min(PIECE_BYTES);
        // A copy, because the bytes may be written meanwhile.
        if let Err(error) = exposed.read_at(&mut scratch[..size], read.span.offset + done) {
            return server::fail(link, &error, deadline);
        }
        link.send(Kind::Piece, &[&scratch[..size]], deadline)?;
        done += to_u64(size);
    }
    Ok(())
}

/// Sends sealed bytes from where they stand; nothing is computed of them.
fn answer_bare(
    exposed: &Exposed,
    link: &mut Link,
    read: &Read,
    deadline: &Deadline,
) -> Result<(), Broken> {
    if read.span.length == 0 {
        return Ok(());
    }
    let Some(bytes) = exposed.sealed(read.span) else {
        let id = ExposureId(read.exposure);
        let context = format!("a range of exposure {id} is not sealed any more");
        let error = Error::new(ErrorKind::NotRetained, context);
        return server::fail(link, &error, deadline);
    };
    link.send_before(Kind::Bare, bytes, deadline)
}
