//! Viewers whose paths bear a part of the stream only.

use crate::support::*;
use hawser_netem::{Discipline, LinkConfig};
use hawser_objects::ReceivedFrame;
use hawser_units::Instant;
use std::time::Duration;

/// The rate of the stream in Mb/s, of which the base has a fifth.
const STREAM: f64 = 6.0;

/// The part of a stream that a viewer got.
#[derive(Debug)]
struct Seen {
    /// The share of the path that was used.
    used: f64,
    /// The number of frames that were published.
    published: u32,
    frames: Vec<ReceivedFrame>,
    lost: u64,
}

/// Watches for ten seconds behind a path of a rate, after the time in which its rate was found and the first queue left.
fn watch(mbps: f64, has_chunks: bool) -> Seen {
    let path = LinkConfig {
        discipline: Some(Discipline::Fifo),
        ..link(Some(mbps), 0.0)
    };
    let mut world = World::new(vec![Watcher::new(1, path)]);
    (world.mbps, world.has_chunks) = (STREAM, has_chunks);
    world.run(ms(20_000));
    let received = |world: &World| {
        let totals = world.watchers[0].viewer.receiver().unwrap().totals();
        totals.bytes + 28 * totals.packets
    };
    let (before, from) = (received(&world), world.published);
    let lost = |world: &World| world.broadcast.subscribers().next().unwrap().stats.lost;
    let lost_before = lost(&world);
    world.run(ms(10_000));
    let bytes = received(&world) - before;
    let seen = &world.watchers[0].frames;
    Seen {
        used: bytes as f64 * 8.0 / 10.0 / (mbps * 1e6),
        published: world.published - from,
        frames: seen.iter().filter(|f| f.id.0 >= from).cloned().collect(),
        lost: lost(&world) - lost_before,
    }
}

impl Seen {
    /// Returns the groups of the frames that have a layer.
    fn groups(&self, layer: usize) -> Vec<u32> {
        let frames = self.frames.iter();
        let with_it = frames.filter(|frame| frame.tracks[&ALIAS].len() > layer);
        with_it.map(|frame| frame.id.0).collect()
    }

    /// Returns the time from the capture of each frame to an instant.
    fn delays(&self, until: impl Fn(&ReceivedFrame) -> Instant) -> Vec<Duration> {
        let delays = self.frames.iter().map(|frame| {
            let deadline = frame.deadline.unwrap().nearest(frame.completed);
            let captured = deadline - ms(150);
            until(frame).saturating_since(captured)
        });
        delays.collect()
    }

    /// Checks that most of a path is used, that nothing is taken for lost, and that no queue grows.
    fn check(&self, mbps: f64) {
        assert!(self.used > 0.8, "{mbps} Mb/s: {}", self.used);
        assert_eq!(self.lost, 0, "{mbps} Mb/s");
        let waits = self.delays(|frame| frame.first_arrival.unwrap());
        let (early, late) = waits.split_at(waits.len() / 2);
        assert!(longest(late) < ms(120), "{mbps} Mb/s: {:?}", longest(late));
        assert!(
            longest(late) < longest(early) + ms(30),
            "{mbps} Mb/s: {:?} {:?}",
            longest(early),
            longest(late)
        );
        let ready = self.delays(|frame| frame.completed);
        let mean = ready.iter().sum::<Duration>() / ready.len() as u32;
        assert!(mean < ms(135), "{mbps} Mb/s: {mean:?}");
    }
}

fn longest(delays: &[Duration]) -> Duration {
    delays.iter().max().copied().unwrap_or_default()
}

#[test]
fn a_slow_path_gets_a_layer_in_evenly_spread_frames() {
    for (mbps, layer) in [(0.6, 0), (1.0, 0), (2.0, 1), (4.0, 1)] {
        let seen = watch(mbps, false);
        seen.check(mbps);
        let groups = seen.groups(layer);
        let usual = f64::from(seen.published) / groups.len() as f64;
        let gaps = groups.windows(2).map(|pair| f64::from(pair[1] - pair[0]));
        let longest = gaps.fold(0.0, f64::max);
        assert!(longest < 2.5 * usual, "{mbps} Mb/s: {longest} {usual}");
        let bases = seen.groups(0).len() as f64 / f64::from(seen.published);
        assert!(layer == 0 || bases > 0.95, "{mbps} Mb/s: {bases}");
    }
}

#[test]
fn a_slow_path_gets_some_packets_that_decode_alone() {
    for (mbps, layer) in [(0.6, 0), (1.0, 0), (2.0, 1), (4.0, 1)] {
        let seen = watch(mbps, true);
        seen.check(mbps);
        let groups = seen.groups(layer).len() as f64 / f64::from(seen.published);
        assert!(groups > 0.95, "{mbps} Mb/s: {groups}");
    }
}
