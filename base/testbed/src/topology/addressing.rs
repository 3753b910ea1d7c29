use super::Topology;
use anyhow::{Result, ensure};
use hawser_units::{MAX_PATHS, PathId};
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

/// A link-layer address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mac(pub [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// One end of a link: a device with a MAC, an IPv4 and an IPv6 address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// The device's name in its namespace, which is that of the node it leads to.
    pub device: String,
    /// The link-layer address.
    pub mac: Mac,
    /// The IPv4 address.
    pub v4: Ipv4Addr,
    /// The IPv6 address.
    pub v6: Ipv6Addr,
}

/// An IP link. `near` is the end toward the source, `far` the one toward the viewer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// The end toward the source.
    pub near: End,
    /// The end toward the viewer.
    pub far: End,
    /// The length of the IPv4 prefix that both ends share.
    pub v4_length: u8,
}

/// The length of every IPv6 prefix.
pub(super) const V6_LENGTH: u8 = 64;

impl End {
    /// The end with the address `net`.`host` and the IPv6 address in subnet `subnet`.
    fn new(device: &str, net: [u8; 3], subnet: [u16; 2], host: u8) -> Self {
        End {
            device: device.to_owned(),
            // Locally administered: 02, then the link's and the host's number as in the IPv4
            // address.
            mac: Mac([0x02, 0x00, net[0], net[1], net[2], host]),
            v4: Ipv4Addr::new(net[0], net[1], net[2], host),
            v6: Ipv6Addr::new(0xfd00, 0, subnet[0], subnet[1], 0, 0, 0, u16::from(host)),
        }
    }
}

impl Link {
    /// The link of a path from the ingress edge to the egress edge.
    fn path(id: PathId) -> Self {
        let number = id.number();
        let (device, net, subnet) = (format!("path{number}"), [10, 1, number], [1, number.into()]);
        Link {
            near: End::new(&device, net, subnet, 1),
            far: End::new(&device, net, subnet, 2),
            v4_length: 30,
        }
    }

    /// The link from the controller, whose device is `edge`, to an edge.
    fn control(edge: &str, number: u8) -> Self {
        let (net, subnet) = ([10, 2, number], [2, number.into()]);
        Link {
            near: End::new(edge, net, subnet, 1),
            far: End::new("control0", net, subnet, 2),
            v4_length: 30,
        }
    }

    /// The IPv4 prefix that both ends share, such as `10.0.2.0/24`.
    pub fn v4_prefix(&self) -> String {
        let mask = u32::MAX << (32 - u32::from(self.v4_length));
        format!(
            "{}/{}",
            Ipv4Addr::from(u32::from(self.near.v4) & mask),
            self.v4_length
        )
    }

    /// The IPv6 prefix that both ends share, such as `fd00:0:0:2::/64`.
    pub fn v6_prefix(&self) -> String {
        let mask = u128::MAX << (128 - u32::from(V6_LENGTH));
        format!(
            "{}/{V6_LENGTH}",
            Ipv6Addr::from(u128::from(self.near.v6) & mask)
        )
    }
}

/// The addresses of all nodes. They are the same in every lab: labs are isolated from each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addressing {
    /// The link from the source to the ingress edge: 10.0.1.0/24 and fd00:0:0:1::/64.
    pub source: Link,
    /// The links from the ingress edge to the egress edge: 10.1.N.0/30 and fd00:0:1:N::/64 for path
    /// N.
    pub paths: Vec<Link>,
    /// The link from the egress edge to the viewer: 10.0.2.0/24 and fd00:0:0:2::/64.
    pub viewer: Link,
    /// The links from the controller to the ingress edge and to the egress edge: 10.2.1.0/30,
    /// fd00:0:2:1::/64 and 10.2.2.0/30, fd00:0:2:2::/64; `None` in a lab without a control network.
    /// `near` is the controller's end.
    pub control: Option<[Link; 2]>,
    /// The viewer's IPv4 address for each path but the first, which has the one of `viewer`:
    /// 10.0.2.11 for path 2. Empty unless the viewer has an address for each path.
    pub additional_viewer_addresses: Vec<Ipv4Addr>,
}

