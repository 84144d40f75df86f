// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what endpoints of a job say to each other over a stream of bytes.
//! In: messages, or bytes that somebody sent. Out: frames, or messages that were checked.
//! Invariants: the head of a frame has a checksum of its own, so no length is believed that was not
//! sent; each kind has a longest body, and short ones have short ones; the job secret is in no frame.
//! What authenticates frames after the handshake is in `mac`.
//! Format: docs/format/wire.md.

use crate::bytes::{Decoder, Encoder, FormatError};
use crate::fingerprint::Fingerprint;
use crate::hash::{checksum, checksum_of};
use crate::limits::LABEL_BYTES_MAX;
use crate::mac::SECRET_ID_BYTES;
use crate::width::{index, to_u64};

pub(crate) const STRUCTURE: &str = "frame";
/// What every frame begins with.
pub const MAGIC: [u8; 8] = *b"BKSTWIRE";
/// Major version of the protocol. An endpoint talks to no other one.
pub const WIRE_VERSION_MAJOR: u16 = 2;
/// Minor version of the protocol.
pub const WIRE_VERSION_MINOR: u16 = 0;
/// Bytes of a frame before its body.
pub const HEAD_BYTES: usize = 32;
/// Bytes of a frame of the handshake after its body: XXH3-64 of the body. Frames of a session have a
/// [MAC](crate::mac::MAC_BYTES) there.
pub const TAIL_BYTES: usize = 8;
/// Longest request and longest answer, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// Longest piece of bytes that are read.
pub const PIECE_BYTES_MAX: usize = 1 << 20;
/// Most ranges that are described at once.
pub const SPANS_MAX: usize = 4096;
/// Longest body of a description, and of what asks for one.
pub const DESCRIPTION_BYTES_MAX: usize = 256 << 10;
/// Longest body of every other message.
pub const SMALL_BYTES_MAX: usize = 8 << 10;
/// Longest text of a failure or a refusal, and longest path, in bytes of UTF-8.
pub const WORDS_BYTES_MAX: usize = 4 << 10;
/// Longest address of an endpoint of libfabric.
pub const FABRIC_ADDRESS_BYTES_MAX: usize = 512;
/// Bytes of a call before its request.
pub const CALL_HEAD_BYTES: usize = 8;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    /// [`Hello`]: the first frame of who connects.
    Hello = 1,
    /// [`Welcome`]: the answer to it.
    Welcome = 2,
    /// [`Proof`]: the answer to that.
    Proof = 3,
    /// Nothing more: calls and reads may begin. The first frame with a MAC; every later one has one.
    Accepted = 4,
    /// [`Refused`]: the sender closes the connection. Before `Accepted` without a MAC.
    Refused = 5,
    /// [`Call`].
    Call = 16,
    /// The answer to a call, as it is.
    Answer = 17,
    /// [`Failure`]: instead of an answer, or of what a read still lacks.
    Failure = 18,
    /// [`Describe`].
    Describe = 19,
    /// [`Description`]: the answer to it.
    Description = 20,
    /// [`Read`].
    Read = 21,
    /// The next bytes of a read, as they are.
    Piece = 22,
    /// Nothing more: all bytes of the read follow this frame, in none.
    Bare = 23,
}

impl Kind {
    /// Every kind, in order of their numbers.
    pub const ALL: [Self; 13] = [
        Self::Hello,
        Self::Welcome,
        Self::Proof,
        Self::Accepted,
        Self::Refused,
        Self::Call,
        Self::Answer,
        Self::Failure,
        Self::Describe,
        Self::Description,
        Self::Read,
        Self::Piece,
        Self::Bare,
    ];

    /// Its number.
    pub const fn id(self) -> u16 {
        self as u16
    }

    /// Longest body of this kind, in bytes.
    pub const fn body_bytes_max(self) -> usize {
        match self {
            Self::Call => MESSAGE_BYTES_MAX + CALL_HEAD_BYTES,
            Self::Answer => MESSAGE_BYTES_MAX,
            Self::Piece => PIECE_BYTES_MAX,
            Self::Describe | Self::Description => DESCRIPTION_BYTES_MAX,
            _ => SMALL_BYTES_MAX,
        }
    }

