//! Subscribers of a relay.

use crate::support::*;
use hawser_audience::BroadcastEvent;
use hawser_netem::{LinkConfig, Span};
use hawser_objects::TrackSecret;

#[test]
fn those_who_watch_get_every_frame_whole() {
    let watchers = (1..=3).map(|port| Watcher::new(port, link(Some(60.0), 0.0)));
    let mut world = World::new(watchers.collect());
    world.run(ms(6000));
    assert!(world.published > 150);
    for watcher in &world.watchers {
        let (whole, decodable) = watcher.shares(60..world.published - 3);
        assert!(whole > 0.99 && decodable > 0.99, "{whole} {decodable}");
        let stats = watcher.viewer.stats();
        assert_eq!((stats.forged, stats.replayed), (0, 0));
        let refusals = watcher.viewer.receiver().unwrap().refusals();
        assert_eq!(refusals.duplicate, 0, "{refusals:?}");
    }
    let joined = |event: &&BroadcastEvent| matches!(event, BroadcastEvent::Joined { .. });
    assert_eq!(world.events.iter().filter(joined).count(), 3);
}

#[test]
fn one_behind_a_slow_path_gets_bases_and_the_others_everything() {
    let slow = Watcher::new(1, link(Some(8.0), 0.0));
    let fast = Watcher::new(2, link(Some(60.0), 0.0));
    let mut world = World::new(vec![slow, fast]);
    world.run(ms(12_000));
    let groups = world.published / 2..world.published - 3;
    let (whole, decodable) = world.watchers[0].shares(groups.clone());
    let slow = world.broadcast.subscribers().next().unwrap();
    assert!(decodable > 0.98, "{decodable} {whole} {slow:?}");
    let (whole, _) = world.watchers[1].shares(groups);
    assert!(whole > 0.99, "{whole}");
}

#[test]
fn lost_packets_are_sent_again_from_the_cache() {
    let mut world = World::new(vec![Watcher::new(1, link(None, 0.02))]);
    world.run(ms(8000));
    let (whole, decodable) = world.watchers[0].shares(60..world.published - 8);
    let subscriber = world.broadcast.subscribers().next().unwrap();
    assert!(
        whole > 0.9 && decodable > 0.97,
        "{whole} {decodable} {subscriber:?}"
    );
}

#[test]
fn a_viewer_is_served_again_after_a_long_silence() {
    let cut = LinkConfig {
        cuts: vec![Span::new(ms(4000), ms(8000)).unwrap()],
        ..link(Some(60.0), 0.0)
    };
    for (there, pauses) in [(cut, false), (link(Some(60.0), 0.0), true)] {
        let mut world = World::new(vec![Watcher::new(1, there)]);
        world.run(ms(3000));
        world.watchers[0].is_gone = pauses;
        world.run(ms(4000));
        world.watchers[0].is_gone = false;
        world.run(ms(6000));
        let (_, decodable) = world.watchers[0].shares(world.published - 60..world.published - 3);
        let subscriber = world.broadcast.subscribers().next().unwrap();
        assert!(decodable > 0.5, "{pauses}: {decodable} {subscriber:?}");
    }
}

#[test]
fn a_late_joiner_decodes_at_once_and_gets_no_packet_twice() {
    let mut world = World::new(vec![Watcher::new(1, link(Some(60.0), 0.0))]);
    world.run(ms(3000));
    world.watchers.push(Watcher::new(2, link(Some(60.0), 0.0)));
    let came = world.now;
    world.run(ms(2000));
    let late = &world.watchers[1];
    let first = late.frames.first().unwrap();
    let waited = first.completed.saturating_since(came);
    // Two round trips of the session, one for the selection, and a frame at the first rate.
    assert!(waited < ms(150), "{waited:?}");
    let from = first.id.0;
    let (_, decodable) = late.shares(from..world.published - 3);
    assert!(decodable > 0.98, "{decodable}");
    let (whole, _) = late.shares(from + 15..world.published - 3);
    assert!(whole > 0.97, "{whole}");
    let refusals = late.viewer.receiver().unwrap().refusals();
    assert_eq!((refusals.duplicate, refusals.late), (0, 0));
}

#[test]
fn a_replaced_secret_ends_all_sessions() {
    let mut world = World::new(vec![Watcher::new(1, link(Some(60.0), 0.0))]);
    world.run(ms(1500));
    assert!(!world.watchers[0].frames.is_empty());
    let received = world.broadcast.upstream_totals();
    let another = TrackSecret::new([0x99; 32]).access();
    world.broadcast.set_access(world.now, another, [0x55; 16]);
    world.run(ms(1000));
    assert!(world.watchers[0].has_ended && !world.broadcast.is_open());
    assert_eq!(world.broadcast.subscribers().count(), 0);
    world
        .broadcast
        .set_access(world.now, secret().access(), [0x56; 16]);
    world.watchers.push(Watcher::new(2, link(Some(60.0), 0.0)));
    let from = world.published;
    world.run(ms(2000));
    assert!(world.broadcast.is_open());
    let (whole, _) = world.watchers[1].shares(from + 30..world.published - 3);
    assert!(whole > 0.97, "{whole}");
    assert!(world.broadcast.upstream_totals().packets > received.packets);
}

#[test]
fn no_packet_is_rejected_while_the_hop_key_changes() {
    let lossless = Watcher::new(1, link(Some(60.0), 0.0));
    let lossy = Watcher::new(2, link(None, 0.01));
    let mut world = World::new(vec![lossless, lossy]);
    for _ in 0..6 {
        world.run(ms(1007));
        world.publication.rotate_hop_key();
    }
    world.run(ms(1000));
    assert_eq!(world.refused, []);
    // Packets had the tag of the previous key after a message had named the next one, and vice versa.
    let [before, current, next] = world.tagged;
    assert!(
        before > 10 && current > 1000 && next > 10,
        "{:?}",
        world.tagged
    );
    for watcher in &world.watchers {
        let (whole, decodable) = watcher.shares(60..world.published - 8);
        assert!(whole > 0.97 && decodable > 0.98, "{whole} {decodable}");
        let refusals = watcher.viewer.receiver().unwrap().refusals();
        assert_eq!(refusals.hop_tag, 0);
    }
}
