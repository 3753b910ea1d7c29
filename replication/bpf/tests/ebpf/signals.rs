//! In-band signals, one packet at a time: which are accepted, which are rejected and why, and which
//! are not for this node.

use crate::support::*;
use hawser_replication_bpf::{SendPolicy, Sender, SignalEvent, SignalOptions, SignalOutcome};
use hawser_shim::Shim;
use hawser_units::{PathSet, PolicyCode};
use hawser_wire::{Key, SIGNAL_PORT, Signal, golden, ip};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const TC_ACT_UNSPEC: u32 = u32::MAX;
const TC_ACT_SHOT: u32 = 2;
const KEY: Key = Key::from_bytes([0x5a; 16]);

/// A sender of flow 7 with path 0 over IPv4 and path 1 over IPv6 that accepts signals to both
/// addresses.
fn listening(key: Key, addresses: Vec<IpAddr>) -> Sender {
    let mut sender = sender();
    sender.set_flow(flow(7), &send_flow(7)).unwrap();
    sender
        .enable_signals(&SignalOptions {
            interfaces: Vec::new(),
            addresses,
            port: SIGNAL_PORT,
            key,
        })
        .unwrap();
    sender
}

fn listening_here() -> Sender {
    listening(KEY, vec![HERE_V4.into(), HERE_V6.into()])
}

fn now_micros() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_micros() as u64
}

fn signal(epoch: u32) -> Signal {
    Signal {
        flow: flow(7),
        epoch,
        code: PolicyCode(0b11),
        probes: PathSet::from_bits(0b100),
        probe_every: 64,
        sent_unix_micros: now_micros(),
    }
}

fn datagram(to: IpAddr, port: u16, traffic_class: u8, payload: &[u8]) -> Vec<u8> {
    let from: IpAddr = if to.is_ipv4() {
        THERE_V4.into()
    } else {
        THERE_V6.into()
    };
    let (from, to) = (SocketAddr::new(from, 50_000), SocketAddr::new(to, port));
    ethernet(
        HERE_MAC,
        THERE_MAC,
        &ip::udp_packet(from, to, traffic_class, payload),
    )
}

fn frame(to: IpAddr, signal: &Signal) -> Vec<u8> {
    datagram(
        to,
        SIGNAL_PORT,
        signal.traffic_class(),
        &signal.emit(&KEY).unwrap(),
    )
}

/// The outcome that is counted for a frame, which is consumed.
fn outcome(sender: &Sender, frame: &[u8]) -> SignalOutcome {
    let before = sender.signal_counts().unwrap();
    assert_eq!(sender.run_signal(frame, 1).unwrap().action, TC_ACT_SHOT);
    let after = sender.signal_counts().unwrap();
    let mut counted = after
        .iter()
        .zip(before)
        .filter(|((_, now), (_, then))| now != then);
    let ((outcome, now), (_, then)) = counted.next().expect("every signal is counted");
    assert_eq!((*now, counted.next()), (then + 1, None));
    *outcome
}

#[test]
fn a_signal_sets_the_policy() {
    for (to, code) in [
        (HERE_V4.into(), 0b11),
        (HERE_V6.into(), 0b10),
        (HERE_V4.into(), 0x00),
        (HERE_V6.into(), 0xff),
    ] {
        let sender = listening_here();
        let mut events = sender.signal_events().unwrap();
        let signal = Signal {
            code: PolicyCode(code),
            ..signal(0x0102_0304)
        };
        assert_eq!(
            outcome(&sender, &frame(to, &signal)),
            SignalOutcome::Accepted
        );
        let Signal {
            code,
            probes,
            probe_every,
            epoch,
            ..
        } = signal;
        assert_eq!(
            sender.policy_in_force(flow(7)),
            SendPolicy {
                code,
                probes,
                probe_every,
                epoch
            }
        );
        let [event] = events.drain().unwrap()[..] else {
            panic!("one record")
        };
        let expected = SignalEvent {
            at: event.at,
            flow: Some(flow(7)),
            epoch,
            code,
            outcome: SignalOutcome::Accepted,
        };
        assert_eq!(event, expected);
    }
}

#[test]
fn packets_take_the_paths_that_a_signal_names() {
    let mut sender = listening_here();
    sender
        .select(prefix("0.0.0.0/0"), &[everything_of(7)])
        .unwrap();
    let packet = transit(&udp4("203.0.113.9", b"x"));
    assert_eq!(sender.run(&packet, 1).unwrap().action, XDP_PASS);
    outcome(&sender, &frame(HERE_V4.into(), &signal(1)));
    let run = sender.run(&packet, 1).unwrap();
    let shim = Shim::parse(&run.frame[HANDOVER..]).unwrap().0;
    assert_eq!(
        (run.action, shim.paths.bits(), shim.epoch),
        (XDP_REDIRECT, 0b11, 1)
    );
}

