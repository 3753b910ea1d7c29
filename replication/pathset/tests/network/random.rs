//! Random networks of a few paths: what they lose, when, and whether copies harm each other.

use super::{Judge, Network, link, with_cut};
use hawser_netem::{ExtraDelay, LinkConfig, Loss, Probability, QueueLimit, Span};
use hawser_units::PathSet;
use std::time::Duration;

/// Packets of a frame: 1,200 packets a second, 14 Mb/s.
pub(crate) const PACKETS_PER_FRAME: u64 = 40;

/// The share of packets that may be damaged, if one frame in ten may be.
pub(crate) const TOLERATED: f64 = 0.002_63;

/// The rate of the flow, Mb/s.
const RATE_MBPS: f64 = 14.4;

/// When the network changes.
pub(crate) const CHANGE: Duration = Duration::from_secs(20);

/// The end of a run.
pub(crate) const END: Duration = Duration::from_secs(50);

/// A network that changes once.
#[derive(Debug, Clone)]
pub(crate) struct Scene {
    pub(crate) seed: u64,
    links: Vec<LinkConfig>,
    /// Paths with a common bottleneck.
    shared: Option<(u8, LinkConfig)>,
    /// The paths of the first policy.
    start: u8,
}

/// The damage on a set of paths, before the change and after it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fixed {
    pub(crate) code: u8,
    pub(crate) damage: [f64; 2],
}

/// SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(crate) fn within(&mut self, from: f64, to: f64) -> f64 {
        from + (to - from) * (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

impl Scene {
    /// Returns the network of a seed.
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let paths = 2 + random.below(3);
        let mut links: Vec<LinkConfig> = (0..paths).map(|_| path(&mut random)).collect();
        let all = (1u8 << paths) - 1;
        let shared = (random.below(3) == 0).then(|| {
            let with = 1 << random.below(paths) | 1 << random.below(paths);
            let bottleneck = link(
                RATE_MBPS * random.within(1.15, 1.8),
                0,
                0.0,
                0,
                Duration::ZERO,
            );
            let queue = Some(QueueLimit::Time(Duration::from_millis(80)));
            (
                with,
                LinkConfig {
                    queue,
                    ..bottleneck
                },
            )
        });
        for link in &mut links {
            match random.below(6) {
                0 => *link = with_cut(link.clone(), CHANGE, END * 2),
                1 => link.extra_delay.push(jitter(80, CHANGE, END * 2)),
                _ => {}
            }
        }
        let start = 1 + random.below(u64::from(all)) as u8;
        Scene {
            seed,
            links,
            shared,
            start,
        }
    }

    /// Returns the paths that there are.
    pub(crate) fn paths(&self) -> PathSet {
        PathSet::from_bits((1 << self.links.len()) - 1)
    }

    /// Returns a flow over the network that starts with the paths of `start`.
    fn network(&self, judge: Judge, start: u8) -> Network {
        let network = Network::new(self.links.clone(), PACKETS_PER_FRAME, judge, self.seed).paced();
        let mut network = match &self.shared {
            Some((paths, bottleneck)) => network.sharing(*paths, bottleneck.clone(), self.seed),
            None => network,
        };
        network.set(start);
        network
    }

    /// Runs the flow with a judge from the start of the scene.
    pub(crate) fn run(&self, judge: Judge) -> Network {
        self.run_with(judge, |network| network)
    }

    /// Runs the flow with a judge from the start of the scene, in a network that is changed first.
    pub(crate) fn run_with(&self, judge: Judge, change: impl Fn(Network) -> Network) -> Network {
        let mut network = change(self.network(judge, self.start));
        network.run_to(END);
        network
    }

    /// Runs the flow with each set of paths.
    pub(crate) fn fixed(&self) -> Vec<Fixed> {
        let codes = 1..=self.paths().bits();
        codes
            .map(|code| {
                let mut network = self.network(Judge::None, code);
                network.run_to(END);
                let after = CHANGE + Duration::from_secs(1);
                let damage = [
                    network.damaged_packets(Duration::ZERO, CHANGE),
                    network.damaged_packets(after, END - Duration::from_secs(1)),
                ];
                Fixed { code, damage }
            })
            .collect()
    }
}

/// Returns the best sets before the change (0) or after it (1): the smallest that meet the aim, or
/// those with about the least damage.
pub(crate) fn best(fixed: &[Fixed], period: usize) -> (usize, f64) {
    let size = |fixed: &Fixed| fixed.code.count_ones() as usize;
    let meeting = fixed
        .iter()
        .filter(|fixed| fixed.damage[period] <= TOLERATED);
    if let Some(cheapest) = meeting.map(size).min() {
        return (cheapest, TOLERATED);
    }
    let damages = fixed.iter().map(|fixed| fixed.damage[period]);
    let least = damages.fold(f64::INFINITY, f64::min);
    let good = fixed
        .iter()
        .filter(|fixed| fixed.damage[period] <= least * 1.25);
    (good.map(size).min().unwrap_or(1), least)
}

/// A path: clean, or with losses, bursts, varying delay or too small a rate.
fn path(random: &mut Random) -> LinkConfig {
    let delay = 20 + random.below(15);
    let fine = |loss, rate| link(rate, delay, loss, 3, Duration::MAX);
    match random.below(10) {
        0..=3 => fine(0.0, 400.0),
        4..=5 => fine(random.within(0.005, 0.05), 400.0),
        6..=7 => LinkConfig {
            loss: Some(bursts(random)),
            ..fine(0.0, 400.0)
        },
        8 => link(400.0, delay, 0.0, 60 + random.below(60), Duration::MAX),
        _ => fine(0.0, RATE_MBPS * random.within(0.5, 0.95)),
    }
}

fn bursts(random: &mut Random) -> Loss {
    let probability = |value| Probability::try_from(value).unwrap();
    let every = random.within(200.0, 5_000.0);
    Loss::GilbertElliott {
        good_to_bad: probability(1.0 / every),
        bad_to_good: probability(1.0 / random.within(3.0, 20.0)),
        loss_good: probability(0.0),
        loss_bad: probability(0.8),
    }
}

fn jitter(millis: u64, from: Duration, to: Duration) -> ExtraDelay {
    ExtraDelay {
        range: Span::new(Duration::ZERO, Duration::from_millis(millis)).unwrap(),
        hold: Duration::ZERO,
        during: Some(Span::new(from, to).unwrap()),
    }
}
