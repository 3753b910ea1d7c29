//! The inner addresses that a server assigns. A server must not get more of this node's traffic by
//! them than the configuration gives it.

use crate::config::ClientConfig;
use crate::interfaces::Networks;
use crate::join::Opened;
use crate::session::is_source;
use anyhow::{Result, ensure};
use hawser_model::at_most_one_of_each_family;
use std::net::IpAddr;

/// The inner addresses of a session, at most one of each family at either end.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct InnerAddresses {
    /// Those of this client.
    pub(super) own: Vec<IpAddr>,
    /// Those of the server that are reached through the tunnel also without `routes`.
    pub(super) server: Vec<IpAddr>,
}

impl InnerAddresses {
    /// Returns the addresses of a session that a server has opened. `peers` are the outer addresses
    /// of servers and controllers. The prefix lengths of the server have no effect.
    ///
    /// # Errors
    /// If a server that follows the protocol does not assign such addresses, or this node would not
    /// reach itself or one of the peers any more.
    pub(super) fn of(
        opened: &Opened,
        config: &ClientConfig,
        networks: &Networks,
        peers: &[IpAddr],
    ) -> Result<InnerAddresses> {
        let own: Vec<_> = opened
            .addresses
            .iter()
            .map(|(address, _)| *address)
            .collect();
        for addresses in [&own, &opened.server_addresses] {
            ensure!(
                at_most_one_of_each_family(addresses.iter().map(IpAddr::is_ipv4)),
                "the server sent several inner addresses of one family: {addresses:?}"
            );
        }
        ensure!(!own.is_empty(), "the server assigned no inner address");
        for address in &own {
            ensure!(
                is_source(*address),
                "the server assigned {address}, which no node can have"
            );
            ensure!(
                !networks.receives(*address),
                "the server assigned {address}, which is in use on another interface"
            );
            ensure!(
                !peers.contains(address),
                "the server assigned {address}, which is the address of a server or controller"
            );
        }
        let is_reached = |address: &IpAddr| {
            own.iter().any(|own| own.is_ipv4() == address.is_ipv4())
                && is_private(*address)
                && !config.bypass.iter().any(|prefix| prefix.contains(*address))
                && !networks.contains(*address)
                && !peers.contains(address)
        };
        let server = opened.server_addresses.iter().copied();
        let server = server.filter(is_reached).collect();
        Ok(InnerAddresses { own, server })
    }
}

/// Returns whether an address is in a network that anybody may use (RFC 1918, RFC 6598, RFC 4193).
fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let [first, second, ..] = address.octets();
            address.is_private() || (first == 100 && second & 0xc0 == 64)
        }
        IpAddr::V6(address) => address.is_unique_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Prefix;
    use serde_json::{Value, json};

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn of(own: &Value, server: &[&str]) -> Result<InnerAddresses> {
        let opened = json!({
            "session": "00112233445566778899aabbccddeeff", "addresses": own, "server_addresses": server,
            "mtu": 1400, "coding": {}
        });
        let opened = serde_json::from_value(opened).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("client.toml");
        std::fs::write(&file, include_str!("../../examples/client.toml")).unwrap();
        let bypass: Prefix = "10.20.0.0/16".parse().unwrap();
        let config = ClientConfig {
            bypass: vec![bypass],
            ..ClientConfig::read(&file).unwrap()
        };
        let networks = Networks::of(&[("10.1.0.1", "255.255.255.0"), ("fd01::1", "ffff:ffff::")]);
        InnerAddresses::of(
            &opened,
            &config,
            &networks,
            &["203.0.113.1", "10.30.0.1"].map(ip),
        )
    }

    #[test]
    fn prefix_lengths_of_a_server_have_no_effect() {
        let addresses = of(&json!([["10.77.0.2", 1], ["fd77::2", 255]]), &[]).unwrap();
        assert_eq!(addresses.own, [ip("10.77.0.2"), ip("fd77::2")]);
    }

    #[test]
    fn addresses_that_a_correct_server_does_not_assign_are_refused() {
        let refused = |own: Value, reason: &str| {
            let error = of(&own, &[]).unwrap_err().to_string();
            assert!(error.contains(reason), "{own}: {error}");
        };
        refused(json!([]), "no inner address");
        refused(json!([["10.77.0.2", 16], ["10.77.0.3", 16]]), "several");
        for address in [
            "127.0.0.1",
            "0.0.0.0",
            "224.0.0.1",
            "169.254.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "ff02::1",
            "fe80::1",
            "::ffff:10.77.0.2",
        ] {
            refused(json!([[address, 32]]), "no node can have");
        }
        for address in ["10.1.0.1", "10.1.0.255", "fd01::1"] {
            refused(json!([[address, 32]]), "on another interface");
        }
        refused(json!([["203.0.113.1", 32]]), "of a server or controller");
        let error = of(&json!([["10.77.0.2", 16]]), &["10.77.0.1", "10.77.0.3"]).unwrap_err();
        assert!(error.to_string().contains("several"), "{error}");
    }

    #[test]
    fn the_servers_inner_address_is_reached_if_it_is_free() {
        let reached = |server: &[&str]| of(&json!([["10.77.0.2", 16]]), server).unwrap().server;
        for server in ["10.77.0.1", "172.16.0.1", "192.168.9.1", "100.64.0.1"] {
            assert_eq!(reached(&[server]), [ip(server)]);
        }
        for server in [
            "8.8.8.8",
            "100.128.0.1",
            "127.0.0.53",
            "10.20.0.1",
            "10.30.0.1",
            "10.1.0.9",
            "fd77::1",
        ] {
            assert_eq!(reached(&[server]), [] as [IpAddr; 0], "{server}");
        }
        let both = of(&json!([["fd77::2", 64]]), &["10.77.0.1", "fd77::1"]).unwrap();
        assert_eq!(both.server, [ip("fd77::1")]);
    }
}
