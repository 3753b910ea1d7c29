//! Settings of tunnel clients that operators set at the controller.
//!
//! They say how a client uses the uplinks that its own file names. None of them can open a network to
//! others, write a file, or replace what identifies a client or its controllers.

use super::{ClientReport, RefusedSettings};
use crate::name::Name;
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;

/// Settings of tunnel clients: of those of a tenant (`PUT /v1/tenants/{tenant}/tunnel-settings`), or of
/// one node (`PUT /v1/nodes/{node}/tunnel-settings`), whose keys take precedence. For a key that is not
/// given, the client's file applies.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TunnelSettings {
    /// The settings of uplinks. For each key, the first element that applies to an uplink and has the
    /// key takes effect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(max_items = 16))]
    pub uplinks: Vec<UplinkSettings>,
    /// The interval at which a nearer server is searched while the session works, 300 to 86,400 s; 0
    /// for never. A client's file may say less, but what searches send does not count towards caps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 86_400))]
    pub search_every_s: Option<u32>,
    /// The interval of the log's report on the session, and of its delays, up to 86,400 s; 0 for no
    /// report, and delays by the minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 86_400))]
    pub report_every_s: Option<u32>,
}

/// The settings of the tunnel clients of a tenant, or of one node, as listed by `GET
/// /v1/tunnel-settings`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OwnedSettings {
    /// The tenant; of the settings of a node, the one that the node belongs to.
    pub tenant: Name,
    /// The node; absent from the settings of a tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Name>,
    /// The settings.
    pub settings: TunnelSettings,
}

impl OwnedSettings {
    /// Returns `nodes/NODE` or `tenants/TENANT`, the name in the audit log.
    pub fn name(&self) -> String {
        match &self.node {
            Some(node) => format!("nodes/{node}"),
            None => format!("tenants/{}", self.tenant),
        }
    }
}

/// Settings of the uplinks of a client whose interfaces have that name. Interfaces that the client's
/// file does not name are not used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UplinkSettings {
    /// The name of an interface, or the beginning of names and `*`.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 16))]
    pub interface: String,
    /// The cost class; uplinks of higher classes are on standby while those of lower ones suffice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<u8>,
    /// The megabytes (10^6 bytes) per calendar month in both directions, at most those in the client's
    /// file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000_000_000))]
    pub monthly_cap_mb: Option<u64>,
    /// The largest packet of the network behind the uplink, bytes, at most that in the client's file.
    /// With less than 1380, there may be no room for IPv6 inside, which then leaves outside the tunnel:
    /// only the client's file may say less.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1380, maximum = 9000))]
    pub mtu_bytes: Option<u16>,
}

/// The valid values of the settings.
const SEARCH_EVERY_S: RangeInclusive<u32> = 300..=DAY_S;
const DAY_S: u32 = 86_400;
const MONTHLY_CAP_MB: RangeInclusive<u64> = 1..=1_000_000_000;
const MTU_BYTES: RangeInclusive<u16> = 1380..=9000;

impl TunnelSettings {
    /// The maximum number of elements of `uplinks`.
    pub const MAX_UPLINKS: usize = 16;

    /// Checks settings that an operator sets.
    ///
    /// # Errors
    /// Returns which key is wrong, and what would be right.
    pub fn check(&self) -> Result<(), String> {
        self.check_up_to(Self::MAX_UPLINKS)
    }

    fn check_up_to(&self, max_uplinks: usize) -> Result<(), String> {
        if self.uplinks.len() > max_uplinks {
            return Err(format!("`uplinks` must be at most {max_uplinks}"));
        }
        let is_interval = |seconds: &u32| *seconds == 0 || SEARCH_EVERY_S.contains(seconds);
        if !self.search_every_s.iter().all(is_interval) {
            return Err("`search_every_s` must be 300 to 86400, or 0 for never".into());
        }
        if self.report_every_s.is_some_and(|seconds| seconds > DAY_S) {
            return Err("`report_every_s` must be 0, for none, to 86400".into());
        }
        self.uplinks.iter().try_for_each(UplinkSettings::check)
    }

    /// Returns the settings of a node: its own, and for other keys those of its tenant.
    pub fn over(&self, tenant: &TunnelSettings) -> TunnelSettings {
        TunnelSettings {
            uplinks: self
                .uplinks
                .iter()
                .chain(&tenant.uplinks)
                .cloned()
                .collect(),
            search_every_s: self.search_every_s.or(tenant.search_every_s),
            report_every_s: self.report_every_s.or(tenant.report_every_s),
        }
    }

    /// Returns whether no key is given.
    pub fn is_empty(&self) -> bool {
        *self == TunnelSettings::default()
    }
}

impl UplinkSettings {
    /// The maximum length of `interface`, bytes: that of a name, and a `*`.
    pub const MAX_PATTERN_BYTES: usize = MAX_INTERFACE_BYTES + 1;

