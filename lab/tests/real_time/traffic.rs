//! Traffic reports exactly what a network did to it.

use hawser_lab::emulator::{EmulatedPath, Emulator};
use hawser_netem::{LinkConfig, Loss, Probability};
use hawser_testbed::topology::{Stop, Topology, network_egress, network_ingress};
use hawser_testbed::traffic::{Endpoints, Kind, Stream, run};
use hawser_units::PathId;
use std::time::Duration;

const GRACE: Duration = Duration::from_secs(1);

#[test]
fn everything_arrives_once_over_a_network_without_faults() {
    let lab = Topology::default().build().unwrap();
    lab.bridge_paths().unwrap();
    let streams = Stream::of_every_kind(2000, 2000, 1000);
    let reports = run(&Endpoints::from(&lab), &streams, GRACE, &Stop::default()).unwrap();
    assert_eq!(reports.len(), 12);
    for report in reports {
        assert!(report.is_complete(), "{report:?}");
        assert_eq!(
            (report.sent, report.missing, report.duplicates),
            (2000, 0, 0),
            "{report:?}"
        );
        assert_eq!(
            (report.reordered, report.receiver_overflow),
            (0, 0),
            "{report:?}"
        );
        assert_eq!(
            report.retransmissions.is_some(),
            report.stream.kind == Kind::Tcp
        );
    }
}

#[test]
fn reports_agree_with_the_network_on_losses_and_copies() {
    let lab = Topology {
        paths: 1,
        ..Topology::default()
    }
    .build()
    .unwrap();
    let path = PathId::try_from(0).unwrap();
    let share = |share| Probability::try_from(share).unwrap();
    let emulated = EmulatedPath {
        name: path.to_string(),
        ingress_device: network_ingress(path),
        egress_device: network_egress(path),
        forward: LinkConfig {
            loss: Some(Loss::Independent(share(0.2))),
            duplicate: share(0.1),
            ..LinkConfig::default()
        },
        backward: LinkConfig::default(),
    };
    let emulator = Emulator::start(lab.network(), vec![emulated], 1).unwrap();
    let streams = datagrams(1000, 2000, 500);
    let reports = run(&Endpoints::from(&lab), &streams, GRACE, &Stop::default()).unwrap();
    let link = emulator.stop().unwrap().paths[0].forward;

    let [mut sent, mut missing, mut duplicates] = [0; 3];
    for report in &reports {
        assert_eq!(report.received + report.missing, report.sent, "{report:?}");
        assert_eq!(
            (report.corrupt, report.receiver_overflow),
            (0, 0),
            "{report:?}"
        );
        (sent, missing, duplicates) = (
            sent + report.sent,
            missing + report.missing,
            duplicates + report.duplicates,
        );
    }
    assert!(missing > 0 && duplicates > 0);
    // The edges also send packets of their own, such as multicast reports, that the link may have
    // lost or duplicated.
    let others = link.offered - sent;
    assert!(
        (missing..=missing + others).contains(&link.dropped()),
        "{missing} {link:?}"
    );
    assert!(
        (duplicates..=duplicates + others).contains(&link.duplicated),
        "{duplicates} {link:?}"
    );
}

#[test]
fn what_a_cut_network_swallows_is_missing() {
    let lab = Topology::default().build().unwrap();
    for report in run(
        &Endpoints::from(&lab),
        &datagrams(100, 2000, 100),
        GRACE,
        &Stop::default(),
    )
    .unwrap()
    {
        assert_eq!(
            (report.sent, report.received, report.missing),
            (100, 0, 100),
            "{report:?}"
        );
        assert_eq!(report.first_missing, (0..16).collect::<Vec<_>>());
        assert!(!report.is_complete());
    }
}

#[test]
fn a_requested_stop_ends_the_senders() {
    let lab = Topology::default().build().unwrap();
    lab.bridge_paths().unwrap();
    let stop = Stop::default();
    stop.request();
    for report in run(
        &Endpoints::from(&lab),
        &Stream::of_every_kind(100_000, 10, 100),
        GRACE,
        &stop,
    )
    .unwrap()
    {
        assert_eq!((report.sent, report.missing), (0, 0), "{report:?}");
    }
}

/// Returns a stream of every kind that does not retransmit.
fn datagrams(packets: u64, rate_pps: u32, payload_bytes: usize) -> Vec<Stream> {
    let mut streams = Stream::of_every_kind(packets, rate_pps, payload_bytes);
    streams.retain(|stream| stream.kind != Kind::Tcp);
    streams
}
