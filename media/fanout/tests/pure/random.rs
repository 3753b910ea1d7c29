//! Invariants that hold after any operations.

use crate::operations::{START, Step, operations, relay, steps};
use hawser_fanout::{Frame, Refusal, SlotIndex, SlotSet, TrackIndex, Verdict};
use hawser_packets::media::{ObjectId, Packet, PacketId};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// An object by the relay's number of its track.
type Object = (TrackIndex, Frame, u8);

fn object(track: TrackIndex, id: &ObjectId) -> Object {
    (track, Frame::of(id), id.layer)
}

proptest! {
    #[test]
    fn packets_go_once_to_those_who_are_served_their_object(
        operations in operations(),
    ) {
        let mut relay = relay();
        let mut sent: HashSet<(TrackIndex, PacketId)> = HashSet::new();
        let mut served: HashMap<Object, SlotSet> = HashMap::new();
        for (now, step) in steps(&operations) {
            let Some(Ok(delivery)) = step.apply(&mut relay, now) else { continue };
            let Step::Datagram { bytes, .. } = &step else { unreachable!() };
            let mut id = Packet::parse(bytes).unwrap().header.id;
            while let Some(registration) = relay.poll_registration() {
                let this = object(registration.track, &registration.object);
                let before = *served.entry(this).or_insert(registration.served);
                prop_assert_eq!(before, registration.served);
            }
            let of_object = served[&object(delivery.track, &id.object)];
            prop_assert!(delivery.to.iter().all(|slot| of_object.contains(*slot)));
            id.object.alias = 0;
            prop_assert!(sent.insert((delivery.track, id)), "{:?} twice", id);
        }
    }

    /// The packets that the relay saw since a subscriber joined.
    #[test]
    fn what_is_served_depends_on_nothing_that_was_not(operations in operations()) {
        let mut relay = relay();
        let mut begun: BTreeSet<Object> = BTreeSet::new();
        // Objects for a slot that were not served.
        let mut missing: BTreeMap<(TrackIndex, SlotIndex), Vec<Object>> = BTreeMap::new();
        for (now, step) in steps(&operations) {
            let outcome = step.apply(&mut relay, now);
            match (&step, outcome) {
                (Step::Subscribe(track, slot, _), _) => {
                    missing.insert((*track, *slot), Vec::new());
                }
                (Step::Unsubscribe(track, slot), _) => drop(missing.remove(&(*track, *slot))),
                (Step::Add(slot, _) | Step::Remove(slot), _) => missing.retain(|(_, of), _| of != slot),
                (Step::Datagram { bytes, .. }, Some(Ok(delivery))) => {
                    let id = Packet::parse(bytes).unwrap().header.id.object;
                    let this = object(delivery.track, &id);
                    let mut registered = std::iter::from_fn(|| relay.poll_registration());
                    let of_this = registered.find(|r| object(r.track, &r.object) == this);
                    if !begun.insert(this) {
                        continue;
                    }
                    let served = of_this.map(|registration| registration.served);
                    let subscriptions = missing.iter_mut().filter(|((track, _), _)| *track == delivery.track);
                    for ((_, slot), missing) in subscriptions {
                        let depends = |on: &Object| {
                            on.1.group == this.1.group && on.1.object <= this.1.object && on.2 <= this.2
                        };
                        let joined = relay.joined(delivery.track, *slot);
                        let is_before = joined.is_none_or(|joined| this.1 < joined);
                        if served.is_some_and(|served| served.contains(*slot)) {
                            prop_assert!(!is_before && !missing.iter().any(depends), "{:?} {:?}", this, missing);
                        } else if !is_before {
                            missing.push(this);
                        }
                    }
                }
                _ => {}
            }
        }
    }

    #[test]
    fn every_object_is_registered_once_with_what_was_decided(operations in operations()) {
        let mut relay = relay();
        let mut begun: HashSet<Object> = HashSet::new();
        let mut registered: HashSet<Object> = HashSet::new();
        for (now, step) in steps(&operations) {
            if let Some(Ok(delivery)) = step.apply(&mut relay, now) {
                let Step::Datagram { bytes, .. } = &step else { unreachable!() };
                begun.insert(object(delivery.track, &Packet::parse(bytes).unwrap().header.id.object));
            }
            while let Some(registration) = relay.poll_registration() {
                let id = object(registration.track, &registration.object);
                let is_first = match registration.ended {
                    true => registered.insert(id),
                    false => registration.packets == 1 && !registered.contains(&id),
                };
                prop_assert!(begun.contains(&id) && is_first, "{:?}", id);
                prop_assert!(registration.served.iter().all(|slot| !registration.dropped.contains(slot)));
                prop_assert!(registration.begun <= registration.newest && registration.begun >= START);
                prop_assert!(registration.packets > 0);
            }
        }
        let unregistered = begun.difference(&registered).count();
        prop_assert!(unregistered <= 2 * hawser_fanout::REMEMBERED_OBJECTS);
    }
}

/// The operations reach every verdict and every refusal.
#[test]
fn the_operations_reach_everything() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut verdicts = [0; Verdict::ALL.len()];
    let mut refusals: BTreeMap<Refusal, usize> = BTreeMap::new();
    for _ in 0..300 {
        let operations = operations().new_tree(&mut runner).unwrap().current();
        let mut relay = relay();
        for (now, step) in steps(&operations) {
            if let Some(Err(refusal)) = step.apply(&mut relay, now) {
                *refusals.entry(refusal).or_default() += 1;
            }
        }
        for slot in SlotIndex::all() {
            let stats = relay.slot_stats(slot).unwrap_or_default();
            for (sum, count) in verdicts.iter_mut().zip(stats.objects) {
                *sum += count;
            }
        }
    }
    assert!(verdicts.iter().all(|count| *count > 10), "{verdicts:?}");
    assert_eq!(refusals.len(), 11, "{refusals:?}");
    assert!(refusals.values().all(|count| *count > 3), "{refusals:?}");
}
