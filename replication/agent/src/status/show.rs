mod controlled;
mod experience;

use super::{DeviceStatus, PathState, ReceiveStatus, Status, UnselectedStatus};
use crate::config::Remains;
use anyhow::{Result, ensure};
use hawser_service::is_stale;
use hawser_units::PolicyCode;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

/// Show the status of the agent of a node
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Example: hawser status --config node.toml --watch")]
pub struct Args {
    /// The configuration of the agent
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Refresh every second until interrupted
    #[arg(long)]
    pub watch: bool,
    /// Print the status file as JSON
    #[arg(long, conflicts_with = "watch")]
    pub json: bool,
}

/// Prints the status of a node. Fails if its agent is not running.
pub fn run(args: &Args) -> Result<()> {
    let file = Remains::read(&args.config)?.status_file();
    let read = || Status::read(&file);
    let written = |status: &Status| status.written_unix_ms;
    let runs = hawser_service::show_status((args.watch, args.json), read, written, describe)?;
    ensure!(runs, "the agent is not running");
    Ok(())
}

fn describe(status: &Status, now_ms: u64) -> String {
    let mut text = heading(status, now_ms);
    if let Some(controller) = &status.controller {
        text += &controlled::describe(controller, now_ms);
    }
    text += &obstacles(status);
    text += &modes(status);
    text += &sent(status);
    text += &received(status);
    text += &experience::describe(&status.experience);
    text += &dropped_by_device(status);
    for (path, counts) in &status.lost_copies {
        text += &reasons(&format!("copies not sent on path {path}"), counts);
    }
    text += &reasons("not replicated", &status.not_replicated);
    if let Some(UnselectedStatus { packets, example }) = &status.unselected {
        let _ = writeln!(
            text,
            "\n{packets} packets matched no flow and took the default route without copies, the last one {example}"
        );
    }
    text += &reasons("not deduplicated", &status.not_deduplicated);
    if let Some(device) = &status.device {
        text += &bypassed(device);
    }
    if status.arrival_records_overflowed > 0 {
        let lost = status.arrival_records_overflowed;
        let _ = writeln!(
            text,
            "\n{lost} arrival records were lost: only copy, missing and median skew do not include them"
        );
    }
    text
}

/// Describes the agent and its configuration.
fn heading(status: &Status, now_ms: u64) -> String {
    let age_ms = now_ms.saturating_sub(status.written_unix_ms);
    let mut text = format!("node {}, hawser {}, ", status.node, status.version);
    let age_s = age_ms as f64 / 1e3;
    let _ = match is_stale(status.written_unix_ms, now_ms) {
        false => writeln!(text, "process {}, {age_s:.1} s ago", status.pid),
        true => writeln!(
            text,
            "NOT RUNNING: process {} wrote this {age_s:.0} s ago",
            status.pid
        ),
    };
    if let Some(error) = &status.configuration.error {
        let _ = writeln!(
            text,
            "the configuration file was rejected, the previous one stays in force: {error}"
        );
    }
    text
}

/// Describes the paths and interfaces that are not used.
fn obstacles(status: &Status) -> String {
    let mut text = String::new();
    for (path, state) in status.paths.iter().filter(|(_, state)| !state.up) {
        let reason = state.reason.as_deref().unwrap_or("not checked yet");
        let _ = writeln!(text, "PATH {path} CANNOT BE USED: {reason}");
    }
    for (path, state) in &status.paths {
        let PathState {
            mtu_learned,
            too_large,
            ..
        } = state;
        let mtu_bytes = state.mtu_bytes.unwrap_or_default();
        if *mtu_learned {
            let _ = writeln!(
                text,
                "path {path} carries packets of up to {mtu_bytes} bytes, as larger ones have shown"
            );
        }
        if *too_large > 0 {
            let _ = writeln!(
                text,
                "{too_large} copies were too large for path {path} and took the other paths only"
            );
        }
    }
    for (interface, reason) in &status.unattached {
        let _ = writeln!(text, "NOT ATTACHED TO {interface}: {reason}");
    }
    for deviation in &status.deviations {
        let _ = writeln!(text, "{deviation}");
    }
    text
}

/// Describes the modes in which interfaces are used.
fn modes(status: &Status) -> String {
    let mut rows = Vec::new();
    let mut warnings = String::new();
    for (interface, uses) in &status.modes {
        for (usage, mode) in uses {
            let cells = [interface, usage, &mode.mode, &mode.reason];
            rows.push(cells.map(String::clone).to_vec());
            if let Some(warning) = &mode.warning {
                let _ = writeln!(warnings, "{interface}: {warning}");
            }
        }
    }
    let columns = ["interface", "use", "mode", "because"];
    warnings + &table("interfaces", &columns, rows)
}

