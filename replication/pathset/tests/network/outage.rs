//! Networks whose paths fail one after another.

use super::random::Random;
use super::{Judge, Network, link};
use hawser_netem::{LinkConfig, Span};
use hawser_units::PathSet;
use std::time::Duration;

/// The beginning of a run, without outages; it is not measured.
pub(crate) const CALM: Duration = Duration::from_secs(5);

/// A flow of frames over paths that fail in turn.
#[derive(Debug, Clone)]
pub(crate) struct Outages {
    seed: u64,
    links: Vec<LinkConfig>,
    frame: Duration,
    pub(crate) packets_per_frame: u64,
    is_paced: bool,
    reaction: Duration,
    pub(crate) end: Duration,
}

impl Outages {
    /// Returns the network of `hawser lab run whole --case 'outage/*'`: each of four paths carries
    /// nothing for a quarter of 20 s.
    pub(crate) fn of_lab() -> Self {
        let turns = Duration::from_secs(5);
        let mut outages = Outages {
            seed: 0,
            links: (0..4).map(|path| clean(20 + 5 * path)).collect(),
            frame: Duration::from_secs(1) / 15,
            packets_per_frame: 40,
            is_paced: true,
            reaction: Duration::from_millis(200),
            end: CALM + turns * 4,
        };
        (0..4).for_each(|path| outages.cut(path, CALM + turns * path as u32, turns));
        outages
    }

    /// Returns the network of a seed: two to five paths that fail in turn or in random order, for
    /// seconds each, with or without time between.
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let millis = |random: &mut Random, from, to| {
            Duration::from_millis(from + random.below(to - from + 1))
        };
        let frame = Duration::from_secs(1) / (15 + random.below(16) as u32);
        let rate = random.within(600.0, 1200.0);
        let paths = 2 + random.below(4) as usize;
        let mut outages = Outages {
            seed,
            links: (0..paths).map(|_| clean(20 + random.below(16))).collect(),
            frame,
            packets_per_frame: (rate * frame.as_secs_f64()) as u64,
            is_paced: random.below(2) == 0,
            reaction: millis(&mut random, 100, 300),
            end: CALM + Duration::from_secs(60),
        };
        let length = millis(&mut random, 2_000, 8_000);
        let is_random_order = random.below(2) == 0;
        let most_between = [0, 2_000, 20_000][random.below(3) as usize];
        let (mut at, mut path) = (CALM, 0);
        while at < outages.end {
            outages.cut(path, at, length);
            at += length + millis(&mut random, 0, most_between);
            path = if is_random_order {
                random.below(paths as u64) as usize
            } else {
                (path + 1) % paths
            };
        }
        outages
    }

    fn cut(&mut self, path: usize, from: Duration, length: Duration) {
        let cut = Span::new(from, from + length).unwrap();
        self.links[path].cuts.push(cut);
    }

    /// Returns the paths that there are.
    pub(crate) fn paths(&self) -> PathSet {
        PathSet::from_bits((1 << self.links.len()) - 1)
    }

    /// Runs the flow with a judge from the paths of `start`.
    pub(crate) fn run(&self, judge: Judge, start: u8) -> Network {
        let links = self.links.clone();
        let network = Network::new(links, self.packets_per_frame, judge, self.seed)
            .with_frames_every(self.frame)
            .reacting_after(self.reaction);
        let mut network = if self.is_paced {
            network.paced()
        } else {
            network
        };
        network.set(start);
        network.run_to(self.end);
        network
    }
}

fn clean(delay_ms: u64) -> LinkConfig {
    link(100.0, delay_ms, 0.0, 3, Duration::MAX)
}
