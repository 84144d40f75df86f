// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the one error of the engine: what kind, in which context, caused by what.
//! Invariants: the number of a kind is its status in C and its class in Python, and never changes;
//! the kind says what the caller can do; a cause (errno among them) is kept, never put into words.

use std::fmt;

/// Result of the engine's calls.
pub type Result<T> = std::result::Result<T, Error>;

/// What a caller can do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// Nothing was wrong: there is no checkpoint yet, so start from the beginning.
    StartFresh,
    /// Try again later.
    Retry,
    /// Restore an older checkpoint.
    FallBack,
    /// Go on without this store: the application runs, the last checkpoint stays.
    Degrade,
    /// Change the call or the configuration.
    Reconfigure,
    /// Close the session; what was committed stays.
    Fatal,
    /// A defect of Backstay: report it.
    Bug,
}

/// Kind of an error. The discriminant is the status in C.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum ErrorKind {
    /// There is nothing to restore: this is the first start of the job.
    NoCheckpoint = 1,
    /// An argument of the call is wrong.
    InvalidArgument = 10,
    /// A variable is not stored under this name, type or shape.
    VariableMismatch = 11,
    /// The configuration is wrong.
    Configuration = 12,
    /// The store has too little space.
    StoreFull = 20,
    /// The store is in use by another job.
    StoreBusy = 21,
    /// The file system refused an operation.
    StoreIo = 22,
    /// A sync failed: this session can write no more checkpoints.
    StoreFailed = 23,
    /// What is stored could not be read, so nothing is known of it, and nothing was given up.
    Unreadable = 24,
    /// A checkpoint that was started before has failed; the call that says so did nothing itself.
    EarlierFailed = 25,
    /// Bytes are not what their checksum says.
    Corrupt = 30,
    /// The checkpoint asked for is not retained, or not complete.
    NotRetained = 31,
    /// A wait of ours reached its limit.
    Timeout = 40,
    /// The communicator failed.
    Communicator = 41,
    /// Another process of the job is gone.
    PeerFailed = 42,
    /// Another node cannot be reached, or does not answer as it should.
    PeerUnreachable = 43,
    /// This platform or build cannot do it.
    Unsupported = 50,
    /// A panic was caught, or an invariant does not hold.
    Internal = 60,
}

impl ErrorKind {
    /// All kinds, in order of their numbers.
    pub const ALL: [Self; 18] = [
        Self::NoCheckpoint,
        Self::InvalidArgument,
        Self::VariableMismatch,
        Self::Configuration,
        Self::StoreFull,
        Self::StoreBusy,
        Self::StoreIo,
        Self::StoreFailed,
        Self::Unreadable,
        Self::EarlierFailed,
        Self::Corrupt,
        Self::NotRetained,
        Self::Timeout,
        Self::Communicator,
        Self::PeerFailed,
        Self::PeerUnreachable,
        Self::Unsupported,
        Self::Internal,
    ];

