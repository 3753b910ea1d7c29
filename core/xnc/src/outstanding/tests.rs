use super::*;
use hawser_units::PathId;

const MS: Duration = Duration::from_millis(1);
const BASE: Duration = Duration::from_millis(50);
const PACKET: u64 = 1000;
const TARGET: Duration = Duration::from_millis(40);

fn at(ms: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(ms)
}

fn acknowledge(outstanding: &mut Outstanding, now: Instant, number: u64) {
    let ranges = vec![number..=number];
    let block = AckBlock {
        path: PathId::all().next().unwrap(),
        delay: Duration::ZERO,
        ranges,
        ecn: None,
    };
    outstanding
        .acknowledge(now, &block, &mut Vec::new())
        .unwrap();
}

/// A link that sends a packet in so many ms, with a sender that keeps under way what it is allowed, from one time to
/// another. Says how many packets arrived, and the longest that one waited, in ms.
struct Bottleneck {
    outstanding: Outstanding,
    queue: VecDeque<(u64, u64)>,
    /// Packets that arrived, and when their acknowledgements come, in ms.
    acknowledged: VecDeque<(u64, u64)>,
    under_way: u64,
}

impl Bottleneck {
    fn run(&mut self, ms: std::ops::Range<u64>, spacing: u64) -> (u64, u64) {
        let (mut arrived, mut longest) = (0, 0);
        for now in ms {
            while let Some((number, _)) = self.acknowledged.pop_front_if(|(_, due)| *due <= now) {
                self.under_way -= PACKET;
                acknowledge(&mut self.outstanding, at(now), number);
            }
            while self.under_way + PACKET <= self.outstanding.limit(TARGET).min(200 * PACKET) {
                self.queue.push_back((self.outstanding.next(), now));
                self.outstanding
                    .push(at(now), Content::Ping, PACKET, self.under_way);
                self.under_way += PACKET;
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
        outstanding: Outstanding::default(),
        queue: VecDeque::new(),
        acknowledged: VecDeque::new(),
        under_way: 0,
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
fn what_is_under_way_says_when_more_would_arrive() {
    let mut outstanding = Outstanding::default();
    assert_eq!(outstanding.expected(PACKET), None);
    outstanding.push(at(0), Content::Ping, PACKET, 0);
    acknowledge(&mut outstanding, at(50), 0);
    assert_eq!(
        outstanding.expected(100 * PACKET),
        Some(BASE),
        "nobody knows what the path takes"
    );

    outstanding.push(at(100), Content::Ping, PACKET, 99 * PACKET);
    acknowledge(&mut outstanding, at(200), 1);
    assert_eq!(
        outstanding.expected(PACKET),
        Some(BASE + 50 * MS),
        "as late as the last one"
    );
    assert_eq!(
        outstanding.expected(200 * PACKET),
        Some(200 * MS + 50 * MS),
        "a packet in a ms"
    );
}

#[test]
fn a_long_path_has_its_time_before_anything_straggles() {
    let mut outstanding = Outstanding::default();
    outstanding.push(at(0), Content::Ping, PACKET, 0);
    acknowledge(&mut outstanding, at(400), 0);
    outstanding.push(at(400), Content::Ping, PACKET, 99 * PACKET);
    acknowledge(&mut outstanding, at(900), 1);
    outstanding.push(at(1000), Content::Original(0), PACKET, 0);
    assert_eq!(
        outstanding.next_straggler(at(1000), 30 * MS),
        Some(at(1430))
    );
    outstanding.push(at(1100), Content::Original(1), PACKET, 999 * PACKET);
    let pause_shows = at(1100 + 400 + 100 + 30);
    assert_eq!(
        outstanding.next_straggler(at(1430), 30 * MS),
        Some(pause_shows),
        "however much is under way"
    );
}

#[test]
fn stragglers_are_lost_where_that_is_worth_it() {
    let mut outstanding = Outstanding::default();
    outstanding.push(at(0), Content::Ping, PACKET, 0);
    acknowledge(&mut outstanding, at(50), 0);
    for id in 0..3 {
        outstanding.push(at(100), Content::Original(id), PACKET, 0);
    }
    let mut outcomes = Vec::new();
    assert_eq!(outstanding.next_straggler(at(100), 30 * MS), Some(at(180)));
    outstanding.detect_stragglers(at(179), 30 * MS, |_| true, &mut outcomes);
    assert_eq!(outcomes, []);
    outstanding.detect_stragglers(at(180), 30 * MS, |id| id == 1, &mut outcomes);
    assert_eq!(outcomes, [Outcome::Lost(Content::Original(1))]);
    outcomes.clear();
    outstanding.detect_stragglers(at(190), 30 * MS, |_| true, &mut outcomes);
    assert_eq!(
        outcomes,
        [0, 2].map(|id| Outcome::Lost(Content::Original(id)))
    );
}