fn dropped_by_device(status: &Status) -> String {
    let mut text = String::new();
    let counts = status.dropped_by_device.iter();
    for (path, count) in counts.filter(|(_, count)| **count > 0) {
        let _ = writeln!(
            text,
            "\n{count} copies were dropped by the device of path {path}, which was down or had a full queue"
        );
    }
    text
}

/// Describes the counts of frames by reason. Returns an empty string if there are none.
fn reasons(title: &str, counts: &BTreeMap<String, u64>) -> String {
    let mut text = String::new();
    if !counts.is_empty() {
        let _ = writeln!(text, "\n{title}");
    }
    for (name, count) in counts {
        let reason = hawser_replication_bpf::REASONS
            .iter()
            .find(|reason| reason.name == name);
        let help = reason.map_or("", |reason| reason.help);
        let _ = writeln!(text, "{count:>12}  {name}: {help}");
    }
    text
}

/// Describes the packets that left through the agent's own interface without being replicated.
fn bypassed(device: &DeviceStatus) -> String {
    let DeviceStatus {
        took_uplink,
        dropped_no_uplink,
    } = device;
    format!(
        "\nleft through the agent's interface without replication: {took_uplink} took an uplink, {dropped_no_uplink} were \
         dropped for lack of one\n"
    )
}

fn sent(status: &Status) -> String {
    let mut rows = Vec::new();
    for (flow, sent) in &status.send {
        rows.push(vec![
            flow.to_string(),
            paths(sent.policy),
            sent.packets.to_string(),
            sent.bytes.to_string(),
        ]);
        for (path, copies) in &sent.copies {
            let copies = [copies.packets, copies.bytes].map(|count| count.to_string());
            rows.push([vec![String::new(), format!("path {path}")], copies.to_vec()].concat());
        }
    }
    table("sent", &["flow", "paths", "packets", "bytes"], rows)
}

/// Formats the paths of a policy code as numbers.
fn paths(code: u8) -> String {
    let numbers: Vec<String> = PolicyCode(code)
        .paths()
        .iter()
        .map(|path| path.number().to_string())
        .collect();
    if numbers.is_empty() {
        "default route".to_owned()
    } else {
        numbers.join(",")
    }
}

fn received(status: &Status) -> String {
    const COLUMNS: [&str; 10] = [
        "flow",
        "path",
        "copies",
        "first",
        "duplicates",
        "only copy",
        "missing",
        "tag failures",
        "too old",
        "median skew",
    ];
    let mut rows = Vec::new();
    for (flow, paths) in &status.receive {
        for (path, received) in paths {
            let mut row = vec![flow.to_string(), path.to_string()];
            row.extend(counts(received).map(|count| count.to_string()));
            row.push(median_skew(&received.skew_log2_us));
            rows.push(row);
        }
    }
    table("received", &COLUMNS, rows)
}

/// Returns the counts in the columns from `copies` to `too old`.
fn counts(received: &ReceiveStatus) -> [u64; 7] {
    [
        received.packets,
        received.first,
        received.duplicates,
        received.only_copy,
        received.missing,
        received.tag_failures,
        received.too_old(),
    ]
}

/// Formats the bucket of the median delay of the path's copies after the first copy.
fn median_skew(buckets: &[u64]) -> String {
    let total: u64 = buckets.iter().sum();
    let mut below = 0;
    let reaches_half = |count: &u64| {
        below += count;
        2 * below >= total
    };
    match buckets.iter().position(reaches_half) {
        Some(bucket) if total > 0 => {
            let ms = |bits: usize| (1u64 << bits) as f64 / 1e3;
            format!("{:.3}-{:.3} ms", ms(bucket), ms(bucket + 1))
        }
        _ => "-".to_owned(),
    }
}

