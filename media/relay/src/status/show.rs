use super::{BroadcastStatus, Counts, MoqSourceStatus, MoqStatus, Status, Subscriber};
use crate::config::Config;
use anyhow::{Result, ensure};
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use std::fmt::Write;
use std::path::PathBuf;

/// Show the status of a relay
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Example: hawser relay status --config relay.toml --watch")]
pub struct Args {
    /// The configuration file of the relay
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Refresh every second until interrupted
    #[arg(long)]
    watch: bool,
    /// Print JSON once and exit
    #[arg(long, conflicts_with = "watch")]
    json: bool,
}

/// The columns of the table of viewers.
const COLUMNS: [&str; 9] = [
    "viewer",
    "Mb/s",
    "RTT ms",
    "encoding",
    "received MB",
    "lost",
    "repeated",
    "served",
    "not served",
];

/// Prints the status. Fails if the relay that has written it no longer runs.
///
/// # Errors
/// If the configuration is not valid, there is no status file, or the relay is not running.
pub fn run(args: &Args) -> Result<()> {
    let file = Config::read(&args.config)?.status_file();
    let read = || Status::read(&file);
    let written = |status: &Status| status.written_unix_ms;
    let runs = hawser_service::show_status((args.watch, args.json), read, written, text)?;
    ensure!(runs, "the relay is not running");
    Ok(())
}

fn text(status: &Status, now_unix_ms: u64) -> String {
    let mut text = format!("relay {} (process {})", status.name, status.pid);
    text += &hawser_service::staleness(status.written_unix_ms, now_unix_ms);
    text.push('\n');
    text += &lines("packets of no track", &status.packets);
    for broadcast in &status.broadcasts {
        text += &broadcast_text(broadcast);
    }
    text
}

fn broadcast_text(broadcast: &BroadcastStatus) -> String {
    let state = match broadcast.is_open {
        true => "receiving",
        false => "looking for it",
    };
    let upstream = broadcast.upstream.map(|address| address.to_string());
    let mut text = format!(
        "\n{} on {}, from {} ({state}): {} packets received, {:.1} MB kept, {} viewers\n",
        broadcast.name,
        broadcast.listen,
        upstream.as_deref().unwrap_or("no address yet"),
        broadcast.received_packets,
        broadcast.cached_bytes as f64 / 1e6,
        broadcast.subscribers.len(),
    );
    text += &lines("refused", &broadcast.refused);
    for track in &broadcast.tracks {
        text += &lines(&format!("track {}", track.alias), &track.packets);
    }
    if !broadcast.subscribers.is_empty() {
        let _ = writeln!(text, "{}", table(&broadcast.subscribers));
    }
    if let Some(from) = &broadcast.from_moq {
        text += &source_text(from);
    }
    if let Some(moq) = &broadcast.moq {
        text += &moq_text(moq);
    }
    text
}

fn source_text(from: &MoqSourceStatus) -> String {
    let place = match (&from.url, from.listen) {
        (Some(url), _) => url.clone(),
        (None, Some(listen)) => format!("publishers at {listen}"),
        (None, None) => String::new(),
    };
    let state = match (from.is_connected, from.is_announced) {
        (false, _) => "no session",
        (true, false) => "not there",
        (true, true) => "there",
    };
    let mut text = format!(
        "from MoQ: {} of {place}: {state}, {} objects, {} packets, {} lost, {} failures\n",
        from.name, from.objects, from.packets, from.lost_packets, from.failures,
    );
    if let Some(certificate) = &from.certificate_sha256 {
        text += &format!("MoQ certificate for publishers: {certificate}\n");
    }
    text += &lines("MoQ objects not taken", &from.objects_dropped);
    text += &lines("MoQ catalogs refused", &from.catalogs_refused);
    text += &lines("MoQ publishers refused", &from.refused);
    text
}

fn moq_text(moq: &MoqStatus) -> String {
    let mut text = format!(
        "MoQ: {} on {}, certificate {}: {} objects, {} clients, {} groups sent\n",
        moq.name, moq.listen, moq.certificate_sha256, moq.objects, moq.clients, moq.sent_groups,
    );
    text += &lines("MoQ objects dropped", &moq.objects_dropped);
    text += &lines("MoQ groups dropped", &moq.groups_dropped);
    text += &lines("MoQ connections refused", &moq.refused);
    text
}

/// Returns a line with the counts, if anything occurred.
fn lines(name: &str, counts: &Counts) -> String {
    if counts.is_empty() {
        return String::new();
    }
    let counts: Vec<String> = counts
        .iter()
        .map(|(reason, count)| format!("{reason} {count}"))
        .collect();
    format!("{name}: {}\n", counts.join(", "))
}

