// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: write and read little-endian fields, and the frame around each head structure.
//! In: values, or bytes nobody has checked. Out: bytes, or values with an error that names the place.
//! Invariants: a decoder never reads beyond its bytes and never allocates on an unchecked number; an
//! encoder gives out no bytes that the decoder of their structure does not read as what was written, so
//! every limit stands in one place, the decoder.
//! Format: docs/format/store.md, section "Frame".

use crate::hash::checksum;
use crate::limits::{
    MESSAGE_VERSION_MAJOR, MESSAGE_VERSION_MINOR, STORE_VERSION_MAJOR, STORE_VERSION_MINOR,
};
use crate::width::to_u64;
use postcard::ser_flavors::Flavor;
use serde::Serialize;

/// Bytes of a frame before its body: magic 8, major 2, minor 2, length 4.
pub const FRAME_HEAD_BYTES: usize = 16;
/// Bytes of a frame after its body: XXH3-64 of all that stands before.
pub const FRAME_TAIL_BYTES: usize = 8;

/// Field of an error about an id that the format once had, and that no reader knows.
pub(crate) const GIVEN_UP: &str = "reserved id";
/// Major and minor version of a frame.
pub(crate) type Version = [u16; 2];
/// That of what stands in stores and archives.
const OF_STORES: Version = [STORE_VERSION_MAJOR, STORE_VERSION_MINOR];
/// That of messages.
pub(crate) const OF_MESSAGES: Version = [MESSAGE_VERSION_MAJOR, MESSAGE_VERSION_MINOR];

/// Bytes that are not what the format says: which structure, which field, where, expected and found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{structure}: {field} at byte {offset}: expected {expected}, found {found}")]
pub struct FormatError {
    /// Name of the structure.
    pub structure: &'static str,
    /// Name of the field.
    pub field: &'static str,
    /// Offset of the field in the structure, in bytes.
    pub offset: u64,
    /// What the format asks for.
    pub expected: String,
    /// What stands there.
    pub found: String,
}

impl FormatError {
    /// An error at `offset` of `structure`.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "callers pass temporaries of many types"
    )]
    pub fn new(
        structure: &'static str,
        field: &'static str,
        offset: u64,
        expected: impl ToString,
        found: impl ToString,
    ) -> Self {
        Self {
            structure,
            field,
            offset,
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }
    /// Whether the bytes are whole, as far as is known, and of a version or a kind that is not read here.
    pub fn is_unsupported(&self) -> bool {
        matches!(self.field, "version" | GIVEN_UP)
    }
}

/// Collects the little-endian fields of one structure.
///
/// The only way to its bytes is [`Encoder::finish`], which reads them back. So no method here checks a
/// limit: a count or a text that is too long for its field saturates, and the decoder refuses it.
#[derive(Debug, Clone)]
pub struct Encoder {
    structure: &'static str,
    bytes: Vec<u8>,
    framed: bool,
}

impl Encoder {
    /// An empty encoder of a `structure`.
    pub fn new(structure: &'static str) -> Self {
        Self {
            structure,
            bytes: Vec::new(),
            framed: false,
        }
    }
    /// An encoder of the body of a frame.
    pub fn framed(structure: &'static str, magic: [u8; 8]) -> Self {
        Self::framed_as(structure, magic, OF_STORES)
    }
    /// The same of another version.
    pub(crate) fn framed_as(structure: &'static str, magic: [u8; 8], version: Version) -> Self {
        let mut encoder = Self::new(structure);
        encoder.framed = true;
        let [major, minor] = version;
        // The length, when it is known.
        encoder.raw(&magic).u16(major).u16(minor).u32(0);
        encoder
    }
    /// Makes room for `more` bytes.
    pub fn room(&mut self, more: usize) -> &mut Self {
        self.bytes.reserve_exact(more);
        self
    }
    /// Appends one byte.
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes.push(value);
        self
    }
    /// Appends two bytes.
    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }
    /// Appends four bytes.
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }
    /// Appends eight bytes.
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }
    /// Appends bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }
    /// Appends a count in four bytes.
    pub fn count(&mut self, count: usize) -> &mut Self {
        self.u32(u32::try_from(count).unwrap_or(u32::MAX))
    }
    /// Appends a count in one byte.
    pub fn small_count(&mut self, count: usize) -> &mut Self {
        self.u8(u8::try_from(count).unwrap_or(u8::MAX))
    }
    /// Appends a text: its length in two bytes, then its bytes.
    pub fn text(&mut self, text: &str) -> &mut Self {
        let length = u16::try_from(text.len()).unwrap_or(u16::MAX);
        self.u16(length)
            .raw(&text.as_bytes()[..usize::from(length)])
    }
    /// Appends a value of a message.
    pub(crate) fn value(&mut self, value: &impl Serialize) -> Result<&mut Self, FormatError> {
        let structure = self.structure;
        postcard::serialize_with_flavor(value, &mut *self).map_err(|error| {
            let expected = "what can be said in bytes";
            FormatError::new(structure, "value", 0, expected, error)
        })?;
        Ok(self)
    }

    /// The bytes, which `decode` reads as `value`; where it does not, they are not written.
    pub fn finish<T, V: PartialEq<T> + ?Sized>(
        self,
        value: &V,
        decode: impl FnOnce(&[u8]) -> Result<T, FormatError>,
    ) -> Result<Vec<u8>, FormatError> {
        let structure = self.structure;
        let bytes = self.close();
        if *value == decode(&bytes)? {
            return Ok(bytes);
        }
        let found = "bytes that are read as another";
        Err(FormatError::new(
            structure,
            "value",
            0,
            "what can be said in bytes",
            found,
        ))
    }

    /// The bytes, with length and checksum if there is a frame around them.
    pub(crate) fn close(mut self) -> Vec<u8> {
        if self.framed {
            let length = self.bytes.len() + FRAME_TAIL_BYTES;
            let length = u32::try_from(length).unwrap_or(u32::MAX);
            self.bytes[FRAME_HEAD_BYTES - 4..FRAME_HEAD_BYTES]
                .copy_from_slice(&length.to_le_bytes());
            let sum = checksum(&self.bytes);
            self.u64(sum);
        }
        self.bytes
    }
}

