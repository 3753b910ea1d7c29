use super::min_rtt::MinRtt;
use hawser_xnc::experiment::{
    Candidate, Extra, Fate, Path, PathChoice, Scheduler, SentPacket, View, frame_size,
};
use std::ops::Range;
use std::time::Duration;

/// Opportunistic erasure coding (Mahajan et al., "High Performance Vehicular Connectivity using
/// Opportunistic Erasure Coding", ATC 2012). Whenever no packet waits, coded packets fill the spare
/// capacity of the paths, so that they delay no packet. Nothing is retransmitted.
///
/// A coded packet covers as many packets of the recent past as give it the best chance that the
/// receiver lacks exactly one of them. The paper combines arbitrary packets by exclusive or. Here
/// they have consecutive numbers, from a random one on, and random coefficients: the receiver then
/// also decodes several lost packets from as many coded ones.
#[derive(Debug)]
pub(super) struct Pluribus {
    /// The packets from which the last coded packet was selected.
    window: Range<u64>,
    /// The expected number of packets of the window that the receiver has from coded packets.
    recovered: f64,
    random: u64,
}

/// The maximum number of packets in the window.
pub(super) const MAX_WINDOW: u64 = 1024;

/// The maximum number of packets that a coded packet covers.
const MAX_COVERED: u64 = 63;

/// The age of the packets in the window, in round-trip times of the slowest path. A loss is known
/// after little more than one.
const WINDOW_ROUND_TRIPS: u32 = 2;

impl Default for Pluribus {
    fn default() -> Self {
        Pluribus {
            window: 0..0,
            recovered: 0.0,
            random: 1,
        }
    }
}

impl Scheduler for Pluribus {
    fn select_path(&mut self, view: &View<'_>, candidate: Candidate) -> PathChoice {
        MinRtt.select_path(view, candidate)
    }

    fn extra(&mut self, view: &View<'_>) -> Option<Extra> {
        if view.waiting > 0 {
            return None;
        }
        let window = window(view);
        let packets = || view.sent_packets.in_range(window.clone());
        let longest = packets()
            .map(|(_, packet)| frame_size(&packet.bytes))
            .max()?
            + 2;
        let path = spare(view, longest)?;
        if packets().all(|(_, packet)| packet.fate == Fate::Delivered) {
            return None;
        }
        self.slide(window.clone());
        let arrived: f64 = packets().map(|(_, packet)| expectation(view, packet)).sum();
        let size = (window.end - window.start) as f64;
        let known = ((arrived + self.recovered) / size).clamp(0.0, 1.0 - 0.5 / size);
        let count = degree(known).min(window.end - window.start);
        let start = window.start + self.draw(window.end - window.start - count + 1);
        let gain = count as f64 * (1.0 - known) * known.powf(count as f64 - 1.0);
        self.recovered += (1.0 - path.loss()) * gain;
        Some(Extra::coded(start, count as u8, path.id))
    }
}

impl Pluribus {
    /// Moves the window. The packets that leave it take their part of `recovered` with them.
    fn slide(&mut self, to: Range<u64>) {
        let before = self.window.end - self.window.start;
        let kept = self.window.end.saturating_sub(to.start).min(before);
        self.recovered *= kept as f64 / before.max(1) as f64;
        self.window = to;
    }

    /// Returns a number below `limit` (xorshift, Marsaglia 2003).
    fn draw(&mut self, limit: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % limit
    }
}

/// Returns the numbers of the packets that coded packets may cover.
fn window(view: &View<'_>) -> Range<u64> {
    let slowest = view.paths.iter().map(|path| path.state.rtt.smoothed).max();
    let span = slowest.unwrap_or_default() * WINDOW_ROUND_TRIPS;
    let next = view.sent_packets.next();
    let oldest = next
        .saturating_sub(MAX_WINDOW)
        .max(view.sent_packets.first());
    let is_recent = |id: &u64| {
        let packet = view.sent_packets.get(*id);
        packet.is_some_and(|packet| view.now.saturating_since(packet.queued_at) <= span)
    };
    let first = (oldest..next).rev().take_while(is_recent).last();
    first.unwrap_or(next)..next
}

/// Returns the path with the most spare capacity, of those that drain all that is in flight within
/// their minimum round-trip time.
fn spare<'a>(view: &View<'a>, size: usize) -> Option<&'a Path> {
    let room = |path: &Path| path.room_within(size, Duration::ZERO);
    let open = view.paths.iter().filter(|path| room(path) > 0);
    open.max_by_key(|path| room(path))
}

/// Returns the probability that a packet has arrived or will arrive.
fn expectation(view: &View<'_>, packet: &SentPacket) -> f64 {
    let path = packet.path.and_then(|path| view.paths.get(path));
    match packet.fate {
        Fate::Delivered => 1.0,
        Fate::Sent => path.map_or(0.0, |path| 1.0 - path.loss()),
        Fate::Lost | Fate::Recovering | Fate::GivenUp => 0.0,
    }
}

/// Returns the number x of packets to cover that maximises the probability that the receiver lacks
/// exactly one of them, x (1 - r) r^(x-1), if it has the share r of them.
fn degree(known: f64) -> u64 {
    let best = -1.0 / known.ln();
    (best.round() as u64).clamp(1, MAX_COVERED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rivals::schemes::Scheme;
    use hawser_xnc::experiment::scene::{Scene, path};

    #[test]
    fn the_covered_packets_have_the_best_chance_of_one_unknown() {
        let chance =
            |known: f64, count: u64| count as f64 * (1.0 - known) * known.powi(count as i32 - 1);
        for known in [0.1, 0.5, 0.8, 0.9, 0.97] {
            let best = (1..=MAX_COVERED)
                .map(|count| chance(known, count))
                .fold(0.0, f64::max);
            assert!(chance(known, degree(known)) > 0.99 * best, "{known}");
        }
        assert_eq!(degree(0.0), 1);
        assert_eq!(degree(0.999), MAX_COVERED);
    }

    #[test]
    fn spare_capacity_is_filled_when_nothing_waits() {
        let mut scene = Scene::new(Scheme::Pluribus.config(), &[(20, 100_000), (40, 3_000)]);
        let mut pluribus = Pluribus::default();
        assert_eq!(pluribus.extra(&scene.view()), None, "nothing was sent");
        (0..5).for_each(|_| _ = scene.send(path(0)));
        scene.waiting = 1;
        assert_eq!(pluribus.extra(&scene.view()), None);
        scene.waiting = 0;
        let Some(Extra::Coded {
            start,
            count,
            path: over,
        }) = pluribus.extra(&scene.view())
        else {
            panic!("there is spare capacity");
        };
        assert_eq!(over, path(0), "the path with the most room");
        assert!(start + u64::from(count) <= 5, "{start}, {count}");
        scene.wait(81);
        assert_eq!(
            pluribus.extra(&scene.view()),
            None,
            "the packets are too old"
        );
        scene.send(path(0));
        scene.update(path(0), 20, 0);
        scene.update(path(1), 40, 0);
        assert_eq!(pluribus.extra(&scene.view()), None, "the windows are full");
    }
}
