// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: byte planes, each coded in its own way: what is noise stays as it is and costs no time.
//! In from: `shuffle` (planes). Out to: the encoded stream, and the way back.
//! Invariants: a plane takes at most its own length and five bytes; the choice is the writer's, a
//! reader follows it.
//! Format: docs/format/codec.md, section "Byte groups".
//!
//! Source: D. Waddington, C. Constantinescu, "Lossless compression of neural network weights by byte
//! grouping", arXiv 2505.09810.

use super::coder::General;
use super::{damaged, entropy, float, share};
use backstay_base::error::Result;

/// What stands in front of a plane.
mod choice {
    pub(super) const CONSTANT: u8 = 0;
    pub(super) const RAW: u8 = 1;
    pub(super) const ENTROPY: u8 = 2;
    pub(super) const ZSTD: u8 = 3;
}

/// Bytes in front of a plane: its choice and its length.
const HEAD: usize = 5;
/// Part of a plane that is tried with a general-purpose compressor.
const SAMPLE: usize = 32 << 10;
/// What a general-purpose compressor must leave of what the entropy coder leaves: it is slower.
const MUCH_BETTER: f64 = 0.9;

/// Appends the planes, each of `length` bytes.
pub(super) fn encode(
    planes: &[u8],
    length: usize,
    general: &mut General,
    out: &mut Vec<u8>,
) -> Result<()> {
    if length == 0 {
        return Ok(());
    }
    for plane in planes.chunks_exact(length) {
        let head = out.len();
        out.extend([choice::RAW, 0, 0, 0, 0]);
        let choice = encode_plane(plane, general, out)?;
        let taken = u32::try_from(out.len() - head - HEAD).unwrap_or(u32::MAX);
        out[head] = choice;
        out[head + 1..head + HEAD].copy_from_slice(&taken.to_le_bytes());
    }
    Ok(())
}

/// Part of the planes, each of `length` bytes, that a reader decodes and does not only copy.
pub(super) fn coded_share(encoded: &[u8], length: usize) -> f64 {
    let (mut rest, mut planes, mut coded) = (encoded, 0, 0);
    while let Some((head, after)) = rest.split_first_chunk::<HEAD>() {
        let [choice, a, b, c, d] = *head;
        let taken = backstay_format::width::index(u32::from_le_bytes([a, b, c, d]));
        planes += 1;
        // Blocks that stayed raw make a coded plane hardly shorter.
        let is_coded = matches!(choice, choice::ENTROPY | choice::ZSTD);
        coded += usize::from(is_coded && taken < share(length, 0.98));
        rest = after.get(taken..).unwrap_or_default();
    }
    float(coded) / float(planes.max(1))
}

fn encode_plane(plane: &[u8], general: &mut General, out: &mut Vec<u8>) -> Result<u8> {
    let counts = entropy::count(plane);
    if counts.iter().filter(|&&count| count > 0).count() == 1 {
        out.push(plane[0]);
        return Ok(choice::CONSTANT);
    }
    let before = out.len();
    let sample = &plane[plane.len() / 2..];
    let sample = &sample[..sample.len().min(SAMPLE)];
    let by_value = entropy::least_bytes(&entropy::count(sample)).min(float(sample.len()));
    general.zstd(sample, out)?;
    let by_repeats = float(out.len() - before);
    out.truncate(before);
    if by_repeats < MUCH_BETTER * by_value {
        general.zstd(plane, out)?;
        if out.len() - before < share(plane.len(), MUCH_BETTER) {
            return Ok(choice::ZSTD);
        }
        out.truncate(before);
    }
    entropy::encode(plane, &mut general.entropy, out);
    if out.len() - before < plane.len() {
        return Ok(choice::ENTROPY);
    }
    out.truncate(before);
    out.extend_from_slice(plane);
    Ok(choice::RAW)
}

/// The inverse of [`encode`]; `encoded` is all there is.
pub(super) fn decode(
    encoded: &[u8],
    length: usize,
    general: &mut General,
    planes: &mut [u8],
) -> Result<()> {
    let mut rest = encoded;
    if length > 0 {
        for plane in planes.chunks_exact_mut(length) {
            let cut = || damaged("a byte plane is cut off");
            let (head, after) = rest.split_first_chunk::<HEAD>().ok_or_else(cut)?;
            let [choice, a, b, c, d] = *head;
            let taken = backstay_format::width::index(u32::from_le_bytes([a, b, c, d]));
            let (coded, after) = after.split_at_checked(taken).ok_or_else(cut)?;
            decode_plane(choice, coded, general, plane)?;
            rest = after;
        }
    }
    if rest.is_empty() {
        Ok(())
    } else {
        Err(damaged("bytes follow the last byte plane"))
    }
}

fn decode_plane(choice: u8, coded: &[u8], general: &mut General, plane: &mut [u8]) -> Result<()> {
    match choice {
        choice::CONSTANT => match coded {
            [value] => plane.fill(*value),
            _ => return Err(damaged("a constant byte plane has not one byte")),
        },
        choice::RAW if coded.len() == plane.len() => plane.copy_from_slice(coded),
        choice::RAW => return Err(damaged("a raw byte plane has another length")),
        choice::ENTROPY => {
            if entropy::decode(coded, &mut general.entropy, plane)? != coded.len() {
                return Err(damaged("bytes follow a coded byte plane"));
            }
        }
        choice::ZSTD => general.unzstd(coded, plane)?,
        other => {
            let found = format!("choice of a byte plane is {other}, not 0 to 3");
            return Err(damaged(&found));
        }
    }
    Ok(())
}
