// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what a protected file is beside its bytes: path, mode, time, length, and where its holes are.
//! In: the descriptor of a variable of bytes. Out: the same.
//! Invariants: the stretches lie in the file, share no byte, and are as long together as what is stored.
//! Format: docs/format/store.md, section "Files".

use crate::bytes::{Decoder, Encoder, FormatError};
use crate::limits::{COUNTER_MAX, FILE_MODE_MAX, FILE_PATH_BYTES_MAX, FILE_STRETCHES_MAX};
use crate::width::index;

const STRUCTURE: &str = "file";
const FLAG_ROUTED: u8 = 1;
const FLAG_HOLES: u8 = 2;
/// Nanoseconds of a second.
const SECOND_NS: u32 = 1_000_000_000;

/// A part of a file that has bytes: what lies between such parts is a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stretch {
    /// Where it begins in the file.
    pub start: u64,
    /// Its bytes.
    pub length: u64,
}

impl Stretch {
    /// Bytes of an encoded stretch.
    const BYTES: usize = 16;
}

/// What a protected file is, beside the bytes that its variable holds.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StoredFile {
    /// Its path, or its name in the set of files that it was routed with; any bytes but zero.
    pub path: Vec<u8>,
    /// It is of a set of routed files.
    pub routed: bool,
    /// Who may read, write and execute it.
    pub mode: u32,
    /// When it was written last: seconds since 1970.
    pub modified_s: i64,
    /// And nanoseconds of the next second.
    pub modified_ns: u32,
    /// How long it is, holes included.
    pub length_bytes: u64,
    /// What of it is stored, in the order in which it is; `None`: all of it.
    pub stretches: Option<Vec<Stretch>>,
}

impl StoredFile {
    /// Checks it as the file whose stored bytes are `stored_bytes`; the error says which rule is broken.
    pub fn validate(&self, stored_bytes: u64) -> Result<(), FormatError> {
        let refuse = |field, expected: String, found: String| {
            Err(FormatError::new(STRUCTURE, field, 0, expected, found))
        };
        let length = self.path.len();
        if length == 0 || length > FILE_PATH_BYTES_MAX || self.path.contains(&0) {
            let expected = format!("1 to {FILE_PATH_BYTES_MAX} bytes, none of them 0");
            return refuse("path", expected, format!("{length} bytes"));
        }
        if self.mode > FILE_MODE_MAX {
            let expected = format!("at most {FILE_MODE_MAX:#o}");
            return refuse("mode", expected, format!("{:#o}", self.mode));
        }
        if self.modified_ns >= SECOND_NS {
            let expected = format!("less than {SECOND_NS}");
            return refuse("nanoseconds", expected, self.modified_ns.to_string());
        }
        if self.length_bytes > COUNTER_MAX {
            let found = self.length_bytes.to_string();
            return refuse("length", format!("at most {COUNTER_MAX}"), found);
        }
        let Some(stretches) = &self.stretches else {
            let whole = self.length_bytes;
            return if whole == stored_bytes {
                Ok(())
            } else {
                refuse("length", stored_bytes.to_string(), whole.to_string())
            };
        };
        if stretches.len() > FILE_STRETCHES_MAX {
            let found = stretches.len().to_string();
            return refuse("stretches", format!("at most {FILE_STRETCHES_MAX}"), found);
        }
        self.validate_stretches(stretches, stored_bytes)
    }

    fn validate_stretches(
        &self,
        stretches: &[Stretch],
        stored_bytes: u64,
    ) -> Result<(), FormatError> {
        let refuse = |expected: &str, found: String| {
            let field = "stretches";
            Err(FormatError::new(STRUCTURE, field, 0, expected, found))
        };
        let mut by_start: Vec<&Stretch> = stretches.iter().collect();
        by_start.sort_unstable_by_key(|stretch| stretch.start);
        let (mut end, mut sum) = (0, 0u64);
        for stretch in by_start {
            let next = stretch.start.checked_add(stretch.length);
            let next = next.filter(|next| *next <= self.length_bytes);
            match next {
                Some(next) if stretch.length > 0 && stretch.start >= end => end = next,
                _ => {
                    return refuse(
                        "parts of the file that share nothing",
                        format!("{stretch:?}"),
                    );
                }
            }
            // They share nothing, so this is at most the file's length.
            sum += stretch.length;
        }
        if sum == stored_bytes {
            return Ok(());
        }
        refuse(
            "the bytes that are stored",
            format!("{sum}, not {stored_bytes}"),
        )
    }

    /// Appends its bytes.
    pub(crate) fn put(&self, encoder: &mut Encoder) {
        let routed = if self.routed { FLAG_ROUTED } else { 0 };
        let holes = if self.stretches.is_some() {
            FLAG_HOLES
        } else {
            0
        };
        encoder.u16(u16::try_from(self.path.len()).unwrap_or(u16::MAX));
        encoder.raw(&self.path).u8(routed | holes).u32(self.mode);
        encoder.u64(self.modified_s.cast_unsigned());
        encoder.u32(self.modified_ns).u64(self.length_bytes);
        if let Some(stretches) = &self.stretches {
            encoder.count(stretches.len());
            encoder.room(stretches.len() * Stretch::BYTES);
            for stretch in stretches {
                encoder.u64(stretch.start).u64(stretch.length);
            }
        }
    }

    /// Reads what [`Self::put`] wrote; it is not checked yet.
    pub(crate) fn decode(body: &mut Decoder<'_>) -> Result<Self, FormatError> {
        let length = usize::from(body.u16("path length")?);
        let path = body.raw("path", length)?.to_vec();
        let flags = body.u8("file flags")?;
        if flags & !(FLAG_ROUTED | FLAG_HOLES) != 0 {
            return Err(body.refuse("file flags", 1, "0 to 3", flags));
        }
        let mode = body.u32("mode")?;
        let modified_s = body.u64("modified")?.cast_signed();
        let modified_ns = body.u32("nanoseconds")?;
        let length_bytes = body.u64("length")?;
        let stretches = if flags & FLAG_HOLES == 0 {
            None
        } else {
            let count = index(body.u32("stretches")?);
            if count > FILE_STRETCHES_MAX {
                let most = format!("at most {FILE_STRETCHES_MAX}");
                return Err(body.refuse("stretches", 4, most, count));
            }
            let room = count.min(body.remaining() / Stretch::BYTES);
            let mut stretches = Vec::with_capacity(room);
            for _ in 0..count {
                let (start, length) = (body.u64("stretch")?, body.u64("stretch")?);
                stretches.push(Stretch { start, length });
            }
            Some(stretches)
        };
        Ok(Self {
            path,
            routed: flags & FLAG_ROUTED != 0,
            mode,
            modified_s,
            modified_ns,
            length_bytes,
            stretches,
        })
    }
}
