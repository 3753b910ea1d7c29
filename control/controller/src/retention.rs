//! Retention of events and audit entries.

use crate::config::Config;
use crate::store::Revision;
use crate::view::{Journal, View};
use hawser_model::Name;
use hawser_model::audit::{Actor, AuditEntry, Role};
use hawser_model::resource::Event;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;

/// Returns the keys of the events and audit entries to be removed.
pub(crate) fn surplus(view: &View, config: &Config) -> Vec<Arc<str>> {
    let mut keys = surplus_events(
        &view.events,
        config.max_events,
        config.limits.max_node_events,
    );
    let old = view.run_time.older_than(config.audit.age());
    keys.extend(surplus_entries(&view.audit, config.audit.entries, old));
    keys
}

/// Returns the oldest events about each node or flow beyond `max_each`, and then the oldest of all beyond `max`. The newest
/// of each tenant stay, half of `max` for all tenants in equal shares, so that no tenant can displace all events of another
/// one.
fn surplus_events(events: &Journal<Event>, max: usize, max_each: usize) -> Vec<Arc<str>> {
    let mut counts: HashMap<Option<&Name>, usize> = HashMap::new();
    let mut kept = Vec::new();
    let mut surplus = Vec::new();
    for (key, event) in events.iter().rev() {
        let about = event.node.as_ref().or(event.flow.as_ref());
        let count = counts.entry(about).or_default();
        *count += 1;
        if about.is_some() && *count > max_each {
            surplus.push(key.clone());
        } else {
            kept.push((key, event.tenant.as_ref()));
        }
    }
    let beyond = kept.len().saturating_sub(max);
    let mut newer: HashMap<_, usize> = kept.iter().map(|(_, tenant)| (*tenant, 0)).collect();
    let share = max / (2 * newer.len().max(1));
    kept.retain(|(_, tenant)| {
        let count = newer.entry(*tenant).or_default();
        *count += 1;
        *count > share
    });
    let oldest_first = kept.into_iter().rev();
    surplus.extend(oldest_first.take(beyond).map(|(key, _)| key.clone()));
    surplus
}

/// Returns the entries up to the revision `old`, and then, beyond `max`, entries of the actor with
/// the most: the oldest of the resource that it changed most often. So no actor can displace the
/// entries of another one, nor an entry about one change by repeating a different one. All nodes
/// count as one actor, and all tokens of a node (`NODE/ID`) as one resource.
fn surplus_entries(audit: &Journal<AuditEntry>, max: usize, old: Revision) -> Vec<Arc<str>> {
    let (expired, by_actor) = sort_out(audit, old);
    let mut surplus: Vec<_> = expired.into_iter().cloned().collect();
    let count = |things: &Things<'_>| things.values().map(VecDeque::len).sum();
    let mut by_count: BTreeSet<(usize, _)> = by_actor
        .iter()
        .map(|(actor, things)| (count(things), *actor))
        .collect();
    let mut left: usize = by_count.iter().map(|(count, _)| count).sum();
    // The resource with the most entries of each actor is on top; of several, the one whose oldest
    // entry is the oldest.
    let mut by_actor: HashMap<_, BinaryHeap<_>> = by_actor
        .into_iter()
        .map(|(actor, things)| {
            let heap = things.into_values().map(|keys| (keys.len(), Reverse(keys)));
            (actor, heap.collect())
        })
        .collect();
    while left > max
        && let Some((count, actor)) = by_count.pop_last()
    {
        if let Some(mut top) = by_actor.get_mut(&actor).and_then(BinaryHeap::peek_mut) {
            let (entries, Reverse(keys)) = &mut *top;
            *entries -= 1;
            surplus.extend(keys.pop_front().cloned());
        }
        by_count.insert((count - 1, actor));
        left -= 1;
    }
    surplus
}

/// The keys of an actor's entries by actor, kind and resource, oldest first.
type Things<'a> = BTreeMap<(&'a str, &'a str, &'a str), VecDeque<&'a Arc<str>>>;

/// The keys of entries by actor, as [`counted_as`] returns it.
type ByActor<'a> = HashMap<(u8, &'a str), Things<'a>>;

/// Returns the keys of the entries up to the revision `old`, and those of the others by actor.
fn sort_out(audit: &Journal<AuditEntry>, old: Revision) -> (Vec<&Arc<str>>, ByActor<'_>) {
    let mut expired = Vec::new();
    let mut by_actor = ByActor::new();
    for (key, entry) in audit.iter() {
        if audit.number(key).is_some_and(|number| number <= old) {
            expired.push(key);
            continue;
        }
        let thing = (
            entry.actor.name.as_str(),
            entry.kind.as_str(),
            entry.owner(),
        );
        let things = by_actor.entry(counted_as(&entry.actor)).or_default();
        things.entry(thing).or_default().push_back(key);
    }
    (expired, by_actor)
}

