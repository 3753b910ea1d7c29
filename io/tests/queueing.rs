//! Departure times where the queueing discipline `fq` obeys them, and where `netem` delays all packets.

mod support;

use hawser_congestion::DepartureFinding;
use hawser_io::clock::monotonic;
use hawser_io::udp::{self, Departure, Received};
use hawser_units::Instant;
use std::thread;
use std::time::Duration;
use support::{MS, Pair};

#[test]
fn fq_is_found_to_obey_and_what_replaces_it_is_not() {
    let mut pair = Pair::create("found", "fq");
    assert_eq!(pair.find_on_a_slow_machine(), DepartureFinding::Obeyed);
    pair.set_discipline("pfifo limit 1000");
    assert_eq!(pair.find(), DepartureFinding::Early);
}

#[test]
fn a_delay_of_all_packets_is_not_mistaken_for_obedience() {
    for delay in ["1ms", "1500us", "2ms", "3ms"] {
        let mut pair = Pair::create(delay, &format!("netem delay {delay}"));
        assert_ne!(pair.find(), DepartureFinding::Obeyed, "{delay}");
    }
}

#[test]
fn packets_that_are_given_to_fq_at_once_leave_and_arrive_one_by_one() {
    const PACKETS: u32 = 20;
    let mut pair = Pair::create("spaced", "fq");
    let start = monotonic() + 20 * MS;
    for packet in 0..PACKETS {
        pair.send(Departure {
            at: start + 3 * packet * MS,
            is_stamped: true,
        });
    }
    pair.send_now();

    let mut left = 0;
    let mut arrivals: Vec<(Instant, usize)> = Vec::new();
    while left < PACKETS || arrivals.len() <= PACKETS as usize {
        assert!(monotonic() < start + 10_000 * MS, "{left}, {arrivals:?}");
        pair.receiving.wait(Some(MS)).unwrap();
        let arrived = |datagram: Received<'_>| {
            arrivals.push((monotonic() - datagram.age, datagram.bytes.len()));
        };
        pair.receiving.receive(arrived).unwrap();
        while let Some(stamp) = pair.sending.next_left().unwrap() {
            assert!(stamp.left + MS / 5 >= stamp.planned, "{stamp:?}");
            left += 1;
        }
    }
    let first = arrivals.remove(0);
    assert_eq!(
        first.1, 3,
        "one without a departure time waits for the first that is held only"
    );
    for (packet, (arrival, _)) in (0..PACKETS).zip(arrivals) {
        assert!(arrival + MS / 5 >= start + 3 * packet * MS);
    }
}

/// Sends a packet every millisecond, as a flow that gives packets to the kernel so far ahead, by a thread
/// that stalls for 3 ms after every 50th. Returns by how much each arrived late, in ascending order.
fn lateness(pair: &mut Pair, ahead: u32) -> Vec<Duration> {
    const PACKETS: u32 = 1000;
    udp::wake_precisely();
    let first = monotonic() + 10 * MS;
    let mut late = Vec::new();
    let mut sent = 0;
    while late.len() < PACKETS as usize {
        let now = monotonic();
        assert!(
            now < first + 10_000 * MS,
            "{} of {sent} arrived",
            late.len()
        );
        while sent < PACKETS && first + sent * MS <= now + ahead * MS {
            pair.send(Departure {
                at: first + sent * MS,
                is_stamped: false,
            });
            sent += 1;
            if sent % 50 == 0 {
                thread::sleep(3 * MS);
            }
        }
        let arrived = |datagram: Received<'_>| {
            let planned = first + late.len() as u32 * MS;
            late.push((monotonic() - datagram.age).saturating_since(planned));
        };
        pair.receiving.receive(arrived).unwrap();
        let still_ahead = ahead.saturating_sub(1) * MS;
        let due = (first + sent * MS - still_ahead).saturating_since(monotonic());
        pair.sending.wait(Some(due.max(MS / 20))).unwrap();
    }
    late.sort_unstable();
    late
}

#[test]
fn fq_makes_up_for_a_sender_that_stalls() {
    let late = [("pfifo", 0), ("fq", 5)].map(|(discipline, ahead)| {
        let late = lateness(&mut Pair::create(discipline, discipline), ahead);
        let [median, p90, p99, most] = [500, 900, 990, 1000].map(|share| late[share * 999 / 1000]);
        println!(
            "{discipline}, {ahead} ms ahead: late by {median:?} (median), {p90:?} (p90), {p99:?} (p99), {most:?} (most)"
        );
        (median, p99)
    });
    let [program, kernel] = late;
    assert!(kernel.0 < program.0 && kernel.1 + MS < program.1);
}
