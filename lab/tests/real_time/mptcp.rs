//! In a lab whose viewer has an address on each path, MPTCP creates a subflow over each and
//! survives the loss of one.

use hawser_cloud::Level;
use hawser_lab::counters;
use hawser_lab::emulator::{EmulatedPath, Emulator};
use hawser_netem::{Delay, LinkConfig, QueueLimit, Rate};
use hawser_publish::pull::Publisher;
use hawser_recording::{Recording, Source, Synthetic};
use hawser_testbed::topology::{Lab, Link, Topology, network_egress, network_ingress};
use hawser_units::{Bitrate, PathId};
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn each_home_has_its_path_in_both_directions() {
    let lab = lab();
    lab.bridge_paths().unwrap();
    let source = lab
        .source()
        .run(|| UdpSocket::bind((lab.source_v4(), 0)))
        .unwrap()
        .unwrap();
    let addresses: Vec<Ipv4Addr> = std::iter::once(lab.viewer_v4())
        .chain(lab.addressing().additional_viewer_addresses.iter().copied())
        .collect();
    for (address, taken) in addresses.into_iter().zip(lab.paths()) {
        let viewer = lab
            .viewer()
            .run(|| UdpSocket::bind((address, 0)))
            .unwrap()
            .unwrap();
        let before = carried(&lab);
        let packet = [0; 1000];
        viewer
            .send_to(&packet, source.local_addr().unwrap())
            .unwrap();
        let (length, from) = source.recv_from(&mut [0; 2000]).unwrap();
        source.send_to(&packet[..length], from).unwrap();
        viewer.recv_from(&mut [0; 2000]).unwrap();

        for ((path, before), after) in lab.paths().zip(before).zip(carried(&lab)) {
            let grew = [after.0 - before.0 >= 1000, after.1 - before.1 >= 1000];
            assert_eq!(grew, [path == taken; 2], "{address} on {path}");
        }
    }
}

#[test]
fn a_stream_uses_every_path_and_survives_the_loss_of_one() {
    let lab = lab();
    let _emulator = Emulator::start(lab.network(), slow_paths(&lab), 1).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let frames = directory.path().join("frames.csv");
    let stop = AtomicBool::new(false);
    let publisher = lab
        .source()
        .run(|| Publisher::open(&publishing(&lab)).unwrap())
        .unwrap();
    let watching = hawser_view::pull::Config {
        mptcp: true,
        timeline: Some(frames.clone()),
        in_flight: 20,
        ..hawser_view::pull::Config::new(publisher.address().to_string())
    };
    let arrived = || hawser_view::pull::timeline::read(&frames).map_or(0, |rows| rows.len());
    thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        scope.spawn(|| publisher.run(&stop).unwrap());
        let viewer = scope.spawn(|| {
            lab.viewer()
                .run(|| hawser_view::pull::watch(&watching, &stop))
                .unwrap()
        });

        wait_until("each path carries the stream", || {
            carried(&lab).iter().all(|path| path.0 > 500_000)
        });
        cut(&lab, PathId::all().next().unwrap());
        let before = arrived();
        wait_until("frames arrive without path 1", || arrived() > before + 50);

        stop.store(true, Ordering::Relaxed);
        let summary = viewer.join().unwrap().unwrap();
        assert_eq!(
            (
                summary.connections,
                summary.frames_damaged,
                summary.protocol_errors
            ),
            (1, 0, 0)
        );
    });
}

fn lab() -> Lab {
    Topology {
        multihomed: true,
        ..Topology::default()
    }
    .build()
    .unwrap()
}

/// Returns a stream that needs most of the paths' capacity.
fn publishing(lab: &Lab) -> hawser_publish::pull::Config {
    let source = Source::Synthetic(Synthetic {
        seed: 1,
        points: 20_000,
        seconds: 1.0,
    });
    hawser_publish::pull::Config {
        mptcp: true,
        listen: (lab.source_v4(), 14748).into(),
        ..hawser_publish::pull::Config::new(
            Recording {
                fps: 30.0,
                source,
                audio: None,
            },
            Level::Nfov,
        )
    }
}

fn slow_paths(lab: &Lab) -> Vec<EmulatedPath> {
    let link = LinkConfig {
        rate: Some(Rate::Constant(Bitrate::from_mbps(5.0))),
        queue: Some(QueueLimit::Time(Duration::from_millis(100))),
        delay: Delay::Constant(Duration::from_millis(5)),
        ..LinkConfig::default()
    };
    let path = |id: PathId| EmulatedPath {
        name: id.to_string(),
        ingress_device: network_ingress(id),
        egress_device: network_egress(id),
        forward: link.clone(),
        backward: link.clone(),
    };
    lab.paths().map(path).collect()
}

/// Makes both edges send the packets of a path to a MAC address that does not exist. The devices
/// stay up.
fn cut(lab: &Lab, path: PathId) {
    let Link { near, far, .. } = lab.path(path);
    for (edge, own, other) in [(lab.ingress(), near, far), (lab.egress(), far, near)] {
        edge.ip(&format!(
            "neigh replace {} lladdr 02:ff:ff:ff:ff:ff dev {}",
            other.v4, own.device
        ))
        .unwrap();
    }
}

/// Bytes that each path has carried to the viewer and to the source.
fn carried(lab: &Lab) -> Vec<(u64, u64)> {
    let received = |device: &str| {
        counters::of_device(lab.network(), device)
            .unwrap()
            .received_bytes
    };
    lab.paths()
        .map(|path| {
            (
                received(&network_ingress(path)),
                received(&network_egress(path)),
            )
        })
        .collect()
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Stops publisher and viewer even if an assertion fails, so that the test ends.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
