//! Concurrent flows: each gets its share, and videos keep their frames.

use crate::network::{MS, Network, Pipe, path};
use hawser_units::Instant;
use hawser_xnc::{Config, Hint};
use std::collections::BTreeMap;
use std::time::Duration;

/// Two paths with a one-way delay of 20 ms that carry `window` bytes per round trip; 250 kB are 50
/// Mb/s.
fn two_paths(window: u64) -> Network {
    Network::new(
        Config::default(),
        vec![Pipe::new(20 * MS, window), Pipe::new(20 * MS, window)],
    )
}

/// 10 Mb/s with packets of 1200 bytes, including QUIC's overhead.
const TEN_MBPS: u64 = 51_000;

/// A video of 6 Mb/s with 30 frames per second.
const FRAME_PACKETS: u64 = 21;
const PACKET: usize = 1200;
const FRAME_EVERY: u32 = 33;

fn flow(flow_hash: u64) -> Hint {
    Hint {
        flow_hash,
        ..Hint::default()
    }
}

/// The packets of all flows, and the network that carries them.
struct Traffic {
    network: Network,
    /// The flow of each packet, and when it was sent.
    sent: BTreeMap<u64, (u64, Instant)>,
}

impl Traffic {
    fn new(network: Network) -> Self {
        Traffic {
            network,
            sent: BTreeMap::new(),
        }
    }

    fn send(&mut self, hint: Hint) {
        let number = self.network.send(hint, PACKET);
        self.sent.insert(number, (hint.flow_hash, self.network.now));
    }

    /// Sends videos of these flows for `time` ms, and calls `beside` every millisecond to send
    /// other packets.
    fn stream(&mut self, videos: &[u64], time: u32, mut beside: impl FnMut(&mut Traffic, u32)) {
        for ms in 0..time {
            for video in videos.iter().filter(|_| ms % FRAME_EVERY == 0) {
                (1..=FRAME_PACKETS).for_each(|index| {
                    self.send(Hint {
                        end_of_frame: index == FRAME_PACKETS,
                        ..flow(*video)
                    });
                });
            }
            beside(self, ms);
            self.network.run_for(MS);
        }
        self.network.run_for(300 * MS);
    }

    /// Returns when each packet of a flow was sent, and its delay.
    fn delays(&self, flow: u64) -> Vec<(Instant, Option<Duration>)> {
        let arrived: BTreeMap<u64, Instant> = self
            .network
            .numbers()
            .into_iter()
            .zip(self.network.received.iter().map(|(at, _)| *at))
            .collect();
        let sent = self.sent.iter().filter(|(_, (of, _))| *of == flow);
        sent.map(|(number, (_, since))| {
            (
                *since,
                arrived.get(number).map(|at| at.saturating_since(*since)),
            )
        })
        .collect()
    }

    /// Returns the share of a video's frames that arrived completely within this time.
    fn in_time(&self, video: u64, within: Duration) -> f64 {
        let delays = self.delays(video);
        let frames = delays.chunks(FRAME_PACKETS as usize);
        let whole = |frame: &&[(Instant, Option<Duration>)]| {
            frame
                .iter()
                .all(|(_, delay)| delay.is_some_and(|delay| delay <= within))
        };
        frames.clone().filter(whole).count() as f64 / frames.count() as f64
    }

    fn arrived(&self, flow: u64) -> usize {
        self.delays(flow)
            .iter()
            .filter(|(_, delay)| delay.is_some())
            .count()
    }
}

const VIDEO: u64 = 100;

#[test]
fn a_video_keeps_its_frames_beside_eight_full_flows() {
    let mut traffic = Traffic::new(two_paths(TEN_MBPS));
    traffic.stream(&[VIDEO], 6000, |traffic, _| {
        (0..8).for_each(|upload| traffic.send(flow(upload)))
    });

    let in_time = traffic.in_time(VIDEO, 80 * MS);
    assert!(in_time > 0.98, "{in_time}");
    let all: usize = (0..8).map(|upload| traffic.arrived(upload)).sum();
    // 14 Mb/s in 6 s.
    let left = 14e6 * 6.0 / 8.0 / PACKET as f64;
    assert!(all as f64 > 0.8 * left, "{all} packets of {left}");
    for upload in 0..8 {
        let arrived = traffic.arrived(upload);
        assert!(arrived.abs_diff(all / 8) < all / 80, "{arrived} of {all}");
    }
}

