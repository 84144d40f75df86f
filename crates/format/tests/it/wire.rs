// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The protocol: golden frames, hostile frames, and docs/format/wire.md, which says what the code does.
//!
//! `BACKSTAY_WRITE_FIXTURES=1 cargo test -p backstay-format --test it wire` writes the fixtures. A
//! change in them is a change of the protocol.

use backstay_format::limits::LABEL_BYTES_MAX;
use backstay_format::mac::{MAC_BYTES, Sealer, secret_id};
use backstay_format::wire::{
    CALL_HEAD_BYTES, Call, DESCRIPTION_BYTES_MAX, Describe, Description, FABRIC_ADDRESS_BYTES_MAX,
    Fabric, Failure, HEAD_BYTES, Head, Hello, Kind, Located, MESSAGE_BYTES_MAX, PIECE_BYTES_MAX,
    Proof, Read, Reason, Refused, Remote, Role, SMALL_BYTES_MAX, SPANS_MAX, Span, TAIL_BYTES,
    WIRE_VERSION_MAJOR, WIRE_VERSION_MINOR, WORDS_BYTES_MAX, Welcome, open, proven, seal,
};
use backstay_format::{Fingerprint, FingerprintKey, FormatError};
use proptest::prelude::*;
use std::path::PathBuf;

const SECRET: [u8; 32] = [9; 32];

/// The direction of a kind in the session after [`hello`] and [`welcome`], before its first frame.
fn sealer(kind: Kind) -> Sealer {
    let sender = match kind {
        Kind::Call | Kind::Describe | Kind::Read => Role::Client,
        _ => Role::Server,
    };
    Sealer::derive(
        &SECRET,
        sender,
        &hello().encode().unwrap(),
        &welcome().encode().unwrap(),
    )
}

/// A frame as it is sent: of the handshake, or the first of its direction in a session.
fn frame(kind: Kind, body: &[u8]) -> Vec<u8> {
    if is_sealed(kind) {
        sealer(kind).seal(kind, body).unwrap()
    } else {
        seal(kind, body).unwrap()
    }
}

fn is_sealed(kind: Kind) -> bool {
    !kind.is_of_handshake() || kind == Kind::Accepted
}

/// The frame that `bytes` are.
fn open_any(bytes: &[u8]) -> Result<(Head, Kind, &[u8]), FormatError> {
    let kind = Head::decode(bytes)?.check()?;
    if is_sealed(kind) {
        sealer(kind).open(bytes)
    } else {
        open(bytes)
    }
}

fn nonce(first: u8) -> [u8; 32] {
    let mut next = first;
    [0; 32].map(|_| {
        next += 1;
        next - 1
    })
}

pub(crate) fn hello() -> Hello {
    Hello {
        nonce: nonce(1),
        secret: secret_id(&SECRET),
        job: "heat2d 42".to_owned(),
        name: "n\u{e9}ud-07".to_owned(),
    }
}

pub(crate) fn welcome() -> Welcome {
    Welcome {
        proof: nonce(0x80),
        nonce: nonce(0x40),
        machine: *b"0123456789abcdef",
        job: "heat2d 42".to_owned(),
        name: "node-08".to_owned(),
    }
}

fn span() -> Span {
    Span {
        offset: 0x0102_0304_0506,
        length: 1 << 27,
    }
}

pub(crate) fn describe() -> Describe {
    Describe {
        exposure: *b"fedcba9876543210",
        within_us: 5_000_000,
        same_machine: true,
        afresh: false,
        provider: "verbs;ofi_rxm".to_owned(),
        spans: vec![span()],
    }
}

pub(crate) fn read_of_bytes() -> Read {
    Read {
        exposure: *b"fedcba9876543210",
        span: span(),
        within_us: 5_000_000,
        bare: true,
    }
}

pub(crate) fn description() -> Description {
    Description {
        located: Some(located()),
        fingerprints: vec![Some(
            FingerprintKey::derive(&[7; 32]).of(b"sealed").fingerprint,
        )],
        fabric: Some(Fabric {
            address: b"10.0.0.1".to_vec(),
            remotes: vec![Some(Remote {
                key: 0x1122_3344_5566_7788,
                address: 0x7f00_0000_1000,
            })],
        }),
    }
}

pub(crate) fn refused() -> Refused {
    Refused {
        reason: Reason::Secret,
        words: "another job secret".to_owned(),
    }
}

pub(crate) fn located() -> Located {
    Located {
        device: 25,
        inode: 1_234_567,
        path: "/dev/shm/backstay/store".to_owned(),
    }
}

