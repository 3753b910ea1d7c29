//! The relay's program and `media/fanout` implement the same specification.

#[path = "../../fanout/tests/support/operations.rs"]
mod operations;

use hawser_fanout::{Delivery, Refusal, SlotIndex, TrackHop};
use hawser_kernel::testing::{HERE_V4, HERE_V6, THERE_V4, THERE_V6, transit};
use hawser_media_bpf::relay::{Reason, Registrations, Route, Session, TrackOptions, Upstream};
use hawser_media_bpf::timed::TimedRelay;
use hawser_units::Instant;
use hawser_wire::ip;
use operations::{DATAGRAM, Step, TRACKS, UPSTREAMS, alias, own_hop, track, upstream_hop};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

const TC_ACT_SHOT: u32 = 2;
const TC_ACT_UNSPEC: u32 = u32::MAX;

/// The loopback device, which a test run's packets arrive on and the clones are sent by.
const LOOPBACK: u32 = 1;

fn upstream(number: u32) -> Session {
    let (local, remote): (std::net::IpAddr, std::net::IpAddr) = match number {
        0 => (HERE_V4.into(), THERE_V4.into()),
        _ => (HERE_V6.into(), THERE_V6.into()),
    };
    Session {
        local: SocketAddr::new(local, 4747),
        remote: SocketAddr::new(remote, 5000),
    }
}

/// The slots of the operations.
fn slots() -> [SlotIndex; 7] {
    [0, 1, 2, 3, 63, 64, 1023].map(|index| SlotIndex::try_from(index).unwrap())
}

fn subscriber(slot: SlotIndex, is_ipv6: bool) -> Session {
    let port = 6000 + slot.get() as u16;
    let (local, remote) = if is_ipv6 {
        let host = |last| Ipv6Addr::new(0x2001, 0xdb8, 9, 0, 0, 0, 0, last);
        ((host(1), 4747).into(), (host(2), port).into())
    } else {
        let host = |last| Ipv4Addr::new(192, 0, 2, last);
        ((host(1), 4747).into(), (host(2), port).into())
    };
    Session { local, remote }
}

fn track_options(hop: TrackHop) -> TrackOptions {
    TrackOptions {
        hop,
        copy: false,
        arrivals: false,
    }
}

/// The program, with what is read from it between two packets.
struct Program {
    timed: TimedRelay,
    registrations: Registrations,
    counts: BTreeMap<Reason, u64>,
}

impl Program {
    fn load() -> Self {
        let mut timed = TimedRelay::load(DATAGRAM as u16).unwrap();
        let registrations = timed.relay().registrations().unwrap();
        for number in 0..UPSTREAMS {
            timed.relay().listen(upstream(number).local).unwrap();
        }
        Program {
            timed,
            registrations,
            counts: BTreeMap::new(),
        }
    }

    /// Brings the program into the state before the first step.
    fn reset(&mut self) {
        let relay = self.timed.relay();
        for slot in slots() {
            relay.remove_subscriber(slot);
        }
        for number in 0..UPSTREAMS {
            set_upstream(
                relay,
                number,
                [None, Some(upstream_hop(0)), Some(upstream_hop(1))],
            );
            for index in 0..TRACKS {
                let alias = alias(number, index);
                relay.add_track(track(index), &track_options(own_hop(0)));
                relay.name_track(number, alias, Some(track(index))).unwrap();
            }
        }
        self.registrations.drain();
        self.counted();
    }

    fn apply(&mut self, step: &Step, now: Instant) {
        let relay = self.timed.relay();
        match step {
            Step::Datagram {
                upstream: from,
                bytes,
            } => self.run(now, *from, bytes),
            Step::SetUpstream(number, hops) => set_upstream(relay, *number, hops.clone()),
            Step::SetHop(track, hop) => relay.set_track(*track, &track_options(hop.clone())),
            Step::Lose(track, frame, layer) => relay.lose(*track, *frame, *layer),
            Step::Add(slot, of) => {
                let session = subscriber(*slot, of.is_ipv6);
                relay.add_subscriber(*slot, &session, &of.budget, of.since, of.expires);
                let route = Route {
                    ifindex: LOOPBACK,
                    mtu_bytes: 1500,
                    source_mac: [2, 0, 0, 0, 0, 1],
                    next_hop_mac: [2, 0, 0, 0, 0, 2],
                };
                relay.set_route(*slot, Some(&route));
            }
            Step::Remove(slot) => relay.remove_subscriber(*slot),
            Step::Renew(slot, expires) => relay.renew(*slot, *expires),
            Step::SetBudget(slot, budget) => relay.set_budget(*slot, budget),
            Step::Spend(slot, priority, bytes) => relay.spend(*slot, *priority, *bytes),
            Step::Subscribe(track, slot, selection) => relay.subscribe(*track, *slot, selection),
            Step::Select(track, slot, layers) => relay.select(*track, *slot, *layers),
            Step::Unsubscribe(track, slot) => relay.unsubscribe(*track, *slot),
        }
    }

