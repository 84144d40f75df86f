// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every transport of the workspace through the suite.

use crate::stalling::{Stalling, nobody};
use backstay_net::{Endpoint, Peer, Secret, TcpEndpoint, TcpOptions};
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
    let network = SimNetwork::new(1);
    network.read_past_owners();
    transport_conformance(&Simulated(network.clone()));
    assert!(
        network.reads_past()[0] > 8 * 12,
        "{:?}",
        network.reads_past()
    );
}

fn must<T, E: std::fmt::Display>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

/// Endpoints on the loopback interface, with or without the way past the sockets.
struct Tcp {
    same_node: bool,
    stalling: Stalling,
}

impl TransportLab for Tcp {
    fn endpoint(&self, name: &str) -> Arc<dyn Endpoint> {
        let mut options = TcpOptions::new(name, "a job", Secret::from_bytes([9; 32]));
        options.listen = Some(([127, 0, 0, 1], 0).into());
        options.same_node = self.same_node;
        Arc::new(must(TcpEndpoint::open(options)))
    }
    fn stall(&self, endpoint: &dyn Endpoint) {
        self.stalling.stall(endpoint);
    }
    fn go_on(&self, _: &dyn Endpoint) {
        self.stalling.go_on();
    }
    fn nobody(&self) -> Peer {
        nobody()
    }
}

#[test]
fn tcp_conforms() {
    for same_node in [false, true] {
        transport_conformance(&Tcp {
            same_node,
            stalling: Stalling::default(),
        });
    }
}
