//! Viewers with sound, whose paths bear a part of the pictures only.

use crate::support::*;
use hawser_netem::{Discipline, LinkConfig};
use std::collections::BTreeSet;

/// Returns the shares of the sound, and of the frames, that a viewer gets within their lifetime in ten seconds, after the
/// time in which its rate was found.
fn watch(mbps: f64, loss: f64) -> (f64, f64) {
    let path = LinkConfig {
        discipline: Some(Discipline::Fifo),
        ..link(Some(mbps), loss)
    };
    let mut world = World::with_sound(vec![Watcher::new(1, path)]);
    world.mbps = 6.0;
    world.run(ms(20_000));
    let (frames, packets) = (world.published, world.said);
    world.run(ms(10_000));
    let watcher = &world.watchers[0];
    let heard = watcher.heard.range(packets..world.said - 25).count() as f64;
    let (_, seen) = watcher.shares(frames..world.published - 15);
    (heard / f64::from(world.said - 25 - packets), seen)
}

#[test]
fn sound_is_whole_where_few_pictures_arrive() {
    let (heard, seen) = watch(0.6, 0.0);
    assert!(heard > 0.99 && seen < 0.55, "{heard} {seen}");
}

#[test]
fn lost_sound_is_sent_again() {
    let (heard, seen) = watch(1.0, 0.03);
    assert!(heard > 0.985 && seen < 0.9, "{heard} {seen}");
}

#[test]
fn sound_has_the_highest_priority() {
    let priorities = |mut world: World| {
        world.run(ms(2000));
        let headers = world.objects.iter().map(|object| object.header);
        let priorities = headers.map(|h| (h.id.object.alias, h.id.object.layer, h.priority));
        priorities.collect::<BTreeSet<_>>()
    };
    let watchers = || vec![Watcher::new(1, link(None, 0.0))];
    let silent = priorities(World::new(watchers()));
    assert_eq!(silent, [(ALIAS, 0, 0), (ALIAS, 1, 1)].into());
    let with_sound = priorities(World::with_sound(watchers()));
    assert_eq!(
        with_sound,
        [(ALIAS, 0, 1), (ALIAS, 1, 2), (SOUND, 0, 0)].into()
    );
}
