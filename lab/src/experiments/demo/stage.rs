use super::disturbances::Disturbances;
use super::forwarder::Forwarder;
use crate::emulator::Emulator;
use crate::experiments::cross_traffic::{ActiveCrossTraffic, CrossTraffic};
use crate::experiments::live;
use crate::programs::push::PushSource;
use crate::programs::routes::{Route, TwoRoutes};
use anyhow::{Context, Result};
use hawser_agent::Status;
use hawser_page::Broadcast;
use hawser_testbed::edges::{Edges, Replication};
use hawser_testbed::topology::{Lab, Stop, Topology};
use hawser_units::{PathId, PathSet};
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

/// Number of paths: what two processors without a GPU have time for beside a browser.
const PATHS: usize = 3;

/// The seed of the emulated links.
const SEED: u64 = 1;

/// The highest rate of the stream: both sides and their copies fit the paths.
const RATE_MBPS: f64 = 12.0;

/// The TCP connections of an upload.
const UPLOADS: usize = 4;

/// The second addresses of source and viewer, between which every packet is replicated.
const REPLICATED: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 1, 3), Ipv4Addr::new(10, 0, 2, 3)];

/// The network with everything that runs in it. It is removed when this is dropped.
pub(super) struct Stage {
    // In the order in which they end.
    forwarders: Vec<Forwarder>,
    upload: Option<ActiveCrossTraffic>,
    stream: TwoRoutes,
    broadcasts: Vec<Broadcast>,
    edges: Edges<Status>,
    emulator: Emulator,
    disturbances: Disturbances,
    lab: Lab,
}

impl Stage {
    /// Starts everything, and waits until the broadcast arrives over both routes. Logs go to `directory`, which is emptied.
    pub(super) fn set(hawser: &Path, directory: &Path, stop: &Stop) -> Result<Self> {
        let directory = std::path::absolute(directory)?;
        if directory.exists() {
            fs::remove_dir_all(&directory)
                .with_context(|| format!("cannot empty {}", directory.display()))?;
        }
        fs::create_dir_all(&directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
        let lab = Topology::with_paths(PATHS).build()?;
        add_addresses(&lab)?;
        let disturbances = Disturbances::default();
        let emulator = Emulator::start(lab.network(), disturbances.links(&lab)?, SEED)?;
        let edges = start_edges(&lab, hawser, &directory)?;
        let routes = [
            Route {
                name: "single",
                publisher: lab.source_v4(),
                relay: lab.viewer_v4(),
            },
            Route {
                name: "hawser",
                publisher: REPLICATED[0],
                relay: REPLICATED[1],
            },
        ];
        let source = PushSource {
            max_rate_mbps: RATE_MBPS,
            ..live::push_source(&directory)?
        };
        let mut stream = TwoRoutes::start(&lab, hawser, &directory, &source, &routes)?;
        let (mut forwarders, mut broadcasts) = (Vec::new(), Vec::new());
        for served in stream.await_served(stop)? {
            let forwarder = Forwarder::start(lab.viewer(), served.listen)?;
            broadcasts.push(Broadcast {
                name: served.name,
                url: Some(format!("https://{}", forwarder.address())),
                certificate_sha256: Some(served.certificate_sha256),
                socket: None,
            });
            forwarders.push(forwarder);
        }
        Ok(Stage {
            forwarders,
            upload: None,
            stream,
            broadcasts,
            edges,
            emulator,
            disturbances,
            lab,
        })
    }

    /// The broadcasts, as a browser on this machine reaches them.
    pub(super) fn broadcasts(&self) -> Vec<Broadcast> {
        self.broadcasts.clone()
    }

    /// Returns the secret of the broadcast.
    pub(super) fn secret(&self) -> Result<String> {
        self.stream.secret()
    }

    /// Changes the disturbances of the network.
    pub(super) fn disturb(&mut self, disturbances: Disturbances) -> Result<()> {
        if disturbances == self.disturbances {
            return Ok(());
        }
        self.emulator.change(disturbances.links(&self.lab)?);
        self.disturbances = disturbances;
        match (self.upload.take(), disturbances.uploads()) {
            (None, true) => self.upload = Some(start_upload(&self.lab)?),
            (Some(upload), false) => drop(upload.stop()?),
            (upload, _) => self.upload = upload,
        }
        Ok(())
    }

    /// Returns an error if a program has exited.
    pub(super) fn check_running(&mut self) -> Result<()> {
        self.stream.check_running()
    }

    /// Ends everything.
    pub(super) fn end(self) -> Result<()> {
        drop(self.forwarders);
        if let Some(upload) = self.upload {
            upload.stop()?;
        }
        self.stream.stop()?;
        self.edges.stop()?;
        self.emulator.stop()?;
        Ok(())
    }
}

/// Gives source and viewer the addresses between which packets are replicated.
fn add_addresses(lab: &Lab) -> Result<()> {
    let addressing = lab.addressing();
    let (source, viewer) = (&addressing.source, &addressing.viewer);
    let [publisher, relay] = REPLICATED;
    let add = |address, length, device| format!("addr add {address}/{length} dev {device}\n");
    let neighbour = |address, mac, device| {
        format!("neigh replace {address} lladdr {mac} nud permanent dev {device}\n")
    };
    lab.source()
        .ip(&add(publisher, source.v4_length, &source.near.device))?;
    lab.ingress()
        .ip(&neighbour(publisher, source.near.mac, &source.far.device))?;
    lab.egress()
        .ip(&neighbour(relay, viewer.far.mac, &viewer.near.device))?;
    let route = format!(
        "route add {publisher}/32 via {} dev {} src {relay}\n",
        viewer.near.v4, viewer.far.device
    );
    let viewers = add(relay, viewer.v4_length, &viewer.far.device) + &route;
    Ok(lab.viewer().ip(&viewers)?)
}

/// Starts the agents, which replicate between the second addresses only, in both directions.
fn start_edges(lab: &Lab, hawser: &Path, directory: &Path) -> Result<Edges<Status>> {
    let replication = Replication {
        both_ways: true,
        ..Replication::on(PathId::all().take(PATHS).collect::<PathSet>())
    };
    let addressing = lab.addressing();
    let [publisher, relay] = REPLICATED.map(|address| format!("\"{address}/32\""));
    let sources = format!("{:?}", addressing.source.v4_prefix());
    let viewers = format!("{:?}", addressing.viewer.v4_prefix());
    Edges::start_changed(lab, hawser, directory, &replication, |_, file| {
        file.replace(&sources, &publisher).replace(&viewers, &relay)
    })
}

/// Starts TCP connections over the first path.
fn start_upload(lab: &Lab) -> Result<ActiveCrossTraffic> {
    let first = PathId::all().next().context("there is a path")?;
    let to = lab.path(first).far.v4;
    let traffic = CrossTraffic::cubic(UPLOADS);
    ActiveCrossTraffic::start(&traffic, lab.ingress(), lab.egress(), to.into(), SEED)
}
