//! The settings that a controller gives this client: checked, stored for the next process, and laid over
//! those of the file.

use crate::config::{ClientConfig, UplinkRule};
use hawser_io::interface::{name_matches, patterns_meet};
use hawser_io::json_file::JsonFile;
use hawser_model::tunnel::{
    ClientReport, GivenSettings, RefusedSettings, TunnelSettings, UplinkSettings,
};
use hawser_units::Line;
use hawser_uplinks::Uplink;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tracing::{info, warn};

/// The bytes of a megabyte, the unit of caps.
const MEGABYTE: u64 = 1_000_000;

/// The settings that the controller has given.
#[derive(Debug, Clone, Default)]
struct Given {
    /// Those in force; none if only the file's apply.
    applied: Option<GivenSettings>,
    /// Later ones that cannot be applied, and the reason.
    refused: Option<(GivenSettings, String)>,
}

impl Given {
    /// Returns the settings that were given last.
    fn newest(&self) -> Option<&GivenSettings> {
        let refused = self.refused.as_ref().map(|(settings, _)| settings);
        refused.or(self.applied.as_ref())
    }
}

/// Takes settings from the controller.
pub(crate) struct Inbox {
    /// Whether the file lets the controller change settings.
    accepts: bool,
    /// The uplinks of the file, with the limits of what the controller may set.
    rules: Vec<UplinkRule>,
    /// The settings given last, for the next process.
    file: JsonFile,
    given: watch::Sender<Given>,
}

/// The settings of the controller, for the client to apply.
pub(crate) struct Pushed {
    given: watch::Receiver<Given>,
    current: TunnelSettings,
}

/// Returns both ends of a channel for settings, which begins with those that an earlier process stored.
pub(crate) fn channel(config: &ClientConfig) -> (Inbox, Pushed) {
    let file = JsonFile::at(config.settings_file.clone(), 0o600).durable();
    let given = watch::Sender::new(Given {
        applied: match config.accepts_settings {
            true => stored(&file, &config.uplinks),
            false => None,
        },
        refused: None,
    });
    let mut pushed = Pushed {
        given: given.subscribe(),
        current: TunnelSettings::default(),
    };
    pushed.take();
    let inbox = Inbox {
        accepts: config.accepts_settings,
        rules: config.uplinks.clone(),
        file,
        given,
    };
    (inbox, pushed)
}

/// Returns the stored settings, unless they cannot be applied any more.
fn stored(file: &JsonFile, rules: &[UplinkRule]) -> Option<GivenSettings> {
    let read = || -> anyhow::Result<_> {
        let Some(given) = file.read::<GivenSettings>()? else {
            return Ok(None);
        };
        check(&given.settings, rules).map_err(anyhow::Error::msg)?;
        Ok(Some(given))
    };
    read().unwrap_or_else(|error| {
        warn!(
            "the stored settings of the controller are not used until it gives others: {error:#}"
        );
        None
    })
}

/// Checks that settings are valid, that the file has an uplink for each interface in them, and that no
/// value is above the file's.
fn check(settings: &TunnelSettings, rules: &[UplinkRule]) -> Result<(), String> {
    settings.check()?;
    for set in &settings.uplink {
        let interface = &set.interface;
        let rules = rules.iter().map(|rule| &rule.settings);
        let concerned = rules.filter(|rule| patterns_meet(&rule.interface, interface));
        // The first rule of an interface applies to it; a pattern may mean several interfaces.
        let most = if interface.ends_with('*') {
            usize::MAX
        } else {
            1
        };
        let concerned: Vec<_> = concerned.take(most).collect();
        if concerned.is_empty() {
            return Err(format!(
                "no [[uplink]] of the client's file is for {interface}"
            ));
        }
        for rule in concerned {
            check_limit(
                "monthly_cap_mb",
                interface,
                set.monthly_cap_mb,
                rule.monthly_cap_mb,
            )?;
            check_limit("mtu_bytes", interface, set.mtu_bytes, rule.mtu_bytes)?;
        }
    }
    Ok(())
}

fn check_limit<T: PartialOrd + std::fmt::Display>(
    key: &str,
    interface: &str,
    value: Option<T>,
    limit: Option<T>,
) -> Result<(), String> {
    match value.zip(limit) {
        Some((value, limit)) if value > limit => Err(format!(
            "{key} of {interface} is above {limit}, the limit in the client's file"
        )),
        _ => Ok(()),
    }
}

