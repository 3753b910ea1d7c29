//! The settings that a controller gives this client: checked, stored for the next process, and laid over
//! those of the file.

mod limits;

use crate::config::{ClientConfig, UplinkRule};
use hawser_io::interface::name_matches;
use hawser_io::json_file::JsonFile;
use hawser_model::tunnel::{
    ClientReport, GivenSettings, RefusedSettings, StoreState, TunnelSettings, UplinkSettings,
};
use hawser_units::Line;
use hawser_uplinks::Uplink;
use limits::{applicable, unmatched};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tracing::{info, warn};

/// The bytes of a megabyte, the unit of caps.
const MEGABYTE: u64 = 1_000_000;

/// The settings that the controller has given.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Given {
    /// Those that can be applied; none if only the file's apply.
    settings: Option<GivenSettings>,
    /// Later ones that cannot be.
    refused: Option<RefusedSettings>,
    /// Those given last, whether they can be applied or not.
    newest: Option<Newest>,
    /// The number of answers with settings of an earlier state of the store.
    outdated: u64,
    /// Whether the last answer was such a one.
    is_outdated: bool,
}

/// Identifies settings, and the latest state of the store that a controller has named.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Newest {
    digest: String,
    as_of: Option<StoreState>,
}

impl Newest {
    fn of(settings: &GivenSettings) -> Newest {
        Newest {
            digest: settings.digest.clone(),
            as_of: settings.as_of.clone(),
        }
    }

    /// Returns whether settings may be of a later state of the store; `None` if one of the states is not
    /// known.
    fn is_followed_by(&self, settings: &GivenSettings) -> Option<bool> {
        let (new, known) = settings.as_of.as_ref().zip(self.as_of.as_ref())?;
        Some(new.is_news_to(known))
    }

    /// Returns whether other settings are of a state of the store before these, or of the same one.
    fn outdates(&self, settings: &GivenSettings) -> bool {
        settings.digest != self.digest && self.is_followed_by(settings) == Some(false)
    }

