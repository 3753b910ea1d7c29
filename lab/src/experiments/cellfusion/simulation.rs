//! One drive with one scheme: a car that streams video to the cloud, in virtual time.

use super::clock::Clock;
use super::connection::{Identities, Side, Uplink};
use super::drive::Drive;
use super::video::{Source, Viewer, ends_frame};
use anyhow::{Context, Result};
use hawser_units::{Bitrate, Instant, PathId};
use hawser_xnc::{Config, Endpoint, Hint, PathState, Rtt};
use std::time::Duration;

/// The time before the drive begins, in which connections are established and congestion windows
/// grow.
pub(super) const WARM_UP: Duration = Duration::from_secs(3);

/// The time at which the video begins. The connections are established by then.
pub(super) const VIDEO_BEGINS: Duration = Duration::from_secs(1);

/// The time after the end in which packets in flight may still arrive.
const GRACE: Duration = Duration::from_secs(2);

/// The packets of a video from the car to the viewer.
pub(super) struct Transfer {
    pub(super) viewer: Viewer,
    /// Bytes of first transmissions of packets, and of everything else that was sent but
    /// acknowledgements.
    pub(super) first_bytes: u64,
    pub(super) further_bytes: u64,
    /// UDP datagrams from the car to the cloud, and the number of them that the links lost.
    pub(super) datagrams: u64,
    pub(super) lost_datagrams: u64,
}

impl Transfer {
    /// Returns a transfer whose bytes and datagrams are not counted.
    pub(super) fn uncounted(viewer: Viewer) -> Self {
        Transfer {
            viewer,
            first_bytes: 0,
            further_bytes: 0,
            datagrams: 0,
            lost_datagrams: 0,
        }
    }
}

/// Returns the capture times of the first and the last measured frame: the drive without the
/// warm-up.
pub(super) fn window(length: Duration) -> (Instant, Instant) {
    let from = Instant::ZERO + WARM_UP;
    (from, from + length)
}

/// Runs a scheme with a video of the given bitrate over all paths of a drive, for `length` of it.
pub(super) fn run(
    drive: &Drive,
    config: Config,
    video: Bitrate,
    length: Duration,
    seed: u64,
    identities: &Identities,
) -> Result<Transfer> {
    let mut simulation = Simulation::new(drive, config, video, length, seed, identities)?;
    simulation.run(end(length))?;
    Ok(simulation.transfer())
}

/// Returns the end of a simulation: when packets of the last frame may have arrived.
pub(super) fn end(length: Duration) -> Instant {
    window(length).1 + GRACE
}