/// Gives an uplink the settings.
pub(super) fn apply(settings: &UplinkSettings, uplink: &mut Uplink) {
    let cap = settings.monthly_cap_mb;
    uplink.cost = settings.cost.unwrap_or(uplink.cost);
    uplink.monthly_cap = cap
        .map(|megabytes| megabytes.saturating_mul(MEGABYTE))
        .or(uplink.monthly_cap);
    uplink.mtu = settings.mtu_bytes.unwrap_or(u16::MAX).min(uplink.mtu);
}

impl Inbox {
    /// Takes the settings that the controller has answered with, if there are any. Those that were given
    /// already, or that others have replaced, change nothing. Those that cannot be applied leave the ones
    /// before in force.
    pub(crate) async fn handle(&self, settings: Option<GivenSettings>) {
        let Some(settings) = settings.filter(|_| self.accepts) else {
            return;
        };
        let newest = self.given.borrow().newest().cloned();
        if newest.is_some_and(|newest| !settings.is_later_than(&newest)) {
            return;
        }
        if let Err(reason) = check(&settings.settings, &self.rules) {
            let reason = Line::within(&reason, RefusedSettings::MAX_REASON_BYTES).into_string();
            warn!(
                "the settings of the controller cannot be applied, the ones before stay in force: {reason}"
            );
            let refused = Some((settings, reason));
            return self.given.send_modify(|given| given.refused = refused);
        }
        // First: they do not wait for a slow disk.
        self.given.send_replace(Given {
            applied: Some(settings.clone()),
            refused: None,
        });
        let file = self.file.clone();
        let stored = spawn_blocking(move || file.write(&settings)).await;
        if let Ok(Err(error)) = stored {
            warn!("the settings of the controller will be missing after a restart: {error}");
        }
    }

    /// Returns what the controller is to know about the settings.
    pub(crate) fn report(&self) -> ClientReport {
        let Given { applied, refused } = self.given.borrow().clone();
        ClientReport {
            accepts_settings: self.accepts,
            applied: applied.map(|settings| settings.revision),
            refused: refused.map(|(settings, reason)| RefusedSettings {
                revision: settings.revision,
                reason,
            }),
        }
    }
}

impl Pushed {
    /// Waits for other settings, or for the refusal of some.
    pub(crate) async fn changed(&mut self) {
        if self.given.changed().await.is_err() {
            std::future::pending().await
        }
    }

    /// Takes over the settings given last; returns whether they differ from those in force.
    pub(crate) fn take(&mut self) -> bool {
        let applied = self.given.borrow_and_update().applied.clone();
        let settings = applied.map_or_else(TunnelSettings::default, |given| given.settings);
        let has_changed = std::mem::replace(&mut self.current, settings) != self.current;
        if has_changed {
            info!(settings = ?self.current, "settings of the controller in force");
        }
        has_changed
    }

    /// Returns uplinks with the settings in force.
    pub(crate) fn over(&self, mut uplinks: Vec<Uplink>) -> Vec<Uplink> {
        for uplink in &mut uplinks {
            let of_uplink = self.current.uplink.iter();
            let of_uplink = of_uplink
                .filter(|settings| name_matches(&settings.interface, &uplink.interface))
                .cloned()
                .reduce(|first, later| UplinkSettings {
                    interface: first.interface,
                    cost: first.cost.or(later.cost),
                    monthly_cap_mb: first.monthly_cap_mb.or(later.monthly_cap_mb),
                    mtu_bytes: first.mtu_bytes.or(later.mtu_bytes),
                });
            if let Some(settings) = of_uplink {
                apply(&settings, uplink);
            }
        }
        uplinks
    }

    /// Returns the interval at which a nearer server is searched, none for never; none if it is not
    /// given.
    pub(crate) fn search_every(&self) -> Option<Option<Duration>> {
        let seconds = self.current.search_every_s?;
        Some((seconds > 0).then(|| Duration::from_secs(seconds.into())))
    }

    /// Returns the interval of reports in the log, zero for none; none if it is not given.
    pub(crate) fn report_every(&self) -> Option<Duration> {
        Some(Duration::from_secs(self.current.report_every_s?.into()))
    }

