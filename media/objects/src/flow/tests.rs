use super::*;
use crate::keys::TrackSecret;
use crate::object::ObjectInfo;
use crate::packetiser::{Packetiser, PacketiserConfig};
use hawser_congestion::Refusals;
use hawser_packets::feedback::{Age, Arrival, Block, Totals};
use hawser_packets::media::{Flags, ObjectId};
use std::sync::{Mutex, MutexGuard};

const ALIAS: u32 = 7;
const INTERVAL: Duration = Duration::from_micros(33_333);

/// A rate control of a fixed rate that remembers what it is told.
#[derive(Clone)]
struct Fixed(Arc<Mutex<Told>>);

struct Told {
    rate: Bitrate,
    window: ByteSize,
    in_flight: ByteSize,
    sent: Vec<(Instant, u64)>,
    acknowledged: Vec<u64>,
    lost: Vec<u64>,
    abandoned: Vec<u64>,
    app_limited: bool,
}

impl Fixed {
    fn new(mbps: f64) -> Self {
        Fixed(Arc::new(Mutex::new(Told {
            rate: Bitrate::from_mbps(mbps),
            window: ByteSize(u64::MAX),
            in_flight: ByteSize(0),
            sent: Vec::new(),
            acknowledged: Vec::new(),
            lost: Vec::new(),
            abandoned: Vec::new(),
            app_limited: false,
        })))
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.0.lock().unwrap()
    }
}

impl RateControl for Fixed {
    fn handle_sent(&mut self, now: Instant, number: u64, size: ByteSize) {
        let mut told = self.told();
        told.sent.push((now, number));
        told.in_flight += size;
    }

    fn handle_feedback(&mut self, feedback: &Report<'_>) {
        let mut told = self.told();
        let numbers = feedback.acked.iter().map(|packet| packet.number);
        told.acknowledged.extend(numbers);
        told.lost.extend(feedback.lost);
        told.abandoned.extend(feedback.abandoned);
        told.app_limited = feedback.app_limited;
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    fn handle_timeout(&mut self, _: Instant) {}

    fn target(&self) -> Bitrate {
        self.told().rate
    }

    fn pacing_rate(&self) -> Bitrate {
        self.told().rate
    }

    fn window(&self) -> ByteSize {
        self.told().window
    }

    fn in_flight(&self) -> ByteSize {
        self.told().in_flight
    }

    fn ecn(&self) -> Ecn {
        Ecn::Ect1
    }

    fn permission(&self) -> Permission {
        Permission::Send
    }

    fn smoothed_rtt(&self) -> Option<Duration> {
        None
    }

    fn refusals(&self) -> Refusals {
        Refusals::default()
    }
}

/// A publisher of captures with two layers.
struct Publisher {
    packetiser: Packetiser,
    flow: Flow,
    control: Fixed,
    now: Instant,
    group: u32,
}

impl Publisher {
    fn new(mbps: f64) -> Self {
        let secret = TrackSecret::new([1; 32]);
        let hop = secret.access().hop(&[2; 16], 0);
        let control = Fixed::new(mbps);
        let config = FlowConfig::new(ByteSize(10_000_000));
        Publisher {
            packetiser: Packetiser::new(PacketiserConfig::new(ALIAS, [3; 16]), secret, hop),
            flow: Flow::new(config, Box::new(control.clone())),
            control,
            now: Instant::ZERO + Duration::from_secs(1),
            group: 0,
        }
    }

    /// Offers a capture whose layers have these numbers of payload bytes.
    fn capture(&mut self, layers: [usize; 2]) {
        let deadline = self.now + Duration::from_millis(500);
        let objects: Vec<SealedObject> = (0..)
            .zip(layers)
            .map(|(layer, bytes)| {
                let info = ObjectInfo {
                    id: object(self.group, layer),
                    priority: layer,
                    deadline,
                    flags: Flags::default(),
                };
                self.packetiser.packetise(info, &vec![0; bytes]).unwrap()
            })
            .collect();
        self.group += 1;
        let admitted = self.flow.offer(self.now, &objects);
        assert_eq!(admitted, [Ok(()), Ok(())]);
    }