    /// Whether it has a place in the handshake, before anybody is known.
    pub const fn is_of_handshake(self) -> bool {
        matches!(
            self,
            Self::Hello | Self::Welcome | Self::Proof | Self::Accepted | Self::Refused
        )
    }
}

/// The head of a frame: the same in every version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Major version of the sender.
    pub major: u16,
    /// Minor version of the sender.
    pub minor: u16,
    /// Number of the kind.
    pub kind: u16,
    /// Bytes of the body.
    pub body_bytes: u32,
}

impl Head {
    /// The head of a frame of this version, whose body is not too long for its kind.
    pub fn new(kind: Kind, body_bytes: usize) -> Result<Self, FormatError> {
        let head = Self {
            major: WIRE_VERSION_MAJOR,
            minor: WIRE_VERSION_MINOR,
            kind: kind.id(),
            body_bytes: u32::try_from(body_bytes).unwrap_or(u32::MAX),
        };
        head.check().map(|_| head)
    }

    /// Its bytes. Every head has some: none of its numbers has a limit of its own, and whether the frame
    /// is accepted says [`Head::check`].
    pub fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        let (summed, tail) = bytes.split_at_mut(HEAD_BYTES - 8);
        summed[..8].copy_from_slice(&MAGIC);
        summed[8..10].copy_from_slice(&self.major.to_le_bytes());
        summed[10..12].copy_from_slice(&self.minor.to_le_bytes());
        summed[12..14].copy_from_slice(&self.kind.to_le_bytes());
        summed[16..20].copy_from_slice(&self.body_bytes.to_le_bytes());
        tail.copy_from_slice(&checksum(summed).to_le_bytes());
        bytes
    }

    /// The head that `bytes` are, of whatever version.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut head = Decoder::new(STRUCTURE, bytes);
        let magic: [u8; 8] = head.array("magic")?;
        if magic != MAGIC {
            let shown = [MAGIC, magic].map(|magic| magic.escape_ascii().to_string());
            return Err(head.refuse("magic", 8, &shown[0], &shown[1]));
        }
        let (major, minor) = (head.u16("version")?, head.u16("minor version")?);
        let kind = head.u16("kind")?;
        let reserved = head.u16("reserved")?;
        let body_bytes = head.u32("body length")?;
        let reserved = u32::from(reserved) | head.u32("reserved")?;
        let (stored, computed) = (head.u64("checksum")?, checksum(&bytes[..HEAD_BYTES - 8]));
        if stored != computed {
            let shown = [computed, stored].map(|sum| format!("{sum:#018x}"));
            return Err(head.refuse("checksum", 8, &shown[0], &shown[1]));
        }
        if reserved != 0 {
            return Err(head.refuse("reserved", 12, "zeros", "other bytes"));
        }
        Ok(Self {
            major,
            minor,
            kind,
            body_bytes,
        })
    }

    /// The kind of a frame of this major version, whose body is not too long for it. A refusal is
    /// read whatever the version.
    pub fn check(&self) -> Result<Kind, FormatError> {
        let refuse = |field, offset, expected: String, found: String| {
            Err(FormatError::new(STRUCTURE, field, offset, expected, found))
        };
        if self.major != WIRE_VERSION_MAJOR && self.kind != Kind::Refused.id() {
            let (wanted, found) = (WIRE_VERSION_MAJOR.to_string(), self.major.to_string());
            return refuse("version", 8, wanted, found);
        }
        let kind = Kind::ALL.into_iter().find(|kind| kind.id() == self.kind);
        let Some(kind) = kind else {
            return refuse("kind", 12, "a known kind".to_owned(), self.kind.to_string());
        };
        if index(self.body_bytes) > kind.body_bytes_max() {
            let wanted = format!("at most {} of {kind:?}", kind.body_bytes_max());
            return refuse("body length", 16, wanted, self.body_bytes.to_string());
        }
        Ok(kind)
    }

    /// Checks a body against the checksum that came behind it.
    pub fn check_body(&self, body: &[u8], tail: [u8; TAIL_BYTES]) -> Result<(), FormatError> {
        let (stored, computed) = (u64::from_le_bytes(tail), checksum(body));
        if stored == computed {
            return Ok(());
        }
        let offset = to_u64(HEAD_BYTES + body.len());
        let shown = [computed, stored].map(|sum| format!("{sum:#018x}"));
        Err(FormatError::new(
            STRUCTURE, "checksum", offset, &shown[0], &shown[1],
        ))
    }

    /// A decoder of the body of this frame.
    fn body<'a>(&self, structure: &'static str, body: &'a [u8]) -> Decoder<'a> {
        let newer = self.minor > WIRE_VERSION_MINOR;
        Decoder::of_version(structure, body, newer)
    }
}

