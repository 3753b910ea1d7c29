use hawser_units::Instant;
use std::time::Duration;

/// How far ahead the packets of a trial are to leave, in turn. A queue that always delays packets by
/// the same time is not mistaken for one that follows them: the two differ by more than [`LATE`] and [`EARLY`].
const LEADS: [Duration; 2] = [Duration::from_micros(1000), Duration::from_micros(2500)];

/// By how much a packet may leave before its time: the error of converting clocks.
const EARLY: Duration = Duration::from_micros(200);

/// By how much a packet of a trial may leave after its time.
const LATE: Duration = Duration::from_millis(1);

/// The number of packets in a row that leave in time in a trial before the kernel is believed.
const IN_TIME: usize = 4;

/// The number of packets of a trial that may leave too late, and of packets in a row without a time
/// stamp.
const MAX_LATE: u32 = 8;
const MAX_UNSTAMPED: u32 = 3;

/// The time after which no time stamp of a packet is expected any more.
const TIMEOUT: Duration = Duration::from_millis(100);

/// The time between the packets that are checked while the kernel follows departure times, and between trials while it
/// does not. The route may change to another device.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
const TRIAL_INTERVAL: Duration = Duration::from_secs(10);

/// How far ahead a packet has to be for a check.
const LEAST_LEAD: Duration = Duration::from_millis(1);

/// Finds out whether the kernel holds packets to one peer until their departure times, by comparing
/// the times at which some packets really left with those at which they were to leave.
///
/// A trial takes a few packets that may leave [milliseconds](DepartureCheck::poll_trial) late. After it,
/// packets that are given to the kernel ahead of their times are checked now and then.
///
/// ```
/// use hawser_congestion::{DepartureCheck, DepartureFinding};
/// use hawser_units::Instant;
///
/// let mut check = DepartureCheck::default();
/// let planned = check.poll_trial(Instant::ZERO).unwrap();
/// check.handle_left(Instant::ZERO, planned, Instant::ZERO);
/// assert_eq!(check.poll_finding(), Some(DepartureFinding::Early));
/// ```
#[derive(Debug, Clone, Default)]
pub struct DepartureCheck {
    state: State,
    /// When the packet whose time stamp is awaited was to leave.
    awaited: Option<Instant>,
    /// The number of packets in a row without a time stamp.
    unstamped: u32,
    found: Option<DepartureFinding>,
    is_news: bool,
}

/// The result of a [`DepartureCheck`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DepartureFinding {
    /// Packets left at their times.
    Followed,
    /// A packet left before its time.
    Early,
    /// Too many packets left long after their times.
    Late,
    /// The kernel did not say when packets left.
    Unstamped,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Trying { in_time: usize, late: u32 },
    Following { next_check: Instant },
    Waiting { next_trial: Instant },
}

impl Default for State {
    fn default() -> Self {
        State::Trying {
            in_time: 0,
            late: 0,
        }
    }
}

impl DepartureCheck {
    /// Returns when a packet is to leave that may leave 2.5 ms late and is sent now with this departure
    /// time, if one is wanted for a trial. A kernel that follows departure times may hold packets to the same peer that
    /// follow it for as long (`fq` does), so nothing else should wait to be sent.
    pub fn poll_trial(&mut self, now: Instant) -> Option<Instant> {
        self.expire(now);
        if matches!(self.state, State::Waiting { next_trial } if next_trial <= now) {
            self.state = State::default();
        }
        let State::Trying { in_time, .. } = self.state else {
            return None;
        };
        if self.awaited.is_some() {
            return None;
        }
        self.awaited = Some(now + LEADS[in_time % LEADS.len()]);
        self.awaited
    }

    /// Returns whether a packet that is given to the kernel now and is to leave at `planned` is checked.
    pub fn poll_check(&mut self, now: Instant, planned: Instant) -> bool {
        self.expire(now);
        let State::Following { next_check } = &mut self.state else {
            return false;
        };
        if self.awaited.is_some() || now < *next_check || planned < now + LEAST_LEAD {
            return false;
        }
        *next_check = now + CHECK_INTERVAL;
        self.awaited = Some(planned);
        true
    }

    /// Takes the time at which a packet left that was to leave at `planned`.
    pub fn handle_left(&mut self, now: Instant, planned: Instant, left: Instant) {
        if self.awaited != Some(planned) {
            return;
        }
        self.awaited = None;
        self.unstamped = 0;
        if left + EARLY < planned {
            return self.conclude(now, DepartureFinding::Early);
        }
        let State::Trying { in_time, late } = &mut self.state else {
            return;
        };
        if left <= planned + LATE {
            *in_time += 1;
        } else {
            *in_time = 0;
            *late += 1;
        }
        if *in_time == IN_TIME {
            self.conclude(now, DepartureFinding::Followed);
        } else if *late == MAX_LATE {
            self.conclude(now, DepartureFinding::Late);
        }
    }

    /// Returns whether packets may be given to the kernel ahead of their times.
    pub fn is_obeyed(&self) -> bool {
        matches!(self.state, State::Following { .. })
    }

