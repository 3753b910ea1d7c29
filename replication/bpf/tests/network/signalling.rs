//! In-band signals end to end: sent by a socket, received on a device, reported to user space.

use crate::support::*;
use hawser_replication_bpf::{
    SendPolicy, Sender, SenderOptions, SignalEvent, SignalEvents, SignalOptions, SignalOutcome,
};
use hawser_testbed::netns::Namespace;
use hawser_testbed::ring::{Port, wait};
use hawser_units::{PathId, PathSet, PolicyCode};
use hawser_wire::{Key, SIGNAL_PORT, Signal, ip};
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{setsockopt, sockopt::Ipv4Tos, sockopt::Ipv6TClass};
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const KEY: Key = Key::from_bytes([0x5a; 16]);

/// Runs `test` in a namespace with a loopback device and a pair of devices, `control` and its peer.
fn in_namespace(name: &str, test: impl FnOnce() + Send) {
    let namespace =
        Namespace::create(format!("hawser-test-{}-{name}", std::process::id())).unwrap();
    let batch = "link set lo up\nlink add control type veth peer name far-control\n\
                 link set control addrgenmode none up\nlink set far-control addrgenmode none up\n";
    let result = namespace
        .ip(batch)
        .and_then(|()| namespace.run(|| catch_unwind(AssertUnwindSafe(test))));
    namespace.delete().unwrap();
    result.unwrap().unwrap();
}

/// A sender of flow 7 with every path, and the reader of its signal events, for signals to its
/// loopback and control addresses.
fn listening() -> (Sender, SignalEvents) {
    let paths = PathId::all().collect();
    let mut sender = Sender::load(&SenderOptions {
        paths,
        ..sender_options()
    })
    .unwrap();
    for path in PathId::all() {
        sender
            .set_path(path, Some(send_path(HERE_V4.into(), THERE_V4.into())))
            .unwrap();
    }
    sender.set_flow(flow(7), &send_flow(7)).unwrap();
    let options = SignalOptions {
        interfaces: vec![1, if_nametoindex("control").unwrap()],
        addresses: vec![
            Ipv4Addr::LOCALHOST.into(),
            Ipv6Addr::LOCALHOST.into(),
            HERE_V4.into(),
        ],
        port: SIGNAL_PORT,
        key: KEY,
    };
    sender.enable_signals(&options).unwrap();
    let events = sender.signal_events().unwrap();
    (sender, events)
}

fn signal(epoch: u32, code: u8) -> Signal {
    let sent = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Signal {
        flow: flow(7),
        epoch,
        code: PolicyCode(code),
        probes: PathSet::EMPTY,
        probe_every: 0,
        sent_unix_micros: sent.as_micros() as u64,
    }
}

/// Waits for signal events.
fn wait_for_events(events: &mut SignalEvents) -> Vec<SignalEvent> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let found = events.drain().unwrap();
        if !found.is_empty() {
            return found;
        }
        assert!(Instant::now() < deadline, "no event was recorded");
        wait(&[events.as_fd()], Some(Duration::from_millis(100))).unwrap();
    }
}

#[test]
fn every_code_passes_through_sockets_and_devices() {
    in_namespace("codes", || {
        let (sender, mut events) = listening();
        let four = UdpSocket::bind("127.0.0.1:0").unwrap();
        let six = UdpSocket::bind("[::1]:0").unwrap();
        for code in 0..=255u8 {
            for is_ipv6 in [false, true] {
                let signal = signal(1 + 2 * u32::from(code) + u32::from(is_ipv6), code);
                let payload = signal.emit(&KEY).unwrap();
                let class = i32::from(signal.traffic_class());
                if is_ipv6 {
                    setsockopt(&six, Ipv6TClass, &class).unwrap();
                    six.send_to(&payload, (Ipv6Addr::LOCALHOST, SIGNAL_PORT))
                        .unwrap();
                } else {
                    setsockopt(&four, Ipv4Tos, &class).unwrap();
                    four.send_to(&payload, (Ipv4Addr::LOCALHOST, SIGNAL_PORT))
                        .unwrap();
                }
                let [event] = wait_for_events(&mut events)[..] else {
                    panic!("one record")
                };
                assert_eq!(
                    (event.epoch, event.outcome),
                    (signal.epoch, SignalOutcome::Accepted),
                    "{signal:?}"
                );
                assert_eq!(sender.policy_in_force(flow(7)).code.0, code);
            }
        }
    });
}

