//! Settings of tunnel clients on the command line.

use crate::outdated::unless_changed;
use anyhow::{Context, Result, bail, ensure};
use hawser_client::{OperatorClient, SettingsOf, Tagged};
use hawser_io::interface::pattern_includes;
use hawser_model::Name;
use hawser_model::tunnel::{TunnelSettings, UplinkSettings};
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
    keys: Vec<Key>,
}

impl FromStr for UplinkChange {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<UplinkChange> {
        let (interface, keys) = text
            .rsplit_once(':')
            .context("write INTERFACE:KEY=VALUE, such as 'wwan*:cost=1'")?;
        let key = |pair: &str| {
            let (key, value) = pair.split_once('=').context("write KEY=VALUE")?;
            Key::parse(key, value)
        };
        Ok(UplinkChange {
            interface: interface.to_owned(),
            keys: keys.split(',').map(key).collect::<Result<_>>()?,
        })
    }
}

/// The value of a key of an uplink; `None` for the one in the client's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Key {
    Cost(Option<u8>),
    MonthlyCapMb(Option<u64>),
    MtuBytes(Option<u16>),
}

impl Key {
    /// Parses the value of a key; an empty one stands for none.
    fn parse(key: &str, value: &str) -> Result<Key> {
        match key {
            "cost" => parse(key, value).map(Key::Cost),
            "monthly_cap_mb" => parse(key, value).map(Key::MonthlyCapMb),
            "mtu_bytes" => parse(key, value).map(Key::MtuBytes),
            _ => {
                bail!(
                    "{key:?} is not a key of an uplink: there are cost, monthly_cap_mb and mtu_bytes"
                )
            }
        }
    }

    fn set(self, uplink: &mut UplinkSettings) {
        match self {
            Key::Cost(cost) => uplink.cost = cost,
            Key::MonthlyCapMb(cap) => uplink.monthly_cap_mb = cap,
            Key::MtuBytes(mtu) => uplink.mtu_bytes = mtu,
        }
    }
}

fn parse<T: FromStr>(key: &str, value: &str) -> Result<Option<T>>
where
    T::Err: fmt::Display,
{
    if value.is_empty() {
        return Ok(None);
    }
    let parsed = value.parse::<T>().map(Some);
    parsed.map_err(|error| anyhow::anyhow!("{key}: {value:?} is not valid: {error}"))
}

impl Changes {
    fn apply(&self, settings: &mut TunnelSettings) -> Result<()> {
        if let Some(Seconds(seconds)) = self.search_every_s {
            settings.search_every_s = seconds;
        }
        if let Some(Seconds(seconds)) = self.report_every_s {
            settings.report_every_s = seconds;
        }
        self.apply_to_uplinks(&mut settings.uplinks)
    }

    fn apply_to_uplinks(&self, uplinks: &mut Vec<UplinkSettings>) -> Result<()> {
        for interface in &self.removed_uplinks {
            let before = uplinks.len();
            uplinks.retain(|uplink| uplink.interface != *interface);
            ensure!(
                uplinks.len() < before,
                "there are no settings of the uplinks {interface}"
            );
        }
        for UplinkChange { interface, keys } in &self.uplinks {
            let mut known = uplinks.iter();
            let known = known.position(|uplink| uplink.interface == *interface);
            let at = known.unwrap_or_else(|| insert_uplink(uplinks, interface));
            for key in keys {
                key.set(&mut uplinks[at]);
            }
        }
        // Without another key, an element says nothing.
        uplinks.retain(|uplink| *uplink != without_keys(&uplink.interface));
        Ok(())
    }
}

/// Inserts an element before the first one that includes its interfaces, because the first element that
/// applies takes effect. Returns its index.
fn insert_uplink(uplinks: &mut Vec<UplinkSettings>, interface: &str) -> usize {
    let mut others = uplinks.iter();
    let wider = others.position(|other| pattern_includes(&other.interface, interface));
    let at = wider.unwrap_or(uplinks.len());
    uplinks.insert(at, without_keys(interface));
    at
}

fn without_keys(interface: &str) -> UplinkSettings {
    UplinkSettings {
        interface: interface.to_owned(),
        cost: None,
        monthly_cap_mb: None,
        mtu_bytes: None,
    }
}

/// Changes settings unless they were changed since they were read.
pub(crate) async fn change(
    client: &OperatorClient,
    owner: &Owner,
    changes: &Changes,
) -> Result<TunnelSettings> {
    let Tagged { mut value, tag } = client.tagged_tunnel_settings(owner.as_ref()).await?;
    changes.apply(&mut value)?;
    let replaced = client
        .replace_tunnel_settings(owner.as_ref(), &value, &tag)
        .await;
    unless_changed(replaced, format_args!("settings of {owner}"))
}

/// Returns the settings that are given, with their keys: first those of uplinks, by interface.
pub(crate) fn fields(settings: &TunnelSettings) -> Vec<(&str, String)> {
    let uplinks = settings.uplinks.iter();
    let uplinks = uplinks.map(|uplink| (uplink.interface.as_str(), uplink_text(uplink)));
    let intervals = [
        ("search_every_s", settings.search_every_s),
        ("report_every_s", settings.report_every_s),
    ];
    let intervals = intervals.into_iter();
    let intervals = intervals.filter_map(|(key, seconds)| Some((key, seconds?.to_string())));
    uplinks.chain(intervals).collect()
}

fn uplink_text(uplink: &UplinkSettings) -> String {
    let keys = [
        ("cost", uplink.cost.map(u64::from)),
        ("monthly_cap_mb", uplink.monthly_cap_mb),
        ("mtu_bytes", uplink.mtu_bytes.map(u64::from)),
    ];
    let keys = keys.into_iter();
    let keys: Vec<_> = keys
        .filter_map(|(key, value)| Some(format!("{key}={}", value?)))
        .collect();
    keys.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(uplinks: &[&str], removed: &[&str]) -> Changes {
        Changes {
            uplinks: uplinks.iter().map(|text| text.parse().unwrap()).collect(),
            removed_uplinks: removed.iter().map(|text| (*text).to_owned()).collect(),
            ..Changes::default()
        }
    }

    fn text(settings: &TunnelSettings) -> Vec<String> {
        let fields = fields(settings).into_iter();
        fields
            .map(|(key, value)| format!("{key}:{value}"))
            .collect()
    }

    #[test]
    fn keys_are_changed_added_and_removed() {
        let mut settings = TunnelSettings::default();
        let apply = |settings: &mut TunnelSettings, uplinks: &[&str], removed: &[&str]| {
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
        let mut settings = TunnelSettings::default();
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
