use super::{Interval, ModemStatus, PathStatus, SessionStatus, Status, UplinkStatus};
use crate::config::read_common;
use anyhow::{Result, ensure};
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use std::fmt::Write;
use std::path::PathBuf;

/// Show the status of a tunnel client or server
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Example: hawser tunnel status --config client.toml --watch")]
pub struct Args {
    /// The configuration file of the client or server
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Refresh every second until interrupted
    #[arg(long)]
    pub watch: bool,
    /// Print JSON once and exit
    #[arg(long, conflicts_with = "watch")]
    pub json: bool,
}

/// Prints the status. Fails if nothing runs that has written it.
pub fn run(args: &Args) -> Result<()> {
    let file = read_common(&args.config)?.status_file();
    let read = || Status::read(&file);
    let written = |status: &Status| status.written_unix_ms;
    let runs = hawser_service::show_status((args.watch, args.json), read, written, text)?;
    ensure!(runs, "the tunnel is not running");
    Ok(())
}

fn text(status: &Status, now_unix_ms: u64) -> String {
    let mut text = heading(status, now_unix_ms);
    if status.sessions.is_empty() {
        text += "no session\n";
    }
    for session in &status.sessions {
        text += &session_text(session);
    }
    for uplink in &status.uplinks {
        text += &uplink_text(uplink);
    }
    if let Some(dns) = &status.dns {
        text += &format!("name servers: {dns}\n");
    }
    for uplink in &status.uplink_domains {
        text += &format!("names resolved by servers of uplink {uplink}\n");
    }
    if status.dns_restored > 0 {
        text += &format!("name servers set again: {}\n", status.dns_restored);
    }
    if let Some(settings) = &status.settings {
        text += &format!("settings of the controller: {settings}\n");
    }
    if let Some(error) = &status.rejected_file {
        text +=
            &format!("the file was rejected, the previous list of clients is in use: {error}\n");
    }
    for file in &status.damaged_files {
        text += &format!("damaged at the start: {file}\n");
    }
    if status.tables_restored > 0 {
        text += &format!("nftables tables restored: {}\n", status.tables_restored);
    }
    if status.device_restored > 0 {
        text += &format!(
            "addresses and routes of the device restored: {}\n",
            status.device_restored
        );
    }
    for deviation in &status.deviations {
        text += &format!("{deviation}\n");
    }
    for (reason, count) in &status.dropped {
        text += &format!("not passed on, {reason}: {count}\n");
    }
    text
}

fn heading(status: &Status, now_unix_ms: u64) -> String {
    let mut text = format!("{} {} (process {})", status.role, status.name, status.pid);
    text += &hawser_service::staleness(status.written_unix_ms, now_unix_ms);
    if status.draining {
        text += ", shutting down";
    }
    text.push('\n');
    text
}

fn session_text(session: &SessionStatus) -> String {
    let addresses: Vec<_> = session.addresses.iter().map(ToString::to_string).collect();
    let mut text = format!(
        "\n{} ({}), MTU {}: {:.1} Mb/s out, {:.1} Mb/s in, {} recovered, redundancy {:.2} %\n",
        session.peer,
        addresses.join(", "),
        session.mtu_bytes,
        session.sent_mbps,
        session.received_mbps,
        session.recovered_packets,
        session.redundancy_ratio * 100.0
    );
    if let Some(interval) = &session.interval {
        let _ = writeln!(text, "{}", interval_text(interval));
    }
    let _ = writeln!(text, "{}", table(&session.paths));
    for (reason, count) in &session.dropped {
        let _ = writeln!(text, "not passed on, {reason}: {count}");
    }
    text
}

fn interval_text(interval: &Interval) -> String {
    let ms = |delay: Option<f64>| delay.map_or("-".to_owned(), |ms| format!("{ms:.1}"));
    format!(
        "last interval: delay {} ms, 99 % within {} ms, {:.2} % delivered, redundancy {:.2} %",
        ms(interval.delay_p50_ms),
        ms(interval.delay_p99_ms),
        interval.delivered_ratio * 100.0,
        interval.redundancy_ratio * 100.0
    )
}