/// The checksum behind a body that is cut into `parts`.
pub fn tail(parts: &[&[u8]]) -> [u8; TAIL_BYTES] {
    checksum_of(parts).to_le_bytes()
}

/// A whole frame of the handshake of this version.
pub fn seal(kind: Kind, body: &[u8]) -> Result<Vec<u8>, FormatError> {
    let head = Head::new(kind, body.len())?.encode();
    Ok([&head[..], body, &tail(&[body])].concat())
}

/// The frame of a handshake that `bytes` are, all of them: its head, its kind, its body.
pub fn open(bytes: &[u8]) -> Result<(Head, Kind, &[u8]), FormatError> {
    let head = Head::decode(bytes)?;
    let kind = head.check()?;
    let mut rest = Decoder::new(STRUCTURE, &bytes[HEAD_BYTES..]);
    let body = rest.raw("body", index(head.body_bytes))?;
    head.check_body(body, rest.array("checksum")?)?;
    rest.end()?;
    Ok((head, kind, body))
}

/// Who takes which part in proving the job secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Who connected.
    Client,
    /// Who listened.
    Server,
}

/// What is authenticated by the job secret, by HMAC-SHA256: who proves it, the body of the hello, and that
/// of the welcome behind its proof.
pub fn proven(role: Role, hello: &[u8], welcome: &[u8]) -> Vec<u8> {
    let label = match role {
        Role::Client => b"BKSTWIRE client ",
        Role::Server => b"BKSTWIRE server ",
    };
    let welcome = welcome.get(Welcome::PROOF_BYTES..).unwrap_or_default();
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes();
    let lengths = [length(hello), length(welcome)];
    [label, &lengths[0][..], hello, &lengths[1][..], welcome].concat()
}

/// The bytes of a body of `kind`, which `decode` reads as `value`.
fn finish<T: PartialEq>(
    body: Encoder,
    kind: Kind,
    value: &T,
    decode: impl FnOnce(&Head, &[u8]) -> Result<T, FormatError>,
) -> Result<Vec<u8>, FormatError> {
    body.finish(value, |bytes| decode(&Head::new(kind, bytes.len())?, bytes))
}

/// `text` cut to what a message may hold.
fn clip(text: &str) -> &str {
    let mut end = text.len().min(WORDS_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Who connects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Drawn for this connection.
    pub nonce: [u8; 32],
    /// [Names](crate::mac::secret_id) the secret it knows.
    pub secret: [u8; SECRET_ID_BYTES],
    /// The job it belongs to.
    pub job: String,
    /// Name of the endpoint.
    pub name: String,
}

impl Hello {
    /// Its body.
    pub fn encode(&self) -> Result<Vec<u8>, FormatError> {
        let mut body = Encoder::new("hello");
        body.raw(&self.nonce).raw(&self.secret);
        body.text(&self.job).text(&self.name);
        finish(body, Kind::Hello, self, Self::decode)
    }

    /// The hello in `body`.
    pub fn decode(head: &Head, body: &[u8]) -> Result<Self, FormatError> {
        let mut body = head.body("hello", body);
        let hello = Self {
            nonce: body.array("nonce")?,
            secret: body.array("name of the secret")?,
            job: body.text("job", LABEL_BYTES_MAX)?,
            name: body.text("name", LABEL_BYTES_MAX)?,
        };
        body.end()?;
        Ok(hello)
    }
}

/// Who listened, and that it knows the job secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Welcome {
    /// HMAC-SHA256 of [`proven`] as [`Role::Server`].
    pub proof: [u8; 32],
    /// Drawn for this connection.
    pub nonce: [u8; 32],
    /// Names the running kernel: the same on one machine until it is booted again.
    pub machine: [u8; 16],
    /// The job it belongs to.
    pub job: String,
    /// Name of the endpoint.
    pub name: String,
}

impl Welcome {
    /// Bytes of the proof at the front of the body.
    pub const PROOF_BYTES: usize = 32;

