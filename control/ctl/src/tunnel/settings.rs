//! Settings of tunnel clients on the command line.

use crate::outdated::unless_changed;
use anyhow::{Context, Result, bail, ensure};
use hawser_client::{OperatorClient, SettingsOf, Tagged};
use hawser_io::interface::pattern_includes;
use hawser_model::Name;
use hawser_model::tunnel::TunnelSettings;
use serde_json::{Map, Value};
use std::fmt;
use std::str::FromStr;

/// Whose tunnel clients settings are for.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Owner {
    /// All tunnel clients of this tenant
    #[arg(long)]
    tenant: Option<Name>,
    /// This node, whose settings take precedence over those of its tenant
    #[arg(long)]
    node: Option<Name>,
}

impl Owner {
    pub(crate) fn as_ref(&self) -> SettingsOf<'_> {
        match (&self.tenant, &self.node) {
            (Some(tenant), _) => SettingsOf::Tenant(tenant),
            (None, Some(node)) => SettingsOf::Node(node),
            (None, None) => unreachable!("the command line requires one of them"),
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.as_ref() {
            SettingsOf::Tenant(tenant) => write!(f, "the tunnel clients of {tenant}"),
            SettingsOf::Node(node) => write!(f, "the tunnel client {node}"),
        }
    }
}

/// The settings to change.
#[derive(Debug, Default, clap::Args)]
#[group(required = true, multiple = true)]
pub(crate) struct Changes {
    /// Settings of the uplinks with this interface (a name, or its beginning and *), such as
    /// 'wwan*:cost=1'. Without a value after =, the client's file applies again. May be repeated
    #[arg(long = "uplink", value_name = "INTERFACE:KEY=VALUE[,...]")]
    uplinks: Vec<UplinkChange>,
    /// Interval at which a nearer server is searched while the session works, 300 to 86400 s; 0 for never, `file` for
    /// what the client's file says
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    search_every_s: Option<Seconds>,
    /// Interval of the log's report on the session, up to 86400 s; 0 for none, `file` for what the client's file says
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    report_every_s: Option<Seconds>,
    /// Remove all settings of this interface; may be repeated
    #[arg(long = "remove-uplink", value_name = "INTERFACE")]
    removed_uplinks: Vec<String>,
}

/// A number of seconds; `None` for the one in the client's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seconds(Option<u32>);

fn parse_seconds(text: &str) -> Result<Seconds> {
    match text {
        "file" => Ok(Seconds(None)),
        _ => Ok(Seconds(Some(text.parse()?))),
    }
}

/// The keys of an uplink to change; `None` for a key that is left to the client's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UplinkChange {
    interface: String,
    keys: Vec<(String, Option<u64>)>,
}

impl FromStr for UplinkChange {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<UplinkChange> {
        let (interface, keys) = text
            .rsplit_once(':')
            .context("write INTERFACE:KEY=VALUE, such as 'wwan*:cost=1'")?;
        let key = |pair: &str| {
            let (key, value) = pair.split_once('=').context("write KEY=VALUE")?;
            Ok((key.to_owned(), parse_value(key, value)?))
        };
        Ok(UplinkChange {
            interface: interface.to_owned(),
            keys: keys.split(',').map(key).collect::<Result<_>>()?,
        })
    }
}

/// Parses the value of a key of an uplink; an empty one stands for none.
fn parse_value(key: &str, value: &str) -> Result<Option<u64>> {
    match key {
        "cost" => parse::<u8>(key, value),
        "monthly_cap_mb" => parse::<u64>(key, value),
        "mtu_bytes" => parse::<u16>(key, value),
        _ => {
            bail!("{key:?} is not a key of an uplink: there are cost, monthly_cap_mb and mtu_bytes")
        }
    }
}

fn parse<T: FromStr + Into<u64>>(key: &str, value: &str) -> Result<Option<u64>>
where
    T::Err: fmt::Display,
{
    if value.is_empty() {
        return Ok(None);
    }
    let parsed = value.parse::<T>();
    parsed
        .map(|value| Some(value.into()))
        .map_err(|error| anyhow::anyhow!("{key}: {value:?} is not valid: {error}"))
}

/// Settings, or those of an uplink, as JSON: so that a change keeps the keys that only a later version
/// knows.
pub(crate) type Keys = Map<String, Value>;

