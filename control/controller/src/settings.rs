//! The settings that all controllers of a store should have in common. The leader writes its own, so
//! that the others notice where theirs differ.

use crate::config::Config;
use serde_json::{Map, Value, json};

/// Returns the common settings of a configuration, by key.
pub(crate) fn common(config: &Config) -> Map<String, Value> {
    let texts = |values: &mut dyn Iterator<Item = String>| values.collect::<Vec<_>>();
    let (nodes, limits) = (&config.nodes, &config.limits);
    let settings = [
        ("nodes.report_every_ms", json!(nodes.report_every_ms)),
        ("nodes.lease_s", json!(nodes.lease_s)),
        ("nodes.certificate_days", json!(nodes.certificate_days)),
        ("nodes.signals", json!(nodes.signals)),
        (
            "tunnels.addresses",
            json!(texts(
                &mut config.tunnels.addresses.iter().map(ToString::to_string)
            )),
        ),
        (
            "tunnels.servers",
            json!(texts(
                &mut config.tunnels.servers.iter().map(ToString::to_string)
            )),
        ),
        ("max_events", json!(config.max_events)),
        ("audit.days", json!(config.audit.days)),
        ("audit.entries", json!(config.audit.entries)),
        ("limits.max_node_events", json!(limits.max_node_events)),
        ("limits.node_events_per_s", json!(limits.node_events_per_s)),
        (
            "limits.node_changes_per_s",
            json!(limits.node_changes_per_s),
        ),
    ];
    let settings = settings.into_iter();
    settings
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
}

/// Returns the keys of the settings that differ.
pub(crate) fn differing(own: &Map<String, Value>, leaders: &Map<String, Value>) -> Vec<String> {
    let differs = |(key, own): &(&String, &Value)| leaders.get(*key) != Some(*own);
    let keys = own.iter().filter(differs);
    keys.map(|(key, _)| key.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_differ_are_named() {
        let own = common(&Config::default());
        assert!(differing(&own, &own).is_empty());
        let mut leaders = own.clone();
        leaders.insert("nodes.lease_s".to_owned(), json!(99));
        assert_eq!(differing(&own, &leaders), ["nodes.lease_s"]);
    }
}