    /// Returns the newest finding, if it differs from the one before and was not returned yet.
    pub fn poll_finding(&mut self) -> Option<DepartureFinding> {
        std::mem::take(&mut self.is_news)
            .then_some(self.found)
            .flatten()
    }

    fn expire(&mut self, now: Instant) {
        let is_overdue = |planned: Instant| planned + TIMEOUT < now;
        if self
            .awaited
            .take_if(|planned| is_overdue(*planned))
            .is_none()
        {
            return;
        }
        self.unstamped += 1;
        if self.unstamped == MAX_UNSTAMPED {
            self.conclude(now, DepartureFinding::Unstamped);
        }
    }

    fn conclude(&mut self, now: Instant, finding: DepartureFinding) {
        self.state = match finding {
            DepartureFinding::Followed => State::Following { next_check: now },
            _ => State::Waiting {
                next_trial: now + TRIAL_INTERVAL,
            },
        };
        self.unstamped = 0;
        self.is_news = self.found.replace(finding) != Some(finding);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A kernel that lets a packet leave that is given to it at the first time and is to leave at the
    /// second one.
    type Kernel = fn(Instant, Instant) -> Option<Instant>;

    const OBEYS: Kernel = |_, planned| Some(planned + MS / 20);
    const IGNORES: Kernel = |now, _| Some(now + MS / 100);

    /// Offers packets, one per millisecond, to trials for a time.
    fn try_for(check: &mut DepartureCheck, from: Instant, millis: u32, kernel: Kernel) -> u32 {
        let mut packets = 0;
        for now in (0..millis).map(|at| from + at * MS) {
            if let Some(planned) = check.poll_trial(now) {
                packets += 1;
                if let Some(left) = kernel(now, planned) {
                    check.handle_left(now, planned, left);
                }
            }
        }
        packets
    }

    #[test]
    fn a_pacing_kernel_is_trusted_and_checked_further() {
        let mut check = DepartureCheck::default();
        let now = Instant::ZERO + 1000 * MS;
        assert_eq!(try_for(&mut check, now, 100, OBEYS), 4);
        assert_eq!(check.poll_finding(), Some(DepartureFinding::Followed));

        let now = now + 100 * MS;
        assert!(!check.poll_check(now, now + MS / 2), "too close");
        assert!(check.poll_check(now, now + 2 * MS));
        check.handle_left(now, now + 2 * MS, now + 9 * MS);
        assert!(check.is_obeyed(), "a full queue is no disobedience");
        assert!(!check.poll_check(now + 99 * MS, now + 101 * MS));

        // The route leads to another device.
        let now = now + 100 * MS;
        assert!(check.poll_check(now, now + 2 * MS));
        check.handle_left(now, now + 2 * MS, now);
        assert!(!check.is_obeyed());
        assert_eq!(check.poll_finding(), Some(DepartureFinding::Early));
    }

    #[test]
    fn checking_a_kernel_costs_a_packet_in_ten_seconds() {
        let mut check = DepartureCheck::default();
        let now = Instant::ZERO + 1000 * MS;
        assert_eq!(try_for(&mut check, now, 9_999, IGNORES), 1);
        assert_eq!(check.poll_finding(), Some(DepartureFinding::Early));
        assert_eq!(try_for(&mut check, now + 10_000 * MS, 9_000, IGNORES), 1);
        assert_eq!(check.poll_finding(), None, "nothing new");
        try_for(&mut check, now + 20_000 * MS, 100, OBEYS);
        assert_eq!(check.poll_finding(), Some(DepartureFinding::Followed));
    }

    #[test]
    fn a_queue_of_any_constant_delay_is_not_mistaken_for_obedience() {
        for delay in 0..400 {
            let mut check = DepartureCheck::default();
            let now = Instant::ZERO + 1000 * MS;
            for packet in 0..20 {
                let now = now + packet * 10 * MS;
                if let Some(planned) = check.poll_trial(now) {
                    check.handle_left(now, planned, now + delay * MS / 20);
                }
            }
            assert!(!check.is_obeyed(), "{delay} twentieths of a millisecond");
            assert!(check.poll_finding().is_some());
        }
    }

    #[test]
    fn without_time_stamps_the_kernel_is_not_believed() {
        let mut check = DepartureCheck::default();
        let now = Instant::ZERO + 1000 * MS;
        assert_eq!(try_for(&mut check, now, 1000, |_, _| None), 3);
        assert_eq!(check.poll_finding(), Some(DepartureFinding::Unstamped));

        let mut check = DepartureCheck::default();
        try_for(&mut check, now, 100, OBEYS);
        let unstamped = (0..1000).filter(|at| {
            let now = now + *at * MS;
            check.poll_check(now, now + 2 * MS)
        });
        assert_eq!(unstamped.count(), 3);
        assert!(!check.is_obeyed());
    }

    #[test]
    fn a_stamp_that_is_not_awaited_has_no_effect() {
        let mut check = DepartureCheck::default();
        let now = Instant::ZERO + 1000 * MS;
        let planned = check.poll_trial(now).unwrap();
        check.handle_left(now, planned + MS, now);
        assert_eq!(check.poll_trial(now), None);
        check.handle_left(now, planned, planned);
        assert!(check.poll_trial(now).is_some() && check.poll_finding().is_none());
    }
}