impl Changes {
    fn apply(&self, settings: &mut Keys) -> Result<()> {
        if let Some(Seconds(seconds)) = self.search_every_s {
            set_key(settings, "search_every_s", seconds.map(u64::from));
        }
        if let Some(Seconds(seconds)) = self.report_every_s {
            set_key(settings, "report_every_s", seconds.map(u64::from));
        }
        let mut uplinks = match settings.shift_remove("uplinks") {
            Some(uplinks) => serde_json::from_value(uplinks)
                .context("the controller's `uplinks` are not understood: update this program")?,
            None => Vec::new(),
        };
        self.apply_to_uplinks(&mut uplinks)?;
        if !uplinks.is_empty() {
            let uplinks = uplinks.into_iter().map(Value::Object);
            settings.insert("uplinks".to_owned(), uplinks.collect());
        }
        Ok(())
    }

    fn apply_to_uplinks(&self, uplinks: &mut Vec<Keys>) -> Result<()> {
        for interface in &self.removed_uplinks {
            let before = uplinks.len();
            uplinks.retain(|uplink| interface_of(uplink) != interface);
            ensure!(
                uplinks.len() < before,
                "there are no settings of the uplinks {interface}"
            );
        }
        for UplinkChange { interface, keys } in &self.uplinks {
            let mut known = uplinks.iter();
            let known = known.position(|uplink| interface_of(uplink) == interface);
            let at = known.unwrap_or_else(|| insert_uplink(uplinks, interface));
            for (key, value) in keys {
                set_key(&mut uplinks[at], key, *value);
            }
        }
        // Without another key, an element says nothing.
        uplinks.retain(|uplink| uplink.keys().any(|key| key != INTERFACE));
        Ok(())
    }
}

/// The key of an uplink's interface.
const INTERFACE: &str = "interface";

