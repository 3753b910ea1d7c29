//! The status as metrics in the OpenMetrics text format, served over HTTP at a loopback address.

use crate::status::{BroadcastStatus, Counts, MoqSourceStatus, MoqStatus, Status, Subscriber};
use anyhow::{Context, Result};
use hawser_metrics::{Metric, Sink, counter, counts, gauge, page, server};
use parking_lot::Mutex;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

/// The last status, which is served as metrics.
pub(crate) type LastStatus = Arc<Mutex<Status>>;

/// Serves the status at an address, for any request path.
///
/// # Errors
/// If the address is not free.
pub(crate) fn serve(address: SocketAddr, status: &LastStatus) -> Result<()> {
    let status = Arc::clone(status);
    server::serve_in_thread(address, move || text(status.lock().clone()))
        .with_context(|| format!("cannot serve metrics at {address}"))?;
    Ok(())
}

fn text(status: Status) -> String {
    page("hawser_relay", move |sink| write(&status, sink))
}

const BROADCAST: [Metric<BroadcastStatus>; 11] = [
    gauge("open", "1 if the session with the publisher is open", |b| {
        f64::from(u8::from(b.is_open))
    }),
    gauge("viewers", "Viewers at present", |b| {
        b.subscribers.len() as f64
    }),
    counter(
        "received_packets",
        "Packets that arrived from the publisher",
        |b| b.received_packets,
    ),
    counter("received_bytes", "Bytes of their UDP payloads", |b| {
        b.received_bytes
    }),
    counter(
        "marked_bytes",
        "Those of the received bytes that the network had marked (ECN)",
        |b| b.marked_bytes,
    ),
    gauge("cached_bytes", "Bytes of packets in the cache", |b| {
        b.cached_bytes as f64
    }),
    counter(
        "sent_datagrams",
        "Datagrams that the process sent besides those that the kernel forwards",
        |b| b.sent_datagrams,
    ),
    counter(
        "send_failures",
        "Datagrams that the kernel did not send",
        |b| b.send_failures,
    ),
    counter(
        "failed_commands",
        "Changes that the kernel did not carry out",
        |b| b.failed_commands,
    ),
    counter(
        "refused_packets",
        "Packets that came through the kernel and were refused, with second copies",
        |b| b.refused_packets,
    ),
    gauge(
        "relays",
        "Relays between the publisher and the viewers, with this one",
        |b| b.relays as f64,
    ),
];

const VIEWER: [Metric<Subscriber>; 9] = [
    gauge(
        "viewer_rate_bits_per_second",
        "Rate at which a viewer can be served, with all headers",
        |v| v.rate_mbps.unwrap_or(0.0) * 1e6,
    ),
    gauge(
        "viewer_encoding",
        "Number of the encoding that a viewer is sent; 0 is the best",
        |v| v.encoding as f64,
    ),
    gauge("viewer_rtt_seconds", "Smoothed round-trip time", |v| {
        v.rtt_ms.unwrap_or(f64::NAN) / 1e3
    }),
    counter(
        "viewer_sent_packets",
        "Packets that the kernel sent to a viewer",
        |v| v.sent_packets,
    ),
    counter(
        "viewer_received_bytes",
        "Bytes of UDP payloads that a viewer reported as received",
        |v| v.received_bytes,
    ),
    counter(
        "viewer_marked_bytes",
        "Those of the received bytes that the network had marked (ECN)",
        |v| v.marked_bytes,
    ),
    counter(
        "viewer_lost_packets",
        "Packets that were lost on the way to a viewer",
        |v| v.lost,
    ),
    counter(
        "viewer_repeated_packets",
        "Packets that were sent to a viewer again",
        |v| v.repeated,
    ),
    counter(
        "viewer_earlier_packets",
        "Packets from before a viewer joined that it was sent from the cache",
        |v| v.earlier,
    ),
];

const PACKETS: [Metric<u64>; 1] = counts("packets", "Packets at the kernel's relay, by outcome");

const REFUSED: [Metric<u64>; 1] = counts(
    "datagrams_refused",
    "Datagrams that the process refused, by reason",
);

const OBJECTS: [Metric<u64>; 1] = counts(
    "viewer_objects",
    "Layers of frames, by what was decided on them for a viewer",
);

const NOT_SENT: [Metric<u64>; 1] = counts(
    "viewer_packets_not_sent",
    "Packets that the kernel could not send to a viewer, by reason",
);

const MOQ: [Metric<MoqStatus>; 5] = [
    gauge("moq_clients", "MoQ clients at present", |moq| {
        moq.clients as f64
    }),
    counter(
        "moq_objects",
        "Objects that MoQ clients could take",
        |moq| moq.objects,
    ),
    gauge(
        "moq_cached_bytes",
        "Bytes of objects kept for MoQ clients",
        |moq| moq.cached_bytes as f64,
    ),
    counter(
        "moq_offered_groups",
        "Groups that MoQ clients were to be sent",
        |moq| moq.offered_groups,
    ),
    counter(
        "moq_sent_groups",
        "Groups that were sent to their end",
        |moq| moq.sent_groups,
    ),
];

