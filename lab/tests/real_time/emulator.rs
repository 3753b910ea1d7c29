//! Real frames through emulated links.

use hawser_lab::emulator::{EmulatedPath, Emulator};
use hawser_netem::{Delay, Discipline, DualPi2, LinkConfig, Rate, Span};
use hawser_testbed::ring::{self, MAX_FRAME, Port};
use hawser_testbed::topology::{Lab, Topology, network_egress, network_ingress};
use hawser_units::{Bitrate, Ecn, PathId};
use hawser_wire::ip::{Ipv4Header, udp_packet};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(60);

/// The EtherType for local experiments (IEEE 802).
const EXPERIMENT: [u8; 2] = [0x88, 0xb5];

const IPV4: [u8; 2] = [0x08, 0x00];

/// An address for documentation (RFC 5737), which nothing else in the test sends from.
const SENDER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);

const VLAN_5: [u8; 4] = [0x81, 0, 0, 5];

/// A lab with one emulated path.
struct Bench {
    emulator: Emulator,
    lab: Lab,
}

impl Bench {
    fn new(forward: LinkConfig, backward: LinkConfig) -> Self {
        let lab = lab();
        let path = EmulatedPath {
            name: "path 1".into(),
            ingress_device: network_ingress(path()),
            egress_device: network_egress(path()),
            forward,
            backward,
        };
        let mut emulator = Emulator::start(lab.network(), vec![path], 1).unwrap();
        emulator.steer(&[lab.ingress(), lab.egress()]).unwrap();
        Bench { emulator, lab }
    }

    fn ports(&self) -> (Port, Port) {
        let near = self
            .lab
            .ingress()
            .run(|| Port::open("path1"))
            .unwrap()
            .unwrap();
        let far = self
            .lab
            .egress()
            .run(|| Port::open("path1"))
            .unwrap()
            .unwrap();
        (near, far)
    }
}

/// A lab with one path.
fn lab() -> Lab {
    Topology {
        paths: 1,
        ..Topology::default()
    }
    .build()
    .unwrap()
}

fn path() -> PathId {
    PathId::try_from(0).unwrap()
}

fn delay(ms: u64) -> LinkConfig {
    LinkConfig {
        delay: Delay::Constant(Duration::from_millis(ms)),
        ..LinkConfig::default()
    }
}

/// A frame of `length` bytes, distinguished by `number`, with `tags` before its EtherType.
fn frame(tags: &[u8], number: u8, length: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    frame.extend(tags);
    frame.extend(EXPERIMENT);
    frame.resize(length, number);
    frame
}

/// Returns the next `count` frames of the experiment that arrive.
fn receive(port: &mut Port, count: usize) -> Vec<Vec<u8>> {
    receive_timed(port, count)
        .into_iter()
        .map(|(_, bytes)| bytes)
        .collect()
}

/// Like [`receive`], with the arrival times.
fn receive_timed(port: &mut Port, count: usize) -> Vec<(hawser_units::Instant, Vec<u8>)> {
    let (mut frames, began) = (Vec::new(), Instant::now());
    while frames.len() < count {
        let left = DEADLINE
            .checked_sub(began.elapsed())
            .expect("all frames arrive before the deadline");
        ring::wait(&[port.receiver.as_fd()], Some(left)).unwrap();
        port.receiver.receive(|frame| {
            let frame = frame.unwrap();
            let bytes = frame.to_vec();
            if is_of_the_test(&bytes) {
                frames.push((frame.arrived(), bytes));
            }
        });
    }
    frames
}

fn is_of_the_test(frame: &[u8]) -> bool {
    frame[12..14] == EXPERIMENT
        || frame[16..18] == EXPERIMENT
        || frame[12..14] == IPV4 && frame[26..30] == SENDER.octets()
}

#[test]
fn frames_arrive_as_they_were_sent() {
    let bench = Bench::new(delay(5), LinkConfig::default());
    let (mut near, mut far) = bench.ports();
    let sent = [
        frame(&[], 1, 60),
        frame(&[], 2, 1514),
        frame(&VLAN_5, 3, 1518),
        frame(&VLAN_5, 4, 64),
    ];

    near.sender.send(&sent).unwrap();
    assert_eq!(receive(&mut far, sent.len()), sent);
    far.sender.send(&sent).unwrap();
    assert_eq!(receive(&mut near, sent.len()), sent);

    let report = bench.emulator.stop().unwrap();
    assert!(report.paths[0].forward.delivered >= sent.len() as u64);
    assert!(report.paths[0].backward.delivered >= sent.len() as u64);
}

#[test]
fn a_frame_takes_the_delay_of_its_link() {
    let bench = Bench::new(delay(50), LinkConfig::default());
    let (near, mut far) = bench.ports();

    let sent_at = ring::now();
    near.sender.send(&[frame(&[], 1, 100)]).unwrap();
    let (arrived, _) = receive_timed(&mut far, 1).remove(0);

    assert!(arrived.saturating_since(sent_at) >= Duration::from_millis(50));
}

#[test]
fn schedules_begin_at_the_origin() {
    let cut = Span::new(Duration::ZERO, Duration::from_secs(3600)).unwrap();
    let bench = Bench::new(
        LinkConfig {
            cuts: vec![cut],
            ..LinkConfig::default()
        },
        LinkConfig::default(),
    );
    let (near, mut far) = bench.ports();

    // The link is cut from the origin on, which is now an hour away.
    bench
        .emulator
        .set_origin(ring::now() + Duration::from_secs(3600));
    near.sender.send(&[frame(&[], 1, 100)]).unwrap();

    assert_eq!(receive(&mut far, 1), [frame(&[], 1, 100)]);
}