impl Addressing {
    pub(super) fn new(topology: &Topology) -> Result<Self> {
        let paths = topology.paths;
        ensure!(
            (1..=MAX_PATHS).contains(&paths),
            "a lab has 1 to {MAX_PATHS} paths, not {paths}"
        );
        let multihomed = if topology.multihomed { paths } else { 0 };
        let address = |id: PathId| Ipv4Addr::new(10, 0, 2, u8::from(id) + 10);
        let additional = PathId::all().take(multihomed).skip(1).map(address);
        Ok(Addressing {
            control: topology
                .control
                .then(|| [Link::control("ingress0", 1), Link::control("egress0", 2)]),
            additional_viewer_addresses: additional.collect(),
            source: Link {
                near: End::new("edge0", [10, 0, 1], [0, 1], 2),
                far: End::new("source0", [10, 0, 1], [0, 1], 1),
                v4_length: 24,
            },
            paths: PathId::all().take(paths).map(Link::path).collect(),
            viewer: Link {
                near: End::new("viewer0", [10, 0, 2], [0, 2], 1),
                far: End::new("edge0", [10, 0, 2], [0, 2], 2),
                v4_length: 24,
            },
        })
    }

    /// Returns each end with the name of its node, in the order in which they are displayed.
    fn ends(&self) -> Vec<(&'static str, &End)> {
        let mut ends = vec![("source", &self.source.near), ("ingress", &self.source.far)];
        ends.extend(self.paths.iter().map(|path| ("ingress", &path.near)));
        ends.extend(self.paths.iter().map(|path| ("egress", &path.far)));
        ends.extend([("egress", &self.viewer.near), ("viewer", &self.viewer.far)]);
        let control = self.control.iter().flatten();
        for (edge, link) in ["ingress", "egress"].into_iter().zip(control) {
            ends.extend([("control", &link.near), (edge, &link.far)]);
        }
        ends
    }
}

impl fmt::Display for Addressing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, end) in self.ends() {
            let v4 = end.v4.to_string();
            writeln!(
                f,
                "{name:<8} {:<8} {v4:<12} {:<16} {}",
                end.device,
                end.v6.to_string(),
                end.mac
            )?;
        }
        self.additional_viewer_addresses
            .iter()
            .try_for_each(|address| writeln!(f, "viewer   {:<8} {address}", self.viewer.far.device))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_two_ends_share_an_address() {
        let plan = plan(MAX_PATHS).unwrap();
        let links = plan
            .paths
            .iter()
            .chain([&plan.source, &plan.viewer])
            .chain(plan.control.iter().flatten());
        let ends: Vec<&End> = links.flat_map(|link| [&link.near, &link.far]).collect();
        let distinct: HashSet<_> = ends
            .iter()
            .flat_map(|end| [end.v4.to_string(), end.v6.to_string(), end.mac.to_string()])
            .chain(
                plan.additional_viewer_addresses
                    .iter()
                    .map(ToString::to_string),
            )
            .collect();
        assert_eq!(distinct.len(), 3 * ends.len() + MAX_PATHS - 1);
    }

    #[test]
    fn prefixes_hold_both_ends() {
        let plan = plan(1).unwrap();
        assert_eq!(plan.viewer.v4_prefix(), "10.0.2.0/24");
        assert_eq!(plan.viewer.v6_prefix(), "fd00:0:0:2::/64");
        assert_eq!(plan.paths[0].v4_prefix(), "10.1.1.0/30");
        assert_eq!(plan.paths[0].v6_prefix(), "fd00:0:1:1::/64");
    }

    #[test]
    fn a_lab_has_at_least_one_path_and_at_most_eight() {
        assert!(plan(0).is_err());
        assert!(plan(9).is_err());
    }

    fn plan(paths: usize) -> Result<Addressing> {
        Addressing::new(&Topology {
            paths,
            control: true,
            multihomed: true,
            ..Topology::default()
        })
    }
}
