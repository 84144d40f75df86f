// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the way to other nodes: control messages that are answered, and bytes pulled from what a
//! peer exposes.
//! In from: composers, which say who the peers are. Out to: TCP, the same node's files, or a
//! simulated network in tests.
//! Invariants: every wait has a limit; bytes that were pulled have the digest that their owner saw, and
//! came from it; a peer that stalls, dies or talks nonsense is an error, never a panic.

mod address;
mod expose;
mod remote;
mod same_node;
mod secret;
pub mod tcp;

pub use address::{announced_host, host_address};
pub use expose::{Exposed, Exposures};
pub use remote::{RemoteDevice, file_exposure};
pub use secret::{Secret, SecretSource};
pub use tcp::{TcpEndpoint, TcpOptions};

use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::{Digest, StoreId};
use std::fmt::{self, Debug, Display};
use std::sync::Arc;
use std::time::Duration;

/// Longest request, and longest answer, in bytes.
pub use backstay_format::wire::MESSAGE_BYTES_MAX;

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

/// One end of the transport: what this process offers to others, and its way to them.
///
/// Contract, the same for every implementation (`backstay_testkit::conformance` checks it):
///
/// - Any number of threads use an endpoint at once. `call` and `pull` block the caller, and return
///   not much later than `within`.
/// - A `call` is handled at most once. An error leaves open whether it was: a request that must not
///   be done twice carries its own number. Calls of one thread to one peer arrive in their order;
///   those of different threads in any.
/// - A `pull` reads what the owner's exposure holds while it runs; the owner's threads of control
///   messages take no part in it. Whoever changes these bytes meanwhile makes it fail, or not,
///   but never makes it return bytes of which the owner did not compute the digest that is returned.
///   After an error `into` holds anything.
/// - What is withdrawn is refused to every pull that begins afterwards; pulls under way end in
///   either way, and hold what they read until then.
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
/// | [`ErrorKind::Corrupt`] | the digest of what arrived is not what the owner computed |
/// | [`ErrorKind::NotRetained`] | the peer exposes nothing under this id |
/// | [`ErrorKind::InvalidArgument`] | a message too long, a range beyond the end, an address that is none |
/// | any | of the remote handler, or of the remote device: kind and context come back, with the peer's name before them |
///
/// How one-sided reads of libfabric fit: `expose` registers the memory or the mapping of the device
/// (`fi_mr_reg`, `FI_REMOTE_READ`). The first pull from an exposure asks the peer by a control message for its
/// key, length, and the base address to add to `offset` where the provider wants `FI_MR_VIRT_ADDR`
/// (0 where it does not), and keeps the answer until a read is refused. A pull registers
/// `into` where the provider wants `FI_MR_LOCAL`, issues `fi_read` in chunks of 1 MiB or more, several at
/// once, and asks the owner by one control message for the digest of the range, which it computes
/// while the reads run. `into` is borrowed for the whole call: an implementation returns only when
/// each read completed or was cancelled, so that no late one writes memory that is the caller's again.
/// `withdraw` closes the registration, after which the key is refused.
pub trait Endpoint: Debug + Send + Sync {
    /// What errors and logs of others call this endpoint.
    fn name(&self) -> String;
    /// How others reach it.
    fn address(&self) -> String;
    /// Name and address, as others need them.
    fn peer(&self) -> Peer {
        Peer::new(self.name(), self.address())
    }
    /// Lets peers pull from `what` under `id`, in place of what was exposed under it before.
    fn expose(&self, id: ExposureId, what: Exposed);
    /// Exposes it no more; nothing where it was not exposed.
    fn withdraw(&self, id: ExposureId);
    /// Sets or replaces the handler. Calls under way end with the former one. The endpoint owns it until it
    /// is replaced or the endpoint shut down, so a handler that uses the endpoint holds a weak reference.
    fn serve(&self, handler: Arc<dyn Handler>);
    /// Sends `request` to the peer's handler and returns its answer.
    fn call(&self, peer: &Peer, request: &[u8], within: Duration) -> Result<Vec<u8>>;
    /// Fills `into` from `offset` of the peer's exposure, and returns the digest that the owner
    /// computed of these bytes, which is the one that was computed here.
    fn pull(
        &self,
        peer: &Peer,
        exposure: ExposureId,
        offset: u64,
        into: &mut [u8],
        within: Duration,
    ) -> Result<Digest>;
    /// Ends all connections and threads; calls under way fail, and every later one.
    fn shut_down(&self);
}

/// The words of an error for the way to another endpoint: its context and its causes.
pub fn words(error: &Error) -> String {
    error.words()
}

/// An error of the remote side as the caller sees it: the same kind, and who said it.
pub fn remote_error(peer: &Peer, kind: ErrorKind, words: &str) -> Error {
    Error::new(kind, format!("{peer}: {words}"))
}

/// Compares the digest that the owner of pulled bytes computed with the one computed here.
pub fn agree(
    peer: &Peer,
    exposure: ExposureId,
    (offset, length): (u64, usize),
    (owner, here): (Digest, Digest),
) -> Result<Digest> {
    if owner == here {
        return Ok(owner);
    }
    let context = format!(
        "{length} bytes at {offset} of {exposure}, pulled from {peer}: expected digest {owner}, \
         found {here}: they were damaged on the way, or changed while they were read"
    );
    Err(Error::new(ErrorKind::Corrupt, context))
}

/// Refuses a message that is too long to be sent.
pub fn check_message(what: &str, peer: &Peer, length: usize) -> Result<()> {
    if length <= MESSAGE_BYTES_MAX {
        return Ok(());
    }
    let context = format!("a {what} of {length} bytes for {peer}: at most {MESSAGE_BYTES_MAX}");
    Err(Error::new(ErrorKind::InvalidArgument, context))
}