#[test]
fn a_signal_is_applied_once_and_yields_to_a_newer_policy() {
    let sender = listening_here();
    let frame = |epoch| frame(HERE_V4.into(), &signal(epoch));
    let pushed = |epoch| SendPolicy {
        code: PolicyCode(1),
        epoch,
        ..SendPolicy::default()
    };
    assert_eq!(outcome(&sender, &frame(5)), SignalOutcome::Accepted);
    for epoch in [0, 4, 5] {
        assert_eq!(
            outcome(&sender, &frame(epoch)),
            SignalOutcome::Epoch,
            "{epoch}"
        );
    }
    assert!(
        !sender.set_policy(flow(7), pushed(5)).unwrap(),
        "the signal came first"
    );
    assert!(sender.set_policy(flow(7), pushed(6)).unwrap());
    assert_eq!(
        outcome(&sender, &frame(6)),
        SignalOutcome::Epoch,
        "the push came first"
    );
    assert_eq!(sender.policy_in_force(flow(7)), pushed(6));
    assert_eq!(outcome(&sender, &frame(7)), SignalOutcome::Accepted);
}

#[test]
fn sealed_signals_with_wrong_fields_are_rejected() {
    let sender = listening_here();
    let seconds = |seconds: i64| {
        let sent_unix_micros = now_micros().wrapping_add_signed(seconds * 1_000_000);
        Signal {
            sent_unix_micros,
            ..signal(9)
        }
    };
    let fixtures = [
        (
            "flow",
            Signal {
                flow: flow(8),
                ..signal(9)
            },
            SignalOutcome::Flow,
        ),
        ("old", seconds(-3), SignalOutcome::Age),
        ("from the future", seconds(3), SignalOutcome::Age),
        (
            "very old",
            Signal {
                sent_unix_micros: 0,
                ..signal(9)
            },
            SignalOutcome::Age,
        ),
        (
            "very far",
            Signal {
                sent_unix_micros: u64::MAX,
                ..signal(9)
            },
            SignalOutcome::Age,
        ),
        (
            "no such path",
            Signal {
                code: PolicyCode(0b1100),
                ..signal(9)
            },
            SignalOutcome::Code,
        ),
    ];
    let mut events = sender.signal_events().unwrap();
    for (name, signal, expected) in fixtures {
        assert_eq!(
            outcome(&sender, &frame(HERE_V4.into(), &signal)),
            expected,
            "{name}"
        );
    }
    assert_eq!(sender.policy_in_force(flow(7)), SendPolicy::default());
    assert_eq!(events.drain().unwrap()[0].outcome, SignalOutcome::Flow);
    for fresh in [
        seconds(-1),
        Signal {
            epoch: 10,
            ..seconds(1)
        },
    ] {
        assert_eq!(
            outcome(&sender, &frame(HERE_V4.into(), &fresh)),
            SignalOutcome::Accepted
        );
    }
}

#[test]
fn the_header_names_the_code_too() {
    let sender = listening_here();
    let with_class = |epoch: u32, class: u8, to: IpAddr| {
        datagram(to, SIGNAL_PORT, class, &signal(epoch).emit(&KEY).unwrap())
    };
    for (epoch, class, expected) in [
        (1, 0b0000_0011, SignalOutcome::Accepted),
        (2, 0b0000_0010, SignalOutcome::Accepted), // the lower two bits are ECN: the network's
        (3, 0b0000_0000, SignalOutcome::Accepted),
        (4, 0b0000_0111, SignalOutcome::Code),
        (4, 0b1000_0011, SignalOutcome::Code),
    ] {
        for (to, epoch) in [(HERE_V4.into(), 2 * epoch), (HERE_V6.into(), 2 * epoch + 1)] {
            assert_eq!(
                outcome(&sender, &with_class(epoch, class, to)),
                expected,
                "{class:#b}"
            );
        }
    }
}

#[test]
fn forgeries_leave_nothing_but_a_count() {
    let sender = listening_here();
    let mut events = sender.signal_events().unwrap();
    let good = signal(1).emit(&KEY).unwrap();
    for bit in 0..Signal::LEN * 8 {
        let mut forged = good;
        forged[bit / 8] ^= 1 << (bit % 8);
        let frame = datagram(HERE_V4.into(), SIGNAL_PORT, 0b11, &forged);
        let outcome = outcome(&sender, &frame);
        assert!(
            matches!(outcome, SignalOutcome::Tag | SignalOutcome::Malformed),
            "bit {bit}: {outcome:?}"
        );
    }
    let of_another = signal(1).emit(&Key::from_bytes([0; 16])).unwrap();
    let frame = datagram(HERE_V6.into(), SIGNAL_PORT, 0b11, &of_another);
    assert_eq!(outcome(&sender, &frame), SignalOutcome::Tag);
    assert_eq!(sender.policy_in_force(flow(7)), SendPolicy::default());
    assert_eq!(events.drain().unwrap(), []);
}

