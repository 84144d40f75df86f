// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the map of a part of a file that several nodes write: which of its bytes this node wrote.
//! Invariants: stretches ascend and do not overlap; none is empty, or ends beyond what an offset can say.
//! Format: docs/format/part.md.

use crate::bytes::{Decoder, Encoder, FRAME_HEAD_BYTES, FRAME_TAIL_BYTES, FormatError, open};
use crate::limits::PART_STRETCHES_MAX;
use crate::width::{index, to_u64};

const PART: &str = "map of a part";
const PART_MAGIC: [u8; 8] = *b"BKSTPART";
/// Bytes behind the map: where it begins.
pub const PART_TAIL_BYTES: usize = 8;
/// How a stretch is said. Layout 0, which development versions wrote, has no times.
const LAYOUT: u32 = 2;
/// Offsets are below that.
const OFFSET_MAX: u64 = 1 << 62;

/// Bytes that a node wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartStretch {
    /// Where they begin.
    pub offset: u64,
    /// How many they are.
    pub length_bytes: u64,
    /// In which opening: what has a higher age was written later, by whichever node.
    pub age: u64,
    /// When in it: not before that, in nanoseconds of one clock of all nodes.
    pub first_ns: u64,
    /// And not after that.
    pub last_ns: u64,
}

impl PartStretch {
    /// Bytes of one.
    pub const BYTES: usize = 40;

    /// Where they end.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.length_bytes)
    }

    /// Whether it is known that the other was written after it.
    pub fn is_before(&self, other: &Self) -> bool {
        self.age < other.age || self.age == other.age && self.last_ns < other.first_ns
    }
}

/// Which bytes of a file a node wrote.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PartMap {
    /// The file's length, as far as this node made it longer.
    pub length_bytes: u64,
    /// What it wrote.
    pub stretches: Vec<PartStretch>,
}

impl PartMap {
    /// Its bytes.
    pub fn encode(&self) -> Result<Vec<u8>, FormatError> {
        let mut body = Encoder::framed(PART, PART_MAGIC);
        body.room(self.stretches.len().saturating_mul(PartStretch::BYTES));
        body.u64(self.length_bytes)
            .count(self.stretches.len())
            .u32(LAYOUT);
        for stretch in &self.stretches {
            body.u64(stretch.offset)
                .u64(stretch.length_bytes)
                .u64(stretch.age)
                .u64(stretch.first_ns)
                .u64(stretch.last_ns);
        }
        body.finish(self, Self::decode)
    }

    /// The map that `bytes` are.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut body: Decoder<'_> = open(PART, PART_MAGIC, bytes)?;
        let length_bytes = body.u64_max("length", OFFSET_MAX)?;
        let count = index(body.u32_in("stretches", 0, PART_STRETCHES_MAX)?);
        body.u32_in("layout", LAYOUT, LAYOUT)?;
        let needed = count.saturating_mul(PartStretch::BYTES);
        if needed > body.remaining() {
            let most = body.remaining() / PartStretch::BYTES;
            return Err(body.refuse("stretches", 8, format!("at most {most}"), count));
        }
        let mut stretches = Vec::with_capacity(count);
        let mut end = 0;
        for _ in 0..count {
            let offset = body.u64("offset")?;
            if offset < end || offset > OFFSET_MAX {
                let expected = format!("{end} to {OFFSET_MAX}");
                return Err(body.refuse("offset", 8, expected, offset));
            }
            let length = body.u64("stretch length")?;
            let most = length_bytes.saturating_sub(offset);
            if length == 0 || length > most {
                return Err(body.refuse("stretch length", 8, format!("1 to {most}"), length));
            }
            let age = body.u64("age")?;
            let first_ns = body.u64("first time")?;
            let last_ns = body.u64("last time")?;
            if last_ns < first_ns {
                let expected = format!("at least {first_ns}");
                return Err(body.refuse("last time", 8, expected, last_ns));
            }
            end = offset + length;
            stretches.push(PartStretch {
                offset,
                length_bytes: length,
                age,
                first_ns,
                last_ns,
            });
        }
        body.end()?;
        Ok(Self {
            length_bytes,
            stretches,
        })
    }

    /// What stands behind the content of a part, which is `content_bytes` long: the map, and where it begins.
    pub fn behind(&self, content_bytes: u64) -> Result<Vec<u8>, FormatError> {
        let mut bytes = self.encode()?;
        bytes.extend(content_bytes.to_le_bytes());
        Ok(bytes)
    }

    /// Where the map of a part begins, of which these are the last bytes; the part has `part_bytes` in all.
    pub fn place(
        tail: [u8; PART_TAIL_BYTES],
        part_bytes: u64,
    ) -> Result<std::ops::Range<u64>, FormatError> {
        let begin = u64::from_le_bytes(tail);
        let end = part_bytes.saturating_sub(to_u64(PART_TAIL_BYTES));
        let most = to_u64(
            FRAME_HEAD_BYTES
                + FRAME_TAIL_BYTES
                + 16
                + PartStretch::BYTES * index(PART_STRETCHES_MAX),
        );
        if begin >= end || end - begin > most {
            let expected = format!("{} to {end}, and less", end.saturating_sub(most));
            return Err(FormatError::new(PART, "place", end, expected, begin));
        }
        Ok(begin..end)
    }

    /// The highest age in it.
    pub fn age(&self) -> u64 {
        let ages = self.stretches.iter().map(|stretch| stretch.age);
        ages.max().unwrap_or(0)
    }
}
