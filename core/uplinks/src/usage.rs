//! The bytes that uplinks have carried this month.

use super::Uplink;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The bytes that each uplink has carried in a calendar month, in both directions.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Usage {
    /// The calendar month (UTC), as in `2026-11`.
    month: String,
    bytes: BTreeMap<String, u64>,
}

impl Usage {
    /// Returns the bytes that the uplink has carried this month.
    pub fn of(&self, interface: &str) -> u64 {
        self.bytes.get(interface).copied().unwrap_or(0)
    }

    /// Returns whether the uplink has carried as much as it may in a month.
    pub fn is_used_up(&self, uplink: &Uplink) -> bool {
        uplink
            .monthly_cap
            .is_some_and(|cap| self.of(&uplink.interface) >= cap)
    }

    /// Restarts counting if `month` is later than the one that is counted. A clock that is behind,
    /// for example before it is synchronized, does not reset the usage.
    pub(crate) fn begin_month(&mut self, month: &str) {
        if self.month.as_str() < month {
            *self = Usage {
                month: month.to_owned(),
                bytes: BTreeMap::new(),
            };
        }
    }

    pub(crate) fn add(&mut self, interface: &str, bytes: u64) {
        let used = self.bytes.entry(interface.to_owned()).or_default();
        *used = used.saturating_add(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_month_starts_from_zero_and_a_clock_that_is_behind_resets_nothing() {
        let mut usage = Usage::default();
        usage.begin_month("2026-12");
        usage.add("wwan0", 5_000_000_000);
        for month in ["2026-12", "1970-01", "2026-10", "2026-12"] {
            usage.begin_month(month);
            assert_eq!(usage.of("wwan0"), 5_000_000_000, "{month}");
        }
        usage.begin_month("2027-01");
        assert_eq!((usage.of("wwan0"), usage.month.as_str()), (0, "2027-01"));
    }

    #[test]
    fn usage_does_not_overflow() {
        let text = r#"{"month":"2026-11","bytes":{"wwan0":18446744073709551614}}"#;
        let mut usage: Usage = serde_json::from_str(text).unwrap();
        usage.add("wwan0", 1500);
        assert_eq!(usage.of("wwan0"), u64::MAX);
    }

    #[test]
    fn the_stored_form_has_the_month_and_the_bytes_of_each_uplink() {
        let mut usage = Usage::default();
        usage.begin_month("2026-11");
        usage.add("wwan0", 7);
        let text = r#"{"month":"2026-11","bytes":{"wwan0":7}}"#;
        assert_eq!(serde_json::to_string(&usage).unwrap(), text);
        assert_eq!(serde_json::from_str::<Usage>(text).unwrap(), usage);
    }
}