    /// Its body.
    pub fn encode(&self) -> Result<Vec<u8>, FormatError> {
        let mut body = Encoder::new("welcome");
        body.raw(&self.proof).raw(&self.nonce).raw(&self.machine);
        body.text(&self.job).text(&self.name);
        finish(body, Kind::Welcome, self, Self::decode)
    }

    /// The welcome in `body`.
    pub fn decode(head: &Head, body: &[u8]) -> Result<Self, FormatError> {
        let mut body = head.body("welcome", body);
        let welcome = Self {
            proof: body.array("proof")?,
            nonce: body.array("nonce")?,
            machine: body.array("machine")?,
            job: body.text("job", LABEL_BYTES_MAX)?,
            name: body.text("name", LABEL_BYTES_MAX)?,
        };
        body.end()?;
        Ok(welcome)
    }
}

/// That who connected knows the job secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof {
    /// HMAC-SHA256 of [`proven`] as [`Role::Client`].
    pub proof: [u8; 32],
}

impl Proof {
    /// Its body: nothing of it has a limit.
    pub fn encode(&self) -> [u8; 32] {
        self.proof
    }

    /// The proof in `body`.
    pub fn decode(head: &Head, body: &[u8]) -> Result<Self, FormatError> {
        let mut body = head.body("proof", body);
        let proof = body.array("proof")?;
        body.end()?;
        Ok(Self { proof })
    }
}

/// Why a connection is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Reason {
    /// Another major version.
    Version = 1,
    /// Another job.
    Job = 2,
    /// Another job secret.
    Secret = 3,
    /// As many connections as there may be.
    Busy = 4,
    /// A frame that is none, or that does not belong here.
    Protocol = 5,
}

impl Reason {
    /// Every reason, in order of their numbers.
    pub const ALL: [Self; 5] = [
        Self::Version,
        Self::Job,
        Self::Secret,
        Self::Busy,
        Self::Protocol,
    ];
}

/// The last frame of a connection. Its body is the same in every version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Why, for programs.
    pub reason: Reason,
    /// Why, for people.
    pub words: String,
}

impl Refused {
    /// Why, and as many of `words` as a refusal may hold.
    pub fn new(reason: Reason, words: &str) -> Self {
        let words = clip(words).to_owned();
        Self { reason, words }
    }

    /// Its body.
    pub fn encode(&self) -> Result<Vec<u8>, FormatError> {
        let mut body = Encoder::new("refusal");
        body.u16(self.reason as u16).text(&self.words);
        finish(body, Kind::Refused, self, Self::decode)
    }

    /// The refusal in `body`.
    pub fn decode(head: &Head, body: &[u8]) -> Result<Self, FormatError> {
        let newer = head.major > WIRE_VERSION_MAJOR || head.minor > WIRE_VERSION_MINOR;
        let mut body = Decoder::of_version("refusal", body, newer);
        let id = body.u16("reason")?;
        let reason = Reason::ALL.into_iter().find(|reason| *reason as u16 == id);
        let reason = reason.ok_or_else(|| body.refuse("reason", 2, "a known reason", id))?;
        let words = body.text("words", WORDS_BYTES_MAX)?;
        body.end()?;
        Ok(Self { reason, words })
    }
}

/// A control message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call<'a> {
    /// How long the caller still waits, in microseconds.
    pub within_us: u64,
    /// The request.
    pub request: &'a [u8],
}

impl<'a> Call<'a> {
    /// What stands before the request.
    pub fn front(within_us: u64) -> [u8; CALL_HEAD_BYTES] {
        within_us.to_le_bytes()
    }

    /// Its body: all bytes are a request, and [`Head::new`] says how many a frame may hold.
    pub fn encode(&self) -> Vec<u8> {
        [&Self::front(self.within_us), self.request].concat()
    }

    /// The call in `body`: of any minor version, since what follows is the request.
    pub fn decode(body: &'a [u8]) -> Result<Self, FormatError> {
        let mut body = Decoder::new("call", body);
        let within_us = body.u64("within")?;
        let request = body.raw("request", body.remaining())?;
        Ok(Self { within_us, request })
    }
}

/// An error of the remote side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Number of the error's kind, as in docs/reference/errors.md.
    pub code: u32,
    /// What and where.
    pub words: String,
}

