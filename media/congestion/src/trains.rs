use crate::breaker::{CircuitBreaker, Permission, Silence};
use crate::control::{Bounds, RateControl};
use crate::feedback::{Feedback, Refusals};
use crate::recent::{LongMinimum, Recent};
use crate::round::Round;
use crate::rtt::Rtt;
use crate::sent::{Arrived, Confirmed, SentPackets};
use crate::throughput::Throughput;
use hawser_units::{Bitrate, ByteSize, Ecn, Instant};
use std::time::Duration;

/// The time in which the queue of a train has drained, if the path bears the stream: some frames.
const DRAINED_WITHIN: Duration = Duration::from_millis(300);

/// The queue that no packet escaped above which the rate is reduced, and below which it grows.
const STANDING: Duration = Duration::from_millis(10);
const DRAINED: Duration = Duration::from_millis(5);

/// Half of the time for which the lowest delay is remembered. Two clocks whose frequencies differ by 100
/// parts per million pretend a queue of 1 ms in twice this time, far below what is taken for one.
const EPOCH: Duration = Duration::from_secs(5);

/// The growth in the time between two looks, and that up to the first sign that the path bears no more.
const GROWTH: f64 = 0.08;
const STARTING_GROWTH: f64 = 0.5;
const INTERVAL: Duration = Duration::from_millis(100);

/// The share of what arrives that is sent while a queue drains, and the share of what a train shows of
/// the path that is used.
const DRAINING_SHARE: f64 = 0.85;
const PATH_SHARE: f64 = 0.9;

/// The reduction by marks of a classic AQM (RFC 8511: less than by a loss).
const MARKED_SHARE: f64 = 0.85;

/// The share of lost packets above which the rate is reduced by half of it, and below which it grows
/// (draft-ietf-rmcat-gcc, section 6).
const MUCH_LOSS: f64 = 0.1;
const LITTLE_LOSS: f64 = 0.02;

/// The weight of a look in the average of losses.
const LOSS_GAIN: f64 = 0.3;

/// The multiple of what arrives up to which the rate grows where no train shows more.
const HEADROOM: f64 = 1.5;

/// The time between two packets that ends a train, and the fewest packets of one. The base of a stream of 7 Mb/s
/// has six: where nothing else is sent, it has to show that the path bears more again.
const TRAIN_GAP: Duration = Duration::from_millis(3);
const TRAIN_PACKETS: usize = 4;

/// The factor by which a train has to be longer at its arrival to show the rate of the path.
const STRETCHED: f64 = 1.1;

/// The weight of a train in the average.
const TRAIN_GAIN: f64 = 0.25;

/// Rate control of a sender that does not pace: a relay, whose packets leave as they arrive from the
/// publisher.
///
/// Each frame is a train that a slower path stretches, and that queues there. So neither a queue
/// nor a mark is a sign that the path bears too little, as long as the queue has drained before the next
/// frames. What counts is the delay that no packet of some frames escaped; and the length of a train at
/// its arrival shows how much the path bears, before more is sent. Marks count as those of a classic AQM:
/// packets have to leave as ECT(0), since bursts are no traffic for an L4S queue (RFC 9331, section
/// 4.3).
#[derive(Debug, Clone)]
pub struct TrainControl {
    bounds: Bounds,
    sent: SentPackets,
    rtt: Rtt,
    breaker: CircuitBreaker,
    base: LongMinimum<i64>,
    recent: Recent<i64>,
    throughput: Throughput,
    /// The rate that the path bears by the trains; `None` before the first one.
    path: Option<f64>,
    rate: f64,
    /// Whether nothing has reduced the rate yet.
    is_starting: bool,
    looked: Instant,
    acked: u64,
    lost: u64,
    /// The average share of lost packets.
    loss: f64,
    round: Round,
}