#[test]
fn a_video_keeps_its_frames_beside_a_flood() {
    let mut traffic = Traffic::new(two_paths(TEN_MBPS));
    // 30 Mb/s.
    traffic.stream(&[VIDEO], 6000, |traffic, ms| {
        (0..3 + ms % 2).for_each(|_| traffic.send(flow(1)))
    });

    let in_time = traffic.in_time(VIDEO, 80 * MS);
    assert!(in_time > 0.98, "{in_time}");
    let left = 14e6 * 6.0 / 8.0 / PACKET as f64;
    assert!(
        traffic.arrived(1) as f64 > 0.8 * left,
        "{} packets of {left}",
        traffic.arrived(1)
    );
}

#[test]
fn two_cameras_keep_their_frames_and_share_scarce_capacity() {
    let mut traffic = Traffic::new(two_paths(TEN_MBPS));
    traffic.stream(&[VIDEO, VIDEO + 1], 6000, |_, _| {});
    for video in [VIDEO, VIDEO + 1] {
        let in_time = traffic.in_time(video, 80 * MS);
        assert!(in_time > 0.99, "{in_time}");
    }

    let mut traffic = Traffic::new(two_paths(TEN_MBPS * 4 / 10));
    traffic.stream(&[VIDEO, VIDEO + 1], 6000, |_, _| {});
    let shown = [VIDEO, VIDEO + 1].map(|video| traffic.in_time(video, 300 * MS));
    assert!(shown[0] + shown[1] > 1.1, "8 of 12 Mb/s: {shown:?}");
    assert!((shown[0] - shown[1]).abs() < 0.2, "{shown:?}");
}

#[test]
fn a_flow_that_sends_little_is_not_late() {
    let mut traffic = Traffic::new(two_paths(TEN_MBPS));
    traffic.stream(&[], 6000, |traffic, ms| {
        (0..4).for_each(|upload| traffic.send(flow(upload)));
        if ms % 50 == 0 {
            traffic.send(flow(50));
        }
    });
    let delays = traffic.delays(50);
    let late = delays
        .iter()
        .filter(|(_, delay)| delay.is_none_or(|delay| delay > 30 * MS))
        .count();
    assert!(late * 50 <= delays.len(), "{late} of {}", delays.len());
}

#[test]
fn a_flow_that_leaves_the_path_room_is_never_held_back() {
    let pipes = vec![Pipe::new(20 * MS, 20 * TEN_MBPS)];
    let mut traffic = Traffic::new(Network::new(Config::default(), pipes));
    traffic.stream(&[], 6000, |traffic, _| {
        (0..3).for_each(|_| traffic.send(flow(1)));
    });
    let delays = traffic.delays(1);
    // In the first second the path's rate is not known.
    let late = delays[3000..]
        .iter()
        .filter(|(_, delay)| delay.is_none_or(|delay| delay > 22 * MS));
    assert_eq!((late.count(), delays.len()), (0, 18_000));
}

#[test]
fn after_a_blackout_no_expired_packet_is_sent() {
    let mut traffic = Traffic::new(two_paths(TEN_MBPS));
    traffic.stream(&[VIDEO], 1000, |_, _| {});
    for index in 0..2 {
        traffic.network.pipes.get_mut(&path(index)).unwrap().is_cut = true;
    }
    let cut = traffic.network.now;
    traffic.stream(&[VIDEO], 1500, |_, _| {});
    for index in 0..2 {
        traffic.network.pipes.get_mut(&path(index)).unwrap().is_cut = false;
    }
    let back = traffic.network.now;
    traffic.stream(&[VIDEO], 1000, |_, _| {});

    let expiry = Config::default().expiry;
    let delays = traffic.delays(VIDEO);
    let stale = delays
        .iter()
        .filter(|(_, delay)| delay.is_some_and(|delay| delay > expiry + 25 * MS));
    assert_eq!(
        stale.count(),
        0,
        "packets lost at the cut expire after 700 ms"
    );
    let of_the_cut = delays
        .iter()
        .filter(|(since, _)| (cut..back).contains(since));
    assert!(of_the_cut.filter(|(_, delay)| delay.is_none()).count() > 0);
    let new: Vec<_> = delays
        .iter()
        .filter(|(since, _)| *since >= back + 100 * MS)
        .collect();
    assert!(
        new.iter()
            .all(|(_, delay)| delay.is_some_and(|delay| delay < 40 * MS)),
        "{new:?}"
    );
    let sender = traffic.network.ends[0].stats().sender;
    assert!(sender.given_up > 0, "{sender:?}");
}
