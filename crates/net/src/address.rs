// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: which of this host's addresses others are told.
//! In from: the configuration. Out to: the address of an endpoint.
//! Invariants: no name is looked up, because that has no limit.

use backstay_base::error::{Error, ErrorKind, Result};
use std::net::{IpAddr, Ipv4Addr, UdpSocket};

/// The address that others are told: the one asked for, or the host's.
pub fn announced_host(asked: Option<&str>) -> Result<IpAddr> {
    let Some(asked) = asked else {
        return Ok(host_address());
    };
    asked.parse().map_err(|error| {
        let context = format!("the address to announce is {asked}, not the number of one");
        Error::caused(ErrorKind::Configuration, context, error)
    })
}

/// The address by which this host reaches others: that of the default route, or else of the first
/// interface that is up and no loopback, or else 127.0.0.1.
pub fn host_address() -> IpAddr {
    routed("0.0.0.0:0", "192.0.2.1:9")
        .or_else(of_an_interface)
        .or_else(|| routed("[::]:0", "[2001:db8::1]:9"))
        .unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// The local address of a route. The far one is of a range for documents, and nothing is sent there.
fn routed(local: &str, far: &str) -> Option<IpAddr> {
    let socket = UdpSocket::bind(local).ok()?;
    socket.connect(far).ok()?;
    let address = socket.local_addr().ok()?.ip();
    is_useful(&address).then_some(address)
}

fn of_an_interface() -> Option<IpAddr> {
    let mut found: Vec<IpAddr> = if_addrs::get_if_addrs()
        .ok()?
        .into_iter()
        .map(|interface| interface.ip())
        .filter(is_useful)
        .collect();
    // IPv4 before IPv6: addresses of one link among the latter do not work elsewhere.
    found.retain(|address| match address {
        IpAddr::V4(_) => true,
        IpAddr::V6(address) => !address.is_unicast_link_local(),
    });
    found.sort_by_key(IpAddr::is_ipv6);
    found.first().copied()
}

fn is_useful(address: &IpAddr) -> bool {
    !address.is_loopback() && !address.is_unspecified()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_found_or_the_one_asked_for_is_taken() {
        assert!(!host_address().is_unspecified());
        let asked = announced_host(Some("10.1.2.3")).unwrap();
        assert_eq!(asked.to_string(), "10.1.2.3");
        let error = announced_host(Some("node-3.cluster")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration);
    }
}
