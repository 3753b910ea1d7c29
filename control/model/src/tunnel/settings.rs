//! Settings of tunnel clients, which are in the client's file and which operators set at the controller.
//!
//! They say how a client uses the uplinks that its own file names. None of them can open a network to
//! others, write a file, or replace what identifies a client or its controllers.

use super::{ClientReport, RefusedSettings};
use crate::name::Name;
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;

/// Settings of a node as a tunnel client: `PUT /v1/nodes/{node}/tunnel-settings`. For a key that is not
/// given, the client's file applies, which has the same keys in `[tunnel]` and `[[uplink]]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TunnelSettings {
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
    /// The settings of uplinks. For each key, the first element that applies to an uplink and has the
    /// key takes effect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(max_items = 16))]
    pub uplink: Vec<UplinkSettings>,
}

/// Settings of the uplinks of a client whose interfaces have that name. Interfaces that the client's
/// file does not name are not used.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UplinkSettings {
    /// The name of an interface, or the beginning of names and `*`.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 16))]
    pub interface: String,
    /// The cost class; uplinks of higher classes are on standby while those of lower ones suffice.
    /// Default in the file: `0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<u8>,
    /// The megabytes (10^6 bytes) per calendar month in both directions. A controller's count up to those
    /// in the client's file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000_000_000))]
    pub monthly_cap_mb: Option<u64>,
    /// The largest packet of the network behind the uplink, in bytes, if it is smaller than the
    /// interface's: 1280 to 9000. A controller's counts up to that in the client's file, and is at least
    /// 1380: with less, there may be no room for IPv6 inside, which then leaves outside the tunnel.
    /// Default in the file: what the client finds out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1380, maximum = 9000))]
    pub mtu_bytes: Option<u16>,
}

/// The valid values of the settings.
const SEARCH_EVERY_S: RangeInclusive<u32> = 10..=DAY_S;
const DAY_S: u32 = 86_400;
const MONTHLY_CAP_MB: RangeInclusive<u64> = 1..=1_000_000_000;
const MTU_BYTES: RangeInclusive<u16> = 1280..=9000;

/// The smallest values that only a client's file may go below.
const MIN_SEARCH_EVERY_S: u32 = 300;
const MIN_MTU_BYTES: u16 = 1380;

/// `linux/if.h`: `IFNAMSIZ`, without the final zero.
const MAX_INTERFACE_BYTES: usize = 15;

impl TunnelSettings {
    /// The maximum number of elements of `uplink` that an operator sets.
    pub const MAX_UPLINKS: usize = 16;

    /// Checks settings that an operator sets.
    ///
    /// # Errors
    /// Returns which key is wrong, and what would be right.
    pub fn check(&self) -> Result<(), String> {
        self.check_intervals()?;
        let searches = self
            .search_every_s
            .is_none_or(|seconds| seconds == 0 || seconds >= MIN_SEARCH_EVERY_S);
        if !searches {
            return Err(format!(
                "search_every_s must be at least {MIN_SEARCH_EVERY_S}, or 0: only the client's file may say less"
            ));
        }
        if self.uplink.len() > Self::MAX_UPLINKS {
            return Err(format!("uplink has at most {} elements", Self::MAX_UPLINKS));
        }
        for uplink in &self.uplink {
            uplink.check()?;
            if uplink.mtu_bytes.is_some_and(|mtu| mtu < MIN_MTU_BYTES) {
                return Err(format!(
                    "mtu_bytes must be at least {MIN_MTU_BYTES}: only the client's file may say less"
                ));
            }
        }
        Ok(())
    }

    /// Checks the intervals, in a client's file too.
    ///
    /// # Errors
    /// Returns which key is wrong, and what would be right.
    pub fn check_intervals(&self) -> Result<(), String> {
        let is_interval = |seconds: &u32| *seconds == 0 || SEARCH_EVERY_S.contains(seconds);
        if !self.search_every_s.iter().all(is_interval) {
            return Err("search_every_s is 10 to 86400, a day, or 0 for never".into());
        }
        if self.report_every_s.is_some_and(|seconds| seconds > DAY_S) {
            return Err("report_every_s is 0, for none, to 86400, a day".into());
        }
        Ok(())
    }

    /// Returns whether no key is given.
    pub fn is_empty(&self) -> bool {
        *self == TunnelSettings::default()
    }
}

impl UplinkSettings {
    /// Checks the settings of an uplink, in a client's file too.
    ///
    /// # Errors
    /// Returns which key is wrong, and what would be right.
    pub fn check(&self) -> Result<(), String> {
        let interface = &self.interface;
        let name = interface.strip_suffix('*').unwrap_or(interface);
        let is_text = |char: char| !char.is_control() && !char.is_whitespace();
        let is_name = name.len() <= MAX_INTERFACE_BYTES
            && name
                .chars()
                .all(|char| is_text(char) && !"/*".contains(char));
        if interface.is_empty() || !is_name {
            return Err(format!(
                "interface {interface:?} is not the name of an interface, up to {MAX_INTERFACE_BYTES} bytes, or the \
                 beginning of names and *, such as \"wwan*\""
            ));
        }
        let mut cap = self.monthly_cap_mb.iter();
        if !cap.all(|cap| MONTHLY_CAP_MB.contains(cap)) {
            return Err("monthly_cap_mb is 1 to 1000000000".into());
        }
        if !self.mtu_bytes.iter().all(|mtu| MTU_BYTES.contains(mtu)) {
            return Err("mtu_bytes is 1280 to 9000".into());
        }
        Ok(())
    }
}

