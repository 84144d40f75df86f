// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the labs of transports over sockets have in common: handlers that stall, and an address of nobody.

use backstay_net::{Endpoint, Peer};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Whether handlers stall.
#[derive(Debug, Default)]
pub(crate) struct Stalling(Arc<AtomicBool>);

impl Stalling {
    /// Has an endpoint answer nobody until [`Self::go_on`].
    pub(crate) fn stall(&self, endpoint: &dyn Endpoint) {
        self.0.store(true, Ordering::SeqCst);
        let stalled = Arc::clone(&self.0);
        endpoint.serve(Arc::new(move |_: &[u8], _: Duration| {
            while stalled.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(Vec::new())
        }));
    }

    pub(crate) fn go_on(&self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// A port that was free a moment ago.
pub(crate) fn nobody() -> Peer {
    let address = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let address = address.unwrap_or_else(|error| panic!("{error}"));
    Peer::new("nobody", address.to_string())
}
