use super::*;

const PACKET: u16 = 1400;
const RTT: Duration = Duration::from_millis(40);

/// A bottleneck with an unlimited queue, after which every n-th packet is lost, and a sender that
/// always has data to send. Packets that wait for `mark_above` or longer are marked.
struct Pipe {
    bbr: Bbr,
    rate: f64,
    every_nth_lost: u64,
    mark_above: Duration,
    flight: VecDeque<Flight>,
    now: Instant,
    idle_from: Instant,
    next_send: Instant,
    number: u64,
    acknowledged: u64,
    /// The sum of the times that packets waited.
    waited: Duration,
}

struct Flight {
    number: u64,
    sent: Instant,
    acknowledged: Instant,
    is_marked: bool,
}

impl Pipe {
    fn new(seed: u64, mbps: f64, every_nth_lost: u64) -> Self {
        let now = Instant::now();
        Pipe {
            bbr: Bbr::new(seed, PACKET),
            rate: mbps * 1e6 / 8.0,
            every_nth_lost,
            mark_above: Duration::MAX,
            flight: VecDeque::new(),
            now,
            idle_from: now,
            next_send: now,
            number: 0,
            acknowledged: 0,
            waited: Duration::ZERO,
        }
    }

    /// Runs for `duration` and returns the bytes per second that arrived.
    fn run(&mut self, duration: Duration) -> f64 {
        let (end, before) = (self.now + duration, self.acknowledged);
        while self.now < end {
            let may_send = self.bbr.in_flight + u64::from(PACKET) <= self.bbr.window();
            let acknowledgement = self.flight.front().map(|first| first.acknowledged);
            let send = may_send.then_some(self.next_send.max(self.now));
            match (send, acknowledgement) {
                (Some(send), at) if at.is_none_or(|at| send <= at) => self.send(send),
                (_, Some(at)) => self.acknowledge(at),
                (_, None) => unreachable!("the window holds a packet"),
            }
        }
        (self.acknowledged - before) as f64 / duration.as_secs_f64()
    }

    fn send(&mut self, now: Instant) {
        self.now = now;
        let serialising = Duration::from_secs_f64(f64::from(PACKET) / self.rate);
        let waits = self.idle_from.saturating_duration_since(now);
        self.waited += waits;
        self.idle_from = self.idle_from.max(now) + serialising;
        self.bbr.on_packet_sent(now, PACKET, self.number);
        self.flight.push_back(Flight {
            number: self.number,
            sent: now,
            acknowledged: self.idle_from + RTT,
            is_marked: waits >= self.mark_above,
        });
        self.number += 1;
        self.next_send = now + Duration::from_secs_f64(f64::from(PACKET) / self.bbr.pacing);
    }

    fn acknowledge(&mut self, now: Instant) {
        self.now = now;
        let Flight {
            number,
            sent,
            is_marked,
            ..
        } = self.flight.pop_front().unwrap();
        if self.every_nth_lost > 0 && number % self.every_nth_lost == 0 {
            self.bbr.on_packet_lost(PACKET, number, now);
            return;
        }
        let bytes = u64::from(PACKET);
        self.acknowledged += bytes;
        self.bbr.acknowledge(now, sent, bytes, number);
        let in_flight = self.flight.len() as u64 * bytes;
        self.bbr.on_end_acks(now, in_flight, false, None);
        if is_marked {
            self.bbr
                .on_congestion_event(now, sent, false, true, 0, number);
        }
    }

    /// Runs for `duration`, and returns the mean time that packets waited.
    fn mean_wait(&mut self, duration: Duration) -> Duration {
        let (waited, number) = (self.waited, self.number);
        self.run(duration);
        (self.waited - waited) / u32::try_from(self.number - number).unwrap()
    }
}

#[test]
fn the_window_follows_the_path() {
    let mut pipe = Pipe::new(1, 20.0, 0);
    pipe.run(Duration::from_secs(5));
    let bytes_per_second = pipe.run(Duration::from_secs(10));
    assert!(bytes_per_second > 0.95 * pipe.rate, "{bytes_per_second}");
    let bdp = pipe.rate * RTT.as_secs_f64();
    assert!(
        pipe.bbr.window() as f64 <= 3.0 * bdp,
        "{} of {bdp}",
        pipe.bbr.window()
    );

    pipe.rate /= 4.0;
    pipe.run(Duration::from_secs(10));
    let bytes_per_second = pipe.run(Duration::from_secs(10));
    assert!(bytes_per_second > 0.9 * pipe.rate, "{bytes_per_second}");
    assert!(
        pipe.bbr.bandwidth() < 1.4 * pipe.rate,
        "{}",
        pipe.bbr.bandwidth()
    );
}