const FROM_MOQ: [Metric<MoqSourceStatus>; 6] = [
    gauge(
        "moq_source_connected",
        "1 if there is a session with the MoQ source, or publishers can connect",
        |from| f64::from(u8::from(from.is_connected)),
    ),
    gauge(
        "moq_source_announced",
        "1 if the MoQ source has the broadcast",
        |from| f64::from(u8::from(from.is_announced)),
    ),
    counter(
        "moq_source_failures",
        "Attempts to connect to the MoQ source that failed, and sessions that ended",
        |from| from.failures,
    ),
    counter(
        "moq_source_objects",
        "Objects that came from the MoQ source",
        |from| from.objects,
    ),
    counter("moq_source_packets", "Their packets", |from| from.packets),
    counter(
        "moq_source_lost_packets",
        "Packets of them that did not get into the relay's socket",
        |from| from.lost_packets,
    ),
];

const FROM_MOQ_OBJECTS_DROPPED: [Metric<u64>; 1] = counts(
    "moq_source_objects_dropped",
    "Objects of the MoQ source that were not taken, by reason",
);

const FROM_MOQ_CATALOGS_REFUSED: [Metric<u64>; 1] = counts(
    "moq_source_catalogs_refused",
    "Catalogs of the MoQ source that were refused, by reason",
);

const FROM_MOQ_REFUSED: [Metric<u64>; 1] = counts(
    "moq_source_refused",
    "Connections of MoQ publishers, and datagrams of strangers, that were refused, by reason",
);

const MOQ_OBJECTS_DROPPED: [Metric<u64>; 1] = counts(
    "moq_objects_dropped",
    "Objects that MoQ clients could not take, by reason",
);

const MOQ_GROUPS_DROPPED: [Metric<u64>; 1] = counts(
    "moq_groups_dropped",
    "Groups that a MoQ client was not sent, or not to their end, by reason",
);

const MOQ_REFUSED: [Metric<u64>; 1] = counts(
    "moq_connections_refused",
    "Connections of MoQ clients that were refused, by reason",
);

fn write(status: &Status, sink: &mut Sink<'_>) -> fmt::Result {
    let broadcasts = &status.broadcasts;
    sink.write(&BROADCAST, || broadcasts.iter().map(|b| ([label(b)], b)))?;
    sink.write(&REFUSED, || {
        broadcasts.iter().flat_map(|broadcast| {
            reasons(&broadcast.refused).map(|(reason, n)| ([label(broadcast), reason], n))
        })
    })?;
    let moq = || {
        broadcasts
            .iter()
            .flat_map(|b| b.moq.iter().map(move |moq| (label(b), moq)))
    };
    sink.write(&MOQ, || moq().map(|(label, moq)| ([label], moq)))?;
    for (metrics, counts) in [
        (
            &MOQ_OBJECTS_DROPPED,
            (|moq: &MoqStatus| &moq.objects_dropped) as fn(&MoqStatus) -> &Counts,
        ),
        (&MOQ_GROUPS_DROPPED, |moq| &moq.groups_dropped),
        (&MOQ_REFUSED, |moq| &moq.refused),
    ] {
        sink.write(metrics, || {
            moq().flat_map(move |(label, moq)| {
                reasons(counts(moq)).map(move |(reason, n)| ([label, reason], n))
            })
        })?;
    }
    let from_moq = || {
        broadcasts
            .iter()
            .flat_map(|b| b.from_moq.iter().map(move |from| (label(b), from)))
    };
    sink.write(&FROM_MOQ, || {
        from_moq().map(|(label, from)| ([label], from))
    })?;
    for (metrics, counts) in [
        (
            &FROM_MOQ_OBJECTS_DROPPED,
            (|from: &MoqSourceStatus| &from.objects_dropped) as fn(&MoqSourceStatus) -> &Counts,
        ),
        (&FROM_MOQ_CATALOGS_REFUSED, |from| &from.catalogs_refused),
        (&FROM_MOQ_REFUSED, |from| &from.refused),
    ] {
        sink.write(metrics, || {
            from_moq().flat_map(move |(label, from)| {
                reasons(counts(from)).map(move |(reason, n)| ([label, reason], n))
            })
        })?;
    }
    let aliases: Vec<Vec<String>> = broadcasts
        .iter()
        .map(|b| b.tracks.iter().map(|t| t.alias.to_string()).collect())
        .collect();
    sink.write(&PACKETS, || {
        let tracks = broadcasts
            .iter()
            .zip(&aliases)
            .flat_map(|(broadcast, aliases)| {
                let tracks = broadcast.tracks.iter().zip(aliases);
                tracks.map(|(track, alias)| (label(broadcast), alias.as_str(), &track.packets))
            });
        let of_none = [(("broadcast", ""), "", &status.packets)];
        tracks
            .chain(of_none)
            .flat_map(|(broadcast, alias, packets)| {
                let labels = move |reason| [broadcast, ("track", alias), reason];
                reasons(packets).map(move |(reason, n)| (labels(reason), n))
            })
    })?;
    let viewers: Vec<((&str, &str), String, &Subscriber)> = broadcasts
        .iter()
        .flat_map(|b| {
            let viewers = b.subscribers.iter();
            viewers.map(|v| (label(b), v.address.to_string(), v))
        })
        .collect();
    let viewers = || {
        let viewers = viewers.iter();
        viewers.map(|(broadcast, address, viewer)| {
            ([*broadcast, ("viewer", address.as_str())], *viewer)
        })
    };
    sink.write(&VIEWER, viewers)?;
    sink.write(&OBJECTS, || {
        viewers().flat_map(|(labels, viewer)| by_reason(labels, &viewer.objects))
    })?;
    sink.write(&NOT_SENT, || {
        viewers().flat_map(|(labels, viewer)| by_reason(labels, &viewer.not_sent))
    })
}

