use hawser_units::Instant;
use std::time::Duration;

/// When a flow needs help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TriggerConfig {
    /// A request is late when the one before is longer ago than this.
    pub late_after: Duration,
    /// So many late requests in a row. Zero counts as one.
    pub in_a_row: u32,
    /// How long after it was re-armed the trigger does not look: what came before may still have its effect.
    pub hold_off: Duration,
}

impl Default for TriggerConfig {
    /// The paper's threshold and count (Qian, step 2); 1 s of hold-off.
    fn default() -> Self {
        TriggerConfig {
            late_after: Duration::from_millis(150),
            in_a_row: 3,
            hold_off: Duration::from_secs(1),
        }
    }
}

/// Watches the viewer's requests and says when the experience degrades.
///
/// A request is late when it should have come, not when it comes: one that does not come at all is late again every
/// `late_after`. A request in time begins the count anew. Having fired, the trigger is quiet until it is re-armed.
///
/// Requests are handled in the order of time, those from before `now` ahead of `handle_timeout(now)`.
#[derive(Debug, Clone)]
pub struct Trigger {
    config: TriggerConfig,
    /// The last request; none before the first one and after the end of a connection.
    last: Option<Instant>,
    /// When the interval began that is running: at the last request or when the last one became late.
    since: Instant,
    /// In a row.
    late: u32,
    late_in_all: u64,
    /// Whether it has fired and was not re-armed.
    fired: bool,
    /// When it looks again after it was re-armed.
    resumes: Instant,
    event: Option<Degraded>,
}

/// The requests of a flow came late as often in a row as the trigger allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Degraded {
    /// When it was noticed.
    pub at: Instant,
    /// When the last of the late requests was due.
    pub due: Instant,
    /// How long there had been no request when it was noticed.
    pub silent: Duration,
}

impl Trigger {
    /// An armed trigger that waits for the first request.
    pub fn new(config: TriggerConfig) -> Self {
        Trigger {
            config,
            last: None,
            since: Instant::ZERO,
            late: 0,
            late_in_all: 0,
            fired: false,
            resumes: Instant::ZERO,
            event: None,
        }
    }

    /// A request passed.
    pub fn handle_request(&mut self, at: Instant) {
        self.handle_timeout(at);
        let at = self.last.map_or(at, |last| last.max(at));
        if self
            .last
            .is_some_and(|last| at.saturating_since(last) <= self.config.late_after)
        {
            self.late = 0;
        }
        self.last = Some(at);
        self.since = at;
    }

    /// The connection ended (FIN or RST): silence is no sign of trouble until the next request.
    pub fn handle_end(&mut self, at: Instant) {
        self.handle_timeout(at);
        self.last = None;
        self.late = 0;
    }

