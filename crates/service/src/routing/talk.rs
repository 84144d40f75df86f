// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what the routing agents of a start say to each other.
//! In from: `circle`, `nodes`. Out to: the endpoint of another agent, which is of the same start and the same program.
//! Invariants: nothing of it is kept, or read by another version; a reader allocates nothing that the bytes it has do
//! not pay for.

use backstay_base::error::{Error, ErrorKind, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// What is seen of a file by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct About {
    pub(super) length: u64,
    /// Permissions.
    pub(super) mode: u32,
    /// Seconds since 1970, and nanoseconds.
    pub(super) modified: (i64, u32),
}

/// A name as the index has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place {
    /// The agent whose node has the file.
    pub(super) owner: u32,
    /// Its last close among all closes; another file under the name has another.
    pub(super) order: u64,
    pub(super) about: About,
}

/// What one agent asks another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Request {
    /// Of a collective call: what `from` and those below it bring to turn `turn`. May be said again.
    Bring {
        from: u32,
        turn: u64,
        call: Call,
        #[serde(with = "carried")]
        bytes: Vec<u8>,
    },
    /// `from` can take part in no collective call any more.
    Failed { words: String },
    /// `from` has all that it waits for.
    Bye { from: u32 },
    /// Whether it is there.
    Ping,
    /// Of the index: `rank` is about to write `name`.
    Claim {
        rank: u32,
        name: Vec<u8>,
        flags: u32,
    },
    /// It could not take it over from `to`.
    Return { name: Vec<u8>, to: u32 },
    /// The file of `name`, on the node of `rank`, is closed.
    Publish {
        rank: u32,
        name: Vec<u8>,
        about: About,
        /// Of a part, in which opening it was written last.
        age: u64,
    },
    /// Of the index: `rank` is about to write its part of a file that several nodes write.
    ClaimPart {
        rank: u32,
        part: Vec<u8>,
        flags: u32,
    },
    /// Of the index: the parts of a file.
    Parts { name: Vec<u8> },
    /// Of the index: a file of several parts is removed.
    RemoveParts { name: Vec<u8> },
    /// Of the node: how long its part is now.
    Length { part: Vec<u8> },
    /// Of the node: nothing of its part is beyond `length` any more.
    Cut { part: Vec<u8>, length: u64 },
    /// Of the node: what it has of bytes of its part, which follow the answer, one stretch after the other.
    Piece {
        part: Vec<u8>,
        offset: u64,
        length: u64,
    },
    /// Of the first agent: what its clock says.
    Clock,
    /// `rank` has no file of that name any more.
    Lose { rank: u32, name: Vec<u8> },
    /// What is known of a name.
    Look { name: Vec<u8> },
    /// All names directly in a folder.
    List { folder: Vec<u8> },
    /// Of the node: the first bytes of a file from `offset` on that are not in a hole; they follow the answer.
    Read { name: Vec<u8>, offset: u64 },
    /// Another node has the file of `name` now; `gone`: and since then nobody under this name.
    Displace { name: Vec<u8>, gone: Option<u64> },
    /// Remove a file of this node.
    Remove { name: Vec<u8> },
    /// A folder was renamed.
    RenameFolder { from: Vec<u8>, to: Vec<u8> },
}

/// Which collective call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Call {
    /// All get what all brought.
    Allgather,
    /// All get the largest of each value.
    Max,
    /// One gets what all brought.
    Gather(u32),
    /// All get what one brought.
    Broadcast(u32),
    /// All get what the first makes of what all brought.
    Decide,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Answer {
    Done,
    /// The number of an error, for the program.
    Refused(i32),
    /// The outcome of a turn.
    Outcome(#[serde(with = "carried")] Vec<u8>),
    /// The turn is not over.
    NotYet,
    /// Claimed, and if the file is on another node, on which.
    Claimed(Option<u32>),
    /// The place of a close among all closes.
    Published(u64),
    /// Who had the file before, and the place of that among all closes.
    Lost(Vec<u32>, u64),
    Found(Option<Place>),
    Listed(Vec<(Vec<u8>, Place)>),
    /// In which opening a part is written, and its place among all closes if it is new.
    ClaimedPart {
        age: u64,
        born: Option<u64>,
    },
    /// Each part, and whether somebody writes it.
    Parts(Vec<(Vec<u8>, Place, bool)>),
    /// Who had which part, and the place of their end among all closes.
    PartsRemoved(Vec<(Vec<u8>, u32)>, u64),
    Length(u64),
    /// How long a part is, up to where this says all of it, and which stretches it has: offset, length, age and times.
    Piece {
        length: u64,
        until: u64,
        stretches: Vec<[u64; 5]>,
    },
    Clock(u64),
    /// The file as it is now, before the bytes: it is the same one as long as this is. `whole`: nobody died who wrote it.
    /// The bytes begin at `at`: before is a hole.
    Bytes {
        about: About,
        inode: u64,
        whole: bool,
        at: u64,
    },
}

pub(super) fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    postcard::to_allocvec(value)
        .map_err(|error| Error::caused(ErrorKind::Internal, "a message of a routing agent", error))
}

/// Reads a value; what stands behind it.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, &[u8])> {
    postcard::take_from_bytes(bytes).map_err(|error| {
        let context = "a message of a routing agent that is none";
        Error::caused(ErrorKind::PeerUnreachable, context, error)
    })
}

/// Bytes as they are.
mod carried {
    use serde::de::{Deserializer, Error, Visitor};
    use serde::ser::Serializer;
    use std::fmt::{Formatter, Result as FormatResult};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(bytes)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        from.deserialize_bytes(Bytes)
    }

    struct Bytes;

    impl Visitor<'_> for Bytes {
        type Value = Vec<u8>;
        fn expecting(&self, out: &mut Formatter<'_>) -> FormatResult {
            out.write_str("bytes")
        }
        fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
            Ok(bytes.to_vec())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_is_heard_and_nonsense_is_refused() {
        let said = Request::Bring {
            from: 3,
            turn: 9,
            call: Call::Gather(2),
            bytes: vec![0, 255, 7],
        };
        let bytes = encode(&said).expect("bytes");
        assert_eq!(decode::<Request>(&bytes).expect("heard"), (said, &[][..]));
        for length in 0..bytes.len() {
            assert!(decode::<Request>(&bytes[..length]).is_err(), "{length}");
        }
        assert!(decode::<Request>(&[99; 40]).is_err());
        // A length that is not there.
        assert!(decode::<Answer>(&[2, 0xff, 0xff, 0xff, 0xff, 0x0f, 1]).is_err());
    }
}
