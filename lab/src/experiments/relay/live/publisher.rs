use anyhow::{Context, Result};
use hawser_congestion::{Bounds, TrainControl};
use hawser_io::clock;
use hawser_io::udp::{self, UdpSocket};
use hawser_objects::{
    EncodedLayer, FlowConfig, LayerContent, Publication, PublicationConfig, Seed, TrackSecret,
};
use hawser_packets::session::{Announcement, Track};
use hawser_units::{Bitrate, ByteSize};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

pub(super) const ALIAS: u32 = 7;
pub(super) const LAYERS: u8 = 2;

pub(super) const INTERVAL: Duration = Duration::from_nanos(1_000_000_000 / 30);

/// The rate of the stream.
pub(in super::super) const STREAM_MBPS: f64 = 4.0;

/// The base layer's part of a frame: with headers, half of a tenth of the stream.
const BASE_SHARE: f64 = 0.05;

/// The time from the capture of a frame to its deadline.
const LIFETIME: Duration = Duration::from_millis(250);

/// Random where it matters; here each run is in namespaces of its own.
const RANDOM: [u8; 16] = [0x52; 16];

const STOP_POLL: Duration = Duration::from_millis(50);

/// Publishes frames of two layers, 30 a second, until it is told to stop.
pub(super) fn publish(address: SocketAddr, secret: &TrackSecret, stop: &AtomicBool) -> Result<()> {
    udp::wake_precisely();
    let mut socket = UdpSocket::bind(address).context("cannot publish")?;
    let mut publication = publication(secret)?;
    let bytes = Bitrate::from_mbps(STREAM_MBPS).bytes_in(INTERVAL).0 as usize;
    let base = (bytes as f64 * BASE_SHARE) as usize;
    let contents = [vec![0; base], vec![1; bytes - base]];
    let mut next_frame = clock::monotonic();
    while !stop.load(Relaxed) {
        let now = clock::monotonic();
        if now >= next_frame {
            next_frame += INTERVAL;
            if publication.target(now).is_some() {
                let layers = [0, 1].map(|layer| EncodedLayer {
                    alias: ALIAS,
                    layer,
                    content: LayerContent::Whole(&contents[usize::from(layer)]),
                });
                publication.publish(now, now, &layers)?;
            }
        }
        publication.handle_timeout(now);
        let received = socket.receive(|datagram| {
            // Datagrams that are not valid are counted.
            let _ = publication.handle_datagram(now, datagram.from, datagram.bytes);
        });
        udp::unless_of_a_peer(received)?;
        while let Some(outgoing) = publication.poll_transmit(clock::monotonic()) {
            // Packets that are not sent are lost, which a relay reports.
            let _ = socket.send(outgoing.to, outgoing.ecn, &outgoing.datagram);
        }
        while publication.poll_event().is_some() {}
        let due = publication
            .poll_timeout()
            .map_or(next_frame, |due| due.min(next_frame));
        let left = due.saturating_since(clock::monotonic());
        UdpSocket::wait_any(&[&socket], left.min(STOP_POLL))?;
    }
    Ok(())
}

fn publication(secret: &TrackSecret) -> Result<Publication> {
    let track = Track {
        alias: ALIAS,
        codec: 1,
        layers: LAYERS,
        name: "performer".to_owned(),
        parameters: Vec::new(),
    };
    let config = PublicationConfig {
        announcement: Announcement {
            incarnation: RANDOM,
            started_unix_millis: clock::unix_ms(),
            tracks: vec![track],
        },
        lifetime: LIFETIME,
        flow: FlowConfig::new(ByteSize(1 << 20)),
        viewers: 8,
        hop_salt: RANDOM,
        seed: Seed::new([0x52; 32]),
    };
    let bounds = Bounds::new(
        Bitrate::from_mbps(STREAM_MBPS),
        Bitrate::from_mbps(50.0),
        Bitrate::from_mbps(100.0),
    );
    let control = move |now| Box::new(TrainControl::new(bounds, now)) as _;
    Publication::new(config, secret, Box::new(control)).context("cannot publish")
}
