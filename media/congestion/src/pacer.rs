use hawser_units::{Bitrate, ByteSize, Instant};
use std::time::Duration;

/// The time that a late sender catches up at once, by packets that leave as one burst (`udp_prague` has
/// the same limit).
const BURST: Duration = Duration::from_micros(250);

/// The maximum time that it catches up afterwards, and the share of the time by which packets then
/// follow sooner. A busy machine wakes a sender late all the time.
const CATCH_UP: Duration = Duration::from_millis(5);
const CATCH_UP_SHARE: u32 = 5;

/// How the packets of a frame are spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// Over a fixed interval, whatever the frame's size (De Fré et al., equation 1).
    Interval(Duration),
    /// At the rate that the path bears, so that a frame leaves sooner where the encoder's rate is
    /// well below that.
    BorneRate,
}

/// Decides when each packet leaves. A frame that takes longer than its interval continues; the next
/// one follows it.
///
/// ```
/// use hawser_congestion::{Pacer, Spread};
/// use hawser_units::{Bitrate, ByteSize, Instant};
/// use std::time::Duration;
///
/// let mut pacer = Pacer::new(Spread::Interval(Duration::from_millis(20)));
/// pacer.begin_frame(ByteSize(4800));
/// pacer.handle_sent(Instant::ZERO, ByteSize(1200), Bitrate::from_mbps(12.5));
/// assert_eq!(pacer.next_send(), Instant::ZERO + Duration::from_millis(5));
/// ```
#[derive(Debug, Clone)]
pub struct Pacer {
    spread: Spread,
    frame: ByteSize,
    next: Instant,
    /// Whether a packet waits for `next`.
    is_awaited: bool,
    /// The time to be caught up.
    behind: Duration,
}

impl Pacer {
    /// Creates a pacer whose first packet may leave at once.
    pub fn new(spread: Spread) -> Self {
        Pacer {
            spread,
            frame: ByteSize(0),
            next: Instant::ZERO,
            is_awaited: false,
            behind: Duration::ZERO,
        }
    }

    /// Sets the size of the frame to which the next packets belong.
    pub fn begin_frame(&mut self, size: ByteSize) {
        self.frame = size;
    }

    /// Returns the earliest time at which the next packet may leave.
    pub fn next_send(&self) -> Instant {
        self.next
    }

    /// Records a packet that leaves `now`. `borne` is the pacing rate of the rate control.
    pub fn handle_sent(&mut self, now: Instant, size: ByteSize, borne: Bitrate) {
        let due = self.next.max(now - BURST);
        self.behind = match std::mem::take(&mut self.is_awaited) {
            true => (self.behind + due.saturating_since(self.next)).min(CATCH_UP),
            false => Duration::ZERO,
        };
        let gap = self.time_to_send(size, borne);
        let caught_up = self.behind.min(gap / CATCH_UP_SHARE);
        self.behind -= caught_up;
        self.next = due + (gap - caught_up);
    }

    /// Records that another packet waits: what it leaves later than [`Pacer::next_send`] is caught up.
    pub fn handle_waiting(&mut self) {
        self.is_awaited = true;
    }

    /// Returns the time in which so many bytes leave.
    pub fn time_to_send(&self, size: ByteSize, borne: Bitrate) -> Duration {
        match self.spread {
            Spread::BorneRate => borne.time_to_send(size),
            Spread::Interval(interval) => share(interval, size, self.frame),
        }
    }
}

/// Returns the part of the interval that a packet takes: equation 1.
fn share(interval: Duration, packet: ByteSize, frame: ByteSize) -> Duration {
    let bytes = u128::from(packet.0.min(frame.0));
    let nanos = interval.as_nanos() * bytes / u128::from(frame.0.max(1));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn leaving(spread: Spread, rate: Bitrate, packets: u32) -> Vec<Duration> {
        let mut pacer = Pacer::new(spread);
        let start = Instant::ZERO + Duration::from_secs(1);
        pacer.begin_frame(ByteSize(1000 * u64::from(packets)));
        let leave = |_| {
            let at = pacer.next_send().max(start);
            pacer.handle_sent(at, ByteSize(1000), rate);
            at.saturating_since(start)
        };
        (0..packets).map(leave).collect()
    }

    #[test]
    fn equation_1_spreads_any_frame_over_the_interval() {
        let slow = Bitrate::from_mbps(1.0);
        for packets in [4, 40, 400] {
            let times = leaving(Spread::Interval(20 * MS), slow, packets);
            let last = *times.last().unwrap() + 20 * MS / packets;
            let spread = last.as_micros().abs_diff((20 * MS - BURST).as_micros());
            assert!(spread <= 1 + u128::from(packets), "{packets}: {last:?}");
        }
    }

    #[test]
    fn a_frame_leaves_sooner_where_the_path_bears_more() {
        let at_40 = leaving(Spread::BorneRate, Bitrate::from_mbps(40.0), 100);
        let at_80 = leaving(Spread::BorneRate, Bitrate::from_mbps(80.0), 100);

        assert!(*at_40.last().unwrap() < 20 * MS && *at_40.last().unwrap() > 19 * MS);
        assert!(*at_80.last().unwrap() < 10 * MS);
    }

    #[test]
    fn a_late_sender_catches_up_by_a_short_burst() {
        let mut pacer = Pacer::new(Spread::BorneRate);
        let rate = Bitrate::from_mbps(80.0);
        let now = Instant::ZERO + Duration::from_secs(1);
        let mut burst = 0;
        while pacer.next_send() <= now {
            pacer.handle_sent(now, ByteSize(1000), rate);
            burst += 1;
        }
        assert_eq!(burst, 3);
    }

    /// Returns the number of packets of 100 µs that leave within 100 ms if the sender wakes every
    /// 500 µs only.
    fn leaving_on_a_busy_machine(is_awaited: bool) -> u32 {
        let mut pacer = Pacer::new(Spread::BorneRate);
        let rate = Bitrate::from_mbps(80.0);
        let mut sent = 0;
        let start = Instant::ZERO + Duration::from_secs(1);
        for wake in 0..200 {
            let now = start + wake * Duration::from_micros(500);
            while pacer.next_send() <= now {
                pacer.handle_sent(now, ByteSize(1000), rate);
                sent += 1;
                if is_awaited {
                    pacer.handle_waiting();
                }
            }
        }
        sent
    }

    #[test]
    fn a_late_sender_keeps_its_rate_without_larger_bursts() {
        let [catching_up, idle] = [true, false].map(leaving_on_a_busy_machine);
        let bounds = idle * 6 / 5..=1000;
        assert!(bounds.contains(&catching_up), "{catching_up}, {idle}");
    }

    #[test]
    fn what_was_missed_is_caught_up_and_no_more() {
        let mut pacer = Pacer::new(Spread::BorneRate);
        let rate = Bitrate::from_mbps(80.0);
        let start = Instant::ZERO + Duration::from_secs(1);
        let mut now = start;
        let mut sent = 0;
        while now < start + 100 * MS {
            pacer.handle_sent(now, ByteSize(1000), rate);
            pacer.handle_waiting();
            sent += 1;
            // Once, the sender wakes 3 ms late.
            let late = if sent == 100 { 3 * MS } else { Duration::ZERO };
            now = pacer.next_send().max(now + late);
        }
        assert!((998..=1006).contains(&sent), "{sent}");
    }
}