    /// When [`Trigger::handle_timeout`] has something to do.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.fired || self.last.is_none() {
            return None;
        }
        Some(self.due() + Duration::from_nanos(1))
    }

    /// Counts the requests that should have come by `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        while self.poll_timeout().is_some_and(|due| due <= now) {
            let due = self.due();
            self.since = due;
            self.late += 1;
            self.late_in_all += 1;
            if self.late >= self.config.in_a_row {
                let silent = now.saturating_since(self.last.unwrap_or(now));
                self.event = Some(Degraded {
                    at: now,
                    due,
                    silent,
                });
                self.fired = true;
            }
        }
    }

    /// What there is to say.
    pub fn poll_event(&mut self) -> Option<Degraded> {
        self.event.take()
    }

    /// Late requests so far. While it is quiet, and in the hold-off, it does not look for them.
    pub fn late_requests(&self) -> u64 {
        self.late_in_all
    }

    /// The flow is no longer being helped as much as it can be: look again after the hold-off.
    pub fn rearm(&mut self, now: Instant) {
        self.fired = false;
        self.late = 0;
        self.resumes = now + self.config.hold_off;
    }

    /// When the next request is late, unless it comes.
    fn due(&self) -> Instant {
        self.since.max(self.resumes) + self.config.late_after
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    fn trigger() -> Trigger {
        Trigger::new(TriggerConfig::default())
    }

    /// Lets time pass as a process does that wakes when it is asked to.
    fn wait(trigger: &mut Trigger, until: Instant) -> Option<Degraded> {
        while let Some(due) = trigger.poll_timeout().filter(|due| *due <= until) {
            trigger.handle_timeout(due);
        }
        trigger.poll_event()
    }

    #[test]
    fn three_late_requests_in_a_row_fire_when_the_third_is_due() {
        let mut trigger = trigger();
        for at in [0, 33, 200, 360] {
            assert_eq!(wait(&mut trigger, ms(at)), None);
            trigger.handle_request(ms(at));
        }
        assert_eq!(wait(&mut trigger, ms(510)), None);

        let degraded = wait(&mut trigger, ms(520)).unwrap();
        assert_eq!((degraded.due, degraded.silent.as_millis()), (ms(510), 150));
        assert_eq!(degraded.at, ms(510) + Duration::from_nanos(1));
    }

    #[test]
    fn silence_is_late_again_and_again() {
        let mut trigger = trigger();
        trigger.handle_request(ms(1000));

        let degraded = wait(&mut trigger, ms(2000)).unwrap();
        assert_eq!(degraded.due, ms(1450));
        assert_eq!(trigger.poll_timeout(), None);
        assert_eq!(trigger.late_requests(), 3);
    }

    #[test]
    fn who_looks_late_learns_when_it_was_due() {
        let mut trigger = trigger();
        trigger.handle_request(ms(0));
        trigger.handle_request(ms(900));

        let degraded = Degraded {
            at: ms(900),
            due: ms(450),
            silent: Duration::from_millis(900),
        };
        assert_eq!(trigger.poll_event(), Some(degraded));
    }

    #[test]
    fn a_request_in_time_begins_the_count_anew() {
        let mut trigger = trigger();
        for at in [0, 310, 400, 710] {
            trigger.handle_request(ms(at));
            assert_eq!(trigger.poll_event(), None);
        }
        assert_eq!(wait(&mut trigger, ms(2000)).unwrap().due, ms(860));
        assert_eq!(trigger.late_requests(), 2 + 2 + 1);
    }

    #[test]
    fn exactly_in_time_is_in_time() {
        let mut trigger = trigger();
        for n in 0..100 {
            assert_eq!(wait(&mut trigger, ms(n * 150)), None);
            trigger.handle_request(ms(n * 150));
        }
    }

    #[test]
    fn nothing_is_late_before_the_first_request_and_after_the_end() {
        let mut trigger = trigger();
        assert_eq!(trigger.poll_timeout(), None);

        trigger.handle_request(ms(0));
        trigger.handle_request(ms(310));
        trigger.handle_end(ms(320));
        assert_eq!(trigger.poll_timeout(), None);

        trigger.handle_request(ms(10_000));
        assert_eq!(wait(&mut trigger, ms(20_000)).unwrap().due, ms(10_450));
    }

    #[test]
    fn having_fired_it_is_quiet_until_it_is_armed_again() {
        let mut trigger = trigger();
        trigger.handle_request(ms(0));
        assert!(wait(&mut trigger, ms(500)).is_some());
        trigger.handle_request(ms(5000));
        assert_eq!(wait(&mut trigger, ms(9000)), None);

        trigger.rearm(ms(10_000));
        assert_eq!(wait(&mut trigger, ms(11_440)), None);
        assert_eq!(wait(&mut trigger, ms(12_000)).unwrap().due, ms(11_450));
    }

    #[test]
    fn what_is_late_in_the_hold_off_does_not_count() {
        let mut trigger = trigger();
        trigger.handle_request(ms(0));
        trigger.rearm(ms(0));
        for at in [300, 600, 900, 1140] {
            trigger.handle_request(ms(at));
            assert_eq!(trigger.poll_event(), None);
        }
        assert_eq!(wait(&mut trigger, ms(2000)).unwrap().due, ms(1590));
    }
}
