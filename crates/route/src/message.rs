// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what processes of a program tell the agent, and its answers.
//! In from: the preload library, or who is told the calls of processes. Out to: the agent.
//! Invariants: a message is one packet of a socket that keeps packets apart; a connection is one process's, and what
//! it does not say before its connection ends was not done: an orderly close is told, a death is not.
//! Format: a byte that says which; two numbers of 4 bytes, little-endian; the first name's length, 4 bytes; the first
//! name; the second name. An answer is an error number of 4 bytes, little-endian, 0 if all is well.

/// The longest message.
pub const BYTES_MAX: usize = 16 << 10;

/// What a message says. Those marked so are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// This process is about to open `first` for writing, with the flags `value`, as its file `id`. Answered.
    Open,
    /// That open failed.
    NotOpened,
    /// The file `id` is closed for writing; `value` is 0 if that went well. Answered where there are other nodes.
    Closed,
    /// This process has `first` open as its file `id`, since it is the child of one that had.
    Inherited,
    /// This process has `first` open as its file `id`, since what it was before it began anew (exec) had.
    TakenOver,
    /// Remove `first`. Answered.
    Remove,
    /// Rename `first` to `second`, with the flags `value` of renameat2; `id` says which of them are routed. Answered.
    Rename,
    /// The folder `first` is now `second`. Answered.
    RenameFolder,
    /// This process begins to end, with the status `value`.
    Leaving,
    /// All that this process wrote is in its files; its status is `value`.
    Bye,
    /// Show size and times of `first`, which is not on this node, in the folder [`crate::FAR`]. Answered.
    Look,
    /// Put `first`, which is not on this node, in the folder [`crate::NEAR`]. Answered.
    Fetch,
    /// The file in the folder [`crate::notes::NOTES`] that has the name `first` is where this process notes what it writes of
    /// files that several nodes write. Answered: then it has no name any more.
    Notes,
    /// There is no room for another note: all are to be taken. Answered.
    Full,
    /// Bytes of `first`, which several nodes write: `second` has where they begin and how many they are, 8 bytes each,
    /// little-endian; they are put where this process has its notes. Answered.
    Read,
    /// `first`, which several nodes write, shall be so long as `second` says, 8 bytes, little-endian, and is longer. Answered.
    Cut,
    /// Show all that other nodes have in the folder `first`, in the folder [`crate::FAR`]. Answered.
    List,
    /// This connection is of the process `value`, whose calls are told to who made it. Said first.
    SpeaksFor,
}

const KINDS: [Kind; 18] = [
    Kind::Open,
    Kind::NotOpened,
    Kind::Closed,
    Kind::Inherited,
    Kind::TakenOver,
    Kind::Remove,
    Kind::Rename,
    Kind::RenameFolder,
    Kind::Leaving,
    Kind::Bye,
    Kind::Look,
    Kind::Fetch,
    Kind::Notes,
    Kind::Full,
    Kind::Read,
    Kind::Cut,
    Kind::List,
    Kind::SpeaksFor,
];

/// Of [`Kind::Rename`]: the first name is routed.
pub const FIRST_ROUTED: u32 = 1;
/// The second name is routed.
pub const SECOND_ROUTED: u32 = 2;

/// A message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    /// What it says.
    pub kind: Kind,
    /// Which file of the process.
    pub id: u32,
    /// Flags, or a status.
    pub value: i32,
    /// An absolute path.
    pub first: &'a [u8],
    /// Another.
    pub second: &'a [u8],
}

impl<'a> Message<'a> {
    /// One without names.
    pub fn plain(kind: Kind, id: u32, value: i32) -> Self {
        Self {
            kind,
            id,
            value,
            first: &[],
            second: &[],
        }
    }

    /// One with one name.
    pub fn named(kind: Kind, id: u32, value: i32, first: &'a [u8]) -> Self {
        Self {
            first,
            ..Self::plain(kind, id, value)
        }
    }

    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let kind = KINDS.iter().position(|kind| *kind == self.kind);
        let kind = u8::try_from(kind.unwrap_or_default()).unwrap_or_default();
        let length = u32::try_from(self.first.len()).unwrap_or(u32::MAX);
        let mut bytes = vec![kind];
        bytes.extend(self.id.to_le_bytes());
        bytes.extend(self.value.to_le_bytes());
        bytes.extend(length.to_le_bytes());
        bytes.extend(self.first);
        bytes.extend(self.second);
        bytes
    }

    /// Reads one; nothing where it is none.
    pub fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (&kind, rest) = bytes.split_first()?;
        let (id, rest) = rest.split_first_chunk()?;
        let (value, rest) = rest.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
        let (first, second) = rest.split_at_checked(length)?;
        Some(Self {
            kind: *KINDS.get(usize::from(kind))?,
            id: u32::from_le_bytes(*id),
            value: i32::from_le_bytes(*value),
            first,
            second,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_is_heard() {
        for kind in KINDS {
            let said = Message {
                kind,
                id: 7,
                value: -5,
                first: b"/a/\xff",
                second: b"/b",
            };
            assert_eq!(Message::decode(&said.encode()), Some(said));
        }
        let plain = Message::plain(Kind::Bye, 0, 1);
        assert_eq!(Message::decode(&plain.encode()), Some(plain));
    }

    #[test]
    fn what_is_no_message_is_none() {
        let bytes = Message {
            kind: Kind::Open,
            id: 1,
            value: 2,
            first: b"abc",
            second: b"",
        }
        .encode();
        for length in 0..bytes.len() {
            assert_eq!(Message::decode(&bytes[..length]), None, "{length}");
        }
        let mut other = bytes.clone();
        other[0] = 99;
        assert_eq!(Message::decode(&other), None);
        other = bytes;
        other[9] = 200;
        assert_eq!(Message::decode(&other), None);
    }
}
