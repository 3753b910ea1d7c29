use super::*;
use hawser_units::PathId;

const MS: Duration = Duration::from_millis(1);
const BASE: Duration = Duration::from_millis(50);
const PACKET: u64 = 1000;
const TARGET: Duration = Duration::from_millis(40);

fn at(ms: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(ms)
}

fn acknowledge(transmissions: &mut SentTransmissions, now: Instant, number: u64) {
    let ranges = vec![number..=number];
    let block = AckBlock {
        path: PathId::all().next().unwrap(),
        delay: Duration::ZERO,
        ranges,
        ecn: None,
    };
    transmissions
        .acknowledge(now, &block, &mut Vec::new())
        .unwrap();
}

/// A link that sends one packet every `spacing` ms, and a sender that keeps as much in flight as it
/// may. `run` covers a time span and returns the number of packets that arrived and the longest
/// queueing delay in ms.
struct Bottleneck {
    transmissions: SentTransmissions,
    queue: VecDeque<(u64, u64)>,
    /// Packets that arrived, and the times of their acknowledgements in ms.
    acknowledged: VecDeque<(u64, u64)>,
    in_flight: u64,
}

impl Bottleneck {
    fn run(&mut self, ms: std::ops::Range<u64>, spacing: u64) -> (u64, u64) {
        let (mut arrived, mut longest) = (0, 0);
        for now in ms {
            while let Some((number, _)) = self.acknowledged.pop_front_if(|(_, due)| *due <= now) {
                self.in_flight -= PACKET;
                acknowledge(&mut self.transmissions, at(now), number);
            }
            while self.in_flight + PACKET <= self.transmissions.limit(TARGET).min(200 * PACKET) {
                self.queue.push_back((self.transmissions.next(), now));
                self.transmissions
                    .push(at(now), Content::Ping, PACKET, self.in_flight);
                self.in_flight += PACKET;
            }
            if now % spacing == 0
                && let Some((number, since)) = self.queue.pop_front()
            {
                arrived += 1;
                longest = longest.max(now - since);
                self.acknowledged
                    .push_back((number, now + BASE.as_millis() as u64));
            }
        }
        (arrived, longest)
    }
}

#[test]
fn a_path_is_filled_as_far_as_it_drains() {
    let mut link = Bottleneck {
        transmissions: SentTransmissions::default(),
        queue: VecDeque::new(),
        acknowledged: VecDeque::new(),
        in_flight: 0,
    };
    link.run(0..500, 1);
    let (arrived, waited) = link.run(500..1000, 1);
    assert!(
        arrived > 480 && waited <= 60,
        "{arrived} in half a second, {waited} ms in the queue"
    );

    link.run(1000..1700, 4);
    let (arrived, waited) = link.run(1700..2000, 4);
    assert!(
        arrived >= 74 && waited <= 80,
        "{arrived} in 300 ms at a quarter of the rate, {waited} ms"
    );

    link.run(2000..2500, 1);
    let (arrived, waited) = link.run(2500..3000, 1);
    assert!(
        arrived > 450 && waited <= 60,
        "{arrived} in half a second at the old rate, {waited} ms"
    );
}

#[test]
fn the_expected_delay_grows_with_the_bytes_in_flight() {
    let mut transmissions = SentTransmissions::default();
    assert_eq!(transmissions.expected_delay(PACKET), None);
    transmissions.push(at(0), Content::Ping, PACKET, 0);
    acknowledge(&mut transmissions, at(50), 0);
    assert_eq!(
        transmissions.expected_delay(100 * PACKET),
        Some(BASE),
        "the rate is unknown"
    );

    transmissions.push(at(100), Content::Ping, PACKET, 99 * PACKET);
    acknowledge(&mut transmissions, at(200), 1);
    assert_eq!(
        transmissions.expected_delay(PACKET),
        Some(BASE + 50 * MS),
        "as late as the last acknowledgement"
    );
    assert_eq!(
        transmissions.expected_delay(200 * PACKET),
        Some(200 * MS + 50 * MS),
        "one packet per ms"
    );
}

#[test]
fn a_long_path_has_its_time_before_anything_straggles() {
    let mut transmissions = SentTransmissions::default();
    transmissions.push(at(0), Content::Ping, PACKET, 0);
    acknowledge(&mut transmissions, at(400), 0);
    transmissions.push(at(400), Content::Ping, PACKET, 99 * PACKET);
    acknowledge(&mut transmissions, at(900), 1);
    transmissions.push(at(1000), Content::Original(0), PACKET, 0);
    assert_eq!(
        transmissions.next_straggler(at(1000), 30 * MS),
        Some(at(1430))
    );
    transmissions.push(at(1100), Content::Original(1), PACKET, 999 * PACKET);
    let pause_shows = at(1100 + 400 + 100 + 30);
    assert_eq!(
        transmissions.next_straggler(at(1430), 30 * MS),
        Some(pause_shows),
        "regardless of the bytes in flight"
    );
}

#[test]
fn stragglers_are_lost_where_that_is_worth_it() {
    let mut transmissions = SentTransmissions::default();
    transmissions.push(at(0), Content::Ping, PACKET, 0);
    acknowledge(&mut transmissions, at(50), 0);
    for id in 0..3 {
        transmissions.push(at(100), Content::Original(id), PACKET, 0);
    }
    let mut outcomes = Vec::new();
    assert_eq!(
        transmissions.next_straggler(at(100), 30 * MS),
        Some(at(180))
    );
    transmissions.detect_stragglers(at(179), 30 * MS, |_| true, &mut outcomes);
    assert_eq!(outcomes, []);
    transmissions.detect_stragglers(at(180), 30 * MS, |id| id == 1, &mut outcomes);
    assert_eq!(outcomes, [Outcome::Straggles(Content::Original(1))]);
    outcomes.clear();
    transmissions.detect_stragglers(at(190), 30 * MS, |_| true, &mut outcomes);
    assert_eq!(
        outcomes,
        [0, 2].map(|id| Outcome::Straggles(Content::Original(id)))
    );
}
