// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the way to other nodes: control messages that are answered, and bytes read from what a peer
//! exposes.
//! In from: composers, which say who the peers are. Out to: TCP, the same node's files, or a
//! simulated network in tests.
//! Invariants: every wait has a limit; bytes that were read have the fingerprint that their owner computed,
//! or came from it under a MAC; a peer that stalls, dies or talks nonsense is an error, never a panic.

mod address;
mod expose;
#[cfg(feature = "libfabric")]
mod fabric;
mod one_sided;
mod remote;
mod same_node;
mod secret;
pub mod tcp;

pub use address::{announced_host, host_address};
pub use expose::{Asker, Exposed, Exposures};
pub use one_sided::{Missed, Offer, OneSided, Transport, Transports, read_past};
pub use remote::{RemoteDevice, file_exposure};
pub use secret::{Secret, SecretSource};
pub use tcp::{TcpEndpoint, TcpOptions};

use backstay_base::clock::Deadline;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::width::to_u64;
use backstay_format::wire::{Description, Located, Remote};
use backstay_format::{FingerprintKey, KeyedFingerprint, StoreId};
use std::fmt::{self, Debug, Display};
use std::sync::Arc;
use std::time::Duration;

/// Longest request, and longest answer, in bytes; most ranges of one description; one of them.
pub use backstay_format::wire::{MESSAGE_BYTES_MAX, SPANS_MAX, Span};

/// An endpoint of the job, as others know it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer {
    /// What errors and logs call it: the name of its node.
    pub name: String,
    /// How to reach it: what its [`Endpoint::address`] gave, `10.0.0.1:4321`.
    pub address: String,
}

impl Peer {
    /// The endpoint `name` at `address`.
    pub fn new(name: impl Into<String>, address: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            address: address.into(),
        }
    }
}

impl Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.name, self.address)
    }
}

/// What may be pulled from an endpoint: the id of a store, or one drawn for the purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExposureId(pub [u8; 16]);

impl From<StoreId> for ExposureId {
    fn from(store: StoreId) -> Self {
        Self(store.0)
    }
}

impl Display for ExposureId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_le_bytes(self.0))
    }
}

/// Answers the control messages of other endpoints.
///
/// Contract: called by several threads at once; may call other endpoints; does not block longer than
/// `within`, after which nobody waits for the answer any more. A panic is caught, and the caller
/// gets it as [`ErrorKind::Internal`].
pub trait Handler: Send + Sync {
    /// The answer to `request`, of at most [`MESSAGE_BYTES_MAX`] bytes, or an error that goes back to
    /// the caller as it is.
    fn handle(&self, request: &[u8], within: Duration) -> Result<Vec<u8>>;
}

/// A function is a handler.
impl<F: Fn(&[u8], Duration) -> Result<Vec<u8>> + Send + Sync> Handler for F {
    fn handle(&self, request: &[u8], within: Duration) -> Result<Vec<u8>> {
        self(request, within)
    }
}

/// A range of an exposure, as its owner described it: all that a read of it needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    /// Of which exposure.
    pub exposure: ExposureId,
    /// Which range.
    pub span: Span,
    /// What the owner computed of sealed bytes, once; `None` where they may be written yet, so that only the
    /// owner reads them, under a MAC.
    pub fingerprint: Option<KeyedFingerprint>,
    /// The file in which the exposure stands, at the same offsets, where it is one of this machine.
    pub located: Option<Arc<Located>>,
    /// Where it is read past the owner, where that can be.
    pub remote: Option<(Arc<Vec<u8>>, Remote)>,
}