type Label<'a> = (&'static str, &'a str);

fn label(broadcast: &BroadcastStatus) -> Label<'_> {
    ("broadcast", broadcast.name.as_str())
}

fn reasons(counts: &Counts) -> impl Iterator<Item = (Label<'_>, &u64)> {
    let counts = counts.iter();
    counts.map(|(reason, count)| (("reason", reason.as_str()), count))
}

fn by_reason<'a>(
    [broadcast, viewer]: [Label<'a>; 2],
    counts: &'a Counts,
) -> impl Iterator<Item = ([Label<'a>; 3], &'a u64)> {
    reasons(counts).map(move |(reason, count)| ([broadcast, viewer, reason], count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_metrics::checks::{documented, served};

    const DOCUMENTATION: &str = include_str!("../../../docs/relay.md");

    fn status() -> Status {
        serde_json::from_value(serde_json::json!({
            "name": "relay", "version": "1", "pid": 1, "written_unix_ms": 0, "packets": { "hop_tag": 3 },
            "broadcasts": [{
                "name": "stage", "listen": "192.0.2.1:14750", "upstream": "192.0.2.2:14748", "is_open": true,
                "relays": 1, "received_packets": 10, "received_bytes": 1000, "marked_bytes": 0, "cached_bytes": 5,
                "sent_datagrams": 1, "send_failures": 0, "failed_commands": 0,
                "refused_packets": 0, "refused": { "full": 2 },
                "tracks": [{ "alias": 7, "packets": { "forwarded": 10 } }],
                "subscribers": [{
                    "session": 1, "address": "192.0.2.9:5", "rate_mbps": 12.5, "rtt_ms": null, "encoding": 1, "sent_packets": 9,
                    "received_packets": 8, "received_bytes": 800, "marked_bytes": 0, "lost": 1, "repeated": 1,
                    "earlier": 0, "objects": { "served": 4, "tokens": 5 }, "not_sent": { "no_route": 6 },
                }],
                "moq": {
                    "listen": "127.0.0.1:14754", "name": "stage", "certificate_sha256": "5a", "clients": 2,
                    "objects": 30, "objects_dropped": { "late": 1 }, "cached_bytes": 9, "offered_groups": 60,
                    "sent_groups": 58, "groups_dropped": { "cut": 2 }, "refused": { "full": 3 },
                },
                "from_moq": {
                    "name": "stage", "url": "https://192.0.2.4/", "listen": null, "certificate_sha256": null,
                    "is_connected": true, "is_announced": true, "failures": 1, "objects": 40, "packets": 400,
                    "lost_packets": 2, "objects_dropped": { "late": 3 }, "catalogs_refused": { "forged": 4 },
                    "refused": { "unauthorised": 5 },
                },
            }],
        }))
        .unwrap()
    }

    #[test]
    fn the_metrics_are_those_of_the_documentation() {
        let served = served(&text(status()));
        assert_eq!(served, documented(DOCUMENTATION, "hawser_relay"));
    }

    #[test]
    fn values_and_labels_are_those_of_the_status() {
        let page = text(status());
        for sample in [
            "hawser_relay_viewers{broadcast=\"stage\"} 1.0",
            "hawser_relay_datagrams_refused_total{broadcast=\"stage\",reason=\"full\"} 2",
            "hawser_relay_packets_total{broadcast=\"stage\",track=\"7\",reason=\"forwarded\"} 10",
            "hawser_relay_packets_total{broadcast=\"\",track=\"\",reason=\"hop_tag\"} 3",
            "hawser_relay_viewer_rate_bits_per_second{broadcast=\"stage\",viewer=\"192.0.2.9:5\"} 12500000.0",
            "hawser_relay_moq_groups_dropped_total{broadcast=\"stage\",reason=\"cut\"} 2",
            "hawser_relay_moq_source_catalogs_refused_total{broadcast=\"stage\",reason=\"forged\"} 4",
            "hawser_relay_viewer_objects_total{broadcast=\"stage\",viewer=\"192.0.2.9:5\",reason=\"tokens\"} 5",
        ] {
            assert!(page.lines().any(|line| line == sample), "{sample}: {page}");
        }
    }
}
