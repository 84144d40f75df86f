// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Any bytes as a frame, and as the body of every kind of frame: an error, or what is written back as
//! the same.
#![no_main]

use backstay_format::FormatError;
use backstay_format::wire::{
    Call, Describe, Description, Failure, Head, Hello, Kind, Proof, Read, Refused, Welcome, open,
    seal,
};
use libfuzzer_sys::fuzz_target;

fn rewrite(head: &Head, kind: Kind, body: &[u8]) -> Result<Vec<u8>, FormatError> {
    Ok(match kind {
        Kind::Hello => Hello::decode(head, body)?.encode().unwrap(),
        Kind::Welcome => Welcome::decode(head, body)?.encode().unwrap(),
        Kind::Proof => Proof::decode(head, body)?.encode().to_vec(),
        Kind::Refused => Refused::decode(head, body)?.encode().unwrap(),
        Kind::Call => Call::decode(body)?.encode(),
        Kind::Failure => Failure::decode(head, body)?.encode().unwrap(),
        Kind::Describe => Describe::decode(head, body)?.encode().unwrap(),
        Kind::Description => Description::decode(head, body)?.encode().unwrap(),
        Kind::Read => Read::decode(head, body)?.encode().unwrap(),
        Kind::Accepted | Kind::Answer | Kind::Piece | Kind::Bare => body.to_vec(),
    })
}

fuzz_target!(|input: &[u8]| {
    if let Ok((head, kind, body)) = open(input) {
        // A later minor version's appended fields are not known, so not written back.
        if let Ok(written) = rewrite(&head, kind, body) {
            assert_eq!(written, body[..written.len()]);
        }
    }
    // A checksum found by chance is rare, so the input is also taken as a body.
    for kind in Kind::ALL {
        if let Ok(sealed) = seal(kind, input)
            && let Ok((head, kind, body)) = open(&sealed)
            && let Ok(written) = rewrite(&head, kind, body)
        {
            assert_eq!(written, body);
        }
    }
});
