//! The network of the tunnel, on the paths of a lab:
//!
//! ```text
//! car                 ingress: the carriers                 egress             one, two        host
//! wan0 ── lan0  address translation, path1 ══ emulated ══ path1  to0 ── net  lan ── to0
//! wan1 ── lan1                       path2 ══          ══ path2  to1 ── net  lan ── to1
//! ...
//! ```
//!
//! The host replies by the server from which a packet came, as in a network whose routing follows a
//! client from one server to the other.

use super::fault::{Fault, Planned, UPLINKS, link};
use crate::emulator::{EmulatedPath, Emulator, EmulatorReport};
use anyhow::{Context, Result, ensure};
use hawser_testbed::netns::Namespace;
use hawser_testbed::topology::{End, Lab, Link, Topology, network_egress, network_ingress};
use hawser_units::{Instant, PathId};
use std::cell::Cell;
use std::fmt::Write;
use std::net::Ipv4Addr;

/// The host that the applications inside the tunnel communicate with.
pub(super) const HOST: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 9);

/// The inner addresses that both servers assign.
pub(super) const INNER: &str = "10.77.0.0/16";

/// The host parts of a carrier's two public addresses, used alternately.
const PUBLIC: [u8; 2] = [1, 2];

/// The port ranges of a carrier's NAT, used alternately.
const PORTS: [&str; 2] = ["20000-39999", "40000-59999"];

/// The host parts of the car's two addresses on an uplink, used alternately.
const OWN: [u8; 2] = [1, 77];

pub(super) struct Network {
    emulator: Emulator,
    pub(super) car: Namespace,
    pub(super) servers: [Namespace; 2],
    pub(super) host: Namespace,
    /// The indices of the car's current address on each uplink, and of the carriers' current public
    /// addresses.
    own: [Cell<usize>; UPLINKS],
    public: [Cell<usize>; UPLINKS],
    /// Removes all namespaces when dropped, and therefore is the last field.
    lab: Lab,
}

impl Network {
    /// Builds the network and starts its links.
    pub(super) fn build(plan: &[Planned], seed: u64) -> Result<Network> {
        let lab = Topology::with_paths(UPLINKS).build()?;
        // The lab removes all namespaces whose names contain its id.
        let named = |role: &str| Namespace::create(format!("hawser-{}-{role}", lab.id()));
        let mut emulator = Emulator::start(lab.network(), paths(&lab, plan)?, seed)?;
        emulator.steer(&[lab.ingress(), lab.egress()])?;
        let (own, public) = Default::default();
        let network = Network {
            emulator,
            car: named("car")?,
            servers: [named("one")?, named("two")?],
            host: named("host")?,
            own,
            public,
            lab,
        };
        network.connect_uplinks()?;
        network.connect_servers()?;
        network.set_up_symmetric_replies()?;
        network.translate()?;
        Ok(network)
    }

    /// Returns the address of a server for clients.
    pub(super) fn server_address(number: usize) -> Ipv4Addr {
        Ipv4Addr::new(203, 0, number as u8, 1)
    }

    /// Sets second 0 of the plan to the time `origin`.
    pub(super) fn set_origin(&self, origin: Instant) {
        self.emulator.set_origin(origin);
    }

    /// Begins a fault. The emulator executes those of the link itself by the plan.
    pub(super) fn begin_fault(&self, fault: Fault, uplink: usize) -> Result<()> {
        match fault {
            Fault::LinkDown => Ok(self
                .lab
                .ingress()
                .ip(&format!("link set lan{uplink} down"))?),
            Fault::Readdressed => self.readdress(uplink),
            Fault::Rebound => self.rebind(uplink),
            Fault::Silent | Fault::Throttled | Fault::Lossy => Ok(()),
        }
    }

    /// Ends a fault. A changed address is not restored.
    pub(super) fn end_fault(&self, fault: Fault, uplink: usize) -> Result<()> {
        match fault {
            Fault::LinkDown => Ok(self.lab.ingress().ip(&format!("link set lan{uplink} up"))?),
            _ => Ok(()),
        }
    }

    pub(super) fn stop(self) -> Result<EmulatorReport> {
        self.emulator.stop()
    }

    fn connect_uplinks(&self) -> Result<()> {
        for (uplink, id) in self.lab.paths().enumerate() {
            let Link { near, far, .. } = self.lab.path(id);
            self.connect_carrier(uplink, near, far)?;
            let own = OWN[0];
            self.car.ip(&format!(
                "link set wan{uplink} up\naddr add 10.2.{uplink}.{own}/24 dev wan{uplink}\n{}",
                default_route(uplink)
            ))?;
            let device = &far.device;
            let mut back = format!("addr add 10.3.{uplink}.254/24 dev {device}\n");
            for index in 0..PUBLIC.len() {
                let (address, mac) = (public(uplink, index), near.mac);
                back +=
                    &format!("neigh replace {address} lladdr {mac} nud permanent dev {device}\n");
            }
            self.lab.egress().ip(&back)?;
        }
        Ok(())
    }

    /// Connects a carrier, which is at the ingress edge, to the car and to its path.
    fn connect_carrier(&self, uplink: usize, near: &End, far: &End) -> Result<()> {
        let (ingress, device) = (self.lab.ingress(), &near.device);
        ingress.ip(&format!(
            "link add lan{uplink} type veth peer name wan{uplink} netns {car}
addr add 10.2.{uplink}.2/24 dev lan{uplink}
link set lan{uplink} up
addr add {public}/24 dev {device}
neigh replace 10.3.{uplink}.254 lladdr {far_mac} nud permanent dev {device}
route add default via 10.3.{uplink}.254 dev {device} table {table}
rule add iif lan{uplink} lookup {table}",
            car = self.car.name(),
            public = public(uplink, 0),
            far_mac = far.mac,
            table = table(uplink),
        ))?;
        Ok(ingress.sysctl(&format!("net.ipv4.conf.{device}.promote_secondaries"), "1")?)
    }