impl TrainControl {
    /// Creates a control that starts at the initial rate.
    pub fn new(bounds: Bounds, now: Instant) -> Self {
        let initial = bounds.initial().bps() as f64;
        TrainControl {
            bounds,
            sent: SentPackets::default(),
            rtt: Rtt::default(),
            breaker: CircuitBreaker::default(),
            base: LongMinimum::new(EPOCH),
            recent: Recent::new(DRAINED_WITHIN),
            throughput: Throughput::new(now, initial),
            path: None,
            rate: initial,
            is_starting: true,
            looked: now,
            acked: 0,
            lost: 0,
            loss: 0.0,
            round: Round::default(),
        }
    }

    fn measure(&mut self, now: Instant, confirmed: &Confirmed) {
        if let (Some(newest), Some(lowest)) = (confirmed.newest(), confirmed.shortest_rtt()) {
            self.rtt.add(now, newest.rtt(), lowest);
            self.breaker
                .handle_feedback(now, self.sent.in_flight().0 > 0);
        }
        for packet in &confirmed.arrived {
            self.base.add(now, packet.forward_ns());
        }
        let delays = confirmed.arrived.iter().map(Arrived::forward_ns);
        if let Some(lowest) = delays.min() {
            self.recent.add(now, lowest);
        }
        self.throughput.add(now, confirmed.acked);
        self.acked += confirmed.arrived.len() as u64;
        self.lost += confirmed.lost.len() as u64;
        for train in trains(confirmed) {
            self.add_train(&train);
        }
    }

    /// Takes what a train shows of the path.
    fn add_train(&mut self, train: &Train) {
        let path = self.path.unwrap_or(train.bps);
        self.path = Some(if train.is_stretched {
            path + TRAIN_GAIN * (train.bps - path)
        } else {
            path.max(train.bps)
        });
    }

    /// Returns the delay above the lowest one that no packet of some frames escaped.
    fn standing_queue(&self) -> Duration {
        let lowest = self.recent.lowest().zip(self.base.get());
        let excess = lowest.map_or(0, |(recent, base)| recent.saturating_sub(base));
        Duration::from_nanos(u64::try_from(excess).unwrap_or_default())
    }

    fn respond_to_marks(&mut self, now: Instant, confirmed: &Confirmed) {
        let newest = confirmed.newest_marked();
        let length = self.rtt.smoothed_or_assumed();
        if newest.is_some_and(|newest| self.round.has_passed(now, newest, length)) {
            self.is_starting = false;
            self.rate *= MARKED_SHARE;
            self.round.begin(now, self.sent.newest());
        }
    }

    /// Changes the rate by what came since the last look.
    fn look(&mut self, now: Instant) {
        let elapsed = now.saturating_since(self.looked);
        if elapsed < INTERVAL || self.acked + self.lost == 0 {
            return;
        }
        let latest = self.lost as f64 / (self.acked + self.lost) as f64;
        self.loss += LOSS_GAIN * (latest - self.loss);
        let loss = self.loss;
        let queue = self.standing_queue();
        self.is_starting &= queue <= STANDING && loss <= MUCH_LOSS;
        if queue > STANDING {
            self.rate = self.rate.min(DRAINING_SHARE * self.throughput.bps());
        } else if loss > MUCH_LOSS {
            self.rate *= 1.0 - loss / 2.0;
        } else if queue < DRAINED && loss < LITTLE_LOSS {
            let highest = (HEADROOM * self.throughput.bps()).max(self.path.unwrap_or_default());
            let growth = if self.is_starting {
                STARTING_GROWTH
            } else {
                GROWTH
            };
            let grown = self.rate * (1.0 + growth);
            self.rate = grown.min(highest.max(self.rate));
        }
        let highest = self.bounds.maximum().bps() as f64;
        let lowest = self.bounds.minimum().bps() as f64;
        self.rate = self.rate.clamp(lowest, highest);
        (self.acked, self.lost, self.looked) = (0, 0, now);
    }
}

/// Packets that left together.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Train {
    /// The rate at which it arrived, bits per second.
    bps: f64,
    /// Whether it arrived at less than the rate at which it left.
    is_stretched: bool,
}

