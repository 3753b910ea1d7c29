use hawser_units::Instant;
use std::time::Duration;

/// The conditions under which a [`Trigger`] fires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TriggerConfig {
    /// A request is late if the previous one was longer ago than this.
    pub late_after: Duration,
    /// The number of late requests in a row that fires the trigger. Zero counts as one.
    pub in_a_row: u32,
    /// The time after re-arming during which late requests are ignored: earlier problems may still
    /// have an effect.
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

/// Watches the viewer's requests and detects when the experience degrades.
///
/// A request becomes late when it is due, not when it arrives. While none arrives, another late
/// request is counted every `late_after`. A request in time resets the count. Once fired, the
/// trigger stays silent until it is re-armed.
///
/// Requests must be handled in order of time, and those from before `now` before
/// `handle_timeout(now)`.
#[derive(Debug, Clone)]
pub struct Trigger {
    config: TriggerConfig,
    /// The last request; `None` before the first one and after the end of a connection.
    last: Option<Instant>,
    /// Start of the current interval: the last request, or the time at which the last one became
    /// late.
    since: Instant,
    /// Late requests in a row.
    late: u32,
    total_late: u64,
    /// Whether the trigger has fired and was not re-armed.
    fired: bool,
    /// End of the hold-off after re-arming.
    resumes: Instant,
    event: Option<Degraded>,
}

/// The configured number of requests in a row was late.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Degraded {
    /// The time of detection.
    pub at: Instant,
    /// The time at which the last of the late requests was due.
    pub due: Instant,
    /// The time since the last request, at detection.
    pub silent: Duration,
}

impl Trigger {
    /// Creates an armed trigger that waits for the first request.
    pub fn new(config: TriggerConfig) -> Self {
        Trigger {
            config,
            last: None,
            since: Instant::ZERO,
            late: 0,
            total_late: 0,
            fired: false,
            resumes: Instant::ZERO,
            event: None,
        }
    }

    /// Handles a request of the viewer.
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

    /// Handles the end of the connection (FIN or RST): until the next request, silence is no sign
    /// of degradation.
    pub fn handle_end(&mut self, at: Instant) {
        self.handle_timeout(at);
        self.last = None;
        self.late = 0;
    }

    /// Returns when [`Trigger::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.fired || self.last.is_none() {
            return None;
        }
        Some(self.due() + Duration::from_nanos(1))
    }

    /// Counts the requests that were due by `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        while self.poll_timeout().is_some_and(|due| due <= now) {
            let due = self.due();
            self.since = due;
            self.late += 1;
            self.total_late += 1;
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

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Degraded> {
        self.event.take()
    }

    /// Returns the number of late requests so far. They are not counted after the trigger has fired
    /// and during the hold-off.
    pub fn late_requests(&self) -> u64 {
        self.total_late
    }

    /// Re-arms the trigger after the hold-off: the flow could be given more help than it has now.
    pub fn rearm(&mut self, now: Instant) {
        self.fired = false;
        self.late = 0;
        self.resumes = now + self.config.hold_off;
    }

    /// Returns when the next request becomes late.
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

    /// Lets time pass like a process that wakes up when a timeout is due.
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
    fn a_late_poll_still_reports_the_due_time() {
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
    fn a_request_in_time_resets_the_count() {
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