impl Described {
    /// Ranges as their owner described them, in their order, to one who shares `key` with it.
    pub fn all(
        exposure: ExposureId,
        spans: &[Span],
        description: Description,
        key: FingerprintKey,
    ) -> Vec<Self> {
        let located = description.located.map(Arc::new);
        let (address, remotes) = description.fabric.map_or_else(Default::default, |fabric| {
            (Arc::new(fabric.address), fabric.remotes)
        });
        let known = spans.iter().zip(description.fingerprints);
        let remotes = remotes.into_iter().chain(std::iter::repeat(None));
        let each = known.zip(remotes);
        each.map(|((&span, fingerprint), remote)| Self {
            exposure,
            span,
            fingerprint: fingerprint.map(|fingerprint| KeyedFingerprint { key, fingerprint }),
            located: located.clone(),
            remote: remote.map(|remote| (Arc::clone(&address), remote)),
        })
        .collect()
    }
}

/// One end of the transport: what this process offers to others, and its way to them.
///
/// Contract, the same for every implementation (`backstay_testkit::conformance` checks it):
///
/// - Any number of threads use an endpoint at once. `call`, `describe` and `read` block the caller, and return
///   not much later than `within`.
/// - A `call` is handled at most once. An error leaves open whether it was: a request that must not
///   be done twice carries its own number. Calls of one thread to one peer arrive in their order;
///   those of different threads in any.
/// - A `describe` says what the owner knows of ranges. Of sealed bytes that is their fingerprint, which the
///   owner computes when it is asked for the range first, and keeps.
/// - A `read` has the bytes of a range that was described; the owner's threads of control messages take no
///   part in it, and of sealed bytes it computes nothing. What arrives is compared with the fingerprint. If
///   it is other bytes, the owner is asked once more for the fingerprint, computed anew: what the owner has
///   now is given back (it was damaged or repaired since), and everything else is an error. So is what was
///   freed or written meanwhile. Bytes that are not sealed come as the owner read them. After an error `into`
///   holds anything.
/// - What is withdrawn is refused to every describe that begins afterwards, and to every read through the
///   owner; a read past it may succeed, with the bytes that were described. Reads under way end in either way.
/// - An endpoint reaches itself like any peer.
///
/// Errors:
///
/// | kind | when |
/// |---|---|
/// | [`ErrorKind::Timeout`] | `within` passed: the peer stalls, or has more to do than it can |
/// | [`ErrorKind::PeerUnreachable`] | no connection, a connection that ended, an answer that is none or was tampered with on the way, this endpoint shut down |
/// | [`ErrorKind::Configuration`] | the peer has another job secret, or belongs to another job |
/// | [`ErrorKind::Unsupported`] | the peer speaks another version; it handles no calls yet |
/// | [`ErrorKind::Corrupt`] | what arrived is not what the owner computed a fingerprint of |
/// | [`ErrorKind::NotRetained`] | the peer exposes nothing under this id |
/// | [`ErrorKind::InvalidArgument`] | a message too long, too many ranges, a range beyond the end, an address that is none |
/// | any | of the remote handler, or of the remote device: kind and context come back, with the peer's name before them |
pub trait Endpoint: Debug + Send + Sync {
    /// What errors and logs of others call this endpoint.
    fn name(&self) -> String;
    /// How others reach it.
    fn address(&self) -> String;
    /// By what it reads what peers expose: `tcp`, or `libfabric` with a provider.
    fn transport(&self) -> String {
        "tcp".to_owned()
    }
    /// Bytes that it read over its connections so far, and past them: by libfabric.
    fn moved_bytes(&self) -> [u64; 2] {
        [0, 0]
    }
    /// Name and address, as others need them.
    fn peer(&self) -> Peer {
        Peer::new(self.name(), self.address())
    }
    /// Lets peers read from `what` under `id`, in place of what was exposed under it before.
    fn expose(&self, id: ExposureId, what: Exposed);
    /// Exposes it no more; nothing where it was not exposed.
    fn withdraw(&self, id: ExposureId);
    /// Sets or replaces the handler. Calls under way end with the former one. The endpoint owns it until it
    /// is replaced or the endpoint shut down, so a handler that uses the endpoint holds a weak reference.
    fn serve(&self, handler: Arc<dyn Handler>);
    /// Sends `request` to the peer's handler and returns its answer.
    fn call(&self, peer: &Peer, request: &[u8], within: Duration) -> Result<Vec<u8>>;
    /// What the peer says of at most [`SPANS_MAX`] ranges of its exposure, in their order; `true`: computed
    /// afresh, because other bytes arrived than it had said.
    fn describe(
        &self,
        peer: &Peer,
        exposure: ExposureId,
        spans_afresh: (&[Span], bool),
        within: Duration,
    ) -> Result<Vec<Described>>;
    /// Fills `into`, which is as long as the range, with the bytes that the peer described.
    fn read(&self, peer: &Peer, range: &Described, into: &mut [u8], within: Duration)
    -> Result<()>;
    /// Fills `into` from `offset` of the peer's exposure: describes and reads.
    fn pull(
        &self,
        peer: &Peer,
        exposure: ExposureId,
        offset: u64,
        into: &mut [u8],
        within: Duration,
    ) -> Result<()> {
        let deadline = Deadline::after(within);
        let length = to_u64(into.len());
        let spans = [Span { offset, length }];
        let described = self.describe(peer, exposure, (&spans, false), within)?;
        let [range] = &described[..] else {
            return Err(remote_error(peer, ErrorKind::Internal, "described nothing"));
        };
        self.read(peer, range, into, deadline.left().unwrap_or_default())
    }
    /// Ends all connections and threads; calls under way fail, and every later one.
    fn shut_down(&self);
}