/// A frame of each kind.
fn samples() -> Vec<(&'static str, Vec<u8>)> {
    let refused = refused();
    let call = Call {
        within_us: 2_000_000,
        request: b"request",
    };
    let failure = Failure {
        code: 31,
        words: "nothing is exposed".to_owned(),
    };
    vec![
        ("hello", frame(Kind::Hello, &hello().encode().unwrap())),
        (
            "welcome",
            frame(Kind::Welcome, &welcome().encode().unwrap()),
        ),
        (
            "proof",
            frame(Kind::Proof, &Proof { proof: nonce(7) }.encode()),
        ),
        ("accepted", frame(Kind::Accepted, &[])),
        ("refused", frame(Kind::Refused, &refused.encode().unwrap())),
        ("call", frame(Kind::Call, &call.encode())),
        ("answer", frame(Kind::Answer, b"answer")),
        ("failure", frame(Kind::Failure, &failure.encode().unwrap())),
        (
            "describe",
            frame(Kind::Describe, &describe().encode().unwrap()),
        ),
        (
            "description",
            frame(Kind::Description, &description().encode().unwrap()),
        ),
        (
            "read",
            frame(Kind::Read, &read_of_bytes().encode().unwrap()),
        ),
        ("piece", frame(Kind::Piece, b"piece")),
        ("bare", frame(Kind::Bare, &[])),
    ]
}

/// Reads a frame and writes what was read.
fn rewrite(bytes: &[u8]) -> Result<Vec<u8>, FormatError> {
    let (head, kind, body) = open_any(bytes)?;
    let body = match kind {
        Kind::Hello => Hello::decode(&head, body)?.encode()?,
        Kind::Welcome => Welcome::decode(&head, body)?.encode()?,
        Kind::Proof => Proof::decode(&head, body)?.encode().to_vec(),
        Kind::Refused => Refused::decode(&head, body)?.encode()?,
        Kind::Call => Call::decode(body)?.encode(),
        Kind::Failure => Failure::decode(&head, body)?.encode()?,
        Kind::Describe => Describe::decode(&head, body)?.encode()?,
        Kind::Description => Description::decode(&head, body)?.encode()?,
        Kind::Read => Read::decode(&head, body)?.encode()?,
        Kind::Accepted | Kind::Answer | Kind::Piece | Kind::Bare => body.to_vec(),
    };
    Ok(frame(kind, &body))
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/wire-v2")
}

fn catalogue() -> String {
    let head = "# Fixtures of wire protocol 2\n\n\
         A frame of each kind, as version 2 sends it. Checked and written by\n\
         `crates/format/tests/it/wire.rs` (`BACKSTAY_WRITE_FIXTURES=1`). The protocol is described\n\
         in docs/format/wire.md.\n\n| file | bytes | XXH3-64 |\n|---|---|---|";
    let mut lines = vec![head.to_owned()];
    for (name, bytes) in samples() {
        let sum = backstay_format::hash::checksum(&bytes);
        lines.push(format!("| {name}.bin | {} | {sum:016x} |", bytes.len()));
    }
    lines.join("\n") + "\n"
}

#[test]
fn frames_are_still_these_bytes() {
    if std::env::var_os("BACKSTAY_WRITE_FIXTURES").is_some_and(|value| value == "1") {
        std::fs::create_dir_all(folder()).unwrap();
        for (name, bytes) in samples() {
            std::fs::write(folder().join(format!("{name}.bin")), bytes).unwrap();
        }
        std::fs::write(folder().join("README.md"), catalogue()).unwrap();
    }
    let read = |name: &str| {
        let path = folder().join(name);
        std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    assert_eq!(String::from_utf8(read("README.md")), Ok(catalogue()));
    for (name, bytes) in samples() {
        let golden = read(&format!("{name}.bin"));
        assert!(golden == bytes, "{name}: other bytes than version 2");
        assert_eq!(rewrite(&golden).as_ref(), Ok(&bytes), "{name}");
    }
    let count = std::fs::read_dir(folder()).unwrap().count();
    assert_eq!(count, samples().len() + 1, "a file that nobody checks");
}

/// Reads a frame within the memory that its length allows.
fn read(bytes: &[u8]) -> Result<Vec<u8>, FormatError> {
    let mut result = Ok(Vec::new());
    let used = allocation_counter::measure(|| result = rewrite(bytes));
    let most = 4096 + 64 * bytes.len() as u64;
    assert!(used.bytes_max <= most, "{} bytes of memory", used.bytes_max);
    result
}

#[test]
fn every_damage_to_a_frame_is_refused() {
    for (name, bytes) in samples() {
        for end in 0..bytes.len() {
            assert!(read(&bytes[..end]).is_err(), "{name} cut at {end}");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(read(&longer).is_err(), "{name}: one byte more");
        for place in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[place] ^= 1 << bit;
                let result = read(&damaged);
                assert!(result.is_err(), "{name} byte {place} bit {bit}");
            }
        }
    }
}