/// A policy is set between every two signals, if it is in time: no signal is lost to it, and the
/// flow's epoch never goes back.
#[test]
fn signals_and_pushes_that_race_leave_the_newest() {
    const SIGNALS: u64 = 3000;
    in_namespace("race", || {
        let (sender, _events) = listening();
        let accepted = || sender.signal_counts().unwrap()[SignalOutcome::Accepted as usize].1;
        let counted = || -> u64 {
            sender
                .signal_counts()
                .unwrap()
                .iter()
                .map(|(_, count)| count)
                .sum()
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
                setsockopt(&socket, Ipv4Tos, &1).unwrap();
                for number in 0..SIGNALS as u32 {
                    let payload = signal(2 * number + 1, 1).emit(&KEY).unwrap();
                    socket
                        .send_to(&payload, (Ipv4Addr::LOCALHOST, SIGNAL_PORT))
                        .unwrap();
                }
            });
            let (mut latest, mut signals) = (0, 0);
            while signals < SIGNALS {
                assert!(Instant::now() < deadline, "{signals} signals arrived");
                signals = counted();
                let (code, epoch) = (PolicyCode(2), 2 * signals as u32);
                let _ = sender
                    .set_policy(
                        flow(7),
                        SendPolicy {
                            code,
                            epoch,
                            ..SendPolicy::default()
                        },
                    )
                    .unwrap();
                let now = sender.policy_in_force(flow(7));
                assert!(now.epoch >= latest, "{} after {latest}", now.epoch);
                assert!(
                    now.epoch == 0 || now.code.0 == if now.epoch % 2 == 1 { 1 } else { 2 },
                    "{now:?}"
                );
                latest = now.epoch;
            }
        });
        assert_eq!(accepted(), SIGNALS);
        assert_eq!(
            u64::from(sender.policy_in_force(flow(7)).epoch),
            2 * SIGNALS
        );
    });
}

#[test]
fn only_what_is_addressed_to_this_node_is_taken() {
    in_namespace("addressed", || {
        let (mut sender, mut events) = listening();
        let far = Port::open("far-control").unwrap();
        let frame = |to: Ipv4Addr, epoch| {
            let payload = signal(epoch, 1).emit(&KEY).unwrap();
            let (from, to) = ((THERE_V4, 5).into(), (to, SIGNAL_PORT).into());
            ethernet(HERE_MAC, THERE_MAC, &ip::udp_packet(from, to, 1, &payload))
        };
        far.sender
            .send(&[frame(THERE_V4, 8), frame(HERE_V4, 7)])
            .unwrap();
        assert_eq!(wait_for_events(&mut events)[0].epoch, 7);
        assert_eq!(
            sender
                .signal_counts()
                .unwrap()
                .iter()
                .map(|(_, count)| count)
                .sum::<u64>(),
            1
        );

        sender.disable_signals();
        far.sender.send(&[frame(HERE_V4, 9)]).unwrap();
        let options = SignalOptions {
            interfaces: vec![if_nametoindex("control").unwrap()],
            addresses: vec![HERE_V4.into()],
            port: SIGNAL_PORT,
            key: KEY,
        };
        sender.enable_signals(&options).unwrap();
        far.sender.send(&[frame(HERE_V4, 10)]).unwrap();
        assert_eq!(
            wait_for_events(&mut events)[0].epoch,
            10,
            "no signal was accepted while signals were disabled"
        );
    });
}