#[test]
fn frames_take_the_link_that_replaced_another() {
    let cut = Span::new(Duration::ZERO, Duration::from_secs(3600)).unwrap();
    let is_cut = LinkConfig {
        cuts: vec![cut],
        ..LinkConfig::default()
    };
    let bench = Bench::new(is_cut, LinkConfig::default());
    let (near, mut far) = bench.ports();

    let path = EmulatedPath {
        name: "path 1".into(),
        ingress_device: network_ingress(path()),
        egress_device: network_egress(path()),
        forward: delay(50),
        backward: LinkConfig::default(),
    };
    bench.emulator.change(vec![path]);
    let sent_at = ring::now();
    near.sender.send(&[frame(&[], 1, 100)]).unwrap();

    let (arrived, _) = receive_timed(&mut far, 1).remove(0);
    assert!(arrived.saturating_since(sent_at) >= Duration::from_millis(50));
}

#[test]
fn a_checksum_left_to_the_device_is_completed_on_the_way() {
    let bench = Bench::new(delay(1), LinkConfig::default());
    let path = bench.lab.path(path());
    bench
        .lab
        .ingress()
        .offloads("path1", &[("tx", true)])
        .unwrap();
    let sender = bench
        .lab
        .ingress()
        .run(|| UdpSocket::bind((path.near.v4, 0)))
        .unwrap()
        .unwrap();
    let receiver = bench
        .lab
        .egress()
        .run(|| UdpSocket::bind((path.far.v4, 0)))
        .unwrap()
        .unwrap();
    receiver.set_read_timeout(Some(DEADLINE)).unwrap();

    sender
        .send_to(b"an odd number of bytes!", receiver.local_addr().unwrap())
        .unwrap();

    let mut buffer = [0; 64];
    let length = receiver.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], b"an odd number of bytes!");
}

#[test]
fn a_frame_too_large_is_dropped_and_makes_the_run_invalid() {
    let bench = Bench::new(LinkConfig::default(), LinkConfig::default());
    bench.lab.ingress().ip("link set path1 mtu 9000").unwrap();
    bench.lab.network().ip("link set in1 mtu 9000").unwrap();
    let (near, mut far) = bench.ports();

    near.sender
        .send(&[frame(&[], 1, MAX_FRAME + 1), frame(&[], 2, 1514)])
        .unwrap();

    assert_eq!(receive(&mut far, 1)[0], frame(&[], 2, 1514));
    let health = bench.emulator.stop().unwrap().health;
    assert_eq!(health.too_large, 1);
    assert!(
        health
            .invalid_because()
            .iter()
            .any(|reason| reason.contains("too large for the emulator"))
    );
}

#[test]
fn a_device_that_is_missing_is_named() {
    let lab = lab();
    let path = EmulatedPath {
        name: "path 1".into(),
        ingress_device: "nowhere".into(),
        egress_device: network_egress(path()),
        forward: LinkConfig::default(),
        backward: LinkConfig::default(),
    };
    let error = Emulator::start(lab.network(), vec![path], 1).unwrap_err();
    assert!(format!("{error:#}").contains("device nowhere"), "{error:#}");
}

/// A frame of 1500 bytes with a UDP packet in it.
fn udp_frame(ecn: Ecn) -> Vec<u8> {
    let destination = (Ipv4Addr::new(198, 51, 100, 2), 9).into();
    let ip = udp_packet((SENDER, 9).into(), destination, ecn.bits(), &[0; 1458]);
    [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1][..], &IPV4, &ip].concat()
}

#[test]
fn a_discipline_marks_real_packets_and_orders_them() {
    // A frame takes 1 ms, so that a burst of L4S frames builds a queue above the ramp.
    let link = LinkConfig {
        rate: Some(Rate::Constant(Bitrate::from_mbps(12.0))),
        discipline: Some(Discipline::DualPi2(DualPi2::default())),
        ..delay(5)
    };
    let bench = Bench::new(link, LinkConfig::default());
    let (near, mut far) = bench.ports();
    let classic = vec![udp_frame(Ecn::NotEct); 8];
    let l4s = vec![udp_frame(Ecn::Ect1); 20];
    near.sender.send(&[&classic[..], &l4s].concat()).unwrap();

    let received: Vec<Ecn> = receive(&mut far, classic.len() + l4s.len())
        .iter()
        .map(|frame| Ecn::from_octet(Ipv4Header::parse(&frame[14..]).unwrap().0.tos))
        .collect();
    let stats = bench.emulator.stop().unwrap().paths[0].forward;
    let count = |ecn| received.iter().filter(|received| **received == ecn).count();

    assert_eq!(count(Ecn::NotEct), classic.len());
    assert!(count(Ecn::Ce) >= 10, "{received:?}");
    assert_eq!(count(Ecn::Ce) as u64, stats.marked_ect1);
    // The L4S frames overtake the Classic ones that came before.
    assert_eq!(received.last(), Some(&Ecn::NotEct), "{received:?}");
    assert!(
        stats.sojourn_classic.max > stats.sojourn_l4s.p50,
        "{stats:?}"
    );
}