#[test]
fn a_body_with_a_right_checksum_is_still_checked() {
    for (name, bytes) in samples() {
        let (_, kind, body) = open_any(&bytes).unwrap();
        for end in 0..body.len() {
            let cut = frame(kind, &body[..end]);
            if let Ok(written) = read(&cut) {
                assert_eq!(written, cut, "{name} cut at {end}");
            }
        }
        for place in 0..body.len() {
            for byte in [0, 0xff, body[place] ^ 1, body[place] ^ 0x80] {
                let mut damaged = body.to_vec();
                damaged[place] = byte;
                let frame = frame(kind, &damaged);
                if let Ok(written) = read(&frame) {
                    assert_eq!(written, frame, "{name} byte {place}");
                }
            }
        }
    }
}

#[test]
fn a_length_above_the_limit_of_its_kind_is_refused_by_the_head() {
    for kind in Kind::ALL {
        let most = kind.body_bytes_max();
        assert_eq!(Head::new(kind, most).unwrap().check(), Ok(kind));
        let error = Head::new(kind, most + 1).unwrap_err();
        assert_eq!(error.field, "body length", "{kind:?}");
    }
    let mut head = Head::new(Kind::Call, 8).unwrap();
    head.kind = 99;
    assert_eq!(head.check().unwrap_err().field, "kind");
}

#[test]
fn another_major_version_is_refused_but_its_refusal_is_read() {
    let other = |kind| Head {
        major: WIRE_VERSION_MAJOR + 1,
        ..Head::new(kind, 6).unwrap()
    };
    let found = Head::decode(&other(Kind::Hello).encode()).unwrap();
    assert_eq!(found.check().unwrap_err().field, "version");
    assert_eq!(other(Kind::Refused).check(), Ok(Kind::Refused));
    let body = Refused {
        reason: Reason::Version,
        words: "no".to_owned(),
    };
    let longer = [&body.encode().unwrap()[..], b"more"].concat();
    assert_eq!(Refused::decode(&other(Kind::Refused), &longer), Ok(body));
}

#[test]
fn a_later_minor_version_may_append_fields() {
    let longer = [&hello().encode().unwrap()[..], b"new field"].concat();
    let mut head = Head::new(Kind::Hello, longer.len()).unwrap();
    assert!(Hello::decode(&head, &longer).is_err());
    head.minor = WIRE_VERSION_MINOR + 1;
    assert_eq!(Hello::decode(&head, &longer), Ok(hello()));
}

#[test]
fn the_most_ranges_that_may_be_described_fit_and_no_more() {
    let mut asked = describe();
    asked.spans = vec![span(); SPANS_MAX];
    assert!(asked.encode().is_ok());
    asked.spans.push(span());
    assert_eq!(asked.encode().unwrap_err().field, "ranges");
    let mut said = description();
    said.located = Some(Located {
        path: "p".repeat(WORDS_BYTES_MAX),
        ..located()
    });
    said.fingerprints = vec![Some(Fingerprint([1; 32])); SPANS_MAX];
    let remote = Remote { key: 1, address: 2 };
    let fabric = |remotes| {
        Some(Fabric {
            address: vec![1; FABRIC_ADDRESS_BYTES_MAX],
            remotes,
        })
    };
    said.fabric = fabric(vec![Some(remote); SPANS_MAX]);
    assert!(said.encode().is_ok());
    // One for each range, and an address that is not too long.
    said.fabric = fabric(vec![Some(remote); SPANS_MAX - 1]);
    assert!(said.encode().is_err());
    said.fabric = Some(Fabric {
        address: vec![1; FABRIC_ADDRESS_BYTES_MAX + 1],
        remotes: vec![None; SPANS_MAX],
    });
    assert_eq!(said.encode().unwrap_err().field, "address");
    said.fabric = None;
    said.fingerprints.push(None);
    assert_eq!(said.encode().unwrap_err().field, "ranges");
}

