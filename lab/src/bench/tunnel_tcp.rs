use super::tunnel::{Transfer, tcp};
use crate::emulator::{EmulatedPath, Emulator};
use crate::summary::{Case, Summary};
use crate::topology::{Lab, Topology, network_egress, network_ingress};
use crate::tunnel::{DEVICE, Ends, INNER, SERVER, route_to_server};
use anyhow::{Context, Result};
use hawser_netem::{Delay, LinkConfig, QueueLimit, Rate};
use hawser_units::{Bitrate, PathId};
use std::fmt;
use std::time::Duration;
use tempfile::TempDir;

/// What is left out at the beginning of a run, while windows grow, and what is measured.
const WARM_UP: Duration = Duration::from_secs(4);
const MEASURED: Duration = Duration::from_secs(8);

/// The queue before an uplink.
const QUEUE: QueueLimit = QueueLimit::Time(Duration::from_millis(60));

/// Congestion control of the connection inside.
const CONGESTION: [&str; 2] = ["cubic", "bbr"];

const SEED: u64 = 1;

/// The uplinks of a client, alike in rate and unlike in delay.
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

/// What carries the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The nearer uplink without a tunnel.
    Bare,
    /// The tunnel with the nearer uplink alone.
    Near,
    /// The tunnel with both, as it is configured.
    Both(&'static str, &'static str),
}

const WAYS: [Way; 4] = [
    Way::Bare,
    Way::Near,
    Way::Both("both", ""),
    Way::Both("both-in-order", "[coding]\nreorder_ms = 120\n"),
];

/// What one TCP connection inside the tunnel gets of two uplinks of unlike delay.
pub(super) fn run(summary: &mut Summary) -> Result<()> {
    for uplinks in UPLINKS {
        for congestion in CONGESTION {
            let mut case = Case::new(&format!("tunnel-tcp/{uplinks}/{congestion}"));
            case.params
                .insert("uplink_mbps".into(), uplinks.mbps.into());
            case.params.insert(
                "uplink_round_trips_ms".into(),
                uplinks.round_trips_ms.to_vec().into(),
            );
            for way in WAYS {
                let rate = measure(uplinks, congestion, way, summary)?;
                case.metrics.set(&format!("{way}_mbps"), rate);
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

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Way::Bare => "bare",
            Way::Near => "near",
            Way::Both(name, _) => name,
        })
    }
}

/// Mb/s of a connection.
fn measure(
    uplinks: Uplinks,
    congestion: &'static str,
    way: Way,
    summary: &mut Summary,
) -> Result<f64> {
    let lab = Topology {
        paths: uplinks.round_trips_ms.len(),
        ..Topology::default()
    }
    .build()?;
    let mut emulator = Emulator::start(lab.network(), uplinks.paths(&lab), SEED)?;
    emulator.steer(&[lab.ingress(), lab.egress()])?;
    route_to_server(&lab)?;
    let folder = TempDir::new()?;
    let binary = std::env::current_exe().context("cannot find this program")?;
    let tunnel = |uplinks, coding| {
        Ends::start(
            &binary,
            lab.ingress(),
            lab.egress(),
            folder.path(),
            uplinks,
            coding,
        )
    };
    let near = &lab
        .path(PathId::all().next().context("there are paths")?)
        .near
        .device;
    let tunnel = match way {
        Way::Bare => None,
        Way::Near => Some(tunnel(near, "")?),
        Way::Both(_, coding) => Some(tunnel("path*", coding)?),
    };
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
    let rate = tcp(lab.ingress(), lab.egress(), address, device, &transfer)?;
    drop(tunnel);
    for reason in emulator.stop()?.health.invalid_because() {
        summary.invalidate(format!("{uplinks}: {reason}"));
    }
    Ok(rate)
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
