//! The state of uplinks that are modems, as ModemManager's program `mmcli` reports it.

use crate::status::ModemStatus;
use anyhow::{Context, Result, ensure};
use hawser_io::failures::{Change, Failures};
use hawser_units::Line;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::time::Duration;
use tokio::process::Command;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

/// The interval at which ModemManager is asked.
const INTERVAL: Duration = Duration::from_secs(10);

/// The time limit for each answer of its program.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The longest text that is taken over, in characters: operators choose some of them.
const MAX_TEXT: usize = 64;

/// The modems by their network interface.
pub(super) type Modems = BTreeMap<String, ModemStatus>;

/// Asks ModemManager regularly. Without it there are no modems.
pub(super) fn watch() -> watch::Receiver<Modems> {
    let (sender, modems) = watch::channel(Modems::new());
    tokio::spawn(ask_regularly(sender));
    modems
}

async fn ask_regularly(known: watch::Sender<Modems>) {
    let mut failures = Failures::default();
    loop {
        let answer = modems().await;
        if answer.as_ref().is_err_and(is_missing) {
            return;
        }
        known.send_replace(answer.as_ref().cloned().unwrap_or_default());
        match failures.record(answer) {
            Some(Change::Failed(error)) => warn!("cannot ask ModemManager: {error:#}"),
            Some(Change::Recovered) => info!("ModemManager answers again"),
            None => {}
        }
        sleep(INTERVAL).await;
    }
}

fn is_missing(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<std::io::Error>();
    error.is_some_and(|error| error.kind() == ErrorKind::NotFound)
}

#[derive(Deserialize)]
struct ModemList {
    #[serde(rename = "modem-list")]
    modems: Vec<String>,
}

#[derive(Deserialize)]
struct ModemFile {
    modem: Modem,
}

#[derive(Deserialize)]
struct Modem {
    #[serde(rename = "3gpp")]
    network: Option<Network>,
    generic: Generic,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Network {
    operator_name: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Generic {
    #[serde(default)]
    access_technologies: Vec<String>,
    #[serde(default)]
    bearers: Vec<String>,
    /// Each with its kind, as in `wwan0 (net)`.
    #[serde(default)]
    ports: Vec<String>,
    signal_quality: Option<Quality>,
    state: Option<String>,
}

#[derive(Deserialize)]
struct Quality {
    value: Option<String>,
}

#[derive(Deserialize)]
struct BearerFile {
    bearer: Bearer,
}

#[derive(Deserialize)]
struct Bearer {
    properties: Properties,
    status: BearerStatus,
}

#[derive(Deserialize)]
struct Properties {
    apn: Option<String>,
}

#[derive(Deserialize)]
struct BearerStatus {
    connected: Option<String>,
    interface: Option<String>,
}

/// Asks ModemManager for all modems.
async fn modems() -> Result<Modems> {
    let list: ModemList = ask(&["-L"]).await?;
    let mut modems = Modems::new();
    for path in &list.modems {
        // It may have been removed since.
        let Ok(ModemFile { modem }) = ask::<ModemFile>(&["-m", path]).await else {
            continue;
        };
        let mut bearers = Vec::new();
        for path in &modem.generic.bearers {
            let file = ask::<BearerFile>(&["-b", path]).await;
            bearers.extend(file.map(|file| file.bearer));
        }
        modems.extend(by_interface(&modem, &bearers));
    }
    Ok(modems)
}

/// Returns the status of a modem for each of its network interfaces.
fn by_interface(modem: &Modem, bearers: &[Bearer]) -> Modems {
    let connected = |bearer: &&Bearer| bearer.status.connected.as_deref() == Some("yes");
    let of_bearers = bearers.iter().filter(connected);
    let of_bearers =
        of_bearers.filter_map(|bearer| Some((bearer.status.interface.clone()?, bearer)));
    let mut by_interface: BTreeMap<String, Option<&Bearer>> = modem
        .generic
        .ports
        .iter()
        .filter_map(|port| Some((port.strip_suffix(" (net)")?.to_owned(), None)))
        .collect();
    by_interface.extend(of_bearers.map(|(interface, bearer)| (interface, Some(bearer))));
    let status = |bearer: Option<&Bearer>| ModemStatus {
        state: text(modem.generic.state.as_ref()),
        operator: text(
            modem
                .network
                .as_ref()
                .and_then(|n| n.operator_name.as_ref()),
        ),
        technology: text(Some(&modem.generic.access_technologies.join(", "))),
        signal_percent: modem
            .generic
            .signal_quality
            .as_ref()
            .and_then(|quality| quality.value.as_ref()?.parse().ok()),
        apn: text(bearer.and_then(|bearer| bearer.properties.apn.as_ref())),
    };
    by_interface
        .into_iter()
        .map(|(interface, bearer)| (interface, status(bearer)))
        .collect()
}

/// Returns a text as a line; none if ModemManager does not know it.
fn text(known: Option<&String>) -> Option<String> {
    let known = known.filter(|text| !text.is_empty() && *text != "--")?;
    Some(Line::within(known, MAX_TEXT).into_string())
}

async fn ask<T: DeserializeOwned>(arguments: &[&str]) -> Result<T> {
    let mut command = Command::new("mmcli");
    command.args(arguments).arg("-J").kill_on_drop(true);
    let output = timeout(TIMEOUT, command.output()).await;
    let output = output.context("mmcli does not answer")??;
    ensure!(
        output.status.success(),
        "mmcli: {}",
        Line::of_output(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).context("mmcli: not the expected answer")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_modem_is_known_by_its_interface() {
        let modem: ModemFile = serde_json::from_str(
            r#"{"modem":{"3gpp":{"operator-name":"Example\u001b[2J","registration-state":"home"},
                "generic":{"access-technologies":["lte","5gnr"],"bearers":["/Bearer/0"],
                "ports":["cdc-wdm0 (mbim)","wwan0 (net)","wwan1 (net)"],
                "signal-quality":{"recent":"yes","value":"67"},"state":"connected"}}}"#,
        )
        .unwrap();
        let bearer: BearerFile = serde_json::from_str(
            r#"{"bearer":{"properties":{"apn":"internet"},"status":{"connected":"yes","interface":"wwan0"}}}"#,
        )
        .unwrap();
        let modems = by_interface(&modem.modem, &[bearer.bearer]);
        let first = &modems["wwan0"];
        assert_eq!(first.operator.as_deref(), Some("Example\\u{1b}[2J"));
        assert_eq!(first.technology.as_deref(), Some("lte, 5gnr"));
        assert_eq!(
            (first.signal_percent, first.apn.as_deref()),
            (Some(67), Some("internet"))
        );
        assert_eq!(modems["wwan1"].apn, None);
        assert_eq!(modems.len(), 2);
    }

    #[test]
    fn what_is_not_known_is_left_out() {
        let modem: ModemFile = serde_json::from_str(
            r#"{"modem":{"3gpp":{"operator-name":"--"},"generic":{"access-technologies":[],
                "ports":["wwan0 (net)"],"signal-quality":{"value":"--"},"state":"disabled"}}}"#,
        )
        .unwrap();
        let status = &by_interface(&modem.modem, &[])["wwan0"];
        assert_eq!(status.state.as_deref(), Some("disabled"));
        assert_eq!((&status.operator, &status.technology), (&None, &None));
        assert_eq!(status.signal_percent, None);
    }
}
