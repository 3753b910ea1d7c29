//! A source in two encodings through a relay.

use crate::support::*;
use hawser_netem::{LinkConfig, Rate, Steps};
use hawser_objects::ReceivedFrame;
use hawser_units::Bitrate;

/// Returns the share of the frames of a watcher from a group on that have the best encoding, and that of
/// those that have any.
fn shares(world: &World, watcher: usize, from: u32) -> (f64, f64) {
    let groups = from..world.published - 4;
    let frames = world.watchers[watcher].frames.iter();
    let frames: Vec<_> = frames.filter(|f| groups.contains(&f.id.0)).collect();
    let best = frames.iter().filter(|f| f.tracks.contains_key(&ALIAS));
    let all = f64::from(groups.end - groups.start);
    (best.count() as f64 / all, frames.len() as f64 / all)
}

#[test]
fn each_gets_the_encoding_that_its_path_bears() {
    let paths = [Some(60.0), Some(2.5), Some(8.0)];
    let watchers = (1..)
        .zip(paths)
        .map(|(port, mbps)| Watcher::new(port, link(mbps, 0.0)));
    let mut world = World::with_small(watchers.collect());
    world.run(ms(12_000));
    let from = world.published / 2;
    let shares = [0, 1, 2].map(|watcher| shares(&world, watcher, from));
    let mut subscribers: Vec<_> = world.broadcast.subscribers().collect();
    subscribers.sort_by_key(|subscriber| subscriber.address);
    let encodings: Vec<usize> = subscribers.iter().map(|s| s.encoding).collect();
    assert_eq!(encodings, [0, 1, 0], "{shares:?}");
    assert!(shares.iter().all(|(_, any)| *any > 0.99), "{shares:?}");
    let best = shares.map(|(best, _)| best);
    assert!(
        best[0] > 0.99 && best[1] == 0.0 && best[2] > 0.98,
        "{best:?}"
    );
}

#[test]
fn no_frame_is_missed_when_the_best_encoding_comes_back() {
    let steps = [(0, 30.0), (4, 2.5), (12, 30.0)];
    let steps = steps.map(|(second, mbps)| (ms(second * 1000), Bitrate::from_mbps(mbps)));
    let path = LinkConfig {
        rate: Some(Rate::Steps(Steps::new(steps.to_vec()).unwrap())),
        ..link(Some(30.0), 0.0)
    };
    let mut world = World::with_small(vec![Watcher::new(1, path)]);
    let mut changes = Vec::new();
    for seconds in [3, 8, 8] {
        world.run(ms(1000 * seconds));
        changes.push(world.published);
    }
    let (best, any) = shares(&world, 0, changes[1] + 150);
    assert!(best > 0.9 && any > 0.99, "{best} {any}");
    let frames = || world.watchers[0].frames.iter();
    let slow = changes[0] + 90..changes[1];
    let lesser = |f: &&ReceivedFrame| slow.contains(&f.id.0) && f.tracks.contains_key(&SMALL);
    assert!(frames().filter(lesser).count() > 100);
    // The rate suffices again soon, and then the best encoding is sent.
    let late = frames().filter(|frame| frame.id.0 >= changes[1] + 60);
    let is_next = |pair: &[u32]| pair[1] == pair[0] + 1;
    let late: Vec<u32> = late.map(|frame| frame.id.0).collect();
    assert!(late.windows(2).all(is_next), "{late:?}");
}