    fn check(&self) -> Result<(), String> {
        let interface = &self.interface;
        let name = interface.strip_suffix('*').unwrap_or(interface);
        let is_text = |char: char| !char.is_control() && !char.is_whitespace();
        let is_name = name.len() <= MAX_INTERFACE_BYTES
            && name
                .chars()
                .all(|char| is_text(char) && !"/*".contains(char));
        if interface.is_empty() || !is_name {
            return Err(format!(
                "`uplinks.interface`: {interface:?} is not the name of an interface, up to {MAX_INTERFACE_BYTES} bytes, \
                 or the beginning of names and *, such as \"wwan*\""
            ));
        }
        if !self
            .monthly_cap_mb
            .iter()
            .all(|cap| MONTHLY_CAP_MB.contains(cap))
        {
            return Err("`uplinks.monthly_cap_mb` must be 1 to 1000000000".into());
        }
        if !self.mtu_bytes.iter().all(|mtu| MTU_BYTES.contains(mtu)) {
            return Err("`uplinks.mtu_bytes` must be 1380 to 9000".into());
        }
        Ok(())
    }
}

/// `linux/if.h`: `IFNAMSIZ`, without the final zero.
const MAX_INTERFACE_BYTES: usize = 15;

/// The settings for a tunnel client, made of those of its node and its tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GivenSettings {
    /// The digest of `settings`. It changes when they do.
    pub digest: String,
    settings: TunnelSettings,
    /// The state of the store from which the controller has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub as_of: Option<StoreState>,
}

impl GivenSettings {
    /// The maximum length of a digest, which a client repeats in its reports.
    pub const MAX_DIGEST_BYTES: usize = 64;

    /// The maximum number of elements of `uplinks`: those of a node and of its tenant.
    pub const MAX_UPLINKS: usize = 2 * TunnelSettings::MAX_UPLINKS;

    /// Creates the settings for a client.
    pub fn new(
        digest: String,
        settings: TunnelSettings,
        as_of: Option<StoreState>,
    ) -> GivenSettings {
        GivenSettings {
            digest,
            settings,
            as_of,
        }
    }

    /// Returns whether the settings are the same, whatever the state of the store.
    pub fn is_same(&self, other: &GivenSettings) -> bool {
        (&self.digest, &self.settings) == (&other.digest, &other.settings)
    }

    /// Returns the settings, for a client.
    ///
    /// # Errors
    /// Returns why the client cannot apply them: a value is not valid.
    pub fn checked(&self) -> Result<&TunnelSettings, String> {
        self.settings.check_up_to(Self::MAX_UPLINKS)?;
        Ok(&self.settings)
    }
}

/// A state of the controllers' store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StoreState {
    /// Identifies the store, and its time before and after it was restored from a backup.
    pub incarnation: String,
    /// The revision up to which the controller knows all changes.
    pub revision: u64,
}

impl StoreState {
    /// Returns whether this state may contain changes that `known` does not: it is a later one, or one
    /// of another store.
    pub fn is_news_to(&self, known: &StoreState) -> bool {
        self.incarnation != known.incarnation || self.revision > known.revision
    }
}

/// A tunnel client and the state of its settings, as listed by `GET /v1/tunnel-clients`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TunnelClient {
    /// The node.
    pub node: Name,
    /// The tenant that the node belongs to.
    pub tenant: Name,
    /// The settings for the client: those of the node, followed by those of the tenant.
    pub settings: TunnelSettings,
    /// Whether the client has applied them.
    pub state: SettingsState,
    /// Why the client has refused them, for people; `null` unless it has.
    pub reason: Option<String>,
    /// The interfaces in the settings that no uplink of the client's file is for. Known when the client
    /// has applied the settings.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unmatched: Vec<String>,
    /// When the client last said something else about its settings than before, milliseconds since
    /// 1970; `null` if it has never said anything.
    pub since_unix_ms: Option<u64>,
}

/// Whether a tunnel client has applied its settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum SettingsState {
    /// They are in force.
    Applied,
    /// The client has not reported since they were set.
    Pending,
    /// The client cannot apply them, and keeps those before.
    Refused,
    /// The client's file does not let the controller change settings.
    NotAccepted,
}

impl SettingsState {
    /// Returns the state of the settings with that digest, and the reason if they are refused.
    /// `report` is what the client has sent last.
    pub fn of(digest: &str, report: &ClientReport) -> (SettingsState, Option<String>) {
        if !report.accepts_settings {
            return (SettingsState::NotAccepted, None);
        }
        match &report.refused {
            Some(RefusedSettings { digest: of, reason }) if of == digest => {
                (SettingsState::Refused, Some(reason.clone()))
            }
            _ if report.applied.as_deref() == Some(digest) => (SettingsState::Applied, None),
            _ => (SettingsState::Pending, None),
        }
    }