/// Refuses more ranges than are described at once.
pub fn check_spans(peer: &Peer, spans: &[Span]) -> Result<()> {
    if spans.len() <= SPANS_MAX {
        return Ok(());
    }
    let context = format!("{} ranges for {peer}: at most {SPANS_MAX}", spans.len());
    Err(Error::new(ErrorKind::InvalidArgument, context))
}

/// That `into` is as long as the range that is to be read into it.
pub fn check_read(range: &Described, into: &[u8]) -> Result<()> {
    if range.span.length == to_u64(into.len()) {
        return Ok(());
    }
    let (length, room) = (range.span.length, into.len());
    let context = format!("a read of {length} bytes into {room}");
    Err(Error::new(ErrorKind::InvalidArgument, context))
}

/// That bytes which arrived are those of which the owner computed the fingerprint, before or now.
pub fn verify(
    endpoint: &dyn Endpoint,
    peer: &Peer,
    range: &Described,
    found: KeyedFingerprint,
    within: Duration,
) -> Result<()> {
    if range.fingerprint == Some(found) {
        return Ok(());
    }
    let (exposure, span) = (range.exposure, range.span);
    let now = endpoint.describe(peer, exposure, (&[span], true), within)?;
    let expected = now.first().and_then(|now| now.fingerprint);
    if expected == Some(found) {
        return Ok(());
    }
    let Span { offset, length } = span;
    let expected =
        expected.map_or_else(|| "none".to_owned(), |owner| owner.fingerprint.to_string());
    let context = format!(
        "{length} bytes at {offset} of {exposure}, read from {peer}: expected fingerprint {expected}, \
         found {}: they were damaged on the way, or changed while they were read",
        found.fingerprint
    );
    Err(Error::new(ErrorKind::Corrupt, context))
}

/// The words of an error for the way to another endpoint: its context and its causes.
pub fn words(error: &Error) -> String {
    error.words()
}

/// An error of the remote side as the caller sees it: the same kind, and who said it.
pub fn remote_error(peer: &Peer, kind: ErrorKind, words: &str) -> Error {
    Error::new(kind, format!("{peer}: {words}"))
}

/// Refuses a message that is too long to be sent.
pub fn check_message(what: &str, peer: &Peer, length: usize) -> Result<()> {
    if length <= MESSAGE_BYTES_MAX {
        return Ok(());
    }
    let context = format!("a {what} of {length} bytes for {peer}: at most {MESSAGE_BYTES_MAX}");
    Err(Error::new(ErrorKind::InvalidArgument, context))
}