#[test]
fn long_words_are_cut_between_characters() {
    let words = "\u{e9}".repeat(WORDS_BYTES_MAX);
    let failure = Failure::new(1, &words);
    let head = Head::new(Kind::Failure, 0).unwrap();
    let found = Failure::decode(&head, &failure.encode().unwrap()).unwrap();
    assert_eq!(found.words.len(), WORDS_BYTES_MAX);
    assert_eq!(Refused::new(Reason::Busy, &words).words, found.words);
}

#[test]
fn what_is_proven_differs_by_role_and_by_every_byte_but_the_proof() {
    let (hello, welcome) = (hello().encode().unwrap(), welcome().encode().unwrap());
    let text = proven(Role::Server, &hello, &welcome);
    assert_ne!(text, proven(Role::Client, &hello, &welcome));
    let mut other = welcome.clone();
    other[Welcome::PROOF_BYTES - 1] ^= 1;
    assert_eq!(text, proven(Role::Server, &hello, &other));
    other[Welcome::PROOF_BYTES] ^= 1;
    assert_ne!(text, proven(Role::Server, &hello, &other));
    let mut other = hello.clone();
    other[0] ^= 1;
    assert_ne!(text, proven(Role::Server, &other, &welcome));
}

#[test]
fn a_mac_is_of_one_secret_one_connection_one_direction_and_one_place() {
    let (said, answered) = (hello().encode().unwrap(), welcome().encode().unwrap());
    let client = || Sealer::derive(&SECRET, Role::Client, &said, &answered);
    let first = client().seal(Kind::Call, b"12345678request").unwrap();
    assert!(client().open(&first).is_ok());
    let mut later = client();
    assert!(later.open(&first).is_ok());
    assert!(later.open(&first).is_err(), "a frame that is repeated");
    let mut ahead = client();
    let (_, second) = (
        ahead.begin(),
        ahead.seal(Kind::Call, b"12345678request").unwrap(),
    );
    assert!(client().open(&second).is_err(), "one before it is left out");
    let mut other = said.clone();
    other[0] ^= 1;
    let mut answered_other = answered.clone();
    answered_other[Welcome::PROOF_BYTES] ^= 1;
    for mut wrong in [
        Sealer::derive(&[8; 32], Role::Client, &said, &answered),
        Sealer::derive(&SECRET, Role::Server, &said, &answered),
        Sealer::derive(&SECRET, Role::Client, &other, &answered),
        Sealer::derive(&SECRET, Role::Client, &said, &answered_other),
    ] {
        assert_eq!(wrong.open(&first).unwrap_err().field, "MAC");
    }
    assert_eq!(format!("{later:?}"), "Sealer(at frame 2)");
}

#[test]
fn a_mac_is_keyed_blake3_of_body_head_and_number() {
    let mut material = SECRET.to_vec();
    material.extend(proven(
        Role::Client,
        &hello().encode().unwrap(),
        &welcome().encode().unwrap(),
    ));
    let key = blake3::derive_key(backstay_format::mac::SESSION_CONTEXT, &material);
    let mut sealer = sealer(Kind::Call);
    for number in 0..3_u64 {
        let frame = sealer.seal(Kind::Call, b"12345678body").unwrap();
        let (front, mac) = frame.split_at(frame.len() - MAC_BYTES);
        let (head, body) = front.split_at(HEAD_BYTES);
        let wanted = blake3::keyed_hash(&key, &[body, head, &number.to_le_bytes()].concat());
        assert_eq!(mac, wanted.as_bytes());
    }
    let named = blake3::derive_key(backstay_format::mac::SECRET_ID_CONTEXT, &SECRET);
    assert_eq!(secret_id(&SECRET), named[..16]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_an_error_or_what_is_written_back(
        kind in proptest::sample::select(Kind::ALL.to_vec()),
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        prop_assert!(read(&bytes).is_err());
        let frame = frame(kind, &bytes);
        if let Ok(written) = read(&frame) {
            prop_assert_eq!(written, frame);
        }
    }

    #[test]
    fn reads(exposure: [u8; 16], offset: u64, length: u64, within_us: u64, bare: bool) {
        let span = Span { offset, length };
        let value = Read { exposure, span, within_us, bare };
        let head = Head::new(Kind::Read, 0).unwrap();
        prop_assert_eq!(Read::decode(&head, &value.encode().unwrap()), Ok(value));
    }
}

/// The table rows of the section `name` of docs/format/wire.md, cells trimmed, without its first row.
fn rows(name: &str) -> Vec<Vec<String>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/format/wire.md");
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let heading = |line: &str| line.trim_start_matches('#').trim() == name && line.starts_with('#');
    let section = text.lines().skip_while(|line| !heading(line)).skip(1);
    let section = section.take_while(|line| !line.starts_with('#'));
    let rows = section.filter(|line| line.starts_with('|') && !line.starts_with("|---"));
    let cells = |line: &str| {
        let cells = line.trim_matches('|').split('|');
        cells
            .map(|cell| cell.trim().trim_matches('`').to_owned())
            .collect()
    };
    let rows: Vec<Vec<String>> = rows.skip(1).map(cells).collect();
    assert!(!rows.is_empty(), "no table under {name}");
    rows
}

