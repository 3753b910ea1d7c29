//! The filter for packets from the peer. Anything that the configuration does not allow is denied.

use crate::config::Prefix;
use crate::interfaces::Networks;
use crate::packet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use tokio::sync::watch;

/// The packets that the peer may send.
#[derive(Debug, Clone)]
pub(crate) enum Admission {
    /// The filter of a client.
    FromServer {
        /// The client's inner addresses.
        own: Vec<IpAddr>,
        /// Networks behind the client that the configuration allows.
        lan: Vec<Prefix>,
        /// Networks that the client is in.
        networks: watch::Receiver<Networks>,
    },
    /// The filter of a server.
    FromClient {
        /// The client's inner addresses.
        own: Vec<IpAddr>,
        /// The prefixes of the clients' inner addresses.
        clients: Vec<Prefix>,
        /// The server's own addresses in these prefixes.
        server: Vec<IpAddr>,
        /// Private destinations that the configuration allows.
        allowed_destinations: Arc<[Prefix]>,
        /// Networks that the server is in.
        networks: watch::Receiver<Networks>,
    },
}

/// The reason for denying a packet from the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DenyReason {
    /// It is not an IP packet.
    NotIp,
    /// Its source is not an address of the client. From a server: its source is an address of this
    /// node's own networks, or invalid as a source.
    Spoofed,
    /// Its destination is another client.
    ToOtherClient,
    /// Its destination is a private, link-local or otherwise special address that the server's
    /// configuration does not allow.
    ToPrivate,
    /// Its destination is an address of the server's machine outside the tunnel.
    ToServer,
    /// Its destination is neither the client nor a network that its configuration allows.
    NotForClient,
}

impl DenyReason {
    pub(crate) const ALL: [DenyReason; 6] = [
        DenyReason::NotIp,
        DenyReason::Spoofed,
        DenyReason::ToOtherClient,
        DenyReason::ToPrivate,
        DenyReason::ToServer,
        DenyReason::NotForClient,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            DenyReason::NotIp => "not_ip",
            DenyReason::Spoofed => "spoofed",
            DenyReason::ToOtherClient => "to_other_client",
            DenyReason::ToPrivate => "to_private",
            DenyReason::ToServer => "to_server",
            DenyReason::NotForClient => "not_for_client",
        }
    }
}

impl Admission {
    pub(crate) fn check(&self, packet: &[u8]) -> Result<(), DenyReason> {
        let (source, to) = packet::source(packet)
            .zip(packet::destination(packet))
            .ok_or(DenyReason::NotIp)?;
        let deny_if =
            |is_denied: bool, reason: DenyReason| if is_denied { Err(reason) } else { Ok(()) };
        match self {
            Admission::FromServer { own, lan, networks } => {
                let is_local = own.contains(&source)
                    || covers(lan, source)
                    || networks.borrow().contains(source);
                deny_if(is_local || !is_source(source), DenyReason::Spoofed)?;
                deny_if(
                    !own.contains(&to) && !covers(lan, to),
                    DenyReason::NotForClient,
                )
            }
            Admission::FromClient {
                own,
                clients,
                server,
                allowed_destinations,
                networks,
            } => {
                deny_if(!own.contains(&source), DenyReason::Spoofed)?;
                if covers(clients, to) {
                    return deny_if(!server.contains(&to), DenyReason::ToOtherClient);
                }
                if covers(allowed_destinations, to) {
                    return Ok(());
                }
                deny_if(networks.borrow().receives(to), DenyReason::ToServer)?;
                deny_if(!is_public(to), DenyReason::ToPrivate)
            }
        }
    }
}

impl Admission {
    /// Returns the source of a packet to the peer, if it is one that the server of this client does not
    /// accept.
    pub(crate) fn foreign_source(&self, packet: &[u8]) -> Option<IpAddr> {
        let Admission::FromServer { own, lan, .. } = self else {
            return None;
        };
        let source = packet::source(packet)?;
        let is_foreign = is_source(source) && !own.contains(&source) && !covers(lan, source);
        is_foreign.then_some(source)
    }
}

fn covers(prefixes: &[Prefix], address: IpAddr) -> bool {
    prefixes.iter().any(|prefix| prefix.contains(address))
}

/// Returns whether the address is valid as the source of a packet from another network.
pub(crate) fn is_source(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let [first, ..] = address.octets();
            (1..224).contains(&first) && !address.is_loopback() && !address.is_link_local()
        }
        IpAddr::V6(address) => {
            let is_not_unicast =
                address.is_unspecified() || address.is_loopback() || address.is_multicast();
            !is_not_unicast
                && !address.is_unicast_link_local()
                && address.to_ipv4_mapped().is_none()
        }
    }
}

/// Returns whether the address is globally reachable (IANA's special-purpose address registries,
/// RFC 6890). Documentation prefixes count as such: they are not in use.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_ipv4(address),
        IpAddr::V6(address) => is_public_ipv6(address),
    }
}