    /// Returns the name in messages and lists.
    pub const fn name(self) -> &'static str {
        match self {
            SettingsState::Applied => "applied",
            SettingsState::Pending => "pending",
            SettingsState::Refused => "refused",
            SettingsState::NotAccepted => "not accepted",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn settings(uplinks: &[(&str, u8)]) -> TunnelSettings {
        let uplink = |(interface, cost): &(&str, u8)| UplinkSettings {
            interface: (*interface).to_owned(),
            cost: Some(*cost),
            monthly_cap_mb: None,
            mtu_bytes: None,
        };
        TunnelSettings {
            uplinks: uplinks.iter().map(uplink).collect(),
            ..TunnelSettings::default()
        }
    }

    #[test]
    fn interfaces_are_names_or_their_beginnings() {
        for right in ["wwan0", "wwan*", "*", "abcdefghijklmno", "abcdefghijklmno*"] {
            assert_eq!(settings(&[(right, 0)]).check(), Ok(()), "{right}");
        }
        for wrong in ["", "abcdefghijklmnop", "w*an", "**", "a/b", "a b", "a\n"] {
            let error = settings(&[(wrong, 0)]).check().unwrap_err();
            assert!(error.contains("uplinks.interface"), "{error}");
        }
        let many = settings(&[("wwan0", 0); TunnelSettings::MAX_UPLINKS + 1]);
        assert!(many.check().unwrap_err().contains("at most 16"));
    }

    #[test]
    fn values_are_within_their_limits() {
        let of = |settings: Value| serde_json::from_value::<TunnelSettings>(settings).unwrap();
        let uplink =
            |key: &str, value: u64| json!({ "uplinks": [{ "interface": "a", key: value }] });
        for right in [
            json!({ "search_every_s": 0, "report_every_s": 0 }),
            json!({ "search_every_s": 300, "report_every_s": 86_400 }),
            uplink("monthly_cap_mb", 1_000_000_000),
            uplink("mtu_bytes", 1380),
        ] {
            assert_eq!(of(right).check(), Ok(()));
        }
        for (key, wrong) in [
            ("search_every_s", json!({ "search_every_s": 299 })),
            ("search_every_s", json!({ "search_every_s": 86_401 })),
            ("report_every_s", json!({ "report_every_s": 86_401 })),
            ("monthly_cap_mb", uplink("monthly_cap_mb", 0)),
            ("monthly_cap_mb", uplink("monthly_cap_mb", 1_000_000_001)),
            ("mtu_bytes", uplink("mtu_bytes", 1379)),
            ("mtu_bytes", uplink("mtu_bytes", 9001)),
        ] {
            let error = of(wrong).check().unwrap_err();
            assert!(error.contains(key), "{error}");
        }
    }

    #[test]
    fn those_of_a_node_come_before_those_of_its_tenant_key_by_key() {
        let with = |uplinks, search_every_s, report_every_s| TunnelSettings {
            uplinks: settings(uplinks).uplinks,
            search_every_s,
            report_every_s,
        };
        let node = with(&[("wwan0", 2)], Some(0), None);
        let tenant = with(&[("wwan*", 1)], Some(60), Some(10));
        let both = with(&[("wwan0", 2), ("wwan*", 1)], Some(0), Some(10));
        assert_eq!(node.over(&tenant), both);
        assert_eq!(TunnelSettings::default().over(&tenant), tenant);
    }

    #[test]
    fn what_a_client_cannot_apply_it_can_still_report() {
        let given = |settings: Value| -> GivenSettings {
            serde_json::from_value(json!({ "digest": "5e", "settings": settings })).unwrap()
        };
        let right = given(json!({ "uplinks": [{ "interface": "wwan*", "cost": 1 }] }));
        assert_eq!(right.checked(), Ok(&settings(&[("wwan*", 1)])));
        let many = json!({ "interface": "wwan*" });
        for (wrong, reason) in [
            (
                json!({ "uplinks": [{ "interface": "" }] }),
                "uplinks.interface",
            ),
            (json!({ "uplinks": vec![many; 33] }), "at most 32"),
        ] {
            let given = given(wrong);
            assert_eq!(given.digest, "5e");
            let error = given.checked().unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn a_later_state_and_one_of_another_store_are_news() {
        let state = |incarnation: &str, revision| StoreState {
            incarnation: incarnation.to_owned(),
            revision,
        };
        let known = state("a", 7);
        assert!(state("a", 8).is_news_to(&known));
        assert!(state("b", 1).is_news_to(&known));
        assert!(!state("a", 7).is_news_to(&known));
        assert!(!state("a", 6).is_news_to(&known));
    }

    #[test]
    fn the_state_is_that_of_the_settings_with_the_digest() {
        let report = |applied: &str, refused: Option<&str>| ClientReport {
            accepts_settings: true,
            applied: Some(applied.to_owned()),
            refused: refused.map(|digest| RefusedSettings {
                digest: digest.to_owned(),
                reason: "why".to_owned(),
            }),
            unmatched: Vec::new(),
        };
        let of = |report: &ClientReport| SettingsState::of("2", report);
        let refused = (SettingsState::Refused, Some("why".to_owned()));
        assert_eq!(of(&report("1", None)), (SettingsState::Pending, None));
        assert_eq!(of(&report("1", Some("2"))), refused);
        assert_eq!(of(&report("2", Some("1"))), (SettingsState::Applied, None));
        assert_eq!(of(&report("0", Some("1"))), (SettingsState::Pending, None));
        let closed = ClientReport {
            accepts_settings: false,
            ..report("2", None)
        };
        assert_eq!(of(&closed), (SettingsState::NotAccepted, None));
    }
}