fn number(text: &str) -> Option<usize> {
    text.replace(',', "").parse().ok()
}

#[test]
fn the_page_has_the_kinds_reasons_and_limits_of_the_code() {
    let kinds: Vec<_> = rows("Kinds")
        .iter()
        .map(|row| (number(&row[0]), row[1].clone(), number(&row[2])))
        .collect();
    let wanted = Kind::ALL.map(|kind| {
        let name = format!("{kind:?}").to_lowercase();
        (
            Some(usize::from(kind.id())),
            name,
            Some(kind.body_bytes_max()),
        )
    });
    assert_eq!(kinds, wanted);
    let reasons: Vec<_> = rows("Refused")
        .iter()
        .filter(|row| row.len() == 2 && number(&row[0]).is_some())
        .map(|row| number(&row[0]))
        .collect();
    assert_eq!(reasons, Reason::ALL.map(|reason| Some(reason as usize)));
    let limits: Vec<_> = rows("Limits")
        .iter()
        .map(|row| (row[0].clone(), number(&row[1])))
        .collect();
    let wanted = [
        ("MESSAGE_BYTES_MAX", MESSAGE_BYTES_MAX),
        ("PIECE_BYTES_MAX", PIECE_BYTES_MAX),
        ("DESCRIPTION_BYTES_MAX", DESCRIPTION_BYTES_MAX),
        ("SPANS_MAX", SPANS_MAX),
        ("SMALL_BYTES_MAX", SMALL_BYTES_MAX),
        ("WORDS_BYTES_MAX", WORDS_BYTES_MAX),
        ("FABRIC_ADDRESS_BYTES_MAX", FABRIC_ADDRESS_BYTES_MAX),
        ("LABEL_BYTES_MAX", LABEL_BYTES_MAX),
    ];
    let wanted = wanted.map(|(name, value)| (name.to_owned(), Some(value)));
    assert_eq!(limits, wanted);
}

#[test]
fn the_offsets_of_the_page_add_up_to_what_is_written() {
    let text = |text: &str| text.len();
    let words = |name: &str| {
        samples()
            .into_iter()
            .find(|(found, _)| *found == name)
            .unwrap()
            .1
    };
    let body = |name: &str| {
        let kind = Head::decode(&words(name)).unwrap().check().unwrap();
        let tail = if is_sealed(kind) {
            MAC_BYTES
        } else {
            TAIL_BYTES
        };
        words(name).len() - HEAD_BYTES - tail
    };
    let located = text("/dev/shm/backstay/store");
    let wanted = [
        ("Frame", HEAD_BYTES, 0),
        ("Hello", body("hello"), text("heat2d 42n\u{e9}ud-07")),
        ("Welcome", body("welcome"), text("heat2d 42node-08")),
        ("Proof", body("proof"), 0),
        ("Refused", body("refused"), text("another job secret")),
        ("Call", CALL_HEAD_BYTES, 0),
        ("Failure", body("failure"), text("nothing is exposed")),
        ("Describe", body("describe"), text("verbs;ofi_rxm")),
        (
            "Description",
            body("description"),
            located + text("10.0.0.1"),
        ),
        ("Read", body("read"), 0),
    ];
    for (name, size, texts) in wanted {
        let mut end = 0;
        for row in rows(name) {
            let Some(offset) = row[0].split(' ').next().and_then(number) else {
                break;
            };
            let is_plain = row.len() == 3;
            let Some(size) = row
                .get(1)
                .and_then(|size| size.split(' ').next())
                .and_then(number)
            else {
                break;
            };
            if !is_plain {
                break;
            }
            assert_eq!(offset, end, "{name}: {row:?}");
            end = offset + size;
        }
        assert_eq!(end, size - texts, "{name}");
    }
    assert_eq!((HEAD_BYTES, TAIL_BYTES, MAC_BYTES), (32, 8, 32));
}