    /// Its number: the status in C.
    pub const fn code(self) -> i32 {
        self as i32
    }
    /// The kind with this number.
    pub fn from_code(code: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }
    /// Whether it proves that what was looked for cannot be had where it was looked for: what was read is
    /// not what was written, or does not name it. Only this sends a job to an older checkpoint.
    pub const fn proves_loss(self) -> bool {
        matches!(self, Self::Corrupt | Self::NotRetained)
    }
    /// Whether a read could not be made, or somebody not be reached: nothing is known then of what is
    /// stored. It is tried again, had from elsewhere, or said; nothing is given up for it.
    pub const fn leaves_open(self) -> bool {
        matches!(
            self,
            Self::StoreBusy
                | Self::StoreIo
                | Self::StoreFailed
                | Self::Unreadable
                | Self::Timeout
                | Self::PeerFailed
                | Self::PeerUnreachable
        )
    }
    /// Whether the session goes on as it was.
    pub const fn is_passing(self) -> bool {
        matches!(
            self.advice(),
            Advice::Retry | Advice::FallBack | Advice::Degrade
        )
    }
    /// What a caller can do about it.
    pub const fn advice(self) -> Advice {
        match self {
            Self::NoCheckpoint => Advice::StartFresh,
            Self::StoreBusy | Self::Unreadable | Self::EarlierFailed | Self::Timeout => {
                Advice::Retry
            }
            Self::Corrupt | Self::NotRetained => Advice::FallBack,
            Self::StoreFull | Self::StoreIo | Self::PeerUnreachable => Advice::Degrade,
            Self::InvalidArgument
            | Self::VariableMismatch
            | Self::Configuration
            | Self::Unsupported => Advice::Reconfigure,
            Self::StoreFailed | Self::Communicator | Self::PeerFailed => Advice::Fatal,
            Self::Internal => Advice::Bug,
        }
    }
    /// Its name in C.
    pub const fn c_name(self) -> &'static str {
        match self {
            Self::NoCheckpoint => "BACKSTAY_NO_CHECKPOINT",
            Self::InvalidArgument => "BACKSTAY_INVALID_ARGUMENT",
            Self::VariableMismatch => "BACKSTAY_VARIABLE_MISMATCH",
            Self::Configuration => "BACKSTAY_CONFIGURATION",
            Self::StoreFull => "BACKSTAY_STORE_FULL",
            Self::StoreBusy => "BACKSTAY_STORE_BUSY",
            Self::StoreIo => "BACKSTAY_STORE_IO",
            Self::StoreFailed => "BACKSTAY_STORE_FAILED",
            Self::Unreadable => "BACKSTAY_UNREADABLE",
            Self::EarlierFailed => "BACKSTAY_EARLIER_FAILED",
            Self::Corrupt => "BACKSTAY_CORRUPT",
            Self::NotRetained => "BACKSTAY_NOT_RETAINED",
            Self::Timeout => "BACKSTAY_TIMEOUT",
            Self::Communicator => "BACKSTAY_COMMUNICATOR",
            Self::PeerFailed => "BACKSTAY_PEER_FAILED",
            Self::PeerUnreachable => "BACKSTAY_PEER_UNREACHABLE",
            Self::Unsupported => "BACKSTAY_UNSUPPORTED",
            Self::Internal => "BACKSTAY_INTERNAL",
        }
    }
    /// What to do about it, for docs/reference/errors.md.
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::NoCheckpoint => "Nothing: start from the beginning. The memory was not touched.",
            Self::InvalidArgument => "Correct the call. The message names the argument.",
            Self::VariableMismatch => {
                "Protect the variable as it is stored; the message shows both sides. \
                 `stored_shape` tells the shape beforehand."
            }
            Self::Configuration => "Correct the setting that the message names.",
            Self::StoreFull => {
                "Go on: the last checkpoint stays. Free space, raise `reserve_bytes` or the memory \
                 limit, or set `store_path`; the message says how much is short."
            }
            Self::StoreBusy => {
                "End the other job that the message names, or give this one another `job` or \
                 `store_path`."
            }
            Self::StoreIo => {
                "Go on: the last checkpoint stays, and the next one tries again. See the cause that \
                 the message ends with."
            }
            Self::StoreFailed => {
                "Go on without checkpoints, or stop and start again: the last checkpoint stays. \
                 Look for a failing device in the system's log."
            }
            Self::Unreadable => {
                "Start again when the device, the file system or the node that the message names can \
                 be read: nothing was given up. To go on from an older checkpoint, and give up the \
                 newer, name it: `restore_checkpoint`, or `restore_from`."
            }
            Self::EarlierFailed => {
                "Make the same call again: only the checkpoint that was started before is lost, and the one \
                 before it stays. The message says why it failed."
            }
            Self::Corrupt => {
                "After a restore: every older checkpoint was tried too. Restore from level 2 or 3 \
                 where there is one, or start from the beginning. The message names file, structure \
                 and offset."
            }
            Self::NotRetained => "Ask for one of the checkpoints that the message lists.",
            Self::Timeout => {
                "Try again in the next checkpoint. Look for a stopped or overloaded process, or \
                 raise `timeout_ms`."
            }
            Self::Communicator => "Close the session: the processes cannot agree any more.",
            Self::PeerFailed => {
                "Close the session, and start the job again from its last checkpoint."
            }
            Self::PeerUnreachable => {
                "Go on: what is on this node stays, and what needs the other node is tried again. \
                 Look whether the node that the message names runs and can be reached."
            }
            Self::Unsupported => "Use what the message names instead.",
            Self::Internal => {
                "Close the session, and report the message. What was committed stays."
            }
        }
    }
    /// What it means, in a few words.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::NoCheckpoint => "no checkpoint to restore",
            Self::InvalidArgument => "invalid argument",
            Self::VariableMismatch => "variable does not match the checkpoint",
            Self::Configuration => "wrong configuration",
            Self::StoreFull => "store is full",
            Self::StoreBusy => "store is in use",
            Self::StoreIo => "store input/output error",
            Self::StoreFailed => "store failed",
            Self::Unreadable => "could not be read",
            Self::EarlierFailed => "a checkpoint started before failed",
            Self::Corrupt => "damaged",
            Self::NotRetained => "checkpoint not retained",
            Self::Timeout => "time limit reached",
            Self::Communicator => "communicator failed",
            Self::PeerFailed => "a process of the job is gone",
            Self::PeerUnreachable => "another node cannot be reached",
            Self::Unsupported => "not supported here",
            Self::Internal => "defect in Backstay",
        }
    }
}

/// An error: kind, context, cause.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    context: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
    second_hand: bool,
}