/// The settings for a tunnel client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GivenSettings {
    /// Identifies the controllers' store, and its time before and after it was restored from a backup.
    pub incarnation: String,
    /// The revision of the store in which the settings were set.
    pub revision: u64,
    /// The settings; without keys if none are set.
    pub settings: TunnelSettings,
}

impl GivenSettings {
    /// Returns whether these settings were set after `known`, or in another store. A controller that is
    /// cut off from its store gives settings that others have replaced.
    pub fn is_later_than(&self, known: &GivenSettings) -> bool {
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
    /// The settings for the client; without keys if none are set.
    pub settings: TunnelSettings,
    /// Whether the client has applied them.
    pub state: SettingsState,
    /// Why the client has refused them, for people; `null` unless it has.
    pub reason: Option<String>,
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
    /// Returns the state of the settings of that revision, and the reason if they are refused.
    /// `report` is what the client has sent last.
    pub fn of(revision: u64, report: &ClientReport) -> (SettingsState, Option<String>) {
        if !report.accepts_settings {
            return (SettingsState::NotAccepted, None);
        }
        match &report.refused {
            Some(refused) if refused.revision == revision => {
                let RefusedSettings { reason, .. } = refused;
                (SettingsState::Refused, Some(reason.clone()))
            }
            _ if report.applied == Some(revision) => (SettingsState::Applied, None),
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

    fn of(settings: Value) -> TunnelSettings {
        serde_json::from_value(settings).unwrap()
    }

    #[test]
    fn interfaces_are_names_or_their_beginnings() {
        let with = |interface: &str| of(json!({ "uplink": [{ "interface": interface }] }));
        for right in ["wwan0", "wwan*", "*", "abcdefghijklmno", "abcdefghijklmno*"] {
            assert_eq!(with(right).check(), Ok(()), "{right}");
        }
        for wrong in ["", "abcdefghijklmnop", "w*an", "**", "a/b", "a b", "a\n"] {
            let error = with(wrong).check().unwrap_err();
            assert!(error.contains("not the name of an interface"), "{error}");
        }
        let many = vec![json!({ "interface": "wwan0" }); TunnelSettings::MAX_UPLINKS + 1];
        let error = of(json!({ "uplink": many })).check().unwrap_err();
        assert!(error.contains("at most 16"), "{error}");
    }

    #[test]
    fn values_are_within_their_limits() {
        let uplink =
            |key: &str, value: u64| json!({ "uplink": [{ "interface": "a", key: value }] });
        for right in [
            json!({ "search_every_s": 0, "report_every_s": 0 }),
            json!({ "search_every_s": 300, "report_every_s": 86_400 }),
            uplink("monthly_cap_mb", 1_000_000_000),
            uplink("mtu_bytes", 1380),
        ] {
            assert_eq!(of(right).check(), Ok(()));
        }
        for (key, wrong) in [
            ("search_every_s", json!({ "search_every_s": 9 })),
            ("search_every_s", json!({ "search_every_s": 299 })),
            ("search_every_s", json!({ "search_every_s": 86_401 })),
            ("report_every_s", json!({ "report_every_s": 86_401 })),
            ("monthly_cap_mb", uplink("monthly_cap_mb", 0)),
            ("monthly_cap_mb", uplink("monthly_cap_mb", 1_000_000_001)),
            ("mtu_bytes", uplink("mtu_bytes", 1279)),
            ("mtu_bytes", uplink("mtu_bytes", 1379)),
            ("mtu_bytes", uplink("mtu_bytes", 9001)),
        ] {
            let error = of(wrong).check().unwrap_err();
            assert!(error.contains(key), "{error}");
        }
    }

    #[test]
    fn a_file_may_search_more_often_and_have_smaller_packets() {
        let file = of(
            json!({ "search_every_s": 10, "uplink": [{ "interface": "a", "mtu_bytes": 1280 }] }),
        );
        assert_eq!(file.check_intervals(), Ok(()));
        assert_eq!(file.uplink[0].check(), Ok(()));
    }

    #[test]
    fn later_settings_are_of_a_higher_revision_or_another_store() {
        let given = |incarnation: &str, revision| GivenSettings {
            incarnation: incarnation.to_owned(),
            revision,
            settings: TunnelSettings::default(),
        };
        let known = given("a", 7);
        assert!(given("a", 8).is_later_than(&known));
        assert!(given("b", 1).is_later_than(&known));
        assert!(!given("a", 7).is_later_than(&known));
        assert!(!given("a", 6).is_later_than(&known));
    }

    #[test]
    fn the_state_is_that_of_the_settings_of_the_revision() {
        let report = |applied: u64, refused: Option<u64>| ClientReport {
            accepts_settings: true,
            applied: Some(applied),
            refused: refused.map(|revision| RefusedSettings {
                revision,
                reason: "why".to_owned(),
            }),
        };
        let of = |report: &ClientReport| SettingsState::of(2, report);
        let refused = (SettingsState::Refused, Some("why".to_owned()));
        assert_eq!(of(&report(1, None)), (SettingsState::Pending, None));
        assert_eq!(of(&report(1, Some(2))), refused);
        assert_eq!(of(&report(2, Some(1))), (SettingsState::Applied, None));
        assert_eq!(of(&report(0, Some(1))), (SettingsState::Pending, None));
        let closed = ClientReport {
            accepts_settings: false,
            ..report(2, None)
        };
        assert_eq!(of(&closed), (SettingsState::NotAccepted, None));
    }
}
