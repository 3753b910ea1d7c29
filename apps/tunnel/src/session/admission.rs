//! Which packets of the other end are passed on. What is not opened by configuration is closed.

use crate::config::Prefix;
use crate::interfaces::Networks;
use crate::packet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use tokio::sync::watch;

/// What the other end may send.
#[derive(Debug, Clone)]
pub(crate) enum Admission {
    /// At a client.
    FromServer {
        /// The client's inner addresses.
        own: Vec<IpAddr>,
        /// Networks behind the client that the configuration opens.
        lan: Vec<Prefix>,
        /// Networks that the client is in.
        networks: watch::Receiver<Networks>,
    },
    /// At a server.
    FromClient {
        /// The client's inner addresses.
        own: Vec<IpAddr>,
        /// Where clients are.
        clients: Vec<Prefix>,
        /// Addresses of these that are the server's.
        server: Vec<IpAddr>,
        /// Private destinations that the configuration opens.
        reach: Arc<[Prefix]>,
        /// Networks that the server is in.
        networks: watch::Receiver<Networks>,
    },
}

/// Why a packet of the other end is not passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Closed {
    /// It is no IP packet.
    NoIp,
    /// Its source is not the client's; or, from a server, one of this node's own networks or none that a packet can have.
    Spoofed,
    /// It is for another client.
    ToOtherClient,
    /// It is for a private, link-local or otherwise special address that the server does not open.
    ToPrivate,
    /// It is for an address of the server's machine that is not the tunnel's.
    ToServer,
    /// It is for neither the client nor a network that this opens.
    NotForClient,
}

impl Closed {
    pub(crate) const ALL: [Closed; 6] = [
        Closed::NoIp,
        Closed::Spoofed,
        Closed::ToOtherClient,
        Closed::ToPrivate,
        Closed::ToServer,
        Closed::NotForClient,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Closed::NoIp => "no_ip",
            Closed::Spoofed => "spoofed",
            Closed::ToOtherClient => "to_other_client",
            Closed::ToPrivate => "to_private",
            Closed::ToServer => "to_server",
            Closed::NotForClient => "not_for_client",
        }
    }
}

impl Admission {
    pub(crate) fn check(&self, packet: &[u8]) -> Result<(), Closed> {
        let (source, to) = packet::source(packet)
            .zip(packet::destination(packet))
            .ok_or(Closed::NoIp)?;
        let refuse_if = |is_wrong: bool, why: Closed| if is_wrong { Err(why) } else { Ok(()) };
        match self {
            Admission::FromServer { own, lan, networks } => {
                let is_local = own.contains(&source)
                    || covers(lan, source)
                    || networks.borrow().contain(source);
                refuse_if(is_local || !is_source(source), Closed::Spoofed)?;
                refuse_if(!own.contains(&to) && !covers(lan, to), Closed::NotForClient)
            }
            Admission::FromClient {
                own,
                clients,
                server,
                reach,
                networks,
            } => {
                refuse_if(!own.contains(&source), Closed::Spoofed)?;
                if covers(clients, to) {
                    return refuse_if(!server.contains(&to), Closed::ToOtherClient);
                }
                if covers(reach, to) {
                    return Ok(());
                }
                refuse_if(networks.borrow().have(to), Closed::ToServer)?;
                refuse_if(!is_public(to), Closed::ToPrivate)
            }
        }
    }
}

fn covers(prefixes: &[Prefix], address: IpAddr) -> bool {
    prefixes.iter().any(|prefix| prefix.contains(address))
}

/// Whether a packet from elsewhere can come from the address.
fn is_source(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let [first, ..] = address.octets();
            (1..224).contains(&first) && !address.is_loopback() && !address.is_link_local()
        }
        IpAddr::V6(address) => {
            let is_nobody =
                address.is_unspecified() || address.is_loopback() || address.is_multicast();
            !is_nobody && !address.is_unicast_link_local() && address.to_ipv4_mapped().is_none()
        }
    }
}

/// Whether the address is one of the Internet's and not of somebody's own network or machine (IANA's special-purpose
/// registries, RFC 6890). Prefixes for documentation are left out: nobody is there.
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
        // Shared by the customers of a carrier (RFC 6598), and for benchmarks (RFC 2544).
        [100, second, ..] => second & 0xc0 == 64,
        [198, second, ..] => second & 0xfe == 18,
        // Tells a virtual machine in Azure about itself.
        octets => octets == [168, 63, 129, 16],
    }
}

