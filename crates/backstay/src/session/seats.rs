// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what leaders of nodes tell rank 0 when a session opens: where they are, and what they have.
//! In from and out to: `protection`, which gathers it over the communicator.
//! Invariants: none of its numbers is trusted before it was checked.

use backstay_base::error::{Error, Result};
use backstay_format::agent::{Answer, Survey};
use backstay_format::limits::{ENDPOINT_BYTES_MAX, LABEL_BYTES_MAX};
use backstay_format::width::index;
use backstay_format::{Decoder, Encoder, FormatError};
use backstay_parity::agent::coordinate::NodeSeat;

const SEAT: &str = "seat";

fn encode_seat(seat: &NodeSeat) -> std::result::Result<Vec<u8>, FormatError> {
    let mut body = Encoder::new(SEAT);
    body.text(&seat.name).text(&seat.domain).text(&seat.address);
    body.finish(seat, decode_seat)
}

fn decode_seat(bytes: &[u8]) -> std::result::Result<NodeSeat, FormatError> {
    let mut body = Decoder::new(SEAT, bytes);
    let seat = NodeSeat {
        name: body.text("node", LABEL_BYTES_MAX)?,
        domain: body.text("domain", LABEL_BYTES_MAX)?,
        address: body.text("address", ENDPOINT_BYTES_MAX)?,
    };
    body.end()?;
    Ok(seat)
}

/// A node's seat, and what it has, where that is known.
type Said = (NodeSeat, Option<Vec<Survey>>);

/// What a leader says, with its place.
pub(super) fn encode_said(said: &(usize, Said)) -> std::result::Result<Vec<u8>, FormatError> {
    let (place, (seat, surveys)) = said;
    let seat = encode_seat(seat)?;
    let mut body = Encoder::new(SEAT);
    body.count(*place).count(seat.len()).raw(&seat);
    if let Some(surveys) = surveys {
        let surveys = Answer::Surveys(surveys.clone()).encode()?;
        body.raw(&surveys);
    }
    body.finish(said, decode_said)
}

fn decode_said(bytes: &[u8]) -> std::result::Result<(usize, Said), FormatError> {
    let mut body = Decoder::new(SEAT, bytes);
    let place = index(body.u32("place")?);
    let length = index(body.u32("length")?);
    let seat = decode_seat(body.raw("seat", length)?)?;
    let surveys = match body.raw("surveys", body.remaining())? {
        [] => None,
        surveys => match Answer::decode(surveys)? {
            Answer::Surveys(surveys) => Some(surveys),
            _ => None,
        },
    };
    Ok((place, (seat, surveys)))
}

/// What all leaders said, by place.
pub(super) fn seats_and_surveys(parts: &[Vec<u8>]) -> Result<Vec<Said>> {
    let said = parts.iter().filter(|part| !part.is_empty());
    let said = said.map(|part| decode_said(part));
    let said: std::result::Result<Vec<_>, _> = said.collect();
    let mut said = said.map_err(|error| Error::malformed("what a node has", error))?;
    said.sort_by_key(|(place, _)| *place);
    Ok(said.into_iter().map(|(_, said)| said).collect())
}
