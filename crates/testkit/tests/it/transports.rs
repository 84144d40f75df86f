// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every transport of the workspace through the suite.

use backstay::transport::{Endpoint, Peer};
use backstay_testkit::SimNetwork;
use backstay_testkit::conformance::{TransportLab, transport_conformance};
use std::sync::Arc;

impl TransportLab for Simulated {
    fn endpoint(&self, name: &str) -> Arc<dyn Endpoint> {
        self.0.endpoint(name)
    }
    fn stall(&self, endpoint: &dyn Endpoint) {
        self.0.stall(&endpoint.name());
    }
    fn go_on(&self, endpoint: &dyn Endpoint) {
        self.0.resume(&endpoint.name());
    }
    fn nobody(&self) -> Peer {
        Peer::new("nobody", "sim:nobody")
    }
}

struct Simulated(SimNetwork);

#[test]
fn the_simulated_network_conforms() {
    transport_conformance(&Simulated(SimNetwork::new(1)));
}
