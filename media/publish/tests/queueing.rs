//! Departure times where the queueing discipline `fq` follows them, and where `netem` delays all packets.

mod pair;

use hawser_congestion::DepartureFinding;
use hawser_io::clock::monotonic;
use hawser_io::udp::{self, Departure, Received};
use hawser_units::{Ecn, Instant};
use pair::{MS, Pair};
use std::io::ErrorKind;
use std::time::Duration;

#[test]
fn fq_is_found_to_obey_and_what_replaces_it_is_not() {
    let mut pair = Pair::create("found", "fq");
    assert_eq!(pair.find_on_a_slow_machine(), DepartureFinding::Followed);
    pair.set_discipline("pfifo limit 1000");
    assert_eq!(pair.find(), DepartureFinding::Early);
}

#[test]
fn a_delay_of_all_packets_is_not_mistaken_for_obedience() {
    for delay in ["1ms", "1500us", "2ms", "3ms"] {
        let mut pair = Pair::create(delay, &format!("netem delay {delay}"));
        assert_ne!(pair.find(), DepartureFinding::Followed, "{delay}");
    }
}

#[test]
fn packets_given_to_fq_at_once_leave_one_by_one() {
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

/// A packet that was sent and has arrived.
struct Arrived {
    planned: Instant,
    /// When it was given to the kernel.
    given: Instant,
    at: Instant,
}

/// Sends a packet every millisecond, as a flow that gives packets to the kernel so far ahead, by a thread
/// that stalls until 3 ms later after every 50th. Packets are told apart by their lengths.
fn sent_with_stalls(pair: &mut Pair, ahead: u32) -> Vec<Arrived> {
    const PACKETS: u32 = 1000;
    udp::wake_precisely();
    let first = monotonic() + 10 * MS;
    let planned = |packet: u32| first + packet * MS;
    let mut given = Vec::new();
    let mut stalled_until = first;
    let mut arrivals = Vec::new();
    while arrivals.len() < PACKETS as usize {
        let now = monotonic();
        let sent = given.len() as u32;
        assert!(
            now < first + 60_000 * MS,
            "{} of {sent} arrived",
            arrivals.len()
        );
        if sent < PACKETS && planned(sent) <= now + ahead * MS && stalled_until <= now {
            let departure = Departure {
                at: planned(sent),
                is_stamped: false,
            };
            pair.send_long(1 + sent as usize, departure);
            given.push(now);
            if sent % 50 == 49 {
                stalled_until = monotonic() + 3 * MS;
            }
        }
        let arrived = |datagram: Received<'_>| {
            let packet = datagram.bytes.len() - 1;
            arrivals.push(Arrived {
                planned: planned(packet as u32),
                given: given[packet],
                at: monotonic() - datagram.age,
            });
        };
        pair.receiving.receive(arrived).unwrap();
        pair.sending.wait(Some(MS / 20)).unwrap();
    }
    arrivals
}

#[test]
fn fq_makes_up_for_a_sender_that_stalls() {
    let [program, kernel] = [("pfifo", 0), ("fq", 5)].map(|(discipline, ahead)| {
        let arrivals = sent_with_stalls(&mut Pair::create(discipline, discipline), ahead);
        let late = |arrived: &Arrived| arrived.at.saturating_since(arrived.planned);
        let mut late: Vec<Duration> = arrivals.iter().map(late).collect();
        late.sort_unstable();
        let [median, p90, p99, most] = [500, 900, 990, 1000].map(|share| late[share * 999 / 1000]);
        println!(
            "{discipline}, {ahead} ms ahead: late by {median:?} (median), {p90:?} (p90), {p99:?} (p99), {most:?} (most)"
        );
        arrivals
    });
    // Whatever the machine does: what the program gives late leaves late, what the kernel has leaves in time.
    let is_late = |arrived: &&Arrived| arrived.at >= arrived.planned + MS;
    let given_late = program.iter().filter(|a| a.given >= a.planned + MS);
    assert!(given_late.clone().count() > 0);
    assert!(given_late.clone().all(|arrived| is_late(&arrived)));
    let in_time = kernel.iter().filter(|a| a.given <= a.planned);
    let in_time: Vec<&Arrived> = in_time.collect();
    let early = |arrived: &&&Arrived| arrived.at + MS / 5 < arrived.planned;
    assert_eq!(in_time.iter().filter(early).count(), 0);
    assert!(2 * in_time.len() > kernel.len(), "{}", in_time.len());
    assert!(10 * in_time.iter().filter(|a| is_late(a)).count() < in_time.len());
}

#[test]
fn a_buffer_full_of_packets_in_fq_is_waited_for() {
    let mut pair = Pair::create("full", "fq flow_limit 10000 limit 10000");
    let departure = Departure {
        at: monotonic() + 200 * MS,
        is_stamped: false,
    };
    let mut send = || {
        let sending = &mut pair.sending;
        sending.send_at(pair.to, Ecn::Ect1, &[0; 1200], departure)
    };
    let mut sent = (0..10_000).map(|_| send());
    let error = sent.find_map(Result::err).expect("the buffer is bounded");
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    pair.sending.wait_for_room(Some(60_000 * MS)).unwrap();
    assert!(departure.at <= monotonic() + 5 * MS);
    pair.send_now();
}
