//! A sender without a tunnel: UDP packets over one path, as they come from the camera.

use super::connection::uplink_seed;
use super::drive::Drive;
use super::simulation::{Transfer, VIDEO_BEGINS, WARM_UP, end};
use super::video::{Source, Viewer};
use bytes::Bytes;
use hawser_netem::Link;
use hawser_units::{Bitrate, ByteSize, Instant};
use std::time::Duration;

/// Runs a video of the given bitrate over one path of a drive, for `length` of it. The path's queue
/// drops what does not fit.
pub(super) fn run(
    drive: &Drive,
    path: usize,
    video: Bitrate,
    length: Duration,
    seed: u64,
) -> Transfer {
    let begins = Instant::ZERO + VIDEO_BEGINS;
    let mut source = Source::new(begins, WARM_UP - VIDEO_BEGINS + length, video);
    let mut viewer = source.viewer();
    let starts = Instant::ZERO + WARM_UP;
    let mut link: Link<Bytes> = Link::new(drive.uplink(path), uplink_seed(seed, path), starts);
    while let Some(captured) = source.due() {
        deliver(&mut link, captured, &mut viewer);
        let packets = source.poll(captured).into_iter();
        for packet in packets.flat_map(|frame| frame.packets) {
            link.push(captured, ByteSize(packet.len() as u64), packet.into());
        }
    }
    deliver(&mut link, end(length), &mut viewer);
    let stats = link.stats();
    Transfer {
        first_bytes: stats.offered_bytes.0,
        further_bytes: 0,
        datagrams: stats.offered,
        lost_datagrams: stats.dropped(),
        viewer,
    }
}

fn deliver(link: &mut Link<Bytes>, until: Instant, viewer: &mut Viewer) {
    while let Some((at, packet)) = link.pop(until) {
        viewer.receive(at, &packet);
    }
}