impl Train {
    fn of(packets: &[Arrived]) -> Option<Train> {
        let (first, last) = (packets.first()?, packets.last()?);
        let sent = last.sent_at.saturating_since(first.sent_at).as_secs_f64();
        let longer = last.forward_ns().saturating_sub(first.forward_ns()) as f64 / 1e9;
        let arrived = sent + longer;
        let bytes: u64 = packets.iter().skip(1).map(|packet| packet.size.0).sum();
        let is_one = packets.len() >= TRAIN_PACKETS && arrived > 1e-4;
        is_one.then(|| Train {
            bps: bytes as f64 * 8.0 / arrived,
            is_stretched: arrived > STRETCHED * sent,
        })
    }
}

/// Returns the trains of a report. Those that it has a part of only count as shorter ones.
fn trains(confirmed: &Confirmed) -> Vec<Train> {
    let mut packets = confirmed.arrived.clone();
    packets.sort_unstable_by_key(|packet| packet.number);
    let follows =
        |one: &Arrived, next: &Arrived| next.sent_at.saturating_since(one.sent_at) < TRAIN_GAP;
    packets.chunk_by(follows).filter_map(Train::of).collect()
}

impl RateControl for TrainControl {
    fn handle_sent(&mut self, now: Instant, number: u64, size: ByteSize) {
        self.sent.insert(now, number, size);
        self.breaker.handle_sent(now);
    }

    fn handle_feedback(&mut self, feedback: &Feedback<'_>) {
        let confirmed = self.sent.confirm(feedback);
        let now = feedback.now;
        if feedback.is_answer && feedback.acked.is_empty() {
            self.breaker.handle_answer(now, self.sent.in_flight().0 > 0);
        }
        if confirmed.is_empty() {
            return;
        }
        self.measure(now, &confirmed);
        self.respond_to_marks(now, &confirmed);
        self.look(now);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.breaker.poll_timeout(self.rtt.smoothed_or_assumed())
    }

    fn handle_timeout(&mut self, now: Instant) {
        match self.breaker.handle_silence(now, &self.rtt, &mut self.sent) {
            Silence::Short => {}
            Silence::HalvesRate => self.rate /= 2.0,
            Silence::Stops => self.rate = self.bounds.minimum().bps() as f64,
        }
    }

    fn target(&self) -> Bitrate {
        let path = self.path.map_or(f64::INFINITY, |path| PATH_SHARE * path);
        self.bounds.limit(self.rate.min(path))
    }

    /// Returns the target: nothing is paced but what is sent besides.
    fn pacing_rate(&self) -> Bitrate {
        self.target()
    }

    /// Returns no limit: nothing waits for a window.
    fn window(&self) -> ByteSize {
        ByteSize(u64::MAX)
    }

    fn in_flight(&self) -> ByteSize {
        self.sent.in_flight()
    }

    fn ecn(&self) -> Ecn {
        Ecn::Ect0
    }

    fn permission(&self) -> Permission {
        self.breaker.permission()
    }

    fn smoothed_rtt(&self) -> Option<Duration> {
        self.rtt.smoothed()
    }