/// Takes what postcard writes.
impl Flavor for &mut Encoder {
    type Output = ();

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.bytes.push(byte);
        Ok(())
    }
    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }
    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

/// Reads little-endian fields of one structure.
#[derive(Debug, Clone)]
pub struct Decoder<'a> {
    structure: &'static str,
    bytes: &'a [u8],
    position: usize,
    /// The frame is of a later minor version, which may have appended fields.
    newer: bool,
}

impl<'a> Decoder<'a> {
    /// A decoder over `bytes`, which are said to be a `structure`.
    pub fn new(structure: &'static str, bytes: &'a [u8]) -> Self {
        Self {
            structure,
            bytes,
            position: 0,
            newer: false,
        }
    }

    /// The same, where bytes left over at the end may be those of a later minor version.
    pub(crate) fn of_version(structure: &'static str, bytes: &'a [u8], newer: bool) -> Self {
        Self {
            newer,
            ..Self::new(structure, bytes)
        }
    }

    /// Where the next field stands, in bytes.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Bytes not read yet.
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.position
    }

    /// The error "`field` should be `expected`", at the place of the field just read of `width` bytes.
    pub fn refuse(
        &self,
        field: &'static str,
        width: usize,
        expected: impl ToString,
        found: impl ToString,
    ) -> FormatError {
        let offset = to_u64(self.position.saturating_sub(width));
        FormatError::new(self.structure, field, offset, expected, found)
    }

    /// Says of what was refused where in this structure it begins.
    pub(crate) fn at<T>(
        &self,
        start: usize,
        checked: Result<T, FormatError>,
    ) -> Result<T, FormatError> {
        checked.map_err(|error| FormatError {
            structure: self.structure,
            offset: to_u64(start),
            ..error
        })
    }

    /// The next `count` bytes.
    pub fn raw(&mut self, field: &'static str, count: usize) -> Result<&'a [u8], FormatError> {
        let end = self
            .position
            .checked_add(count)
            .filter(|&end| end <= self.bytes.len());
        let Some(end) = end else {
            return Err(FormatError::new(
                self.structure,
                field,
                to_u64(self.position),
                format!("{count} bytes"),
                format!("{} bytes", self.remaining()),
            ));
        };
        let bytes = &self.bytes[self.position..end];
        self.position = end;
        Ok(bytes)
    }

    /// The next `N` bytes as an array.
    pub fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], FormatError> {
        let mut array = [0; N];
        array.copy_from_slice(self.raw(field, N)?);
        Ok(array)
    }
    /// The next byte.
    pub fn u8(&mut self, field: &'static str) -> Result<u8, FormatError> {
        Ok(self.array::<1>(field)?[0])
    }
    /// The next two bytes.
    pub fn u16(&mut self, field: &'static str) -> Result<u16, FormatError> {
        Ok(u16::from_le_bytes(self.array(field)?))
    }
    /// The next four bytes.
    pub fn u32(&mut self, field: &'static str) -> Result<u32, FormatError> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }
    /// The next eight bytes.
    pub fn u64(&mut self, field: &'static str) -> Result<u64, FormatError> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    /// A `u32` that must lie in `low..=high`.
    pub fn u32_in(&mut self, field: &'static str, low: u32, high: u32) -> Result<u32, FormatError> {
        let value = self.u32(field)?;
        if (low..=high).contains(&value) {
            Ok(value)
        } else {
            Err(self.refuse(field, 4, format!("{low} to {high}"), value))
        }
    }

    /// A `u64` that must not exceed `high`.
    pub fn u64_max(&mut self, field: &'static str, high: u64) -> Result<u64, FormatError> {
        let value = self.u64(field)?;
        if value <= high {
            Ok(value)
        } else {
            Err(self.refuse(field, 8, format!("at most {high}"), value))
        }
    }

    /// Reserved bytes: they must be zero.
    pub fn zeros(&mut self, field: &'static str, count: usize) -> Result<(), FormatError> {
        if self.raw(field, count)?.iter().all(|&byte| byte == 0) {
            Ok(())
        } else {
            Err(self.refuse(field, count, "zeros", "other bytes"))
        }
    }

    /// A text of at most `max` bytes.
    pub fn text(&mut self, field: &'static str, max: usize) -> Result<String, FormatError> {
        let length = usize::from(self.u16(field)?);
        if length > max {
            return Err(self.refuse(field, 2, format!("at most {max} bytes"), length));
        }
        let bytes = self.raw(field, length)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(error) => Err(self.refuse(field, length, "UTF-8", error)),
        }
    }

    /// Refuses bytes left over, unless a later minor version may have appended them.
    pub fn end(&self) -> Result<(), FormatError> {
        if self.newer || self.remaining() == 0 {
            Ok(())
        } else {
            Err(self.refuse(
                "end",
                0,
                "no more bytes",
                format!("{} more", self.remaining()),
            ))
        }
    }
}

