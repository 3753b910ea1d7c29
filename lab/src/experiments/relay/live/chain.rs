use anyhow::{Context, Result};
use hawser_relay::{BroadcastConfig, Config, Senders, Server, Upstream};
use hawser_testbed::netns::Namespace;
use hawser_testbed::topology::Claim;
use hawser_units::ByteSize;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::num::NonZeroU8;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

const PUBLISHER_PORT: u16 = 14748;
const RELAY_PORT: u16 = 14750;

/// The memory that a relay may use, as by default.
const CACHE: ByteSize = ByteSize(32 << 20);

/// A publisher's namespace, those of relays, and the viewers', in a row. From one to the next there is a
/// cable with the devices `out` and `in`.
pub(super) struct Chain {
    nodes: Vec<Namespace>,
    /// Removes the namespaces.
    _claim: Claim,
}

impl Chain {
    /// Creates the namespaces. Viewers have two addresses: one of them can be told apart.
    pub(super) fn create(relays: usize) -> Result<Self> {
        let claim = Claim::new()?;
        let nodes = (0..relays + 2).map(|node| claim.namespace(&format!("node{node}")));
        let chain = Chain {
            nodes: nodes.collect::<Result<_>>()?,
            _claim: claim,
        };
        for (cable, ends) in chain.nodes.windows(2).enumerate() {
            ends[0].ip(&format!(
                "link add name out type veth peer name in netns {}\naddr add {}/24 dev out\nlink set dev out up\n",
                ends[1].name(),
                own_address(cable),
            ))?;
            ends[1].ip(&format!(
                "addr add {}/24 dev in\nlink set dev in up\n",
                Ipv4Addr::new(10, 20, cable as u8, 2)
            ))?;
        }
        chain.viewers().ip(&format!(
            "addr add {}/24 dev in\n",
            Ipv4Addr::new(10, 20, relays as u8, 3)
        ))?;
        Ok(chain)
    }

    pub(super) fn relays(&self) -> usize {
        self.nodes.len() - 2
    }

    pub(super) fn publisher(&self) -> &Namespace {
        &self.nodes[0]
    }

    pub(super) fn viewers(&self) -> &Namespace {
        &self.nodes[self.nodes.len() - 1]
    }

    /// Returns the namespace of each relay.
    pub(super) fn relay(&self, relay: usize) -> &Namespace {
        &self.nodes[relay + 1]
    }

    pub(super) fn publisher_address(&self) -> SocketAddr {
        SocketAddrV4::new(own_address(0), PUBLISHER_PORT).into()
    }

    /// Returns the address at which viewers ask the last relay.
    pub(super) fn relay_address(&self) -> SocketAddr {
        SocketAddrV4::new(own_address(self.relays()), RELAY_PORT).into()
    }

    /// Returns the viewers' addresses: that of most, and that of the one who can be told apart.
    pub(super) fn viewer_addresses(&self) -> [Ipv4Addr; 2] {
        [2, 3].map(|host| Ipv4Addr::new(10, 20, self.relays() as u8, host))
    }

    /// Runs a relay until it is told to stop. `key` is the file with the secret for relays.
    pub(super) fn run_relay(
        &self,
        relay: usize,
        key: &Path,
        state: PathBuf,
        stop: &AtomicBool,
    ) -> Result<()> {
        let upstream = match relay {
            0 => self.publisher_address(),
            _ => SocketAddrV4::new(own_address(relay), RELAY_PORT).into(),
        };
        let listen = SocketAddrV4::new(own_address(relay + 1), RELAY_PORT).into();
        let broadcast = BroadcastConfig {
            name: "live".to_owned(),
            upstream: Upstream::Peer(upstream.to_string()),
            announce: None,
            listen,
            key: key.to_owned().into(),
            viewers: hawser_fanout::MAX_SLOTS,
            report_interval_ms: NonZeroU8::new(100).context("not 0")?,
            cache: Duration::from_secs(2),
            cache_bytes: CACHE.0 as usize,
            moq: None,
        };
        let config = Config {
            name: format!("relay-{relay}"),
            state,
            metrics: None,
            web: None,
            broadcasts: vec![broadcast],
            initial_rate_mbps: 10.0,
            max_rate_mbps: 200.0,
        };
        let senders = Senders::load(&[listen])?;
        let mut server = Server::open(&config, senders)?;
        server.run(stop)
    }
}

/// Returns the address of the node before a cable.
fn own_address(cable: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 20, cable as u8, 1)
}
