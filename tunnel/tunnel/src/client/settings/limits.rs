//! Which settings of a controller can be applied: valid ones, up to the limits of the client's file.

use super::MEGABYTE;
use crate::config::UplinkRule;
use hawser_io::interface::{name_matches, pattern_beginning, pattern_includes};
use hawser_model::tunnel::{GivenSettings, TunnelSettings, UplinkSettings};

/// Returns settings that can be applied to the uplinks of the file, or why they cannot be.
pub(super) fn applicable<'a>(
    given: &'a GivenSettings,
    rules: &[UplinkRule],
) -> Result<&'a TunnelSettings, String> {
    let settings = given.checked()?;
    check_limit(
        (settings, rules, "monthly_cap_mb"),
        |uplink| uplink.monthly_cap_mb,
        |rule| Some(rule.monthly_cap? / MEGABYTE),
    )?;
    check_limit(
        (settings, rules, "mtu_bytes"),
        |uplink| uplink.mtu_bytes.map(u64::from),
        |rule| rule.mtu.map(u64::from),
    )?;
    Ok(settings)
}

/// Checks that a key, which `value` returns, is nowhere above what `limit` returns for a rule.
fn check_limit(
    (settings, rules, key): (&TunnelSettings, &[UplinkRule], &str),
    value: impl Fn(&UplinkSettings) -> Option<u64>,
    limit: impl Fn(&UplinkRule) -> Option<u64>,
) -> Result<(), String> {
    let mut earlier: Vec<&str> = Vec::new();
    for uplink in &settings.uplinks {
        let Some(value) = value(uplink) else { continue };
        let interface = uplink.interface.as_str();
        // An earlier value takes effect for all of its interfaces.
        let is_shadowed = earlier
            .iter()
            .any(|earlier| pattern_includes(earlier, interface));
        let limit = smallest_limit(interface, rules, &limit);
        if let (false, Some(limit)) = (is_shadowed, limit.filter(|limit| value > *limit)) {
            return Err(format!(
                "{key} of {interface} is above {limit}, the limit in the client's file"
            ));
        }
        earlier.push(interface);
    }
    Ok(())
}

/// Returns the smallest limit of the rules that apply to the interfaces.
fn smallest_limit(
    interface: &str,
    rules: &[UplinkRule],
    limit: impl Fn(&UplinkRule) -> Option<u64>,
) -> Option<u64> {
    let mut applying = rules.iter().filter(|rule| meet(&rule.interface, interface));
    match interface.ends_with('*') {
        true => applying.filter_map(limit).min(),
        false => applying.next().and_then(limit),
    }
}

/// Returns the interfaces in settings that no uplink of the file is for, each once.
pub(super) fn unmatched(settings: &TunnelSettings, rules: &[UplinkRule]) -> Vec<String> {
    let mut unmatched: Vec<String> = Vec::new();
    for UplinkSettings { interface, .. } in &settings.uplinks {
        let is_met = rules.iter().any(|rule| meet(&rule.interface, interface));
        if !is_met && !unmatched.contains(interface) {
            unmatched.push(interface.clone());
        }
    }
    unmatched
}

/// Returns whether both patterns mean some interface.
fn meet(one: &str, other: &str) -> bool {
    name_matches(one, pattern_beginning(other)) || name_matches(other, pattern_beginning(one))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn rule(interface: &str, cap_mb: Option<u64>) -> UplinkRule {
        UplinkRule {
            interface: interface.to_owned(),
            address: None,
            mtu: None,
            cost: 0,
            monthly_cap: cap_mb.map(|cap| cap * MEGABYTE),
        }
    }

    #[test]
    fn limits_are_those_of_the_interfaces_that_a_setting_is_for() {
        let rules = [
            rule("wwan0", None),
            rule("wwan*", Some(1000)),
            rule("eth*", None),
        ];
        let cap =
            |interface: &str, cap: u64| json!({ "interface": interface, "monthly_cap_mb": cap });
        let of = |uplinks: Value| {
            let text = json!({ "digest": "5e", "settings": { "uplinks": uplinks } });
            let given: GivenSettings = serde_json::from_value(text).unwrap();
            applicable(&given, &rules).map(|_| ())
        };
        assert_eq!(of(json!([cap("wwan1", 1000), cap("wwan0", 5000)])), Ok(()));
        assert_eq!(of(json!([cap("wlan*", 5000), cap("eth0", 5000)])), Ok(()));
        // The exception of a node is for all interfaces of its tenant's setting, or for some of them.
        assert_eq!(of(json!([cap("wwan*", 500), cap("wwan*", 5000)])), Ok(()));
        assert_eq!(of(json!([cap("*", 500), cap("wwan1", 5000)])), Ok(()));
        for above in [
            json!([cap("wwan1", 500), cap("wwan*", 5000)]),
            json!([cap("wwan1", 1001)]),
            json!([cap("w*", 5000)]),
            json!([cap("wwan0*", 5000)]),
        ] {
            let error = of(above).unwrap_err();
            assert!(error.contains("above 1000"), "{error}");
        }
    }

    #[test]
    fn interfaces_that_no_uplink_of_the_file_is_for_are_unmatched() {
        let rules = [rule("wwan0", None), rule("eth*", None)];
        let of = |interfaces: &[&str]| {
            let uplink = |interface: &&str| json!({ "interface": interface, "cost": 1 });
            let uplinks: Vec<Value> = interfaces.iter().map(uplink).collect();
            let settings = serde_json::from_value(json!({ "uplinks": uplinks })).unwrap();
            unmatched(&settings, &rules)
        };
        assert!(of(&["wwan0", "wwan*", "eth1", "*"]).is_empty());
        assert_eq!(of(&["lte*", "wwan1", "eth0", "lte*"]), ["lte*", "wwan1"]);
    }

    #[test]
    fn patterns_meet_and_include_each_other() {
        for (one, other, do_meet, includes_other) in [
            ("wwan*", "wwan0", true, true),
            ("wwan0", "wwan*", true, false),
            ("wwan*", "w*", true, false),
            ("wwan0", "wwan0*", true, false),
            ("wwan0*", "wwan0", true, true),
            ("*", "eth0", true, true),
            ("eth0", "eth1", false, false),
            ("eth*", "wwan*", false, false),
        ] {
            assert_eq!(meet(one, other), do_meet, "{one} {other}");
            assert_eq!(meet(other, one), do_meet, "{other} {one}");
            assert_eq!(
                pattern_includes(one, other),
                includes_other,
                "{one} {other}"
            );
        }
    }
}
