// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: one lost piece of a recorded stripe from the others, wherever those are.
//! In from: a stripe of the log, and a way to read its pieces. Out to: whoever puts the piece back.
//! Invariants: a piece that is not what its stripe says counts as lost, and so does one that cannot
//! be read; what was made is what the stripe says, or an error: that it is lost only where nothing that could
//! not be read would give it.

use super::code::{Code, Piece};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::width::index;
use backstay_format::{Digest, Extent, Member, Stripe, StripePiece};

/// The pieces of a stripe: its data, then its parity row by row.
pub fn pieces(stripe: &Stripe) -> impl Iterator<Item = (Piece, &StripePiece)> {
    let data = stripe.pieces.iter();
    let data = data.map(|piece| (Piece::Data(usize::from(piece.column)), piece));
    let parity = stripe.parity.iter().enumerate();
    data.chain(parity.map(|(row, piece)| (Piece::Parity(row), piece)))
}

/// What of a stripe is on a column.
pub fn on_column(stripe: &Stripe, column: u8) -> impl Iterator<Item = (Piece, &Extent)> {
    pieces(stripe)
        .filter(move |(_, piece)| piece.column == column)
        .map(|(which, piece)| (which, &piece.extent))
}

/// The bytes of piece `lost` from the others of its stripe. `fetch` reads a piece and says what it
/// hashes to; `members` are those of the group.
pub fn remake(
    code: &Code,
    members: &[Member],
    stripe: &Stripe,
    lost: Piece,
    mut fetch: impl FnMut(&StripePiece) -> Result<(Vec<u8>, Digest)>,
) -> Result<Vec<u8>> {
    let Some((_, wanted)) = pieces(stripe).find(|(which, _)| *which == lost) else {
        let context = format!("stripe {} has no {lost}", stripe.id.0);
        return Err(Error::new(ErrorKind::InvalidArgument, context));
    };
    let length = |piece: &StripePiece| index(piece.extent.length_bytes);
    let lengths = stripe.pieces.iter();
    let lengths: Vec<(usize, usize)> = lengths
        .map(|piece| (usize::from(piece.column), length(piece)))
        .collect();
    let mut present: Vec<(Piece, Vec<u8>)> = Vec::new();
    let (mut missing, mut unread) = (Vec::new(), None);
    // As many pieces as there is data are enough; data first, which needs no arithmetic.
    for (which, piece) in pieces(stripe) {
        if which == lost || present.len() == lengths.len() {
            continue;
        }
        match fetch(piece).and_then(|(bytes, found)| confirm(members, piece, bytes, found)) {
            Ok(bytes) => present.push((which, bytes)),
            Err(error) => {
                missing.push(format!("{which}: {error}"));
                if error.kind().leaves_open() {
                    let (count, _) = unread.unwrap_or((0, error.kind()));
                    unread = Some((count + 1, error.kind()));
                }
            }
        }
    }
    if present.len() < lengths.len() {
        let context = format!(
            "stripe {}: {} of its pieces are lost beside {lost}, its {} parities cover less: {}",
            stripe.id.0,
            missing.len(),
            stripe.parity.len(),
            missing.join("; ")
        );
        let open = unread.filter(|(count, _)| present.len() + count >= lengths.len());
        let kind = open.map_or(ErrorKind::NotRetained, |(_, kind)| kind);
        return Err(Error::new(kind, context));
    }
    let mut bytes = vec![0; length(wanted)];
    let present: Vec<(Piece, &[u8])> = present.iter().map(|(p, bytes)| (*p, &**bytes)).collect();
    code.rebuild(&lengths, &present, &mut [(lost, &mut bytes)])?;
    let (found, expected) = (Digest::of(&bytes), wanted.extent.digest);
    if found != expected {
        let context = format!(
            "stripe {}: {lost} was rebuilt with digest {found}, expected {expected}",
            stripe.id.0
        );
        return Err(Error::new(ErrorKind::Corrupt, context));
    }
    Ok(bytes)
}

fn confirm(
    members: &[Member],
    piece: &StripePiece,
    bytes: Vec<u8>,
    found: Digest,
) -> Result<Vec<u8>> {
    let extent = &piece.extent;
    if found == extent.digest {
        return Ok(bytes);
    }
    let node = members.get(usize::from(piece.column));
    let context = format!(
        "segment {} on node {}: expected digest {}, found {found}",
        extent.segment.0,
        node.map_or("unknown", |member| &member.node),
        extent.digest
    );
    Err(Error::new(ErrorKind::Corrupt, context))
}