fn is_public_ipv6(address: Ipv6Addr) -> bool {
    let ipv4 = |high: u16, low: u16| {
        is_public_ipv4(Ipv4Addr::from(u32::from(high) << 16 | u32::from(low)))
    };
    match address.segments() {
        // A translator's addresses of IPv4 (RFC 6052), and those of 6to4 (RFC 3056).
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

    fn server(reach: &[&str]) -> Admission {
        Admission::FromClient {
            own: vec![ip("10.77.0.2"), ip("fd77::2")],
            clients: prefixes(&["10.77.0.0/16", "fd77::/64"]),
            server: vec![ip("10.77.0.1"), ip("fd77::1")],
            reach: prefixes(reach).into(),
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
    fn a_client_reaches_the_internet_and_the_server_s_inner_addresses_alone() {
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
            ("10.77.0.3", Err(Closed::ToOtherClient)),
            ("203.0.113.1", Err(Closed::ToServer)),
            ("10.1.2.3", Err(Closed::ToPrivate)),
            ("172.16.0.1", Err(Closed::ToPrivate)),
            ("172.31.255.1", Err(Closed::ToPrivate)),
            ("192.168.1.1", Err(Closed::ToPrivate)),
            ("100.64.0.1", Err(Closed::ToPrivate)),
            ("169.254.169.254", Err(Closed::ToPrivate)),
            ("168.63.129.16", Err(Closed::ToPrivate)),
            ("192.0.0.192", Err(Closed::ToPrivate)),
            ("127.0.0.1", Err(Closed::ToPrivate)),
            ("0.0.0.0", Err(Closed::ToPrivate)),
            ("224.0.0.1", Err(Closed::ToPrivate)),
            ("255.255.255.255", Err(Closed::ToPrivate)),
            ("2606::1", Ok(())),
            ("fd77::1", Ok(())),
            ("fd77::3", Err(Closed::ToOtherClient)),
            ("2001:db8:1::1", Err(Closed::ToServer)),
            ("2001:db8:1::2", Ok(())),
            ("fd00:ec2::254", Err(Closed::ToPrivate)),
            ("fe80::1", Err(Closed::ToPrivate)),
            ("::1", Err(Closed::ToPrivate)),
            ("::ffff:10.0.0.1", Err(Closed::ToPrivate)),
            ("64:ff9b::10.0.0.1", Err(Closed::ToPrivate)),
            ("64:ff9b::198.51.100.9", Ok(())),
            ("2002:a9fe:a9fe::1", Err(Closed::ToPrivate)),
            ("ff02::1", Err(Closed::ToPrivate)),
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
            Err(Closed::ToPrivate)
        );
        assert_eq!(
            open.check(&packet("10.77.0.2", "10.77.0.3")),
            Err(Closed::ToOtherClient)
        );
    }

    #[test]
    fn a_source_that_is_not_the_client_s_is_spoofed() {
        for from in ["10.77.0.3", "10.77.0.1", "198.51.100.9", "127.0.0.1"] {
            assert_eq!(
                server(&["0.0.0.0/0"]).check(&packet(from, "198.51.100.9")),
                Err(Closed::Spoofed)
            );
        }
        assert_eq!(server(&[]).check(&[0x45; 19]), Err(Closed::NoIp));
    }

    #[test]
    fn a_server_sends_to_the_client_s_addresses_alone_unless_more_is_opened() {
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
                Err(Closed::NotForClient),
                "{to}"
            );
        }
        assert_eq!(
            closed.check(&packet("2001:db8::9", "fd07::20")),
            Err(Closed::NotForClient)
        );
        let open = client(&["192.168.7.0/24"]);
        assert_eq!(open.check(&packet("198.51.100.9", cameras)), Ok(()));
        assert_eq!(
            open.check(&packet("198.51.100.9", "192.168.8.20")),
            Err(Closed::NotForClient)
        );
    }

    #[test]
    fn a_server_does_not_send_what_seems_to_come_from_the_client_s_own_networks() {
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
                Err(Closed::Spoofed),
                "{from}"
            );
        }
        for from in ["224.0.0.1", "255.255.255.255"] {
            assert_eq!(
                open.check(&packet(from, "10.77.0.2")),
                Err(Closed::Spoofed),
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
                Err(Closed::Spoofed),
                "{from}"
            );
        }
    }
}