    fn connect_servers(&self) -> Result<()> {
        self.host.ip(&format!("addr add {HOST}/32 dev lo"))?;
        for (number, server) in self.servers.iter().enumerate() {
            self.connect_server(number, server)?;
            self.host.ip(&format!(
                "addr add 198.51.{number}.2/24 dev to{number}
link set to{number} up
route add default via 198.51.{number}.1 dev to{number} table {table}
rule add fwmark {mark} lookup {table}",
                table = table(number),
                mark = number + 1,
            ))?;
        }
        // The route before the mark is applied. Any route is sufficient, but there has to be one.
        Ok(self
            .host
            .ip(&format!("route add {INNER} via 198.51.0.1 dev to0"))?)
    }

    /// Connects a server to the egress edge and to the host.
    fn connect_server(&self, number: usize, server: &Namespace) -> Result<()> {
        let address = Network::server_address(number);
        self.lab.egress().ip(&format!(
            "link add to{number} type veth peer name net netns {}\naddr add 203.0.{number}.2/24 dev to{number}\n\
             link set to{number} up",
            server.name()
        ))?;
        server.ip(&format!(
            "link set net up
addr add {address}/24 dev net
route add default via 203.0.{number}.2
link add lan type veth peer name to{number} netns {host}
addr add 198.51.{number}.1/24 dev lan
link set lan up
route add {HOST} via 198.51.{number}.2 dev lan",
            host = self.host.name(),
        ))?;
        Ok(server.sysctl("net.ipv4.ip_forward", "1")?)
    }

    fn set_up_symmetric_replies(&self) -> Result<()> {
        nft(
            &self.host,
            "table ip back {
  chain arrives {
    type filter hook prerouting priority mangle;
    iifname to0 ct mark set 1
    iifname to1 ct mark set 2
  }
  chain leaves {
    type route hook output priority mangle;
    meta mark set ct mark
  }
}",
        )
    }

    /// Sets up the carriers' NAT with their current port ranges.
    fn translate(&self) -> Result<()> {
        let mut rules =
            "table ip carriers\ndelete table ip carriers\ntable ip carriers {\n  chain leaves {
    type nat hook postrouting priority srcnat;\n"
                .to_owned();
        for (uplink, id) in self.lab.paths().enumerate() {
            let (device, ports) = (
                &self.lab.path(id).near.device,
                PORTS[self.public[uplink].get()],
            );
            let _ = writeln!(
                rules,
                "    oifname {device} meta l4proto udp masquerade to :{ports}"
            );
        }
        nft(self.lab.ingress(), &format!("{rules}  }}\n}}"))
    }

    fn readdress(&self, uplink: usize) -> Result<()> {
        let (old, new) = toggle(&self.own[uplink]);
        let (old, new) = (OWN[old], OWN[new]);
        Ok(self.car.ip(&format!(
            "addr del 10.2.{uplink}.{old}/24 dev wan{uplink}\naddr add 10.2.{uplink}.{new}/24 dev wan{uplink}\n{}",
            default_route(uplink)
        ))?)
    }

    /// Changes the public address of an uplink. When a masquerading device loses its address, the
    /// kernel removes the connections that used it.
    fn rebind(&self, uplink: usize) -> Result<()> {
        let (old, new) = toggle(&self.public[uplink]);
        self.translate()?;
        let id = self
            .lab
            .paths()
            .nth(uplink)
            .context("a lab has a path for each uplink")?;
        let device = &self.lab.path(id).near.device;
        let (old, new) = (public(uplink, old), public(uplink, new));
        Ok(self.lab.ingress().ip(&format!(
            "addr add {new}/24 dev {device}\naddr del {old}/24 dev {device}\n\
             route replace default via 10.3.{uplink}.254 dev {device} table {}",
            table(uplink)
        ))?)
    }
}

/// Returns the emulated uplinks, whose links have the faults of the plan.
fn paths(lab: &Lab, plan: &[Planned]) -> Result<Vec<EmulatedPath>> {
    let path = |(uplink, id): (usize, PathId)| {
        let link = link(plan, uplink)?;
        Ok(EmulatedPath {
            name: format!("uplink {}", uplink + 1),
            ingress_device: network_ingress(id),
            egress_device: network_egress(id),
            forward: link.clone(),
            backward: link,
        })
    };
    lab.paths().enumerate().map(path).collect()
}

fn toggle(which: &Cell<usize>) -> (usize, usize) {
    let old = which.get();
    which.set(1 - old);
    (old, 1 - old)
}

fn public(uplink: usize, index: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 3, uplink as u8, PUBLIC[index])
}

fn table(number: usize) -> usize {
    101 + number
}

fn default_route(uplink: usize) -> String {
    format!(
        "route add default via 10.2.{uplink}.2 dev wan{uplink} metric {}",
        100 + uplink
    )
}

fn nft(namespace: &Namespace, rules: &str) -> Result<()> {
    let output = namespace
        .command("nft")?
        .arg(rules)
        .output()
        .context("cannot run nft: install nftables")?;
    ensure!(
        output.status.success(),
        "nft failed: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}