#[test]
fn other_packets_to_the_signal_port_are_dropped() {
    let sender = listening_here();
    let payload = signal(1).emit(&KEY).unwrap();
    let changed = |at: usize, value: u8| {
        let mut payload = payload;
        payload[at] = value;
        payload.to_vec()
    };
    let short = payload[..27].to_vec();
    let long = [&payload[..], &[0]].concat();
    for (name, payload) in [
        ("empty", Vec::new()),
        ("short", short),
        ("long", long),
        ("version", changed(0, 0x20)),
        ("shim", changed(0, 0x11)),
        ("kind", changed(1, 0)),
        ("probe shift", changed(4, 16)),
    ] {
        for to in [HERE_V4.into(), HERE_V6.into()] {
            let frame = datagram(to, SIGNAL_PORT, 0b11, &payload);
            assert_eq!(outcome(&sender, &frame), SignalOutcome::Malformed, "{name}");
        }
    }
}

#[test]
fn packets_to_other_nodes_pass() {
    let mut sender = listening_here();
    let payload = signal(1).emit(&KEY).unwrap();
    let here: IpAddr = HERE_V4.into();
    let good = frame(here, &signal(1));
    let as_tcp = ethernet(
        HERE_MAC,
        THERE_MAC,
        &with_ipv4(good[14..].to_vec(), |packet| packet[9] = 6),
    );
    let fragment = ethernet(
        HERE_MAC,
        THERE_MAC,
        &with_ipv4(good[14..].to_vec(), |packet| packet[7] = 1),
    );
    for (name, frame) in [
        (
            "another node's",
            datagram(THERE_V4.into(), SIGNAL_PORT, 0b11, &payload),
        ),
        (
            "another node's, over IPv6",
            datagram(THERE_V6.into(), SIGNAL_PORT, 0b11, &payload),
        ),
        (
            "another port",
            datagram(here, SIGNAL_PORT + 1, 0b11, &payload),
        ),
        ("TCP", as_tcp),
        ("a fragment", fragment),
        (
            "ARP",
            [&[0xff; 6][..], &THERE_MAC, &[8, 6], &[0; 46]].concat(),
        ),
    ] {
        let run = sender.run_signal(&frame, 1).unwrap();
        assert_eq!((run.action, run.frame), (TC_ACT_UNSPEC, frame), "{name}");
    }
    let only_v6 = SignalOptions {
        interfaces: Vec::new(),
        addresses: vec![HERE_V6.into()],
        port: SIGNAL_PORT,
        key: KEY,
    };
    sender.enable_signals(&only_v6).unwrap();
    assert_eq!(sender.run_signal(&good, 1).unwrap().action, TC_ACT_UNSPEC);
    assert!(
        sender
            .signal_counts()
            .unwrap()
            .iter()
            .all(|(_, count)| *count == 0)
    );
    assert_eq!(sender.policy_in_force(flow(7)), SendPolicy::default());
}

#[test]
fn a_flow_that_was_removed_is_not_signalled() {
    let mut sender = listening_here();
    assert_eq!(
        outcome(&sender, &frame(HERE_V4.into(), &signal(1))),
        SignalOutcome::Accepted
    );
    sender.remove_flow(flow(7)).unwrap();
    assert_eq!(sender.policy_in_force(flow(7)), SendPolicy::default());
    assert_eq!(
        outcome(&sender, &frame(HERE_V4.into(), &signal(2))),
        SignalOutcome::Flow
    );
}

/// An attacker who repeats a signal cannot fill the ring with records of it.
#[test]
fn rejections_are_all_counted_and_few_are_recorded() {
    let sender = listening_here();
    let mut events = sender.signal_events().unwrap();
    let start = Instant::now();
    sender
        .run_signal(&frame(HERE_V4.into(), &signal(0)), 100_000)
        .unwrap();
    let most = 1 + start.elapsed().as_millis() as usize / 100;
    let refused: u64 = sender.signal_counts().unwrap()[SignalOutcome::Epoch as usize].1;
    assert_eq!(refused, 100_000);
    let recorded = events.drain().unwrap();
    assert!(
        (1..=most).contains(&recorded.len()),
        "{} of at most {most}",
        recorded.len()
    );
    let tenth = Duration::from_millis(100);
    assert!(
        recorded
            .windows(2)
            .all(|pair| pair[1].at.saturating_since(pair[0].at) >= tenth)
    );
}

/// The vectors were sealed long ago: the tag is right, the time is not.
#[test]
fn golden_vectors_are_sealed() {
    for vector in golden::signals() {
        let mut sender = listening(vector.key, vec![vector.destination]);
        assert_eq!(
            outcome(&sender, &vector.frame),
            SignalOutcome::Flow,
            "{}",
            vector.name
        );
        sender.set_flow(vector.signal.flow, &send_flow(7)).unwrap();
        assert_eq!(
            outcome(&sender, &vector.frame),
            SignalOutcome::Age,
            "{}",
            vector.name
        );
    }
}