    /// Returns later settings. The state of the store stays if they are the same as before from a
    /// controller that is behind, or from one that names none.
    fn followed_by(self, settings: &GivenSettings) -> Newest {
        let is_behind = self.is_followed_by(settings) == Some(false);
        let new = settings.as_of.clone().filter(|_| !is_behind);
        Newest {
            digest: settings.digest.clone(),
            as_of: new.or(self.as_of),
        }
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
    in_force: watch::Receiver<InForce>,
}

/// The settings in force, for reports.
#[derive(Debug, Clone, Default)]
struct InForce {
    /// None if only the file's apply.
    digest: Option<String>,
    /// The interfaces in them that no uplink of the file is for.
    unmatched: Vec<String>,
}

/// The settings of the controller, for the client to apply.
pub(crate) struct Pushed {
    given: watch::Receiver<Given>,
    current: TunnelSettings,
    /// The uplinks of the file.
    rules: Vec<UplinkRule>,
    in_force: watch::Sender<InForce>,
}

/// Returns both ends of a channel for settings, which begins with those that an earlier process stored.
pub(crate) fn channel(config: &ClientConfig) -> (Inbox, Pushed) {
    let file = JsonFile::at(config.settings_file.clone(), 0o600).durable();
    let stored = config
        .accepts_settings
        .then(|| stored(&file, &config.uplinks))
        .flatten();
    let given = watch::Sender::new(Given {
        newest: stored.as_ref().map(Newest::of),
        settings: stored,
        ..Given::default()
    });
    let in_force = watch::Sender::new(InForce::default());
    let mut pushed = Pushed {
        given: given.subscribe(),
        current: TunnelSettings::default(),
        rules: config.uplinks.clone(),
        in_force: in_force.clone(),
    };
    pushed.take();
    let inbox = Inbox {
        accepts: config.accepts_settings,
        rules: config.uplinks.clone(),
        file,
        given,
        in_force: in_force.subscribe(),
    };
    (inbox, pushed)
}

/// Returns the stored settings, unless they cannot be applied any more.
fn stored(file: &JsonFile, rules: &[UplinkRule]) -> Option<GivenSettings> {
    let read = || -> anyhow::Result<_> {
        let Some(settings) = file.read::<GivenSettings>()? else {
            return Ok(None);
        };
        anyhow::ensure!(can_be_reported(&settings), "their digest is too long");
        applicable(&settings, rules).map_err(anyhow::Error::msg)?;
        Ok(Some(settings))
    };
    read().unwrap_or_else(|error| {
        warn!(
            "the stored settings of the controller are not used until it gives others: {error:#}"
        );
        None
    })
}

/// Returns whether a controller accepts the report on these settings. It would refuse the whole request
/// otherwise, also the one for servers.
fn can_be_reported(settings: &GivenSettings) -> bool {
    settings.digest.len() <= GivenSettings::MAX_DIGEST_BYTES
}

impl Inbox {
    /// Takes the settings that the controller has answered with, if there are any. Settings that cannot be applied, or are older than those given last, leave the ones before in
    /// force.
    pub(crate) async fn handle(&self, settings: Option<GivenSettings>) {
        let Some(mut settings) = settings.filter(|_| self.accepts) else {
            return;
        };
        if !can_be_reported(&settings) {
            return warn!("the settings of the controller are ignored: their digest is too long");
        }
        let Some(newest) = self.note(&settings) else {
            return;
        };
        settings.as_of = newest.as_of;
        let known = self.given.borrow().settings.clone();
        let refused = match applicable(&settings, &self.rules) {
            Ok(_) if known.is_some_and(|known| known.is_same(&settings)) => None,
            Ok(_) => {
                // First: they do not wait for a slow disk.
                self.given.send_modify(|given| {
                    given.settings = Some(settings.clone());
                    given.refused = None;
                });
                return self.store(settings).await;
            }
            Err(reason) => Some(RefusedSettings {
                digest: settings.digest,
                reason: Line::within(&reason, RefusedSettings::MAX_REASON_BYTES).into_string(),
            }),
        };
        self.given.send_if_modified(|given| {
            let is_new = given.refused != refused;
            if let (true, Some(RefusedSettings { reason, .. })) = (is_new, &refused) {
                warn!("the settings of the controller cannot be applied, the ones before stay in force: {reason}");
            }
            given.refused = refused;
            is_new
        });
    }

    /// Remembers settings as those given last, and returns what is known of them; none if they are
    /// outdated, which is counted. Without this, a client that asks a controller that is cut off from
    /// the store would go back to settings that were replaced.
    fn note(&self, settings: &GivenSettings) -> Option<Newest> {
        let mut noted = None;
        self.given.send_if_modified(|given| {
            let known = given.newest.take();
            let was_outdated = given.is_outdated;
            given.is_outdated = known.as_ref().is_some_and(|known| known.outdates(settings));
            if given.is_outdated {
                given.outdated += 1;
                given.newest = known;
                if !was_outdated {
                    warn!(
                        "the controller has given settings that others have replaced, which stay in force: is it cut off from \
                         its store?"
                    );
                }
            } else {
                noted = Some(match known {
                    Some(known) => known.followed_by(settings),
                    None => Newest::of(settings),
                });
                given.newest.clone_from(&noted);
            }
            // Nothing in force has changed.
            false
        });
        noted
    }

    async fn store(&self, settings: GivenSettings) {
        let file = self.file.clone();
        let stored = spawn_blocking(move || file.write(&settings)).await;
        if let Ok(Err(error)) = stored {
            warn!("the settings of the controller will be missing after a restart: {error}");
        }
    }