/// Returns the hash of the video's addresses and ports, which differ on every drive.
pub(super) fn flow_hash(seed: u64) -> u64 {
    seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

struct Simulation {
    clock: Clock,
    uplinks: Vec<(PathId, Uplink)>,
    car: Endpoint,
    cloud: Endpoint,
    source: Source,
    viewer: Viewer,
    flow_hash: u64,
}

impl Simulation {
    fn new(
        drive: &Drive,
        config: Config,
        video: Bitrate,
        length: Duration,
        seed: u64,
        identities: &Identities,
    ) -> Result<Self> {
        let clock = Clock::new();
        let uplinks = connect(drive, seed, &clock, identities)?;
        let (mut car, mut cloud) = (Endpoint::new(config.clone()), Endpoint::new(config));
        for (id, _) in &uplinks {
            car.add_path(Instant::ZERO, *id);
            cloud.add_path(Instant::ZERO, *id);
        }
        let source = Source::new(
            Instant::ZERO + VIDEO_BEGINS,
            WARM_UP - VIDEO_BEGINS + length,
            video,
        );
        Ok(Simulation {
            viewer: source.viewer(),
            source,
            clock,
            uplinks,
            car,
            cloud,
            flow_hash: flow_hash(seed),
        })
    }

    /// Runs until `end`. Events at the same time are processed in a fixed order.
    fn run(&mut self, end: Instant) -> Result<()> {
        let mut now = Instant::ZERO;
        while now < end {
            self.clock.set(now);
            for (_, uplink) in &mut self.uplinks {
                uplink.advance(now)?;
            }
            self.receive(now);
            self.capture(now);
            self.send(now)?;
            for (_, uplink) in &mut self.uplinks {
                uplink.flush(now)?;
            }
            now = self
                .next(now)
                .context("the simulation has no further event")?;
        }
        Ok(())
    }

    /// Returns the time of the next event after `now`. An endpoint whose timeout has passed has
    /// sent what it could and waits for its connections.
    fn next(&mut self, now: Instant) -> Option<Instant> {
        let uplinks = self.uplinks.iter().filter_map(|(_, uplink)| uplink.next());
        let ends = [
            self.car.poll_timeout(),
            self.cloud.poll_timeout(),
            self.source.due(),
        ];
        uplinks
            .chain(ends.into_iter().flatten())
            .filter(|next| *next > now)
            .min()
    }

    fn receive(&mut self, now: Instant) {
        for (id, uplink) in &mut self.uplinks {
            // The endpoints count rejected datagrams; they are part of the outcome.
            while let Some(datagram) = uplink.cloud.poll_datagram() {
                let _ = self.cloud.handle_datagram(now, *id, datagram, None);
            }
            while let Some(datagram) = uplink.car.poll_datagram() {
                let _ = self.car.handle_datagram(now, *id, datagram, None);
            }
        }
        while let Some(packet) = self.cloud.poll_packet() {
            self.viewer.receive(now, &packet.bytes);
        }
    }

    fn capture(&mut self, now: Instant) {
        while let Some(frame) = self.source.poll(now) {
            for packet in frame.packets {
                let hint = Hint {
                    end_of_frame: ends_frame(&packet),
                    flow_hash: self.flow_hash,
                    ..Hint::default()
                };
                // A packet that is rejected because there is no path yet is missing at the viewer.
                let _ = self.car.handle_packet(now, packet, hint);
            }
        }
    }

    fn send(&mut self, now: Instant) -> Result<()> {
        drive_endpoint(&mut self.car, now, &mut self.uplinks, |uplink| {
            &mut uplink.car
        })?;
        drive_endpoint(&mut self.cloud, now, &mut self.uplinks, |uplink| {
            &mut uplink.cloud
        })
    }

    fn transfer(self) -> Transfer {
        let links = || self.uplinks.iter().map(|(_, uplink)| uplink.stats());
        let paths = self.car.stats().sender.paths;
        Transfer {
            first_bytes: paths.iter().map(|path| path.first_bytes).sum(),
            further_bytes: paths
                .iter()
                .map(|path| path.recovery_bytes + path.ping_bytes)
                .sum(),
            datagrams: links().map(|link| link.offered).sum(),
            lost_datagrams: links().map(|link| link.dropped()).sum(),
            viewer: self.viewer,
        }
    }
}

/// Creates the uplinks of a drive.
fn connect(
    drive: &Drive,
    seed: u64,
    clock: &Clock,
    identities: &Identities,
) -> Result<Vec<(PathId, Uplink)>> {
    let starts = Instant::ZERO + WARM_UP;
    let uplink = |(id, path)| {
        let uplink = Uplink::new(drive, path, seed, starts, clock, identities)?;
        Ok((id, uplink))
    };
    PathId::all().zip(0..drive.paths()).map(uplink).collect()
}

/// Drives an endpoint: handles timeouts, updates the state of the connections, and sends the
/// pending datagrams.
fn drive_endpoint(
    end: &mut Endpoint,
    now: Instant,
    uplinks: &mut [(PathId, Uplink)],
    side: impl Fn(&mut Uplink) -> &mut Side,
) -> Result<()> {
    if end.poll_timeout().is_some_and(|timeout| timeout <= now) {
        end.handle_timeout(now);
    }
    for (id, uplink) in &mut *uplinks {
        let side = side(uplink);
        if side.is_connected() {
            end.update_path(*id, state(side));
        }
    }
    while let Some(transmit) = end.poll_transmit(now) {
        let (_, uplink) = &mut uplinks[transmit.path.index()];
        side(uplink).send(transmit.datagram)?;
    }
    Ok(())
}

fn state(side: &mut Side) -> PathState {
    let (figures, queued) = side.figures();
    let rtt = figures.rtt.map_or_else(Rtt::default, |rtt| Rtt {
        smoothed: rtt.smoothed,
        variation: rtt.variation,
        latest: rtt.latest,
        min: rtt.min,
    });
    PathState {
        congestion_window: figures.congestion_window,
        in_flight: figures.in_flight,
        queued,
        rtt,
        datagram_size: side.datagram_size(),
    }
}