    /// Sends for a time. Returns when each packet left.
    fn run(&mut self, duration: Duration) -> Vec<(Instant, PacketId)> {
        let until = self.now + duration;
        let mut departures = Vec::new();
        while let Some(due) = self.flow.poll_timeout().filter(|due| *due < until) {
            self.now = self.now.max(due);
            self.flow.handle_timeout(self.now);
            while let Some(departure) = self.flow.poll_transmit(self.now) {
                assert_eq!(departure.ecn, Ecn::Ect1);
                departures.push((self.now, departure.id));
            }
        }
        self.now = until;
        departures
    }

    /// Reports packets of a layer.
    fn report(&mut self, number: u64, group: u32, packets: &[Option<Arrival>]) {
        let report = Feedback {
            clock: ClockStamp {
                sent: self.now,
                echo: None,
            },
            totals: Totals::default(),
            pose: None,
            blocks: vec![Block {
                object: object(group, 0),
                base: 0,
                packets: packets.to_vec(),
            }],
        };
        self.flow
            .handle_feedback(self.now, number, &report)
            .unwrap();
    }
}

fn object(group: u32, layer: u8) -> ObjectId {
    ObjectId {
        alias: ALIAS,
        group,
        object: 0,
        layer,
    }
}

fn arrival() -> Option<Arrival> {
    Some(Arrival {
        ecn: Ecn::Ect1,
        age: Age::of(Duration::ZERO),
    })
}

fn groups_and_layers(departures: &[(Instant, PacketId)]) -> Vec<(u32, u8)> {
    let of = |(_, id): &(Instant, PacketId)| (id.object.group, id.object.layer);
    let mut order: Vec<(u32, u8)> = departures.iter().map(of).collect();
    order.dedup();
    order
}

#[test]
fn packets_leave_at_the_pacing_rate_with_all_headers() {
    let mut publisher = Publisher::new(9.824);
    publisher.capture([50 * 1148, 50 * 1148]);
    let departures = publisher.run(Duration::from_millis(300));
    let (first, last) = (departures[0].0, departures[99].0);
    assert_eq!(departures.len(), 100);
    // 1228 bytes with all headers take a millisecond.
    let took = last.saturating_since(first).as_micros();
    assert!(took.abs_diff(99_000) <= 250, "{took} us");
}

#[test]
fn a_pacing_kernel_gets_packets_ahead_in_fewer_rounds() {
    let given = |is_kernel_paced: bool| {
        let mut publisher = Publisher::new(98.24);
        publisher.flow.set_kernel_paced(is_kernel_paced);
        publisher.capture([100 * 1148, 100 * 1148]);
        let given = publisher.run(Duration::from_millis(300));
        let sent = publisher.control.told().sent.clone();
        (given, sent)
    };
    let (_, paced) = given(false);
    let (given, held) = given(true);
    assert_eq!(held, paced, "the rate control learns when they leave");
    for ((given, _), (leaves, _)) in given.iter().zip(&held) {
        assert!(given <= leaves && leaves.saturating_since(*given) <= AHEAD);
    }
    let mut rounds: Vec<Instant> = given.iter().map(|(at, _)| *at).collect();
    rounds.dedup();
    // 10 packets leave in a millisecond.
    assert!((15..=22).contains(&rounds.len()), "{}", rounds.len());
}

#[test]
fn the_kernel_holds_fewer_packets_than_fq_drops() {
    let mut publisher = Publisher::new(1000.0);
    publisher.flow.set_kernel_paced(true);
    publisher.capture([1000 * 1148, 1]);
    let now = publisher.now;
    publisher.run(Duration::from_nanos(1));
    let told = publisher.control.told();
    let held = told.sent.iter().filter(|(leaves, _)| *leaves > now);
    assert_eq!(held.count(), 64);
}

#[test]
fn what_the_kernel_holds_is_not_in_flight() {
    let mut publisher = Publisher::new(9.824);
    publisher.flow.set_kernel_paced(true);
    publisher.control.told().window = ByteSize(2 * 1228);
    publisher.capture([10 * 1148, 1]);
    // Five packets leave in the time ahead.
    assert_eq!(publisher.run(Duration::from_millis(100)).len(), 2 + 5);
}

#[test]
fn packets_that_left_before_their_times_are_not_waited_for() {
    let mut publisher = Publisher::new(9.824);
    publisher.flow.set_kernel_paced(true);
    publisher.capture([4 * 1148, 1]);
    publisher.run(Duration::from_nanos(1));
    publisher.flow.set_kernel_paced(false);
    publisher.report(1, 0, &[arrival(), arrival(), arrival()]);
    let told = publisher.control.told();
    assert_eq!(
        (&told.acknowledged[..], &told.abandoned[..]),
        (&[0][..], &[1, 2][..])
    );
}

#[test]
fn nothing_leaves_while_the_window_is_full() {
    let mut publisher = Publisher::new(100.0);
    publisher.control.told().window = ByteSize(2 * 1228);
    publisher.capture([5 * 1148, 1]);
    assert_eq!(publisher.run(Duration::from_millis(100)).len(), 2);
}

#[test]
fn a_base_interrupts_a_frame_only_if_it_exceeds_the_backlog() {
    let order = |waiting_ms: usize| {
        let mut publisher = Publisher::new(9.824);
        publisher.capture([1148, (30 + waiting_ms) * 1148]);
        let mut departures = publisher.run(Duration::from_millis(31));
        publisher.capture([1148, 1148]);
        departures.extend(publisher.run(Duration::from_millis(300)));
        groups_and_layers(&departures)
    };
    assert_eq!(order(8), [(0, 0), (0, 1), (1, 0), (1, 1)]);
    assert_eq!(order(20), [(0, 0), (0, 1), (1, 0), (0, 1), (1, 1)]);
}

#[test]
fn the_rate_control_learns_the_numbers_of_transmissions() {
    let mut publisher = Publisher::new(100.0);
    publisher.capture([6 * 1148, 1]);
    publisher.run(Duration::from_millis(20));
    let packets: Vec<Option<Arrival>> = vec![None, arrival(), arrival(), arrival()];
    publisher.report(1, 0, &packets);
    let again = publisher.run(Duration::from_millis(2));
    assert_eq!(again[0].1.index, 0, "the lost packet is sent again");
    publisher.report(2, 0, &[arrival()]);

    let told = publisher.control.told();
    let numbers: Vec<u64> = told.sent.iter().map(|(_, number)| *number).collect();
    assert_eq!(numbers, (0..8).collect::<Vec<_>>());
    assert_eq!(told.lost, [0]);
    assert_eq!(told.acknowledged, [1, 2, 3]);
    assert_eq!(told.abandoned, [7], "it measures no round trip");
}

#[test]
fn an_encoder_far_below_the_target_limits_the_rate() {
    // 10 Mb/s are 41,666 bytes in 33 ms.
    for (share, is_limited) in [(0.3, true), (0.5, false)] {
        let mut publisher = Publisher::new(10.0);
        for _ in 0..20 {
            publisher.capture([(share * 20_000.0) as usize, (share * 20_000.0) as usize]);
            publisher.run(INTERVAL);
        }
        assert_eq!(publisher.flow.is_app_limited(), is_limited, "{share}");
        publisher.report(1, 0, &[arrival()]);
        assert_eq!(publisher.control.told().app_limited, is_limited);
    }
}

#[test]
fn an_interval_spreads_a_capture_of_any_size() {
    for packets in [10, 100] {
        let mut publisher = Publisher::new(1.0);
        let config = FlowConfig {
            spread: Spread::Interval(Duration::from_millis(20)),
            ..publisher.flow.config
        };
        publisher.flow = Flow::new(config, Box::new(publisher.control.clone()));
        publisher.capture([packets * 1148, packets * 1148]);
        let departures = publisher.run(Duration::from_millis(100));
        let (first, last) = (departures[0].0, departures[departures.len() - 1].0);
        let took = last.saturating_since(first).as_micros();
        assert_eq!(departures.len(), 2 * packets);
        assert!((18_000..20_000).contains(&took), "{packets}: {took} us");
    }
}