fn interface_of(uplink: &Keys) -> &str {
    uplink
        .get(INTERFACE)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// Inserts an element before the first one that includes its interfaces, because the first element that
/// applies takes effect. Returns its index.
fn insert_uplink(uplinks: &mut Vec<Keys>, interface: &str) -> usize {
    let mut others = uplinks.iter();
    let wider = others.position(|other| pattern_includes(interface_of(other), interface));
    let at = wider.unwrap_or(uplinks.len());
    let interface = (INTERFACE.to_owned(), interface.into());
    uplinks.insert(at, Keys::from_iter([interface]));
    at
}

fn set_key(keys: &mut Keys, key: &str, value: Option<u64>) {
    match value {
        Some(value) => keys.insert(key.to_owned(), value.into()),
        None => keys.shift_remove(key),
    };
}

/// Changes settings unless they were changed since they were read.
pub(crate) async fn change(
    client: &OperatorClient,
    owner: &Owner,
    changes: &Changes,
) -> Result<Keys> {
    let Tagged { mut value, tag } = client.tagged_tunnel_settings(owner.as_ref()).await?;
    changes.apply(&mut value)?;
    let replaced = client
        .replace_tunnel_settings(owner.as_ref(), &value, &tag)
        .await;
    unless_changed(replaced, format_args!("settings of {owner}"))
}

/// Returns settings as JSON.
pub(crate) fn keys(settings: &TunnelSettings) -> Keys {
    let settings = serde_json::to_value(settings).expect("settings have text for keys");
    settings.as_object().cloned().unwrap_or_default()
}

/// Returns the settings that are given, with their keys: first those of uplinks, by interface.
pub(crate) fn fields(settings: &Keys) -> Vec<(&str, String)> {
    let uplinks = settings.get("uplinks").and_then(Value::as_array);
    let uplinks = uplinks.into_iter().flatten().filter_map(Value::as_object);
    let uplinks = uplinks.map(|uplink| (interface_of(uplink), uplink_text(uplink)));
    let others = settings.iter().filter(|(key, _)| *key != "uplinks");
    uplinks
        .chain(others.map(|(key, value)| (key.as_str(), value.to_string())))
        .collect()
}

fn uplink_text(uplink: &Keys) -> String {
    let keys = uplink.iter().filter(|(key, _)| *key != INTERFACE);
    let keys: Vec<_> = keys.map(|(key, value)| format!("{key}={value}")).collect();
    keys.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn changes(uplinks: &[&str], removed: &[&str]) -> Changes {
        Changes {
            uplinks: uplinks.iter().map(|text| text.parse().unwrap()).collect(),
            removed_uplinks: removed.iter().map(|text| (*text).to_owned()).collect(),
            ..Changes::default()
        }
    }

    fn text(settings: &Keys) -> Vec<String> {
        let fields = fields(settings).into_iter();
        fields
            .map(|(key, value)| format!("{key}:{value}"))
            .collect()
    }

    #[test]
    fn keys_are_changed_added_and_removed() {
        let mut settings = Keys::new();
        let apply = |settings: &mut Keys, uplinks: &[&str], removed: &[&str]| {
            changes(uplinks, removed).apply(settings).unwrap();
            text(settings)
        };
        let both = [
            "wwan*:cost=1,monthly_cap_mb=5,mtu_bytes=1400",
            "eth0:1:cost=2",
        ];
        assert_eq!(apply(&mut settings, &both, &[]), both);
        assert_eq!(
            apply(
                &mut settings,
                &["wwan*:cost=3,mtu_bytes=,monthly_cap_mb="],
                &[]
            ),
            ["wwan*:cost=3", "eth0:1:cost=2"]
        );
        assert_eq!(
            apply(&mut settings, &["eth0:1:cost="], &[]),
            ["wwan*:cost=3"]
        );
        assert_eq!(
            apply(&mut settings, &["eth0:cost=1", "wwan0:cost=0"], &[]),
            ["wwan0:cost=0", "wwan*:cost=3", "eth0:cost=1"],
            "an exception comes before what it is an exception of"
        );
        assert_eq!(
            apply(&mut settings, &[], &["eth0", "wwan0"]),
            ["wwan*:cost=3"]
        );
        assert!(apply(&mut settings, &[], &["wwan*"]).is_empty());
        assert!(changes(&[], &["wwan*"]).apply(&mut settings).is_err());
    }

    #[test]
    fn intervals_are_set_and_left_to_the_file() {
        let mut settings = Keys::new();
        let with = |search: &str, report: &str| Changes {
            search_every_s: Some(parse_seconds(search).unwrap()),
            report_every_s: Some(parse_seconds(report).unwrap()),
            ..Changes::default()
        };
        with("600", "0").apply(&mut settings).unwrap();
        assert_eq!(text(&settings), ["search_every_s:600", "report_every_s:0"]);
        with("file", "5").apply(&mut settings).unwrap();
        assert_eq!(text(&settings), ["report_every_s:5"]);
        assert!(parse_seconds("1m").is_err());
    }

    #[test]
    fn keys_that_only_a_later_version_knows_stay() {
        let uplinks = json!([
            { "interface": "wwan*", "cost": 1, "priority": "high" },
            { "interface": "wlan0", "priority": "low" },
        ]);
        let settings = json!({ "uplinks": uplinks, "search_every_s": 600, "relays": ["one"] });
        let Value::Object(mut settings) = settings else {
            panic!("it is an object");
        };
        let changes = Changes {
            report_every_s: Some(Seconds(Some(5))),
            ..changes(&["wwan*:cost=", "eth0:mtu_bytes=1400"], &[])
        };
        changes.apply(&mut settings).unwrap();
        let uplinks = json!([
            { "interface": "wwan*", "priority": "high" },
            { "interface": "wlan0", "priority": "low" },
            { "interface": "eth0", "mtu_bytes": 1400 },
        ]);
        let changed = json!({ "uplinks": uplinks, "search_every_s": 600, "report_every_s": 5, "relays": ["one"] });
        assert_eq!(Value::Object(settings.clone()), changed);
        let shown = text(&settings);
        for part in ["wlan0:priority=\"low\"", "relays:[\"one\"]"] {
            assert!(shown.iter().any(|field| field == part), "{shown:?}");
        }
    }

    #[test]
    fn what_is_no_setting_is_refused() {
        for wrong in [
            "wwan0",
            "wwan0:cost",
            "wwan0:cost=256",
            "wwan0:price=1",
            "wwan0:",
        ] {
            assert!(wrong.parse::<UplinkChange>().is_err(), "{wrong}");
        }
    }
}
