// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: reads past the owner's threads: what a way of them offers to the endpoint that carries all else.
//! In from: endpoints, which describe ranges and read them. Out to: `fabric`, where it is built in; a simulated one
//! in tests.
//! Invariants: only sealed bytes go that way, and count when their fingerprint was compared; what fails goes
//! over the connection instead.

use super::{Described, Exposed, Span};
use backstay_base::clock::Deadline;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::wire::Remote;
use backstay_format::{FingerprintKey, KeyedFingerprint};
use std::any::Any;
use std::fmt::{self, Debug, Display};
use std::net::IpAddr;
use std::sync::Arc;

/// How bytes that peers expose are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transport {
    /// Over libfabric where it is there with a provider of network hardware, else over TCP.
    Auto,
    /// Over TCP.
    #[default]
    Tcp,
    /// Over libfabric, or there is no endpoint.
    Libfabric,
}

impl Transport {
    /// Every transport.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Tcp, Self::Libfabric];

    /// The word for it, as settings have it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Tcp => "tcp",
            Self::Libfabric => "libfabric",
        }
    }

    /// The transport of a word.
    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.word() == word)
    }
}

/// Which transport, and by which provider of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Transports {
    /// How bytes are read.
    pub transport: Transport,
    /// The provider of libfabric, `verbs;ofi_rxm`; by default the first of network hardware.
    pub provider: Option<String>,
}

/// Ranges are read that way from this length on; shorter ones gain nothing.
pub(crate) const LEAST_BYTES: usize = 64 << 10;

/// What keeps memory readable for peers until it is dropped.
pub type Offer = Arc<dyn Any + Send + Sync>;

/// Why bytes did not come.
#[derive(Debug)]
pub struct Missed(pub String);

impl Display for Missed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A way to read memory of a peer in which none of its threads takes part.
pub trait OneSided: Debug + Send + Sync {
    /// What it is called; both sides have to use the same.
    fn provider(&self) -> &str;
    /// Whether it reaches only peers on this machine.
    fn is_local(&self) -> bool;
    /// How peers reach this endpoint.
    fn address(&self) -> Vec<u8>;
    /// Shorter ranges are not read that way.
    fn least_bytes(&self) -> usize {
        LEAST_BYTES
    }
    /// Lets peers read `bytes`, which are sealed and lent of `exposed`: this range of it.
    fn offer(&self, exposed: &Exposed, range: Span, bytes: &[u8]) -> Option<(Remote, Offer)>;
    /// Fills `into` from `remote` of the endpoint at `address`; the fingerprint of what came, under the key, which is
    /// to be compared.
    fn read(
        &self,
        from: (&[u8], Remote, &FingerprintKey),
        into: &mut [u8],
        deadline: &Deadline,
    ) -> std::result::Result<KeyedFingerprint, Missed>;
    /// Nothing is read or offered any more.
    fn end(&self);
}

/// Reads a range past its owner, where that offered it. What did not come, or is other bytes than were described, is to
/// be read over the connection.
pub fn read_past(
    way: &dyn OneSided,
    range: &Described,
    into: &mut [u8],
    deadline: &Deadline,
) -> Option<std::result::Result<(), Missed>> {
    let (address, remote) = range.remote.as_ref()?;
    let known = range.fingerprint?;
    Some(
        match way.read((address, *remote, &known.key), into, deadline) {
            Ok(found) if known == found => Ok(()),
            Ok(_) => Err(Missed("other bytes came than were described".to_owned())),
            Err(missed) => Err(missed),
        },
    )
}

/// The way that `wanted` names, for an endpoint that is reached at `host`.
pub(crate) fn open(wanted: &Transports, host: IpAddr) -> Result<Option<Arc<dyn OneSided>>> {
    match wanted.transport {
        Transport::Tcp => Ok(None),
        Transport::Auto => Ok(open_fabric(wanted, host).ok()),
        Transport::Libfabric => open_fabric(wanted, host).map(Some),
    }
}

#[cfg(feature = "libfabric")]
fn open_fabric(wanted: &Transports, host: IpAddr) -> Result<Arc<dyn OneSided>> {
    let opened = super::fabric::Fabric::open(wanted.provider.as_deref(), host);
    let fabric = opened.map_err(|words| {
        let asked = wanted.provider.as_deref().unwrap_or("of network hardware");
        let context = format!(
            "transport is libfabric with a provider {asked}: {words}; `fi_info -l` lists providers, \
             fabric_provider names one, and transport = tcp does without"
        );
        Error::new(ErrorKind::Configuration, context)
    })?;
    Ok(fabric)
}

#[cfg(not(feature = "libfabric"))]
fn open_fabric(_wanted: &Transports, _host: IpAddr) -> Result<Arc<dyn OneSided>> {
    let context =
        "transport is libfabric, and this program was built without the feature libfabric";
    Err(Error::new(ErrorKind::Configuration, context))
}
