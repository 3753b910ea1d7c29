//! Objects with all of their packets, as those are given them who cannot be sent single packets.

use crate::support::{World, link, ms};
use std::collections::BTreeSet;

#[test]
fn every_object_becomes_whole_once_over_a_lossy_link() {
    let mut world = World::over(Vec::new(), link(Some(200.0), 0.02));
    // As much as rate control that takes losses for congestion allows.
    world.mbps = 2.0;
    world.run(ms(3000));
    let ids: BTreeSet<_> = world.objects.iter().map(|o| o.header.id.object).collect();
    assert_eq!(ids.len(), world.objects.len(), "each once");
    let published = 2 * world.published as usize;
    // The last two frames may be in flight. Objects that the publisher gave up are missing.
    let missing = published - ids.len();
    assert!(missing <= 8, "{missing} of {published}");
    for object in &world.objects {
        let count = object.header.count.map(|count| usize::from(count.get()));
        assert_eq!(count, Some(object.datagrams.len()));
    }
}

#[test]
fn objects_with_lost_packets_are_counted_and_given_up() {
    let mut world = World::over(Vec::new(), link(Some(200.0), 0.5));
    world.run(ms(3000));
    let published = 2 * u64::from(world.published);
    let whole = world.objects.len() as u64;
    assert!(world.whole.incomplete() > 0);
    assert!(whole + world.whole.incomplete() <= published);
}