#[test]
fn a_queue_of_its_own_is_not_taken_for_a_longer_path() {
    let mut pipe = Pipe::new(1, 20.0, 0);
    for minute in 1..=3 {
        let bytes_per_second = pipe.run(Duration::from_secs(60));
        assert!(
            bytes_per_second > 0.95 * pipe.rate,
            "{bytes_per_second} in minute {minute}"
        );
        let min_rtt = pipe.bbr.min_rtt().unwrap();
        assert!(min_rtt < RTT * 3 / 2, "{min_rtt:?} in minute {minute}");
    }
}

#[test]
fn a_path_that_becomes_faster_is_used_faster() {
    let mut pipe = Pipe::new(1, 10.0, 0);
    pipe.run(Duration::from_secs(5));
    pipe.rate *= 4.0;
    pipe.run(Duration::from_secs(25));
    let bytes_per_second = pipe.run(Duration::from_secs(5));
    assert!(bytes_per_second > 0.8 * pipe.rate, "{bytes_per_second}");
}

#[test]
fn random_loss_is_not_congestion() {
    let mut pipe = Pipe::new(1, 20.0, 60);
    pipe.run(Duration::from_secs(5));
    let bytes_per_second = pipe.run(Duration::from_secs(10));
    assert!(bytes_per_second > 0.9 * pipe.rate, "{bytes_per_second}");
}

#[test]
fn the_same_seed_does_the_same() {
    let run = |seed| {
        let mut pipe = Pipe::new(seed, 20.0, 50);
        pipe.run(Duration::from_secs(20));
        (pipe.acknowledged, pipe.bbr.window, pipe.number)
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

#[test]
fn marks_keep_the_queue_short() {
    let waits = [Duration::MAX, Duration::from_millis(5)].map(|mark_above| {
        let mut pipe = Pipe::new(1, 20.0, 0);
        pipe.mark_above = mark_above;
        let startup = pipe.mean_wait(Duration::from_secs(2));
        let before = pipe.acknowledged;
        let later = pipe.mean_wait(Duration::from_secs(30));
        let bytes_per_second = (pipe.acknowledged - before) as f64 / 30.0;
        assert!(bytes_per_second > 0.9 * pipe.rate, "{bytes_per_second}");
        (startup, later)
    });
    let [without, with] = waits;
    assert!(with.0 < without.0 / 2, "in startup: {waits:?}");
    assert!(with.1 < without.1 / 2, "later: {waits:?}");
}

#[test]
fn a_path_whose_marks_do_not_cease_is_left_to_others() {
    let mut pipe = Pipe::new(1, 20.0, 0);
    pipe.run(Duration::from_secs(5));
    let alone = pipe.run(Duration::from_secs(10));
    pipe.mark_above = Duration::ZERO;
    pipe.run(Duration::from_secs(5));
    let marked = pipe.run(Duration::from_secs(10));
    assert!(marked < 0.7 * alone, "{marked} of {alone}");
    pipe.mark_above = Duration::MAX;
    pipe.run(Duration::from_secs(10));
    let again = pipe.run(Duration::from_secs(10));
    assert!(again > 0.95 * alone, "{again} of {alone}");
}

/// Returns the short-term bound after a round trip of cruising in which a packet was marked that
/// had been sent `before` the last reduction, or after it.
fn bound_after_a_mark(before: bool) -> (u64, u64) {
    let mut pipe = Pipe::new(1, 20.0, 0);
    pipe.run(Duration::from_millis(1500));
    assert_eq!(pipe.bbr.phase, Phase::Cruise);
    let reduced_at = pipe.now;
    pipe.bbr.reduced_at = Some(reduced_at);
    let sent = match before {
        true => reduced_at - RTT / 2,
        false => reduced_at,
    };
    pipe.bbr
        .on_congestion_event(pipe.now, sent, false, true, 0, 0);
    let in_flight = pipe.bbr.in_flight;
    pipe.run(2 * RTT);
    (pipe.bbr.short_bound, in_flight)
}

#[test]
fn a_round_trip_with_marks_reduces_what_is_in_flight_once() {
    let (bound, in_flight) = bound_after_a_mark(false);
    let share = bound as f64 / in_flight as f64;
    assert!((0.8..0.9).contains(&share), "{bound} of {in_flight}");
    assert_eq!(bound_after_a_mark(true).0, u64::MAX, "sent before");
}
