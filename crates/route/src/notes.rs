// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the memory in which a process notes what it wrote of files that several nodes write, and is given what it reads.
//! In from: the preload library, which maps it and notes. Out to: the agent, which reads it whenever somebody wants to know.
//! Invariants: a note is there before the call that wrote returns; it stays until the agent has taken it; that is asked for
//! when there is no room. The last note may grow until then: it is taken again.
//! Format: a head of two numbers: how many notes there ever were, how many bytes were read; then notes, of five numbers each,
//! in a ring; at [`BUFFER_AT`] the bytes that were read. Numbers have 8 bytes, of the node's order.

/// Folder of such files, in that of the agent.
pub const NOTES: &str = "notes";
/// Where the notes begin.
pub const HEAD_BYTES: usize = 64;
/// So many are in the ring.
pub const NOTES_MAX: u64 = 2048;
/// Numbers of one.
pub const WORDS: usize = 5;
/// Bytes of one.
pub const NOTE_BYTES: usize = WORDS * 8;
/// Where bytes that were read begin.
pub const BUFFER_AT: usize = 96 << 10;
/// So many are read at once.
pub const BUFFER_BYTES: usize = 1 << 20;
/// Writes that follow each other in the file, and within that time, are one.
pub const JOINED_NS: u64 = 100_000;

/// Bytes that a process wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Note {
    /// Which file of the process.
    pub id: u32,
    /// Where they begin.
    pub begin: u64,
    /// Where they end.
    pub end: u64,
    /// The node's clock during the first call.
    pub first_ns: u64,
    /// And during the last.
    pub last_ns: u64,
}

impl Note {
    /// Its numbers.
    pub fn words(&self) -> [u64; WORDS] {
        let id = u64::from(self.id);
        [id, self.begin, self.end, self.first_ns, self.last_ns]
    }

    /// The note that these are the bytes of; nothing where they are none.
    pub fn of(bytes: &[u8; NOTE_BYTES]) -> Option<Self> {
        let mut words = [0; WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        let [id, begin, end, first_ns, last_ns] = words;
        let id = u32::try_from(id).ok()?;
        (begin < end && first_ns <= last_ns).then_some(Self {
            id,
            begin,
            end,
            first_ns,
            last_ns,
        })
    }
}

/// Where the note of this number is.
pub fn place(number: u64) -> usize {
    let at = usize::try_from(number % NOTES_MAX).unwrap_or(0);
    HEAD_BYTES + at * NOTE_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_in_the_ring_and_end_before_the_buffer() {
        let last = place(NOTES_MAX - 1) + NOTE_BYTES;
        assert!(place(NOTES_MAX) == HEAD_BYTES && last <= BUFFER_AT);
        let note = Note {
            id: 7,
            begin: 5,
            end: 9,
            first_ns: 3,
            last_ns: 4,
        };
        let mut bytes = [0; NOTE_BYTES];
        for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(note.words()) {
            *to = word.to_le_bytes();
        }
        assert_eq!(Note::of(&bytes), Some(note));
        bytes[8] = 9;
        assert_eq!(Note::of(&bytes), None, "it is empty");
        assert_eq!(Note::of(&[0; NOTE_BYTES]), None);
    }
}
