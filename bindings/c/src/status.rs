// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what every call returns, and the text that goes with it.
//! Invariants: the numbers are those of the engine's `ErrorKind` and never change; a message stays
//! where it is until the next failure of the same session or thread.

use crate::boundary;
use crate::pointer;
use crate::session::Session;
use engine::{Error, ErrorKind};
use std::ffi::{CStr, c_char};

/// The call did what it was asked for.
pub const BACKSTAY_OK: i32 = 0;
/// There is nothing to restore: this is the first start of the job. Not a failure.
pub const BACKSTAY_NO_CHECKPOINT: i32 = 1;
/// An argument of the call is wrong.
pub const BACKSTAY_INVALID_ARGUMENT: i32 = 10;
/// A variable is not stored under this name, type or shape.
pub const BACKSTAY_VARIABLE_MISMATCH: i32 = 11;
/// The configuration is wrong.
pub const BACKSTAY_CONFIGURATION: i32 = 12;
/// The store has too little space. The last checkpoint stays; the application may go on.
pub const BACKSTAY_STORE_FULL: i32 = 20;
/// The store is in use by another job.
pub const BACKSTAY_STORE_BUSY: i32 = 21;
/// The file system refused an operation. The last checkpoint stays; the application may go on.
pub const BACKSTAY_STORE_IO: i32 = 22;
/// A sync failed: this session can write no more checkpoints.
pub const BACKSTAY_STORE_FAILED: i32 = 23;
/// What is stored could not be read. Nothing was given up: start again, or restore an older one by number.
pub const BACKSTAY_UNREADABLE: i32 = 24;
/// A checkpoint that was started before has failed; this call did nothing: make it again.
pub const BACKSTAY_EARLIER_FAILED: i32 = 25;
/// Bytes are not what their checksum says: restore an older checkpoint.
pub const BACKSTAY_CORRUPT: i32 = 30;
/// The checkpoint asked for is not retained, or not complete.
pub const BACKSTAY_NOT_RETAINED: i32 = 31;
/// A wait of Backstay's reached its limit.
pub const BACKSTAY_TIMEOUT: i32 = 40;
/// The communicator failed.
pub const BACKSTAY_COMMUNICATOR: i32 = 41;
/// Another process of the job is gone.
pub const BACKSTAY_PEER_FAILED: i32 = 42;
/// Another node cannot be reached, or does not answer as it should. The application may go on.
pub const BACKSTAY_PEER_UNREACHABLE: i32 = 43;
/// This platform or build cannot do it.
pub const BACKSTAY_UNSUPPORTED: i32 = 50;
/// A defect of Backstay; the session can only be closed.
pub const BACKSTAY_INTERNAL: i32 = 60;

/// Major version of the library this header belongs to.
pub const BACKSTAY_VERSION_MAJOR: u32 = 0;
/// Minor version.
pub const BACKSTAY_VERSION_MINOR: u32 = 1;
/// Patch version.
pub const BACKSTAY_VERSION_PATCH: u32 = 0;

const LIBRARY_VERSION: &CStr = c"0.1.0";

/// The version of the library that is loaded, as in "0.1.0"; the macros tell that of the header.
#[unsafe(no_mangle)]
pub extern "C" fn backstay_version() -> *const c_char {
    LIBRARY_VERSION.as_ptr()
}

/// What a status means, in a few words; for a number that is none, "unknown status".
#[unsafe(no_mangle)]
pub extern "C" fn backstay_status_name(status: i32) -> *const c_char {
    name(status).as_ptr()
}

/// The text of the last failure of this session, or of this thread where `session` is NULL: after
/// backstay_open and backstay_close, which have no session to ask. Empty if there was none. It
/// stays valid until the next call of the same thread.
#[unsafe(no_mangle)]
pub extern "C" fn backstay_message(session: *const Session) -> *const c_char {
    boundary::message(session)
}

/// For adapters: makes `text` the message of this thread and returns `status`. A function of a
/// backstay_comm that fails with `return backstay_refuse(...)` has its text in the session's message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backstay_refuse(status: i32, text: *const c_char) -> i32 {
    // SAFETY: the header asks for a C string or NULL.
    let text = unsafe { pointer::text_or_none(text, "text") };
    let text = text.ok().flatten().unwrap_or("no text given");
    boundary::say(text);
    status
}

fn name(status: i32) -> &'static CStr {
    match status {
        BACKSTAY_OK => c"ok",
        BACKSTAY_NO_CHECKPOINT => c"no checkpoint to restore",
        BACKSTAY_INVALID_ARGUMENT => c"invalid argument",
        BACKSTAY_VARIABLE_MISMATCH => c"variable does not match the checkpoint",
        BACKSTAY_CONFIGURATION => c"wrong configuration",
        BACKSTAY_STORE_FULL => c"store is full",
        BACKSTAY_STORE_BUSY => c"store is in use",
        BACKSTAY_STORE_IO => c"store input/output error",
        BACKSTAY_STORE_FAILED => c"store failed",
        BACKSTAY_UNREADABLE => c"could not be read",
        BACKSTAY_EARLIER_FAILED => c"a checkpoint started before failed",
        BACKSTAY_CORRUPT => c"damaged",
        BACKSTAY_NOT_RETAINED => c"checkpoint not retained",
        BACKSTAY_TIMEOUT => c"time limit reached",
        BACKSTAY_COMMUNICATOR => c"communicator failed",
        BACKSTAY_PEER_FAILED => c"a process of the job is gone",
        BACKSTAY_PEER_UNREACHABLE => c"another node cannot be reached",
        BACKSTAY_UNSUPPORTED => c"not supported here",
        BACKSTAY_INTERNAL => c"defect in Backstay",
        _ => c"unknown status",
    }
}

/// An argument is wrong in the way `context` says.
pub(crate) fn invalid(context: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument, context)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_name_here() {
        for kind in ErrorKind::ALL {
            assert_eq!(name(kind.code()).to_str(), Ok(kind.meaning()), "{kind:?}");
        }
        assert_eq!(name(-1), c"unknown status");
    }

    #[test]
    fn the_version_is_that_of_the_package() {
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(LIBRARY_VERSION.to_str(), Ok(version));
        let parts =
            format!("{BACKSTAY_VERSION_MAJOR}.{BACKSTAY_VERSION_MINOR}.{BACKSTAY_VERSION_PATCH}");
        assert_eq!(parts, version);
    }
}
