use super::tunnel::{Transfer, tcp};
use crate::emulator::{EmulatedPath, Emulator};
use crate::programs::tunnel::{DEVICE, INNER, SERVER, TunnelProcesses, route_to_server};
use crate::summary::{Case, Summary};
use anyhow::{Context, Result};
use hawser_netem::{Delay, LinkConfig, QueueLimit, Rate};
use hawser_testbed::topology::{Lab, Topology, network_egress, network_ingress};
use hawser_units::{Bitrate, PathId};
use std::fmt;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

/// The part at the beginning of a run that is not measured, in which congestion windows grow, and
/// the part that is. CUBIC's window takes 15 s to grow from one uplink to two of 50 Mb/s and 80 ms.
const WARM_UP: Duration = Duration::from_secs(20);
const MEASURED: Duration = Duration::from_secs(10);

/// The queue of an uplink.
const QUEUE: QueueLimit = QueueLimit::Time(Duration::from_millis(60));

/// Congestion controls of the connection inside.
const CONGESTION: [&str; 2] = ["cubic", "bbr"];

const SEED: u64 = 1;

/// The uplinks of a client, with the same rate and different delays.
#[derive(Debug, Clone, Copy)]
struct Uplinks {
    mbps: f64,
    round_trips_ms: [u64; 2],
}

const UPLINKS: [Uplinks; 2] = [
    Uplinks {
        mbps: 50.0,
        round_trips_ms: [10, 80],
    },
    Uplinks {
        mbps: 20.0,
        round_trips_ms: [30, 90],
    },
];

/// The transport of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Carrier {
    /// The uplink with the smaller delay without a tunnel.
    Bare,
    /// The tunnel over the uplink with the smaller delay only.
    Near,
    /// The tunnel over both uplinks: the name of the metric, and the additional server
    /// configuration.
    Both(&'static str, &'static str),
}

const CARRIERS: [Carrier; 4] = [
    Carrier::Bare,
    Carrier::Near,
    Carrier::Both("both", ""),
    Carrier::Both("both-in-order", "[coding]\nreorder_ms = 120\n"),
];

/// Measures the throughput of one TCP connection inside the tunnel over two uplinks with different
/// delays.
pub(super) fn run(hawser: &Path, summary: &mut Summary) -> Result<()> {
    for uplinks in UPLINKS {
        for congestion in CONGESTION {
            let mut case = Case::new(&format!("tunnel-tcp/{uplinks}/{congestion}"));
            case.set_param("uplink_mbps", uplinks.mbps);
            case.set_param("uplink_round_trips_ms", uplinks.round_trips_ms.to_vec());
            for carrier in CARRIERS {
                let rate = measure(hawser, uplinks, congestion, carrier, summary)?;
                case.metrics.set(&format!("{carrier}_mbps"), rate);
            }
            summary.cases.push(case);
        }
    }
    Ok(())
}

impl fmt::Display for Uplinks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [near, far] = self.round_trips_ms;
        write!(f, "{near}-and-{far}-ms")
    }
}

impl fmt::Display for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Carrier::Bare => "bare",
            Carrier::Near => "near",
            Carrier::Both(name, _) => name,
        })
    }
}

/// Returns the throughput of a connection in Mb/s.
fn measure(
    hawser: &Path,
    uplinks: Uplinks,
    congestion: &'static str,
    carrier: Carrier,
    summary: &mut Summary,
) -> Result<f64> {
    let lab = Topology::with_paths(uplinks.round_trips_ms.len()).build()?;
    let mut emulator = Emulator::start(lab.network(), uplinks.paths(&lab), SEED)?;
    emulator.steer(&[lab.ingress(), lab.egress()])?;
    route_to_server(&lab)?;
    let near = PathId::all().next().context("there are paths")?;
    let near = &lab.path(near).near.device;
    let folder = TempDir::new()?;
    let tunnel = carrier.tunnel(hawser, &lab, near, folder.path())?;
    let (address, device) = if tunnel.is_some() {
        (INNER, DEVICE)
    } else {
        (SERVER, near.as_str())
    };
    let transfer = Transfer {
        congestion: Some(congestion),
        warm_up: WARM_UP,
        measured: MEASURED,
    };
    let (client, server) = (lab.ingress(), lab.egress());
    let (rate, _) = tcp(client, server, address, device, &transfer, || ())?;
    drop(tunnel);
    for reason in emulator.stop()?.health.invalid_because() {
        summary.invalidate(format!("{uplinks}: {reason}"));
    }
    Ok(rate)
}

impl Carrier {
    /// Starts the tunnel, if there is one. `near` is the uplink with the smaller delay.
    fn tunnel(
        self,
        hawser: &Path,
        lab: &Lab,
        near: &str,
        folder: &Path,
    ) -> Result<Option<TunnelProcesses>> {
        let (uplinks, coding) = match self {
            Carrier::Bare => return Ok(None),
            Carrier::Near => (near, ""),
            Carrier::Both(_, coding) => ("path*", coding),
        };
        let (client, server) = (lab.ingress(), lab.egress());
        TunnelProcesses::start(hawser, client, server, folder, uplinks, coding).map(Some)
    }
}

impl Uplinks {
    fn paths(self, lab: &Lab) -> Vec<EmulatedPath> {
        let link = |round_trip_ms: u64| LinkConfig {
            rate: Some(Rate::Constant(Bitrate::from_mbps(self.mbps))),
            queue: Some(QUEUE),
            delay: Delay::Constant(Duration::from_millis(round_trip_ms) / 2),
            ..LinkConfig::default()
        };
        let path = |(id, round_trip_ms): (PathId, u64)| EmulatedPath {
            name: format!("{round_trip_ms} ms"),
            ingress_device: network_ingress(id),
            egress_device: network_egress(id),
            forward: link(round_trip_ms),
            backward: link(round_trip_ms),
        };
        lab.paths().zip(self.round_trips_ms).map(path).collect()
    }
}