fn counted_as(actor: &Actor) -> (u8, &str) {
    match actor.role {
        Role::Operator => (0, &actor.name),
        Role::Node => (1, ""),
        Role::Controller => (2, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::time::Duration;

    fn journal<T: serde::de::DeserializeOwned>(entries: &[serde_json::Value]) -> Journal<T> {
        let mut journal = Journal::default();
        for (number, entry) in (1..).zip(entries) {
            journal.insert(
                &format!("{number}").into(),
                number,
                serde_json::from_value(entry.clone()).unwrap(),
            );
        }
        journal
    }

    fn event(node: Option<&str>) -> serde_json::Value {
        json!({ "number": 0, "at_unix_ms": 0, "tenant": null, "node": node, "flow": null, "kind": "k", "message": "" })
    }

    fn entry(role: &str, name: &str, at_unix_ms: u64) -> serde_json::Value {
        json!({ "number": 0, "at_unix_ms": at_unix_ms, "actor": { "role": role, "name": name }, "address": null,
            "request": null, "tenant": null, "kind": "k", "name": "n", "action": "a", "before": null, "after": null })
    }

    fn texts(keys: Vec<Arc<str>>) -> Vec<String> {
        keys.iter().map(|key| key.to_string()).collect()
    }

    #[test]
    fn a_node_that_tells_much_pushes_out_its_own_events() {
        let events = [Some("a"), None, Some("b"), Some("b"), Some("b"), None].map(event);
        assert_eq!(texts(surplus_events(&journal(&events), 100, 2)), ["3"]);
        assert_eq!(texts(surplus_events(&journal(&events), 4, 2)), ["3", "1"]);
        assert!(surplus_events(&journal(&events), 6, 6).is_empty());
    }

    #[test]
    fn a_tenant_that_causes_many_events_pushes_out_its_own() {
        let of = |tenant: &str, node: &str| {
            let mut event = event(Some(node));
            event["tenant"] = tenant.into();
            event
        };
        let mut events = vec![of("quiet", "a")];
        events.extend(["b", "c", "d", "e", "f", "g", "h"].map(|node| of("loud", node)));
        assert_eq!(texts(surplus_events(&journal(&events), 6, 9)), ["2", "3"]);
        assert_eq!(texts(surplus_events(&journal(&events), 3, 9)).len(), 5);
    }

    #[test]
    fn an_actor_pushes_out_its_own_entries() {
        let entries = [
            entry("operator", "quiet", 10),
            entry("operator", "loud", 10),
            entry("node", "a", 10),
            entry("operator", "loud", 10),
            entry("node", "b", 10),
            entry("operator", "loud", 10),
        ];
        assert_eq!(texts(surplus_entries(&journal(&entries), 4, 0)), ["2", "3"]);
        assert_eq!(
            texts(surplus_entries(&journal(&entries), 3, 0)),
            ["2", "3", "4"]
        );
    }

    #[test]
    fn a_change_is_not_forgotten_by_repeating_another_one() {
        let mut entries = vec![entry("operator", "thief", 10); 6];
        entries[0]["name"] = "what was stolen".into();
        assert_eq!(
            texts(surplus_entries(&journal(&entries), 2, 0)),
            ["2", "3", "4", "5"]
        );
    }

    #[test]
    fn a_change_is_not_forgotten_by_making_tokens() {
        let mut entries = vec![entry("operator", "thief", 10); 6];
        for (number, entry) in entries.iter_mut().enumerate().skip(1) {
            entry["name"] = format!("node/{number}").into();
        }
        assert_eq!(
            texts(surplus_entries(&journal(&entries), 2, 0)),
            ["2", "3", "4", "5"]
        );
    }

    #[test]
    fn resources_changed_equally_often_lose_entries_in_turns() {
        let mut entries = vec![entry("operator", "a", 10); 6];
        for (number, entry) in entries.iter_mut().enumerate() {
            entry["name"] = format!("{}", number % 3).into();
        }
        assert_eq!(
            texts(surplus_entries(&journal(&entries), 2, 0)),
            ["1", "2", "3", "4"]
        );
    }

    #[test]
    fn many_resources_of_one_actor_take_little_time() {
        let mut entries = vec![entry("operator", "a", 10); 30_000];
        for (number, entry) in entries.iter_mut().enumerate() {
            entry["name"] = format!("{number}").into();
        }
        let surplus = surplus_entries(&journal(&entries), 10_000, 0);
        assert_eq!(surplus.len(), 20_000);
    }

    #[test]
    fn entries_are_kept_for_their_time() {
        let entries = [entry("operator", "a", 10), entry("operator", "a", 20)];
        assert_eq!(texts(surplus_entries(&journal(&entries), 100, 1)), ["1"]);
    }

    #[test]
    fn a_date_alone_removes_no_entry() {
        let long_ago = entry("operator", "a", 0);
        let far_ahead = entry("operator", "a", 1 << 44);
        let mut view = View::default();
        for (number, entry) in (1..).zip([long_ago, far_ahead]) {
            let entry = serde_json::from_value(entry).unwrap();
            let key: Arc<str> = format!("audit/{number}").into();
            view.audit.insert(&key, number, entry);
        }
        let config = Config::default();
        let removed = |view: &View| texts(surplus(view, &config));
        assert!(removed(&view).is_empty());
        let age = config.audit.age();
        view.run_time.add(Duration::ZERO, 1, age);
        view.run_time.add(age, 2, age);
        assert_eq!(removed(&view), ["audit/1"]);
    }
}
