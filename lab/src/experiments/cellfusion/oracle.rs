//! The lower bound: a sender that knows the future behaviour of each link.
//!
//! It sends each packet over the link where it arrives first, without headers, and over a link
//! without loss: a sender that knew which packets are lost would send others in their place, and
//! lost packets do not use the link's rate. A frame that would arrive after its expiry is not sent
//! at all.

use super::drive::Drive;
use super::simulation::{VIDEO_BEGINS, WARM_UP};
use super::video::{Source, Viewer};
use hawser_netem::{Delay, LinkConfig, Rate};
use hawser_units::{Bitrate, ByteSize, Instant};
use std::time::Duration;

/// The maximum delay of a frame.
const EXPIRY: Duration = Duration::from_millis(700);

/// Returns the frames of a video of the given bitrate as the viewer receives them at best.
pub(super) fn run(drive: &Drive, video: Bitrate, length: Duration) -> Viewer {
    let begins = Instant::ZERO + VIDEO_BEGINS;
    let mut source = Source::new(begins, WARM_UP - VIDEO_BEGINS + length, video);
    let mut viewer = source.viewer();
    let links: Vec<LinkConfig> = (0..drive.paths()).map(|path| drive.uplink(path)).collect();
    let mut progress = vec![Progress::default(); links.len()];
    let mut number = 0;
    while let Some(captured) = source.due() {
        let packets = source.poll(captured).expect("it is due").packets;
        let mut planned = progress.clone();
        let sizes = packets.iter().map(|packet| ByteSize(packet.len() as u64));
        let arrivals: Vec<Instant> = sizes
            .map(|size| first_arrival(&links, &mut planned, captured, size))
            .collect();
        let in_time = |arrival: &Instant| arrival.saturating_since(captured) <= EXPIRY;
        if arrivals.iter().all(in_time) {
            progress = planned;
            for (arrival, number) in arrivals.iter().zip(number..) {
                viewer.receive_number(*arrival, number);
            }
        }
        number += packets.len();
    }
    viewer
}

/// The state of a link.
#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    /// The time at which it has serialised the packets that it accepted.
    finish: Instant,
    /// The time at which the last of them arrives.
    arrival: Instant,
}

fn first_arrival(
    links: &[LinkConfig],
    progress: &mut [Progress],
    now: Instant,
    size: ByteSize,
) -> Instant {
    let plans = links
        .iter()
        .zip(progress.iter())
        .map(|(link, progress)| plan(link, *progress, now, size));
    let (best, plan) = plans
        .enumerate()
        .min_by_key(|(_, plan)| plan.arrival)
        .expect("a drive has paths");
    progress[best] = plan;
    plan.arrival
}

/// Returns the state of a link after it sent a packet, computed as in [`hawser_netem::Link`] but
/// without changing the link.
fn plan(link: &LinkConfig, progress: Progress, now: Instant, size: ByteSize) -> Progress {
    let starts = Instant::ZERO + WARM_UP;
    let finish = serialise(link, starts, progress.finish.max(now), size);
    let delay = match &link.delay {
        Delay::Constant(delay) => *delay,
        Delay::Steps(steps) => steps.at(finish.saturating_since(starts)),
    };
    Progress {
        finish,
        arrival: progress.arrival.max(finish + delay),
    }
}

/// Returns the time at which a packet is serialised if the link begins with it at `at`. Before the
/// link's steps start, the first one holds.
fn serialise(link: &LinkConfig, starts: Instant, mut at: Instant, size: ByteSize) -> Instant {
    let Some(Rate::Steps(rates)) = &link.rate else {
        return at;
    };
    let mut bits = size.bits() as f64;
    for (rate, end) in rates.since(at.saturating_since(starts)) {
        let finish = at + Duration::from_secs_f64(bits / rate.bps().max(1) as f64);
        match end.map(|end| starts + end) {
            Some(end) if finish > end => {
                bits -= rate.bps() as f64 * end.saturating_since(at).as_secs_f64();
                at = end;
            }
            _ => return finish,
        }
    }
    unreachable!("the last step has no end")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps of 50, 30 and 120 ms.
    const ROWS: &str = "t_ms,path,rate_mbps,owd_ms,loss\n\
                        0,0,12,20,0\n50,0,0,20,0\n80,0,24,20,0\n200,0,24,20,0\n";

    #[test]
    fn a_packet_waits_for_the_end_of_an_outage_between_any_rows() {
        let link = Drive::parse("drive-000", ROWS).unwrap().uplink(0);
        let starts = Instant::ZERO + WARM_UP;
        let ms = |ms| starts + Duration::from_millis(ms);
        let finish = |at, size| serialise(&link, starts, at, ByteSize(size));
        assert_eq!(finish(ms(0), 1500), ms(1));
        assert_eq!(finish(ms(60), 3000), ms(81), "behind the outage");
        // A quarter before the outage, the rest at twice the rate.
        assert_eq!(
            finish(ms(49), 6000).saturating_since(ms(81)),
            Duration::from_micros(500)
        );
        let before = starts - Duration::from_millis(1);
        assert_eq!(finish(before, 3000), ms(1), "before the drive");
        assert_eq!(finish(ms(9_999), 3000), ms(10_000), "after its end");
    }
}