/// Formats a table with right-aligned columns. Returns an empty string without rows.
fn table(title: &str, header: &[&str], rows: Vec<Vec<String>>) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let lines = std::iter::once(header.iter().map(ToString::to_string).collect()).chain(rows);
    let lines: Vec<Vec<String>> = lines.collect();
    let width = |column| {
        lines
            .iter()
            .filter_map(|line: &Vec<String>| line.get(column))
            .map(String::len)
            .max()
    };
    let mut text = format!("\n{title}\n");
    for line in &lines {
        let cells = line
            .iter()
            .enumerate()
            .map(|(column, cell)| format!("{cell:>0$}", width(column).unwrap_or(0)));
        text += &(cells.collect::<Vec<_>>().join("  ") + "\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::{
        ConfigurationStatus, Copies, ExperienceStatus, ModeStatus, PathState, SendStatus,
    };
    use super::*;
    use std::collections::BTreeMap;

    fn sent_by_clones() -> ModeStatus {
        ModeStatus {
            mode: "generic".to_owned(),
            reason: "no frames".to_owned(),
            warning: Some("mind the gap".to_owned()),
        }
    }

    fn status() -> Status {
        let received = ReceiveStatus {
            packets: 100,
            bytes: 5000,
            first: 60,
            duplicates: 40,
            late: 0,
            reset: 1,
            contended: 0,
            tag_failures: 3,
            outdated: 4,
            expired: 1,
            only_copy: 10,
            missing: 20,
            after_deadline: 0,
            skew_log2_us: vec![0, 10, 0, 30],
        };
        let copies = BTreeMap::from([(
            1,
            Copies {
                packets: 7,
                bytes: 700,
            },
        )]);
        Status {
            node: "edge".to_owned(),
            version: "0.1.0".to_owned(),
            pid: 17,
            written_unix_ms: 100_000,
            configuration: ConfigurationStatus {
                checked_unix_ms: 0,
                error: None,
            },
            paths: BTreeMap::from([(
                1,
                PathState {
                    up: true,
                    ..PathState::default()
                },
            )]),
            unattached: BTreeMap::new(),
            modes: BTreeMap::from([(
                "eth0".to_owned(),
                BTreeMap::from([("send".to_owned(), sent_by_clones())]),
            )]),
            send: BTreeMap::from([(
                7,
                SendStatus {
                    policy: 0b101,
                    packets: 7,
                    bytes: 700,
                    copies,
                },
            )]),
            receive: BTreeMap::from([(3, BTreeMap::from([(2, received)]))]),
            dropped_by_device: BTreeMap::new(),
            lost_copies: BTreeMap::new(),
            not_replicated: BTreeMap::new(),
            unselected: None,
            not_deduplicated: BTreeMap::from([("dropped_tag".to_owned(), 3)]),
            controller: None,
            experience: ExperienceStatus::default(),
            device: None,
            deviations: Vec::new(),
            arrival_records_overflowed: 0,
        }
    }

    #[test]
    fn people_see_tables() {
        assert_eq!(
            describe(&status(), 100_400),
            "node edge, hawser 0.1.0, process 17, 0.4 s ago\n\
             eth0: mind the gap\n\
             \n\
             interfaces\n\
             interface   use     mode    because\n\
             \x20    eth0  send  generic  no frames\n\
             \n\
             sent\n\
             flow   paths  packets  bytes\n\
             \x20  7     1,3        7    700\n\
             \x20     path 1        7    700\n\
             \n\
             received\n\
             flow  path  copies  first  duplicates  only copy  missing  tag failures  too old     median skew\n\
             \x20  3     2     100     60          40         10       20             3        5  0.008-0.016 ms\n\
             \n\
             not deduplicated\n\
             \x20          3  dropped_tag: a replica with a wrong or missing authentication tag: altered, forged, reflected, or \
             the nodes' keys or names differ\n"
        );
    }

    #[test]
    fn what_needs_attention_is_said() {
        let mut status = status();
        status.configuration.error = Some("line 3: no".to_owned());
        let reason = Some("its interface wlan0 does not exist".to_owned());
        let down = PathState {
            reason,
            ..PathState::default()
        };
        status.paths.insert(2, down);
        let narrow = PathState {
            up: true,
            mtu_bytes: Some(1400),
            mtu_learned: true,
            too_large: 7,
            ..PathState::default()
        };
        status.paths.insert(3, narrow);
        status
            .unattached
            .insert("lan0".to_owned(), "it does not exist".to_owned());
        let text = describe(&status, 200_000);
        assert!(
            text.contains("PATH 2 CANNOT BE USED: its interface wlan0 does not exist"),
            "{text}"
        );
        for line in [
            "path 3 carries packets of up to 1400 bytes, as larger ones have shown\n",
            "7 copies were too large for path 3 and took the other paths only\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
        assert!(
            text.contains("NOT ATTACHED TO lan0: it does not exist"),
            "{text}"
        );
        assert!(
            text.contains("NOT RUNNING: process 17 wrote this 100 s ago"),
            "{text}"
        );
        assert!(text.contains("in force: line 3: no"), "{text}");
    }
}