/// Puts a frame of a major version around bytes that nobody checked: what readers are tested with. A
/// structure is written by [`Encoder::finish`].
pub fn seal(magic: [u8; 8], major: u16, body: &[u8]) -> Vec<u8> {
    let mut frame = Encoder::framed_as("", magic, [major, 0]);
    frame.raw(body);
    frame.close()
}

/// Checks the frame at the front of `bytes` and returns a decoder of its body.
pub fn open<'a>(
    structure: &'static str,
    magic: [u8; 8],
    bytes: &'a [u8],
) -> Result<Decoder<'a>, FormatError> {
    open_as(structure, magic, OF_STORES, bytes)
}

/// The same of another version.
pub(crate) fn open_as<'a>(
    structure: &'static str,
    magic: [u8; 8],
    [ours, our_minor]: Version,
    bytes: &'a [u8],
) -> Result<Decoder<'a>, FormatError> {
    let mut head = Decoder::new(structure, bytes);
    let found: [u8; 8] = head.array("magic")?;
    if found != magic {
        return Err(head.refuse("magic", 8, show(&magic), show(&found)));
    }
    let major = head.u16("version")?;
    let minor = head.u16("minor version")?;
    let length = crate::width::index(head.u32("length")?);
    let least = FRAME_HEAD_BYTES + FRAME_TAIL_BYTES;
    if length < least || length > bytes.len() {
        return Err(head.refuse("length", 4, format!("{least} to {}", bytes.len()), length));
    }
    let (summed, tail) = bytes[..length].split_at(length - FRAME_TAIL_BYTES);
    let mut stored = [0; FRAME_TAIL_BYTES];
    stored.copy_from_slice(tail);
    let (stored, computed) = (u64::from_le_bytes(stored), checksum(summed));
    if stored != computed {
        return Err(FormatError::new(
            structure,
            "checksum",
            to_u64(summed.len()),
            format!("{computed:#018x}"),
            format!("{stored:#018x}"),
        ));
    }
    // Behind the checksum: what is whole is of another version, what is not is damaged.
    if major != ours {
        let at = to_u64(magic.len());
        return Err(FormatError::new(structure, "version", at, ours, major));
    }
    Ok(Decoder {
        structure,
        bytes: summed,
        position: FRAME_HEAD_BYTES,
        newer: minor > our_minor,
    })
}

/// The minor version that a frame names, unchecked: a writer leaves a store alone whose frames are
/// of a later one than its own.
pub fn frame_minor(bytes: &[u8]) -> Option<u16> {
    let field = bytes.get(10..12)?.first_chunk()?;
    Some(u16::from_le_bytes(*field))
}

fn show(magic: &[u8]) -> String {
    magic.escape_ascii().to_string()
}
