// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what is sent: a value, as postcard writes it, in a frame with the version of messages.
//! In: values, or bytes that somebody sent. Out: bytes, or values that were checked.
//! Invariants: a reader allocates nothing that the bytes it has do not pay for, and takes each value in
//! one form only, so that what is accepted is written back as the same bytes; limits stand in
//! [`Check::check`].
//! Format: docs/format/agent.md, section "Frames".

use crate::bytes::{Encoder, FRAME_HEAD_BYTES, FormatError, OF_MESSAGES, open_as};
use crate::check::Check;
use crate::record_part::RecordPart;
use crate::width::to_u64;
use postcard::Deserializer;
use postcard::de_flavors::{Flavor, Slice};
use postcard::ser_flavors::Size;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// What is the value of a frame.
pub(crate) trait Message: Check + Serialize + DeserializeOwned + PartialEq {
    /// What errors call it.
    const STRUCTURE: &'static str;
    /// What its frame begins with.
    const MAGIC: [u8; 8];
}

/// A kind of messages: what errors call it, and what its frame begins with.
macro_rules! message {
    ($kind:ident, $structure:literal, $magic:expr) => {
        impl crate::message::Message for $kind {
            const STRUCTURE: &'static str = $structure;
            const MAGIC: [u8; 8] = *$magic;
        }

        impl $kind {
            /// Its bytes.
            pub fn encode(&self) -> Result<Vec<u8>, FormatError> {
                crate::message::encode(self)
            }

            /// The message at the front of `bytes`.
            pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
                crate::message::decode(bytes)
            }
        }
    };
}
pub(crate) use message;

/// The bytes of a message, which [`decode`] reads as it.
pub(crate) fn encode<M: Message>(message: &M) -> Result<Vec<u8>, FormatError> {
    let mut body = Encoder::framed_as(M::STRUCTURE, M::MAGIC, OF_MESSAGES);
    body.value(message)?;
    // What was written just now is in the shortest form.
    body.finish(message, |bytes| read(bytes).map(|(message, _)| message))
}

/// The message at the front of `bytes`.
pub(crate) fn decode<M: Message>(bytes: &[u8]) -> Result<M, FormatError> {
    let (message, length) = read::<M>(bytes)?;
    let shortest = postcard::serialize_with_flavor(&message, Size::default());
    if shortest == Ok(length) {
        return Ok(message);
    }
    let (expected, at) = ("the shortest bytes of it", to_u64(FRAME_HEAD_BYTES));
    Err(FormatError::new(
        M::STRUCTURE,
        "message",
        at,
        expected,
        "longer ones",
    ))
}

/// The message at the front of `bytes`, in whatever form, and how many bytes of the body it has.
fn read<M: Message>(bytes: &[u8]) -> Result<(M, usize), FormatError> {
    let mut body = open_as(M::STRUCTURE, M::MAGIC, OF_MESSAGES, bytes)?;
    let value = body.clone().raw("message", body.remaining())?;
    let (message, rest) = take::<M>(value).map_err(|error| {
        let kind = postcard::from_bytes::<u32>(value).unwrap_or_default();
        let found = format!("kind {kind}: {error}");
        let refused = || body.refuse("message", 0, "one of this version", found);
        RecordPart::refused(value).unwrap_or_else(refused)
    })?;
    body.at(FRAME_HEAD_BYTES, message.check())?;
    let length = value.len() - rest.len();
    body.raw("message", length)?;
    body.end()?;
    Ok((message, length))
}

/// The value at the front of `bytes`, and what follows it.
fn take<M: Message>(bytes: &[u8]) -> postcard::Result<(M, &[u8])> {
    let mut reader = Deserializer::from_flavor(Doubted(Slice::new(bytes)));
    let message = M::deserialize(&mut reader)?;
    Ok((message, reader.finalize()?))
}

/// Bytes that no list is believed to have the length of that it says: it grows with what is read of it.
struct Doubted<'a>(Slice<'a>);

impl<'a> Flavor<'a> for Doubted<'a> {
    type Remainder = &'a [u8];
    type Source = &'a [u8];

    fn pop(&mut self) -> postcard::Result<u8> {
        self.0.pop()
    }
    fn size_hint(&self) -> Option<usize> {
        Some(0)
    }
    fn try_take_n(&mut self, count: usize) -> postcard::Result<&'a [u8]> {
        self.0.try_take_n(count)
    }
    fn finalize(self) -> postcard::Result<&'a [u8]> {
        self.0.finalize()
    }
}

/// Bytes that a message carries as they are.
pub(crate) mod carried {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(bytes)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        <&[u8]>::deserialize(from).map(<[u8]>::to_vec)
    }
}