    /// Returns the state of the controller's settings for the status; none if it has given none.
    pub(crate) fn shown(&self) -> Option<String> {
        let given = self.given.borrow();
        match (&given.refused, &given.applied) {
            (Some((_, reason)), _) => Some(format!("refused: {reason}")),
            (None, Some(_)) => Some("applied".to_owned()),
            (None, None) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::fs;

    fn config(folder: &std::path::Path, settings: bool) -> ClientConfig {
        let text = format!(
            "[tunnel]\nname = \"car\"\nstate = \"state\"\n[tls]\nnode = \"car.node\"\n\
             [controller]\nurls = [\"https://a:1\"]\nsettings = {settings}\n\
             [[uplink]]\ninterface = \"wwan0\"\n[[uplink]]\ninterface = \"wwan*\"\nmonthly_cap_mb = 1000\n\
             [[uplink]]\ninterface = \"eth*\"\nmtu_bytes = 1492\ncost = 2\n"
        );
        let file = folder.join("car.toml");
        fs::write(&file, text).unwrap();
        ClientConfig::read(&file).unwrap()
    }

    fn given(revision: u64, settings: Value) -> GivenSettings {
        let text = json!({ "incarnation": "a", "revision": revision, "settings": settings });
        serde_json::from_value(text).unwrap()
    }

    fn cost(revision: u64, cost: u8) -> GivenSettings {
        let uplink = json!({ "interface": "eth*", "cost": cost });
        given(revision, json!({ "uplink": [uplink] }))
    }

    fn uplink(interface: &str) -> Uplink {
        Uplink {
            interface: interface.to_owned(),
            ipv4: None,
            ipv6: Vec::new(),
            others: Vec::new(),
            mtu: 1492,
            cost: 2,
            monthly_cap: None,
        }
    }

    #[tokio::test]
    async fn settings_are_laid_over_those_of_the_file_key_by_key() {
        let folder = tempfile::tempdir().unwrap();
        let (inbox, mut pushed) = channel(&config(folder.path(), true));
        assert_eq!(pushed.over(vec![uplink("eth0")]), [uplink("eth0")]);
        assert_eq!((pushed.search_every(), pushed.report_every()), (None, None));
        let settings = json!({ "search_every_s": 0, "report_every_s": 5, "uplink": [
            { "interface": "eth0", "cost": 0 },
            { "interface": "eth*", "cost": 1, "mtu_bytes": 1400 },
            { "interface": "*", "monthly_cap_mb": 7 },
        ] });
        inbox.handle(Some(given(1, settings))).await;
        assert!(pushed.take() && !pushed.take());
        assert_eq!(inbox.report().applied, Some(1));
        let with = |interface: &str, cost, mtu| Uplink {
            cost,
            mtu,
            monthly_cap: Some(7_000_000),
            ..uplink(interface)
        };
        let uplinks = ["eth0", "eth1", "wlan0"].map(uplink).to_vec();
        assert_eq!(
            pushed.over(uplinks),
            [
                with("eth0", 0, 1400),
                with("eth1", 1, 1400),
                with("wlan0", 2, 1492)
            ]
        );
        assert_eq!(pushed.search_every(), Some(None));
        assert_eq!(pushed.report_every(), Some(Duration::from_secs(5)));
        // With empty settings, the file applies again; an answer without settings changes nothing.
        inbox.handle(None).await;
        assert!(!pushed.take());
        inbox.handle(Some(given(2, json!({})))).await;
        assert!(pushed.take());
        assert_eq!(pushed.over(vec![uplink("eth0")]), [uplink("eth0")]);
    }

    #[test]
    fn the_limits_of_an_interface_are_those_of_its_first_uplink() {
        let folder = tempfile::tempdir().unwrap();
        let ClientConfig { uplinks, .. } = config(folder.path(), true);
        for (interface, cap, expected) in [
            ("wwan0", 5000, true),
            ("wwan1", 1001, false),
            ("wwan1", 1000, true),
            ("wwan*", 1001, false),
            ("w*", 1000, true),
        ] {
            let set = json!({ "uplink": [{ "interface": interface, "monthly_cap_mb": cap }] });
            let settings: TunnelSettings = serde_json::from_value(set).unwrap();
            let outcome = check(&settings, &uplinks);
            assert_eq!(outcome.is_ok(), expected, "{interface}: {outcome:?}");
        }
    }

    #[tokio::test]
    async fn settings_that_cannot_be_applied_are_refused_as_a_whole() {
        let folder = tempfile::tempdir().unwrap();
        let (inbox, mut pushed) = channel(&config(folder.path(), true));
        inbox.handle(Some(cost(1, 1))).await;
        pushed.take();
        let with = |interface: &str, key: &str, value: u64| json!({ "uplink": [{ "interface": interface, key: value }] });
        for (revision, (wrong, word)) in (2..).zip([
            (
                with("wwan1", "monthly_cap_mb", 1001),
                "monthly_cap_mb of wwan1 is above 1000",
            ),
            (with("*", "monthly_cap_mb", 1001), "monthly_cap_mb of *"),
            (with("w*", "monthly_cap_mb", 1001), "monthly_cap_mb of w*"),
            (with("eth*", "mtu_bytes", 1500), "mtu_bytes of eth*"),
            (with("wwan*", "mtu_bytes", 100), "mtu_bytes is"),
            (with("lte*", "cost", 1), "no [[uplink]]"),
            (with("\u{1b}[2K", "cost", 1), r#"interface "\u{1b}[2K""#),
        ]) {
            inbox.handle(Some(given(revision, wrong))).await;
            assert!(!pushed.take());
            let report = inbox.report();
            assert_eq!(report.applied, Some(1));
            let refused = report.refused.unwrap();
            assert_eq!(refused.revision, revision);
            assert!(refused.reason.contains(word), "{}", refused.reason);
            assert!(pushed.shown().unwrap().contains(word));
        }
        assert_eq!(pushed.over(vec![uplink("eth0")])[0].cost, 1);
        let up_to_the_limit = with("wwan*", "monthly_cap_mb", 1000);
        inbox.handle(Some(given(20, up_to_the_limit))).await;
        assert_eq!(inbox.report().refused, None);
        assert_eq!(pushed.shown().unwrap(), "applied");
    }

    #[tokio::test]
    async fn replaced_settings_of_a_stale_controller_are_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path(), true);
        let cost_of = |pushed: &mut Pushed| {
            pushed.take();
            pushed.over(vec![uplink("eth0")])[0].cost
        };
        let (inbox, mut pushed) = channel(&config);
        inbox.handle(Some(cost(7, 3))).await;
        inbox.handle(Some(cost(5, 1))).await;
        assert_eq!(cost_of(&mut pushed), 3);
        assert_eq!(inbox.report().applied, Some(7));

        // So it is after a restart.
        let (inbox, mut pushed) = channel(&config);
        inbox.handle(Some(cost(6, 1))).await;
        assert_eq!(cost_of(&mut pushed), 3);

        // The refused settings have replaced those in force, too.
        let above = json!({ "uplink": [{ "interface": "eth*", "mtu_bytes": 9000 }] });
        inbox.handle(Some(given(10, above))).await;
        inbox.handle(Some(cost(8, 1))).await;
        assert_eq!(inbox.report().refused.unwrap().revision, 10);

        // A restored store has another incarnation.
        let mut restored = cost(2, 1);
        restored.incarnation = "b".to_owned();
        inbox.handle(Some(restored)).await;
        assert_eq!(cost_of(&mut pushed), 1);
    }

    #[tokio::test]
    async fn settings_outlive_the_process_while_the_file_accepts_them() {
        let folder = tempfile::tempdir().unwrap();
        let accepting = config(folder.path(), true);
        let (inbox, _) = channel(&accepting);
        inbox.handle(Some(cost(1, 1))).await;
        let wrong = json!({ "uplink": [{ "interface": "", "cost": 9 }] });
        inbox.handle(Some(given(2, wrong))).await;
        let (inbox, pushed) = channel(&accepting);
        assert_eq!(pushed.over(vec![uplink("eth0")])[0].cost, 1);
        assert_eq!(inbox.report().applied, Some(1));

        let refusing = ClientConfig {
            accepts_settings: false,
            ..accepting.clone()
        };
        let (inbox, mut pushed) = channel(&refusing);
        inbox.handle(Some(cost(3, 1))).await;
        assert!(!pushed.take());
        assert_eq!(pushed.over(vec![uplink("eth0")])[0].cost, 2);
        assert_eq!(
            (inbox.report().accepts_settings, inbox.report().applied),
            (false, None)
        );
        assert_eq!(pushed.shown(), None);
        for damaged in [
            "{",
            "{\"incarnation\":\"a\",\"revision\":1,\"settings\":{\"uplink\":[{\"interface\":\"\"}]}}",
        ] {
            fs::write(&accepting.settings_file, damaged).unwrap();
            let (_, pushed) = channel(&accepting);
            assert_eq!(pushed.over(vec![uplink("eth0")]), [uplink("eth0")]);
        }
    }
}