/// The columns of the table of paths. Those between the first and the last are numbers.
const COLUMNS: [&str; 10] = [
    "path",
    "out Mb/s",
    "in Mb/s",
    "RTT ms",
    "min",
    "loss %",
    "window kB",
    "in flight",
    "recovery",
    "state",
];

fn table(paths: &[PathStatus]) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header(COLUMNS);
    for path in paths {
        table.add_row(row(path));
    }
    for column in 1..COLUMNS.len() - 1 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn row(path: &PathStatus) -> Vec<String> {
    let ms = |time: Option<f64>| time.map_or("-".to_owned(), |ms| format!("{ms:.1}"));
    let kb = |bytes: u64| format!("{:.1}", bytes as f64 / 1e3);
    let mut state = match path {
        PathStatus { standby: true, .. } => "standby".to_owned(),
        path if path.is_silent() => format!("silent for {} ms", path.unacknowledged_ms),
        _ => "in use".to_owned(),
    };
    if path.over_tcp {
        state += " over TCP";
    }
    vec![
        path.name.clone(),
        format!("{:.1}", path.sent_mbps),
        format!("{:.1}", path.received_mbps),
        ms(path.rtt_ms),
        ms(path.rtt_min_ms),
        format!("{:.2}", path.loss_ratio * 100.0),
        kb(path.window_bytes),
        kb(path.in_flight_bytes),
        path.recovery.to_string(),
        state,
    ]
}

fn uplink_text(uplink: &UplinkStatus) -> String {
    let month = uplink
        .month_bytes
        .map(|bytes| format!(", {:.1} MB this month", bytes as f64 / 1e6));
    let modem = uplink.modem.as_ref().map(modem_text);
    format!(
        "uplink {}: {}{}{}\n",
        uplink.name,
        uplink.state,
        month.unwrap_or_default(),
        modem.unwrap_or_default()
    )
}

fn modem_text(modem: &ModemStatus) -> String {
    let signal = modem
        .signal_percent
        .map(|percent| format!("signal {percent} %"));
    let apn = modem.apn.as_ref().map(|apn| format!("APN {apn}"));
    let known = [&modem.operator, &modem.technology, &signal, &apn];
    let known: Vec<_> = known.into_iter().flatten().map(String::as_str).collect();
    let state = modem.state.as_deref().unwrap_or("unknown");
    format!("; modem {state}: {}", known.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_io::json_file::JsonFile;
    use std::collections::BTreeMap;

    fn with(foreign: &str) -> Status {
        let uplink = UplinkStatus {
            state: foreign.to_owned(),
            ..UplinkStatus::missing(foreign)
        };
        Status {
            name: "car-1".to_owned(),
            role: "client".to_owned(),
            version: "0".to_owned(),
            pid: 1,
            written_unix_ms: 0,
            draining: false,
            addresses: Vec::new(),
            sessions: Vec::new(),
            uplinks: vec![uplink],
            memory_bytes: 0,
            tables_restored: 0,
            device_restored: 0,
            deviations: Vec::new(),
            dns: Some(foreign.to_owned()),
            dns_restored: 0,
            uplink_domains: Vec::new(),
            settings: None,
            rejected_file: None,
            damaged_files: Vec::new(),
            dropped: BTreeMap::from([(foreign.to_owned(), 1)]),
        }
    }

    #[test]
    fn text_of_others_adds_no_line_to_a_status() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("status.json");
        let shown = |foreign: &str| {
            JsonFile::status(file.clone())
                .write(&with(foreign))
                .unwrap();
            text(&Status::read(&file).unwrap(), 0)
        };
        let forged = shown("closed\nERROR forged\x1b[2J\u{9b}31m\u{202e}");
        assert_eq!(forged.lines().count(), shown("closed").lines().count());
        let is_shown = |char: char| char == '\n' || hawser_units::is_shown(char);
        assert!(forged.chars().all(is_shown), "{forged:?}");
    }
}