fn table(subscribers: &[Subscriber]) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header(COLUMNS);
    for subscriber in subscribers {
        let or_dash = |value: Option<f64>| value.map_or("-".to_owned(), |v| format!("{v:.1}"));
        let served = subscriber
            .objects
            .get("served")
            .copied()
            .unwrap_or_default();
        let all: u64 = subscriber.objects.values().sum();
        table.add_row([
            subscriber.address.to_string(),
            or_dash(subscriber.rate_mbps),
            or_dash(subscriber.rtt_ms),
            subscriber.encoding.to_string(),
            format!("{:.1}", subscriber.received_bytes as f64 / 1e6),
            subscriber.lost.to_string(),
            subscriber.repeated.to_string(),
            served.to_string(),
            (all - served).to_string(),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::TrackStatus;

    fn status() -> Status {
        let counts = |counts: &[(&str, u64)]| {
            let counts = counts.iter();
            counts.map(|(name, n)| ((*name).to_owned(), *n)).collect()
        };
        let subscriber = Subscriber {
            session: 1,
            address: "192.0.2.7:5000".parse().unwrap(),
            rate_mbps: Some(12.34),
            rtt_ms: None,
            encoding: 1,
            sent_packets: 10,
            received_packets: 9,
            received_bytes: 4_200_000,
            marked_bytes: 0,
            lost: 1,
            repeated: 1,
            earlier: 0,
            objects: counts(&[("served", 8), ("tokens", 2)]),
            not_sent: Counts::new(),
        };
        Status {
            name: "stage".to_owned(),
            version: "1".to_owned(),
            pid: 7,
            written_unix_ms: 1000,
            packets: counts(&[("hop_tag", 3)]),
            broadcasts: vec![BroadcastStatus {
                name: "show".to_owned(),
                listen: "192.0.2.1:14750".parse().unwrap(),
                upstream: Some("192.0.2.2:14748".parse().unwrap()),
                is_open: true,
                relays: 1,
                received_packets: 10,
                received_bytes: 10_000,
                marked_bytes: 0,
                cached_bytes: 1_500_000,
                sent_datagrams: 3,
                send_failures: 0,
                failed_commands: 0,
                refused_packets: 0,
                refused: counts(&[("without_key", 2)]),
                tracks: vec![TrackStatus {
                    alias: 1,
                    packets: counts(&[("forwarded", 10)]),
                }],
                subscribers: vec![subscriber],
                moq: Some(MoqStatus {
                    listen: "127.0.0.1:14754".parse().unwrap(),
                    name: "show".to_owned(),
                    certificate_sha256: "5a5a".to_owned(),
                    clients: 2,
                    objects: 30,
                    objects_dropped: Counts::new(),
                    cached_bytes: 0,
                    offered_groups: 60,
                    sent_groups: 58,
                    groups_dropped: counts(&[("cut", 2)]),
                    refused: Counts::new(),
                }),
                from_moq: Some(MoqSourceStatus {
                    name: "show".to_owned(),
                    url: Some("https://relay.example/".to_owned()),
                    listen: None,
                    certificate_sha256: None,
                    is_connected: true,
                    is_announced: true,
                    failures: 1,
                    objects: 40,
                    packets: 400,
                    lost_packets: 0,
                    objects_dropped: counts(&[("late", 2)]),
                    catalogs_refused: Counts::new(),
                    refused: Counts::new(),
                }),
            }],
        }
    }

    #[test]
    fn the_text_has_what_was_refused_and_each_viewer() {
        let text = text(&status(), 2000);
        for part in [
            "relay stage (process 7)\n",
            "packets of no track: hop_tag 3",
            "show on 192.0.2.1:14750, from 192.0.2.2:14748 (receiving): 10 packets received, 1.5 MB kept, 1 viewers",
            "refused: without_key 2",
            "track 1: forwarded 10",
            "MoQ: show on 127.0.0.1:14754, certificate 5a5a: 30 objects, 2 clients, 58 groups sent",
            "MoQ groups dropped: cut 2",
            "from MoQ: show of https://relay.example/: there, 40 objects, 400 packets, 0 lost, 1 failures",
            "MoQ objects not taken: late 2",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let row = text
            .lines()
            .find(|line| line.contains("192.0.2.7"))
            .unwrap();
        let row: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(
            row,
            [
                "192.0.2.7:5000",
                "12.3",
                "-",
                "1",
                "4.2",
                "1",
                "1",
                "8",
                "2"
            ]
        );
    }

    #[test]
    fn an_old_status_is_called_old() {
        let text = text(&status(), 60_000);
        assert!(
            text.contains("as of 59 s ago: it has exited or hangs"),
            "{text}"
        );
    }
}