    fn refusals(&self) -> Refusals {
        self.sent.refusals()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Acked;

    const MS: Duration = Duration::from_millis(1);
    const FRAME: Duration = Duration::from_millis(33);

    /// A path that forwards packets of 1250 bytes at a rate.
    struct Path {
        control: TrainControl,
        now: Instant,
        number: u64,
        micros_a_packet: u64,
        free_at: Instant,
        ecn: Ecn,
    }

    impl Path {
        fn new(mbps: u64) -> Self {
            let bounds = Bounds::new(
                Bitrate::from_mbps(0.5),
                Bitrate::from_mbps(5.0),
                Bitrate::from_mbps(100.0),
            );
            let start = Instant::ZERO + MS * 1000;
            Path {
                control: TrainControl::new(bounds, start),
                now: start,
                number: 0,
                micros_a_packet: 10_000 / mbps,
                free_at: start,
                ecn: Ecn::Ect0,
            }
        }

        /// Sends a frame of packets within a millisecond each 33 ms, of which one in `lost` is lost, and
        /// reports each.
        fn run(&mut self, frames: u64, packets: u64, lost: u64) {
            for _ in 0..frames {
                let (mut acked, mut missing) = (Vec::new(), Vec::new());
                let sent_at = self.now;
                for at in 0..packets {
                    self.number += 1;
                    let sent_at = sent_at + Duration::from_micros(at * 50);
                    let size = ByteSize(1250);
                    self.control.handle_sent(sent_at, self.number, size);
                    if lost > 0 && self.number.is_multiple_of(lost) {
                        missing.push(self.number);
                        continue;
                    }
                    let transmission = Duration::from_micros(self.micros_a_packet);
                    self.free_at = self.free_at.max(sent_at) + transmission;
                    acked.push((self.number, self.free_at + 10 * MS));
                }
                self.now += FRAME;
                // The report leaves when the last packet has arrived.
                let last = acked.last().map_or(self.now, |(_, at)| *at);
                let reported = last.max(self.now);
                let acked: Vec<Acked> = acked
                    .into_iter()
                    .map(|(number, at)| Acked {
                        number,
                        held: reported.saturating_since(at),
                        ecn: self.ecn,
                    })
                    .collect();
                self.control.handle_feedback(&Feedback {
                    now: reported + 10 * MS,
                    reported,
                    acked: &acked,
                    lost: &missing,
                    abandoned: &[],
                    is_answer: true,
                    app_limited: false,
                });
            }
        }

        fn target(&self) -> f64 {
            self.control.target().mbps()
        }
    }

    #[test]
    fn trains_show_what_the_path_bears_before_more_is_sent() {
        // 10 packets a frame are 3 Mb/s.
        let mut path = Path::new(20);
        path.run(90, 10, 0);
        assert!((16.0..20.0).contains(&path.target()), "{}", path.target());
        let mut path = Path::new(8);
        path.run(90, 10, 0);
        assert!((6.5..8.0).contains(&path.target()), "{}", path.target());
    }

    #[test]
    fn small_frames_show_that_the_path_bears_more_than_before() {
        let mut path = Path::new(4);
        path.run(5, 24, 0);
        assert!(path.target() < 4.0, "{}", path.target());
        path.micros_a_packet = 10_000 / 20;
        // 5 packets a frame are 1.5 Mb/s.
        path.run(90, 5, 0);
        assert!((14.0..20.0).contains(&path.target()), "{}", path.target());
    }

    #[test]
    fn a_queue_that_does_not_drain_reduces_the_rate() {
        let mut path = Path::new(8);
        path.run(60, 10, 0);
        // 40 packets a frame are 12 Mb/s.
        path.run(15, 40, 0);
        assert!(path.target() < 7.3, "{}", path.target());
        path.run(60, 10, 0);
        assert!((6.5..8.0).contains(&path.target()), "{}", path.target());
    }

    #[test]
    fn few_losses_reduce_nothing_and_many_do() {
        let mut path = Path::new(20);
        path.run(90, 10, 80);
        assert!(path.target() > 15.0, "{}", path.target());
        path.run(120, 10, 4);
        assert!(path.target() < 3.0, "{}", path.target());
    }

    #[test]
    fn marks_reduce_the_rate_once_in_a_round_trip() {
        let mut path = Path::new(20);
        path.run(90, 10, 0);
        let before = path.target();
        path.ecn = Ecn::Ce;
        path.run(1, 10, 0);
        assert!(path.target() > 0.8 * before, "{} {before}", path.target());
        path.run(20, 10, 0);
        assert!(path.target() < 0.3 * before, "{} {before}", path.target());
    }

    #[test]
    fn packets_that_are_apart_are_no_train() {
        let packet = |number: u64| Arrived {
            number,
            size: ByteSize(1250),
            sent_at: Instant::ZERO + 5 * MS * number as u32,
            arrived_at: Instant::ZERO,
            received_at: Instant::ZERO + 5 * MS * number as u32,
            ecn: Ecn::Ect0,
        };
        let confirmed = Confirmed {
            arrived: (0..20).map(packet).collect(),
            ..Confirmed::default()
        };
        assert!(trains(&confirmed).is_empty());
    }
}
