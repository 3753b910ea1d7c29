//! The network behind the egress edge: a relay, another one behind it, and the places of viewers.
//!
//! ```text
//! egress ── relay 1 ─┬──────────────── audience
//!                    ├── [emulator] ── slow
//!                    └── relay 2 ───── audience
//! ```

use crate::emulator::EmulatedPath;
use anyhow::Result;
use hawser_netem::{Delay, LinkConfig, QueueLimit, Rate};
use hawser_testbed::netns::Namespace;
use hawser_testbed::topology::{Claim, Lab};
use hawser_units::{Bitrate, PathId};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

/// The port of relays.
const PORT: u16 = 14755;

/// The addresses at which the two relays serve.
const RELAYS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 20, 0, 1), Ipv4Addr::new(10, 20, 3, 1)];

/// The address of most viewers.
const AUDIENCE: Ipv4Addr = Ipv4Addr::new(10, 20, 0, 2);

/// The devices of the slow viewer's path in the emulated network.
const SLOW_DEVICES: [&str; 2] = ["slow-in", "slow-out"];

/// The delay of the slow viewer's path in each direction, and its queue as the time that it takes to drain.
const SLOW_DELAY: Duration = Duration::from_millis(10);
const SLOW_QUEUE: Duration = Duration::from_millis(200);

/// The device at the ingress edge that leads to the neighbour.
pub(super) const NEIGHBOUR_DEVICE: &str = "neighbour0";

/// The offloads of devices whose frames the emulator carries: every frame is one packet.
const OFF: [(&str, bool); 4] = [
    ("tx", false),
    ("tso", false),
    ("gso", false),
    ("gro", false),
];

/// The namespaces. The first relay is in that of the lab's viewer.
pub(super) struct Venue {
    /// The place of most viewers. It has a device to each relay.
    pub(super) audience: Namespace,
    /// The place of the slow viewer.
    pub(super) slow: Namespace,
    /// The place of the second relay.
    pub(super) relay: Namespace,
    /// A host beside the source, whose traffic competes with the stream.
    pub(super) neighbour: Namespace,
    /// Removes the namespaces.
    _claim: Claim,
}

impl Venue {
    pub(super) fn create(lab: &Lab) -> Result<Self> {
        let claim = Claim::new()?;
        let venue = Venue {
            audience: claim.namespace("audience")?,
            slow: claim.namespace("slow")?,
            relay: claim.namespace("relay2")?,
            neighbour: claim.namespace("neighbour")?,
            _claim: claim,
        };
        venue.connect_audience(lab)?;
        venue.connect_slow(lab)?;
        venue.connect_neighbour(lab)?;
        Ok(venue)
    }

    /// Returns the address at which a relay serves, 0 or 1.
    pub(super) fn relay_address(relay: usize) -> SocketAddr {
        (RELAYS[relay], PORT).into()
    }

    /// Returns the address of most viewers.
    pub(super) fn audience_address() -> Ipv4Addr {
        AUDIENCE
    }

    /// Returns the slow viewer's path with this rate.
    pub(super) fn slow_path(rate: Bitrate) -> EmulatedPath {
        let [ingress_device, egress_device] = SLOW_DEVICES.map(str::to_owned);
        let backward = LinkConfig {
            delay: Delay::Constant(SLOW_DELAY),
            ..LinkConfig::default()
        };
        EmulatedPath {
            name: "slow".to_owned(),
            ingress_device,
            egress_device,
            forward: LinkConfig {
                rate: Some(Rate::Constant(rate)),
                queue: Some(QueueLimit::Time(SLOW_QUEUE)),
                ..backward.clone()
            },
            backward,
        }
    }

    fn connect_audience(&self, lab: &Lab) -> Result<()> {
        let [first, second] = RELAYS;
        lab.viewer().ip(&format!(
            "link add audience0 type veth peer name relay1 netns {}\n\
             link add relay2 type veth peer name relay1 netns {}\n\
             addr add {first}/24 dev audience0\nlink set audience0 up\n\
             addr add 10.20.2.1/30 dev relay2\nlink set relay2 up\n",
            self.audience.name(),
            self.relay.name(),
        ))?;
        self.relay.ip(&format!(
            "link add audience0 type veth peer name relay2 netns {}\n\
             addr add 10.20.2.2/30 dev relay1\nlink set relay1 up\n\
             addr add {second}/24 dev audience0\nlink set audience0 up\n\
             route add default via 10.20.2.1\n",
            self.audience.name(),
        ))?;
        Ok(self.audience.ip(&format!(
            "addr add {AUDIENCE}/24 dev relay1\nlink set relay1 up\n\
             addr add 10.20.3.2/24 dev relay2\nlink set relay2 up\n",
        ))?)
    }

    fn connect_slow(&self, lab: &Lab) -> Result<()> {
        let [inward, outward] = SLOW_DEVICES;
        let network = lab.network().name();
        lab.viewer().ip(&format!(
            "link add slow0 type veth peer name {inward} netns {network}\n\
             addr add 10.20.1.1/24 dev slow0\nlink set slow0 up\n",
        ))?;
        self.slow.ip(&format!(
            "link add relay1 type veth peer name {outward} netns {network}\n\
             addr add 10.20.1.2/24 dev relay1\nlink set relay1 up\n\
             route add default via 10.20.1.1\n",
        ))?;
        lab.network()
            .ip(&format!("link set {inward} up\nlink set {outward} up\n"))?;
        lab.viewer().offloads("slow0", &OFF)?;
        self.slow.offloads("relay1", &OFF)?;
        for device in SLOW_DEVICES {
            lab.network().offloads(device, &OFF)?;
        }
        Ok(())
    }

    /// Links the neighbour to the ingress edge. Its packets take the default route, and so do replies.
    fn connect_neighbour(&self, lab: &Lab) -> Result<()> {
        lab.ingress().ip(&format!(
            "link add {NEIGHBOUR_DEVICE} type veth peer name edge0 netns {}\n\
             addr add 10.0.9.1/24 dev {NEIGHBOUR_DEVICE}\nlink set {NEIGHBOUR_DEVICE} up\n",
            self.neighbour.name(),
        ))?;
        self.neighbour.ip(
            "addr add 10.0.9.2/24 dev edge0\nlink set edge0 up\nroute add default via 10.0.9.1\n",
        )?;
        let first = PathId::all().next().map(|path| lab.path(path));
        let first = first.expect("a lab has a path");
        lab.egress().ip(&format!(
            "route add 10.0.9.0/24 via {} dev {}\n",
            first.near.v4, first.far.device
        ))?;
        lab.ingress().offloads(NEIGHBOUR_DEVICE, &OFF)?;
        Ok(self.neighbour.offloads("edge0", &OFF)?)
    }
}