    /// Returns what the controller is to know about the settings.
    pub(crate) fn report(&self) -> ClientReport {
        let InForce { digest, unmatched } = self.in_force.borrow().clone();
        ClientReport {
            accepts_settings: self.accepts,
            applied: digest,
            refused: self.given.borrow().refused.clone(),
            unmatched,
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
        let given = self.given.borrow_and_update().settings.clone();
        let (digest, settings) = match &given {
            // The inbox has checked them.
            Some(given) => (
                Some(given.digest.clone()),
                given.checked().cloned().unwrap_or_default(),
            ),
            None => (None, TunnelSettings::default()),
        };
        let has_changed = std::mem::replace(&mut self.current, settings) != self.current;
        let unmatched = unmatched(&self.current, &self.rules);
        if has_changed {
            info!(settings = ?self.current, "settings of the controller in force");
            if !unmatched.is_empty() {
                warn!(
                    interfaces = unmatched.join(", "),
                    "settings of the controller have no effect: no [[uplink]] of the file is for these interfaces"
                );
            }
        }
        self.in_force.send_replace(InForce { digest, unmatched });
        has_changed
    }

    /// Returns uplinks with the settings in force.
    pub(crate) fn over(&self, mut uplinks: Vec<Uplink>) -> Vec<Uplink> {
        for uplink in &mut uplinks {
            let interface = &uplink.interface;
            let cost = self.of_uplink(interface, |settings| settings.cost);
            let cap = self.of_uplink(interface, |settings| settings.monthly_cap_mb);
            let mtu = self.of_uplink(interface, |settings| settings.mtu_bytes);
            uplink.cost = cost.unwrap_or(uplink.cost);
            uplink.monthly_cap = cap
                .map(|cap| cap.saturating_mul(MEGABYTE))
                .or(uplink.monthly_cap);
            uplink.mtu = mtu.map_or(uplink.mtu, |mtu| mtu.min(uplink.mtu));
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

    /// Returns the value of a key for an interface, if it is given.
    fn of_uplink<T>(
        &self,
        interface: &str,
        key: impl Fn(&UplinkSettings) -> Option<T>,
    ) -> Option<T> {
        let uplinks = self.current.uplinks.iter();
        uplinks
            .filter(|settings| name_matches(&settings.interface, interface))
            .find_map(key)
    }

    /// Returns the state of the controller's settings for the status.
    pub(crate) fn shown(&self) -> Shown {
        let given = self.given.borrow();
        let unmatched = &self.in_force.borrow().unmatched;
        let state = match (&given.refused, &given.settings) {
            (Some(RefusedSettings { reason, .. }), _) => Some(format!("refused: {reason}")),
            (None, Some(_)) if unmatched.is_empty() => Some("applied".to_owned()),
            (None, Some(_)) => Some(format!(
                "applied; no uplink of the file is for {}",
                unmatched.join(", ")
            )),
            (None, None) => None,
        };
        let behind = match given.is_outdated {
            true => "; the last answer, of a controller that is behind its store, is ignored",
            false => "",
        };
        Shown {
            state: state.map(|state| state + behind),
            outdated: given.outdated,
        }
    }
}

/// The state of the controller's settings, as the status shows it.
pub(crate) struct Shown {
    /// None if the controller has given none.
    pub(crate) state: Option<String>,
    /// The number of answers with settings of an earlier state of the store.
    pub(crate) outdated: u64,
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

    fn given(digest: &str, settings: Value) -> GivenSettings {
        let text = json!({ "digest": digest, "settings": settings });
        serde_json::from_value(text).unwrap()
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
        let settings = json!({ "search_every_s": 0, "report_every_s": 5, "uplinks": [
            { "interface": "eth0", "cost": 0 },
            { "interface": "eth*", "cost": 1, "mtu_bytes": 1400 },
            { "interface": "*", "monthly_cap_mb": 7 },
        ] });
        inbox.handle(Some(given("a", settings))).await;
        assert_eq!(
            inbox.report().applied,
            None,
            "the client has not taken them"
        );
        assert!(pushed.take() && !pushed.take());
        assert_eq!(inbox.report().applied.as_deref(), Some("a"));
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
        inbox.handle(Some(given("b", json!({})))).await;
        assert!(pushed.take());
        assert_eq!(pushed.over(vec![uplink("eth0")]), [uplink("eth0")]);
    }

    #[tokio::test]
    async fn interfaces_without_an_uplink_are_reported_with_the_settings_in_force() {
        let folder = tempfile::tempdir().unwrap();
        let (inbox, mut pushed) = channel(&config(folder.path(), true));
        let of = |interfaces: [&str; 2]| {
            let uplinks = interfaces.map(|interface| json!({ "interface": interface, "cost": 1 }));
            json!({ "uplinks": uplinks })
        };
        inbox.handle(Some(given("a", of(["lte*", "eth0"])))).await;
        assert!(inbox.report().unmatched.is_empty(), "not in force yet");
        pushed.take();
        let report = inbox.report();
        assert_eq!(report.applied.as_deref(), Some("a"));
        assert_eq!(report.unmatched, ["lte*"]);
        let shown = pushed.shown().state.unwrap();
        assert_eq!(shown, "applied; no uplink of the file is for lte*");
        inbox.handle(Some(given("b", of(["wwan1", "eth0"])))).await;
        pushed.take();
        assert!(inbox.report().unmatched.is_empty());
    }

    #[tokio::test]
    async fn settings_that_cannot_be_applied_leave_the_ones_before_in_force() {
        let folder = tempfile::tempdir().unwrap();
        let (inbox, mut pushed) = channel(&config(folder.path(), true));
        let right = given("a", json!({ "uplinks": [{ "interface": "*", "cost": 1 }] }));
        inbox.handle(Some(right.clone())).await;
        pushed.take();
        let with = |interface: &str, key: &str, value: u64| json!({ "uplinks": [{ "interface": interface, key: value }] });
        for (number, (wrong, word)) in [
            (
                with("wwan1", "monthly_cap_mb", 1001),
                "monthly_cap_mb of wwan1",
            ),
            (with("*", "monthly_cap_mb", 1001), "monthly_cap_mb of *"),
            (with("eth*", "mtu_bytes", 1500), "mtu_bytes of eth*"),
            (with("wwan*", "mtu_bytes", 100), "uplinks.mtu_bytes"),
            (
                with("\u{1b}[2K", "cost", 1),
                r#"uplinks.interface`: "\u{1b}[2K""#,
            ),
        ]
        .into_iter()
        .enumerate()
        {
            let digest = number.to_string();
            inbox.handle(Some(given(&digest, wrong))).await;
            assert!(!pushed.take());
            let report = inbox.report();
            assert_eq!(report.applied.as_deref(), Some("a"));
            let refused = report.refused.unwrap();
            assert_eq!(refused.digest, digest);
            assert!(refused.reason.contains(word), "{}", refused.reason);
            assert!(pushed.shown().state.unwrap().contains(word));
        }
        assert_eq!(pushed.over(vec![uplink("eth0")])[0].cost, 1);
        inbox.handle(Some(right)).await;
        assert_eq!(inbox.report().refused, None);
        assert_eq!(pushed.shown().state.unwrap(), "applied");
    }

    #[tokio::test]
    async fn a_controller_that_is_behind_its_store_does_not_bring_replaced_settings_back() {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path(), true);
        let of = |digest: &str, cost: u8, as_of: Option<(&str, u64)>| {
            let settings = json!({ "uplinks": [{ "interface": "eth*", "cost": cost }] });
            let as_of = as_of
                .map(|(store, revision)| json!({ "incarnation": store, "revision": revision }));
            let text = json!({ "digest": digest, "settings": settings, "as_of": as_of });
            Some(serde_json::from_value(text).unwrap())
        };
        let cost = |pushed: &mut Pushed| {
            pushed.take();
            pushed.over(vec![uplink("eth0")])[0].cost
        };
        let (inbox, mut pushed) = channel(&config);
        inbox.handle(of("one", 1, Some(("a", 5)))).await;
        inbox.handle(of("two", 3, Some(("a", 7)))).await;
        assert_eq!(cost(&mut pushed), 3);
        inbox.handle(of("two", 3, Some(("a", 9)))).await;
        for (count, behind) in [(1, 6), (2, 8), (3, 9)] {
            inbox.handle(of("one", 1, Some(("a", behind)))).await;
            assert_eq!(cost(&mut pushed), 3);
            let shown = pushed.shown();
            assert_eq!(shown.outdated, count);
            assert!(shown.state.unwrap().contains("behind its store"));
            assert_eq!(inbox.report().applied.as_deref(), Some("two"));
        }
        inbox.handle(of("two", 3, Some(("a", 8)))).await;
        assert_eq!(pushed.shown().state.unwrap(), "applied");

        // So it is after a restart, with the state of the store in which they were given at first.
        let (inbox, mut pushed) = channel(&config);
        inbox.handle(of("one", 1, Some(("a", 6)))).await;
        assert_eq!((cost(&mut pushed), pushed.shown().outdated), (3, 1));

        // What was refused has replaced what is in force, too.
        let above = json!({ "digest": "above", "settings": { "uplinks": [{ "interface": "eth*", "mtu_bytes": 9000 }] },
            "as_of": { "incarnation": "a", "revision": 10 } });
        inbox
            .handle(Some(serde_json::from_value(above).unwrap()))
            .await;
        inbox.handle(of("two", 3, Some(("a", 8)))).await;
        assert_eq!(inbox.report().refused.unwrap().digest, "above");

        // A controller may name no state, and a restored store has another incarnation.
        inbox.handle(of("one", 1, None)).await;
        assert_eq!(cost(&mut pushed), 1);
        inbox.handle(of("two", 3, Some(("a", 10)))).await;
        assert_eq!(cost(&mut pushed), 1);
        inbox.handle(of("two", 3, Some(("b", 2)))).await;
        assert_eq!((cost(&mut pushed), pushed.shown().outdated), (3, 3));
    }

    #[tokio::test]
    async fn settings_outlive_the_process_while_the_file_accepts_them() {
        let folder = tempfile::tempdir().unwrap();
        let accepting = config(folder.path(), true);
        let settings = json!({ "uplinks": [{ "interface": "eth*", "cost": 1 }] });
        let (inbox, _) = channel(&accepting);
        inbox.handle(Some(given("a", settings.clone()))).await;
        let wrong = json!({ "uplinks": [{ "interface": "", "cost": 9 }] });
        inbox.handle(Some(given("b", wrong))).await;
        let (inbox, pushed) = channel(&accepting);
        assert_eq!(pushed.over(vec![uplink("eth0")])[0].cost, 1);
        assert_eq!(inbox.report().applied.as_deref(), Some("a"));

        let refusing = ClientConfig {
            accepts_settings: false,
            ..accepting.clone()
        };
        let (inbox, mut pushed) = channel(&refusing);
        inbox.handle(Some(given("a", settings))).await;
        assert!(!pushed.take());
        assert_eq!(pushed.over(vec![uplink("eth0")])[0].cost, 2);
        assert_eq!(
            (inbox.report().accepts_settings, inbox.report().applied),
            (false, None)
        );
        assert_eq!(pushed.shown().state, None);
        for damaged in [
            "{",
            "{\"digest\":\"a\",\"settings\":{\"uplinks\":[{\"interface\":\"\"}]}}",
        ] {
            fs::write(&accepting.settings_file, damaged).unwrap();
            let (_, pushed) = channel(&accepting);
            assert_eq!(pushed.over(vec![uplink("eth0")]), [uplink("eth0")]);
        }
    }
}