    fn run(&mut self, now: Instant, from: u32, bytes: &[u8]) {
        let Session { local, remote } = upstream(from);
        let frame = transit(&ip::udp_packet(remote, local, 1, bytes));
        let run = self.timed.run_at(now, &frame).unwrap();
        let is_passed = bytes[0] != 1;
        let expected = if is_passed {
            TC_ACT_UNSPEC
        } else {
            TC_ACT_SHOT
        };
        assert_eq!(run.action, expected);
    }

    /// Returns what was counted since the last call, of all tracks and of none.
    fn counted(&mut self) -> Vec<(Reason, u64)> {
        let tracks = (0..TRACKS).map(|index| Some(track(index))).chain([None]);
        let mut sums: BTreeMap<Reason, u64> = BTreeMap::new();
        for (reason, count) in tracks.flat_map(|track| self.timed.relay().counts(track).unwrap()) {
            *sums.entry(reason).or_default() += count;
        }
        let before = std::mem::replace(&mut self.counts, sums.clone());
        let since = sums
            .into_iter()
            .map(|(reason, count)| (reason, count - before.get(&reason).copied().unwrap_or(0)));
        since.filter(|(_, count)| *count > 0).collect()
    }
}

fn set_upstream(
    relay: &hawser_media_bpf::relay::Relay,
    number: u32,
    hops: [Option<hawser_packets::media::Hop>; 3],
) {
    let session = upstream(number);
    relay
        .set_upstream(&session, Some(&Upstream { number, hops }))
        .unwrap();
}

fn reason(outcome: &Result<Delivery, Refusal>) -> Reason {
    match outcome {
        Ok(_) => Reason::Forwarded,
        Err(Refusal::NotMedia) => Reason::Passed,
        Err(Refusal::Oversize) => Reason::Oversize,
        Err(Refusal::Truncated) => Reason::Truncated,
        Err(Refusal::Header) => Reason::Header,
        Err(Refusal::HopKey) => Reason::HopKey,
        Err(Refusal::Tag) => Reason::Tag,
        Err(Refusal::NoTrack) => Reason::NoTrack,
        Err(Refusal::TooManyPackets) => Reason::TooManyPackets,
        Err(Refusal::Duplicate) => Reason::Duplicate,
        Err(Refusal::Contradiction) => Reason::Contradiction,
        Err(Refusal::Outdated) => Reason::Outdated,
    }
}

#[test]
fn both_agree_on_random_operations() {
    let program = std::cell::RefCell::new(Program::load());
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let agree = |operations: Vec<operations::Operation>| {
        let program = &mut *program.borrow_mut();
        program.reset();
        let mut relay = operations::relay();
        for (now, step) in operations::steps(&operations) {
            let outcome = step.apply(&mut relay, now);
            program.apply(&step, now);
            let expected: Vec<_> = outcome.iter().map(|outcome| (reason(outcome), 1)).collect();
            prop_assert_eq!(program.counted(), expected, "{:?}", step);
            for slot in slots() {
                let Some(expected) = relay.slot_stats(slot) else {
                    continue;
                };
                let stats = program.timed.relay().slot_stats(slot);
                prop_assert_eq!(
                    (stats.packets, stats.bytes, stats.balance, stats.objects),
                    (
                        expected.packets,
                        expected.bytes,
                        expected.balance,
                        expected.objects
                    ),
                    "{:?} {:?}",
                    slot,
                    step
                );
                for index in 0..TRACKS {
                    let joined = program.timed.relay().joined(track(index), slot);
                    prop_assert_eq!(joined, relay.joined(track(index), slot));
                }
            }
            let registered: Vec<_> = std::iter::from_fn(|| relay.poll_registration()).collect();
            prop_assert_eq!(program.registrations.drain(), registered);
        }
        for index in 0..TRACKS {
            prop_assert_eq!(
                program.timed.relay().newest(track(index)),
                relay.newest(track(index))
            );
        }
        Ok(())
    };
    runner.run(&operations::operations(), agree).unwrap();
}