impl Failure {
    /// An error of this kind, and as many of `words` as a failure may hold.
    pub fn new(code: u32, words: &str) -> Self {
        let words = clip(words).to_owned();
        Self { code, words }
    }

    /// Its body.
    pub fn encode(&self) -> Result<Vec<u8>, FormatError> {
        let mut body = Encoder::new("failure");
        body.u32(self.code).text(&self.words);
        finish(body, Kind::Failure, self, Self::decode)
    }

    /// The failure in `body`.
    pub fn decode(head: &Head, body: &[u8]) -> Result<Self, FormatError> {
        let mut body = head.body("failure", body);
        let failure = Self {
            code: body.u32("code")?,
            words: body.text("words", WORDS_BYTES_MAX)?,
        };
        body.end()?;
        Ok(failure)
    }
}

/// A range of an exposure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// Where it begins.
    pub offset: u64,
    /// Its bytes.
    pub length: u64,
}

impl Span {
    fn decode(body: &mut Decoder<'_>) -> Result<Self, FormatError> {
        Ok(Self {
            offset: body.u64("offset")?,
            length: body.u64("length")?,
        })
    }
}

/// Asks what a reader has to know of ranges of an exposure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Describe {
    /// Which exposure.
    pub exposure: [u8; 16],
    /// How long the caller still waits, in microseconds.
    pub within_us: u64,
    /// Whether [`Located`] is of use.
    pub same_machine: bool,
    /// Whether fingerprints are to be computed anew: other bytes arrived than were described.
    pub afresh: bool,
    /// The provider of libfabric by which the caller can read; empty where there is none.
    pub provider: String,
    /// Which ranges.
    pub spans: Vec<Span>,
}

impl Describe {
    /// Its body.
    pub fn encode(&self) -> Result<Vec<u8>, FormatError> {
        let mut body = Encoder::new("describe");
        body.raw(&self.exposure).u64(self.within_us);
        body.u32(u32::from(self.same_machine))
            .u32(u32::from(self.afresh))
            .text(&self.provider)
            .count(self.spans.len());
        for span in &self.spans {
            body.u64(span.offset).u64(span.length);
        }
        finish(body, Kind::Describe, self, Self::decode)
    }

    /// The question in `body`.
    pub fn decode(head: &Head, body: &[u8]) -> Result<Self, FormatError> {
        let mut body = head.body("describe", body);
        let describe = Self {
            exposure: body.array("exposure")?,
            within_us: body.u64("within")?,
            same_machine: body.u32_in("same machine", 0, 1)? == 1,
            afresh: body.u32_in("afresh", 0, 1)? == 1,
            provider: body.text("provider", LABEL_BYTES_MAX)?,
            spans: spans(&mut body, Span::decode)?,
        };
        body.end()?;
        Ok(describe)
    }
}

/// As many of something as a count says, which is checked first.
fn spans<T>(
    body: &mut Decoder<'_>,
    decode: impl Fn(&mut Decoder<'_>) -> Result<T, FormatError>,
) -> Result<Vec<T>, FormatError> {
    let most = u32::try_from(SPANS_MAX).unwrap_or(u32::MAX);
    let count = body.u32_in("ranges", 0, most)?;
    (0..count).map(|_| decode(body)).collect()
}

/// What a reader has to know of ranges, in the order in which they were asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// The file in which all of the exposure stands, at the same offsets.
    pub located: Option<Located>,
    /// Of each range what its owner computed of it, once; `None` where the bytes may be written yet.
    pub fingerprints: Vec<Option<Fingerprint>>,
    /// How they are read by libfabric, by who asked with the owner's provider.
    pub fabric: Option<Fabric>,
}

/// Where memory stands for readers by libfabric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fabric {
    /// The owner's endpoint, as its provider calls it.
    pub address: Vec<u8>,
    /// Of each range where it is; `None` where it is read over the connection.
    pub remotes: Vec<Option<Remote>>,
}

/// A range of memory, as its provider calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remote {
    /// Names memory that was registered, and allows to read it.
    pub key: u64,
    /// Where the range begins in it.
    pub address: u64,
}

impl Fabric {
    fn encode(&self, body: &mut Encoder) {
        let length = u16::try_from(self.address.len()).unwrap_or(u16::MAX);
        body.u16(length).raw(&self.address);
        for remote in &self.remotes {
            body.u32(u32::from(remote.is_some()));
            if let Some(remote) = remote {
                body.u64(remote.key).u64(remote.address);
            }
        }
    }

