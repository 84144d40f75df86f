// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: one operation of a simulated network, and what may go wrong in it.
//! In from: the network. Out to: hooks of tests.

use backstay_format::wire::Span;
use backstay_net::ExposureId;

/// What goes wrong in one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The request never arrives, and the caller is told at once.
    Unreachable,
    /// The request never arrives, and the caller waits to its limit.
    Lost,
    /// The request is handled; its answer never arrives, and the caller is told at once.
    AnswerBroken,
    /// The request is handled; its answer never arrives, and the caller waits to its limit.
    AnswerLost,
    /// A bit of a byte that is read is flipped on the way; an answer arrives as nonsense.
    Corrupt,
    /// The request arrives twice and is handled twice, one after the other; the caller has the second answer.
    Repeated,
}

impl Fault {
    /// Each of those that the caller comes to know.
    pub const ALL: [Self; 5] = [
        Self::Unreachable,
        Self::Lost,
        Self::AnswerBroken,
        Self::AnswerLost,
        Self::Corrupt,
    ];
}

/// What one operation is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// A control message.
    Call {
        /// The request.
        request: Vec<u8>,
    },
    /// A question for what the owner says of ranges.
    Describe {
        /// Of which exposure.
        exposure: ExposureId,
        /// Which ranges.
        spans: Vec<Span>,
    },
    /// A read of memory that was offered, in which its owner takes no part.
    ReadPast {
        /// Names the memory.
        key: u64,
        /// So many bytes of it.
        length: u64,
    },
    /// A read through the owner.
    Read {
        /// From which exposure.
        exposure: ExposureId,
        /// Which range.
        span: Span,
    },
}

/// An operation that is about to begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// Its number in the network, from 1.
    pub number: u64,
    /// The node that begins it.
    pub from: String,
    /// The node it goes to.
    pub to: String,
    /// What it is.
    pub action: Action,
}
