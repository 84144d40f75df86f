// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: reads of memory of a simulated node in which it takes no part: also while it stalls.
//! In from: the network's endpoints, by `OneSided`. Out to: what the node exposes.
//! Invariants: a key is good as long as what it is of is exposed, in the start of the node that gave it; what stands
//! at its place now is read, whatever that is.

use super::operation::{Action, Fault};
use super::traffic::Carried;
use super::{ADDRESS, SimEndpoint, SimNetwork};
use crate::seeded::Seeded;
use backstay_base::clock::Deadline;
use backstay_format::width::to_u64;
use backstay_format::wire::Remote;
use backstay_format::{FingerprintKey, KeyedFingerprint};
use backstay_net::{Exposed, Missed, Offer, OneSided, Peer, Span};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// What a read that is lost takes of the network's time, before the same is read through the owner.
const LOST: Duration = Duration::from_millis(10);
/// Keys that are looked through for those that are good no more.
const KEYS: usize = 1 << 10;

/// Memory that may be read: a range of what is exposed.
#[derive(Debug)]
struct Registration {
    exposed: Exposed,
    range: Span,
}

/// All memory that may be read, by key, and reads that came and that did not.
#[derive(Debug, Default)]
pub(super) struct Registered {
    given: u64,
    keys: BTreeMap<u64, Weak<Registration>>,
    pub(super) reads: [u64; 2],
}

impl Registered {
    fn insert(&mut self, registration: &Arc<Registration>) -> u64 {
        if self.keys.len() >= KEYS {
            self.keys.retain(|_, known| known.strong_count() > 0);
        }
        self.given += 1;
        self.keys.insert(self.given, Arc::downgrade(registration));
        self.given
    }
}

/// One node's way past others.
#[derive(Debug)]
pub(super) struct Past(pub(super) SimEndpoint);

impl Past {
    /// Of the node `name` in a start of it.
    pub(super) fn of(network: &SimNetwork, name: &str, start: u64) -> Self {
        Self(SimEndpoint {
            network: network.clone(),
            name: name.to_owned(),
            start,
        })
    }

    fn come(&self, peer: &Peer, remote: Remote, into: &mut [u8]) -> Result<(), Missed> {
        let length = to_u64(into.len());
        let key = remote.key;
        let action = || Action::ReadPast { key, length };
        let missed = |error: backstay_base::Error| Missed(error.to_string());
        let arrived = self.0.arrive(peer, action, Carried::Past(length), LOST);
        let arrived = arrived.map_err(missed)?;
        let found = self.0.network.lock().registered.keys.get(&key).cloned();
        let Some(registration) = found.and_then(|found| found.upgrade()) else {
            return Err(Missed("the key is of no memory any more".to_owned()));
        };
        let range = registration.range;
        let end = range.offset + range.length;
        if remote.address < range.offset || remote.address + length > end {
            return Err(Missed("beyond the memory of the key".to_owned()));
        }
        if registration.exposed.read_at(into, remote.address).is_err() {
            // Others write there by now.
            into.fill(0x5a);
        }
        drop(registration);
        let back = self.0.come_back(peer, &arrived, LOST);
        back.map_err(missed)?;
        if arrived.fault == Some(Fault::Corrupt) && !into.is_empty() {
            let place = Seeded::new(arrived.flip).index(into.len());
            into[place] ^= 1 << (arrived.flip % 8);
        }
        Ok(())
    }
}

impl OneSided for Past {
    fn provider(&self) -> &'static str {
        "simulated"
    }

    fn is_local(&self) -> bool {
        false
    }

    fn address(&self) -> Vec<u8> {
        self.0.name.clone().into_bytes()
    }

    fn least_bytes(&self) -> usize {
        1
    }

    fn offer(&self, exposed: &Exposed, range: Span, _: &[u8]) -> Option<(Remote, Offer)> {
        let exposed = exposed.clone();
        let registration = Arc::new(Registration { exposed, range });
        let key = self.0.network.lock().registered.insert(&registration);
        let address = range.offset;
        Some((Remote { key, address }, registration))
    }

    fn read(
        &self,
        (address, remote, key): (&[u8], Remote, &FingerprintKey),
        into: &mut [u8],
        _: &Deadline,
    ) -> Result<KeyedFingerprint, Missed> {
        let name = String::from_utf8_lossy(address);
        let peer = Peer::new(&*name, format!("{ADDRESS}{name}"));
        let come = self.come(&peer, remote, into);
        let mut state = self.0.network.lock();
        state.registered.reads[usize::from(come.is_err())] += 1;
        drop(state);
        come.map(|()| key.of(into))
    }

    fn end(&self) {}
}