    fn decode(body: &mut Decoder<'_>, ranges: usize) -> Result<Self, FormatError> {
        let length = usize::from(body.u16("length of the address")?);
        if length > FABRIC_ADDRESS_BYTES_MAX {
            let expected = format!("at most {FABRIC_ADDRESS_BYTES_MAX} bytes");
            return Err(body.refuse("address", 2, expected, length));
        }
        let address = body.raw("address", length)?.to_vec();
        let mut each = || {
            let is_there = body.u32_in("remote", 0, 1)? == 1;
            let remote = is_there.then(|| {
                Ok(Remote {
                    key: body.u64("key")?,
                    address: body.u64("address")?,
                })
            });
            remote.transpose()
        };
        let remotes = (0..ranges)
            .map(|_| each())
            .collect::<Result<_, FormatError>>()?;
        Ok(Self { address, remotes })
    }
}

impl Description {
    /// Its body.
    pub fn encode(&self) -> Result<Vec<u8>, FormatError> {
        let mut body = Encoder::new("description");
        body.u32(u32::from(self.located.is_some()));
        if let Some(located) = &self.located {
            body.u64(located.device).u64(located.inode);
            body.text(&located.path);
        }
        body.count(self.fingerprints.len());
        for fingerprint in &self.fingerprints {
            body.u32(u32::from(fingerprint.is_some()));
            if let Some(fingerprint) = fingerprint {
                body.raw(&fingerprint.0);
            }
        }
        body.u32(u32::from(self.fabric.is_some()));
        if let Some(fabric) = &self.fabric {
            fabric.encode(&mut body);
        }
        finish(body, Kind::Description, self, Self::decode)
    }

    /// The description in `body`.
    pub fn decode(head: &Head, body: &[u8]) -> Result<Self, FormatError> {
        let mut body = head.body("description", body);
        let is_located = body.u32_in("located", 0, 1)? == 1;
        let located = is_located.then(|| Located::decode(&mut body)).transpose()?;
        let fingerprints = spans(&mut body, |body| {
            let is_sealed = body.u32_in("sealed", 0, 1)? == 1;
            let fingerprint = is_sealed.then(|| body.array("fingerprint")).transpose()?;
            Ok(fingerprint.map(Fingerprint))
        })?;
        let is_there = body.u32_in("fabric", 0, 1)? == 1;
        let fabric = is_there.then(|| Fabric::decode(&mut body, fingerprints.len()));
        let fabric = fabric.transpose()?;
        body.end()?;
        Ok(Self {
            located,
            fingerprints,
            fabric,
        })
    }
}

/// Asks for bytes of an exposure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read {
    /// Which exposure.
    pub exposure: [u8; 16],
    /// Which of its bytes.
    pub span: Span,
    /// How long the caller still waits, in microseconds.
    pub within_us: u64,
    /// Whether the caller has their fingerprint, so that they may come bare.
    pub bare: bool,
}

impl Read {
    /// Its body.
    pub fn encode(&self) -> Result<Vec<u8>, FormatError> {
        let mut body = Encoder::new("read");
        body.raw(&self.exposure);
        body.u64(self.span.offset).u64(self.span.length);
        body.u64(self.within_us).u32(u32::from(self.bare));
        finish(body, Kind::Read, self, Self::decode)
    }

    /// The read in `body`.
    pub fn decode(head: &Head, body: &[u8]) -> Result<Self, FormatError> {
        let mut body = head.body("read", body);
        let read = Self {
            exposure: body.array("exposure")?,
            span: Span::decode(&mut body)?,
            within_us: body.u64("within")?,
            bare: body.u32_in("bare", 0, 1)? == 1,
        };
        body.end()?;
        Ok(read)
    }
}

/// Where the bytes of an exposure stand, for a reader on the same machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    /// Device number of the file.
    pub device: u64,
    /// Inode number of the file.
    pub inode: u64,
    /// Its path, as the owner knows it.
    pub path: String,
}

impl Located {
    fn decode(body: &mut Decoder<'_>) -> Result<Self, FormatError> {
        Ok(Self {
            device: body.u64("device")?,
            inode: body.u64("inode")?,
            path: body.text("path", WORDS_BYTES_MAX)?,
        })
    }
}