impl Error {
    /// An error of `kind`; `context` names what and where, and what to do next.
    pub fn new(kind: ErrorKind, context: impl Into<String>) -> Self {
        Self {
            kind,
            context: context.into(),
            source: None,
            second_hand: false,
        }
    }
    /// The same with its cause.
    pub fn caused(
        kind: ErrorKind,
        context: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self {
            kind,
            context: context.into(),
            source: Some(source.into()),
            second_hand: false,
        }
    }
    /// A file system error on `what`; a full disk, and a file larger than may be, is [`ErrorKind::StoreFull`]. A device that decodes what
    /// it reads wraps an error of ours, whose kind counts.
    pub fn io(what: impl Into<String>, source: std::io::Error) -> Self {
        let inner = source.get_ref().and_then(|inner| inner.downcast_ref());
        if let Some(kind) = inner.map(Self::kind) {
            return Self::caused(kind, what, source);
        }
        let full = matches!(
            source.kind(),
            std::io::ErrorKind::StorageFull
                | std::io::ErrorKind::QuotaExceeded
                | std::io::ErrorKind::FileTooLarge
        );
        let kind = if full {
            ErrorKind::StoreFull
        } else {
            ErrorKind::StoreIo
        };
        Self::caused(kind, what, source)
    }
    /// What stands in `place`, or came from there, is not what the format says: damage, or, where it is whole,
    /// another version or an id that was given up.
    pub fn malformed(place: impl Into<String>, source: backstay_format::FormatError) -> Self {
        let kind = if source.is_unsupported() {
            ErrorKind::Unsupported
        } else {
            ErrorKind::Corrupt
        };
        Self::caused(kind, place, source)
    }
    /// `what` cannot be said in the format, so nothing of it was written.
    pub fn unwritable(what: impl Into<String>, source: backstay_format::FormatError) -> Self {
        Self::caused(ErrorKind::InvalidArgument, what, source)
    }
    /// What kind it is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
    /// The context without the kind and the cause.
    pub fn context(&self) -> &str {
        &self.context
    }
    /// Whether the same may go well a little later: a read or a peer that failed, and not because the file
    /// system said for good that there is no such file, or no right to it.
    pub fn may_pass(&self) -> bool {
        use std::io::ErrorKind as Io;
        let for_good = |error: &std::io::Error| {
            matches!(
                error.kind(),
                Io::NotFound
                    | Io::PermissionDenied
                    | Io::IsADirectory
                    | Io::NotADirectory
                    | Io::InvalidInput
                    | Io::Unsupported
            )
        };
        let source = self.source.as_ref();
        let cause = source.and_then(|source| source.downcast_ref::<std::io::Error>());
        self.kind.leaves_open() && !cause.is_some_and(for_good)
    }
    /// The same for somebody else: its kind, and its causes in words.
    #[must_use]
    pub fn again(&self) -> Self {
        self.as_kind(self.kind)
    }
    /// The same words, causes among them, as an error of `kind`.
    #[must_use]
    pub fn as_kind(&self, kind: ErrorKind) -> Self {
        Self {
            second_hand: self.second_hand,
            ..Self::new(kind, self.words())
        }
    }
    /// Its context and its causes, without the kind.
    pub fn words(&self) -> String {
        let mut text = self.context.clone();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        text
    }
    /// Marks an error that only says that another rank has one, whose words are better.
    #[must_use]
    pub fn second_hand(mut self) -> Self {
        self.second_hand = true;
        self
    }
    /// Whether another rank has the words for it.
    pub fn is_second_hand(&self) -> bool {
        self.second_hand
    }
    /// The same error with `prefix` before its context.
    #[must_use]
    pub fn within(mut self, prefix: &str) -> Self {
        self.context = format!("{prefix}: {}", self.context);
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.meaning(), self.words())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| &**source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_and_found_again() {
        for kind in ErrorKind::ALL {
            assert_eq!(ErrorKind::from_code(kind.code()), Some(kind));
        }
        assert_eq!(ErrorKind::from_code(0), None);
    }

    #[test]
    fn what_proves_a_loss_leaves_nothing_open() {
        for kind in ErrorKind::ALL {
            assert!(!(kind.proves_loss() && kind.leaves_open()), "{kind:?}");
        }
        for errno in [4, 5, 11, 24, 103, 110, 116] {
            let error = Error::io("x", std::io::Error::from_raw_os_error(errno));
            assert!(error.kind().leaves_open(), "{error}");
        }
        let inner = Error::new(ErrorKind::Timeout, "no answer");
        let error = Error::io("reading x", std::io::Error::other(inner));
        assert_eq!(error.again().to_string(), error.to_string());
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert_eq!(error.as_kind(ErrorKind::Unreadable).words(), error.words());
    }

    #[test]
    fn a_full_disk_is_store_full_and_keeps_errno() {
        let error = Error::io("writing x", std::io::Error::from_raw_os_error(28));
        assert_eq!(error.kind(), ErrorKind::StoreFull);
        assert!(error.to_string().contains("os error 28"), "{error}");
    }
}