fn is_public_ipv4(address: Ipv4Addr) -> bool {
    !match address.octets() {
        [0 | 10 | 127 | 224.., ..] | [192, 168, ..] | [169, 254, ..] | [192, 0, 0, _] => true,
        [172, second, ..] => second & 0xf0 == 16,
        // Carrier-grade NAT (RFC 6598).
        [100, second, ..] => second & 0xc0 == 64,
        [198, second, ..] => second & 0xfe == 18,
        // The platform service of Azure, which virtual machines query for their configuration.
        octets => octets == [168, 63, 129, 16],
    }
}

fn is_public_ipv6(address: Ipv6Addr) -> bool {
    let ipv4 = |high: u16, low: u16| {
        is_public_ipv4(Ipv4Addr::from(u32::from(high) << 16 | u32::from(low)))
    };
    match address.segments() {
        // NAT64 addresses (RFC 6052) and 6to4 addresses (RFC 3056), which embed an IPv4 address.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => ipv4(high, low),
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn packet(from: &str, to: &str) -> Vec<u8> {
        match (ip(from), ip(to)) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                [&[0x45][..], &[0; 11], &from.octets(), &to.octets()].concat()
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                [&[0x60][..], &[0; 7], &from.octets(), &to.octets()].concat()
            }
            _ => panic!("two families"),
        }
    }

    fn prefixes(texts: &[&str]) -> Vec<Prefix> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn networks(networks: &[(&str, &str)]) -> watch::Receiver<Networks> {
        watch::channel(Networks::of(networks)).1
    }

    fn server(allowed_destinations: &[&str]) -> Admission {
        Admission::FromClient {
            own: vec![ip("10.77.0.2"), ip("fd77::2")],
            clients: prefixes(&["10.77.0.0/16", "fd77::/64"]),
            server: vec![ip("10.77.0.1"), ip("fd77::1")],
            allowed_destinations: prefixes(allowed_destinations).into(),
            networks: networks(&[
                ("203.0.113.1", "255.255.255.0"),
                ("2001:db8:1::1", "ffff:ffff:ffff::"),
            ]),
        }
    }

    fn client(lan: &[&str]) -> Admission {
        let uplink = ("10.1.0.1", "255.255.255.0");
        Admission::FromServer {
            own: vec![ip("10.77.0.2"), ip("fd77::2")],
            lan: prefixes(lan),
            networks: networks(&[
                uplink,
                ("192.168.7.1", "255.255.255.0"),
                ("fd07::1", "ffff:ffff:ffff:ffff::"),
            ]),
        }
    }

    #[test]
    fn a_client_reaches_only_the_internet_and_inner_addresses() {
        let own = |to: &str| {
            if ip(to).is_ipv4() {
                "10.77.0.2"
            } else {
                "fd77::2"
            }
        };
        for (to, expected) in [
            ("198.51.100.9", Ok(())),
            ("203.0.113.2", Ok(())),
            ("172.15.0.1", Ok(())),
            ("172.32.0.1", Ok(())),
            ("100.63.0.1", Ok(())),
            ("100.128.0.1", Ok(())),
            ("10.77.0.1", Ok(())),
            ("10.77.0.3", Err(DenyReason::ToOtherClient)),
            ("203.0.113.1", Err(DenyReason::ToServer)),
            ("10.1.2.3", Err(DenyReason::ToPrivate)),
            ("172.16.0.1", Err(DenyReason::ToPrivate)),
            ("172.31.255.1", Err(DenyReason::ToPrivate)),
            ("192.168.1.1", Err(DenyReason::ToPrivate)),
            ("100.64.0.1", Err(DenyReason::ToPrivate)),
            ("169.254.169.254", Err(DenyReason::ToPrivate)),
            ("168.63.129.16", Err(DenyReason::ToPrivate)),
            ("192.0.0.192", Err(DenyReason::ToPrivate)),
            ("127.0.0.1", Err(DenyReason::ToPrivate)),
            ("0.0.0.0", Err(DenyReason::ToPrivate)),
            ("224.0.0.1", Err(DenyReason::ToPrivate)),
            ("255.255.255.255", Err(DenyReason::ToPrivate)),
            ("2606::1", Ok(())),
            ("fd77::1", Ok(())),
            ("fd77::3", Err(DenyReason::ToOtherClient)),
            ("2001:db8:1::1", Err(DenyReason::ToServer)),
            ("2001:db8:1::2", Ok(())),
            ("fd00:ec2::254", Err(DenyReason::ToPrivate)),
            ("fe80::1", Err(DenyReason::ToPrivate)),
            ("::1", Err(DenyReason::ToPrivate)),
            ("::ffff:10.0.0.1", Err(DenyReason::ToPrivate)),
            ("64:ff9b::10.0.0.1", Err(DenyReason::ToPrivate)),
            ("64:ff9b::198.51.100.9", Ok(())),
            ("2002:a9fe:a9fe::1", Err(DenyReason::ToPrivate)),
            ("ff02::1", Err(DenyReason::ToPrivate)),
        ] {
            assert_eq!(server(&[]).check(&packet(own(to), to)), expected, "{to}");
        }
    }

    #[test]
    fn what_is_opened_is_reached_and_no_more() {
        let open = server(&[
            "10.1.0.0/16",
            "203.0.113.1/32",
            "fd00:ec2::/64",
            "0.0.0.0/0",
        ]);
        for to in ["10.1.2.3", "203.0.113.1", "192.168.1.1"] {
            assert_eq!(open.check(&packet("10.77.0.2", to)), Ok(()), "{to}");
        }
        assert_eq!(open.check(&packet("fd77::2", "fd00:ec2::254")), Ok(()));
        assert_eq!(
            open.check(&packet("fd77::2", "fd00:ec3::1")),
            Err(DenyReason::ToPrivate)
        );
        assert_eq!(
            open.check(&packet("10.77.0.2", "10.77.0.3")),
            Err(DenyReason::ToOtherClient)
        );
    }

    #[test]
    fn a_source_that_is_not_the_client_s_is_spoofed() {
        for from in ["10.77.0.3", "10.77.0.1", "198.51.100.9", "127.0.0.1"] {
            assert_eq!(
                server(&["0.0.0.0/0"]).check(&packet(from, "198.51.100.9")),
                Err(DenyReason::Spoofed)
            );
        }
        assert_eq!(server(&[]).check(&[0x45; 19]), Err(DenyReason::NotIp));
    }

    #[test]
    fn a_server_reaches_only_client_addresses_and_lan() {
        let (own, cameras) = ("10.77.0.2", "192.168.7.20");
        let closed = client(&[]);
        assert_eq!(closed.check(&packet("198.51.100.9", own)), Ok(()));
        assert_eq!(
            closed.check(&packet("10.77.0.1", own)),
            Ok(()),
            "the server itself"
        );
        assert_eq!(
            closed.check(&packet("10.9.0.1", own)),
            Ok(()),
            "a private network behind the server"
        );
        assert_eq!(closed.check(&packet("2001:db8::9", "fd77::2")), Ok(()));
        for to in [
            cameras,
            "10.1.0.1",
            "10.77.0.3",
            "127.0.0.1",
            "224.0.0.251",
            "255.255.255.255",
        ] {
            assert_eq!(
                closed.check(&packet("198.51.100.9", to)),
                Err(DenyReason::NotForClient),
                "{to}"
            );
        }
        assert_eq!(
            closed.check(&packet("2001:db8::9", "fd07::20")),
            Err(DenyReason::NotForClient)
        );
        let open = client(&["192.168.7.0/24"]);
        assert_eq!(open.check(&packet("198.51.100.9", cameras)), Ok(()));
        assert_eq!(
            open.check(&packet("198.51.100.9", "192.168.8.20")),
            Err(DenyReason::NotForClient)
        );
    }

    #[test]
    fn a_source_from_before_the_tunnel_is_foreign() {
        let of =
            |from: &str, lan: &[&str]| client(lan).foreign_source(&packet(from, "198.51.100.9"));
        assert_eq!(of("10.1.0.1", &[]), Some(ip("10.1.0.1")));
        assert_eq!(of("10.1.0.1", &["10.1.0.0/24"]), None);
        assert_eq!(of("10.77.0.2", &[]), None);
        let to_client = server(&[]).foreign_source(&packet("10.1.0.1", "10.77.0.2"));
        assert_eq!(to_client, None, "a server forwards packets of any source");
    }

    #[test]
    fn a_client_rejects_sources_of_its_own_networks() {
        let open = client(&["192.168.8.0/24"]);
        for from in [
            "10.77.0.2",
            "10.1.0.2",
            "192.168.7.20",
            "192.168.8.20",
            "127.0.0.1",
            "0.0.0.0",
            "169.254.1.1",
        ] {
            assert_eq!(
                open.check(&packet(from, "10.77.0.2")),
                Err(DenyReason::Spoofed),
                "{from}"
            );
        }
        for from in ["224.0.0.1", "255.255.255.255"] {
            assert_eq!(
                open.check(&packet(from, "10.77.0.2")),
                Err(DenyReason::Spoofed),
                "{from}"
            );
        }
        for from in [
            "fd77::2",
            "fd07::20",
            "::1",
            "::",
            "fe80::1",
            "ff02::1",
            "::ffff:10.0.0.1",
        ] {
            assert_eq!(
                open.check(&packet(from, "fd77::2")),
                Err(DenyReason::Spoofed),
                "{from}"
            );
        }
    }
}
