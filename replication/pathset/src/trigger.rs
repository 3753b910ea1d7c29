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

/// The time before a report of the application that it is about, without stalls.
const REPORTED: Duration = Duration::from_secs(1);

/// The time without late frames in any report after which those before do not count. Of several applications, not all may
/// have them, and each reports every second.
const IN_TIME: Duration = Duration::from_millis(900);

/// The longest stall of a report that counts, and with it the longest time that a report is about.
const MAX_STALL: Duration = Duration::from_secs(10);

/// Watches the viewer's requests, and the reports of the application, and detects when the
/// experience degrades.
///
/// A request becomes late when it is due, not when it arrives. While none arrives, another late
/// request is counted every `late_after`. A request in time resets the count. Once fired, the
/// trigger stays silent until it is re-armed.
///
/// A late frame that the application reports counts as a late request, and a stall as many as it
/// lasts times `late_after`. A report without either resets their count.
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
    /// Late frames in consecutive reports of applications, since a time without.
    reported: u32,
    /// The time of the last report of late frames.
    reported_at: Instant,
    total_late: u64,
    /// Whether the trigger has fired and was not re-armed.
    fired: bool,
    /// End of the hold-off after re-arming.
    resumes: Instant,
    event: Option<Degraded>,
}

/// The configured number of requests or frames in a row was late.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Degraded {
    /// The time of detection.
    pub at: Instant,
    /// The time at which the last of the late requests was due; that of the report, if the
    /// application has reported late frames.
    pub due: Instant,
    /// The time since the last request, at detection; that which the report is about.
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
            reported: 0,
            reported_at: Instant::ZERO,
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

    /// Handles a report of the application: the frames that were late since its last one, and the
    /// time for which it showed nothing new.
    pub fn handle_report(&mut self, at: Instant, late: u32, stalled: Duration) {
        let stalled = stalled.min(MAX_STALL);
        let intervals = stalled.as_nanos() / self.config.late_after.as_nanos().max(1);
        let late = late.max(u32::try_from(intervals).unwrap_or(u32::MAX));
        if self.fired || at < self.resumes {
            return;
        }
        if late > 0 {
            self.reported = self.reported.saturating_add(late);
            self.reported_at = at;
        } else if at.saturating_since(self.reported_at) >= IN_TIME {
            self.reported = 0;
        }
        if self.reported >= self.config.in_a_row.max(1) {
            self.event = Some(Degraded {
                at,
                due: at,
                silent: REPORTED.max(stalled),
            });
            self.fired = true;
        }
    }

    /// Returns whether [`Trigger::poll_event`] has an event.
    pub fn has_event(&self) -> bool {
        self.event.is_some()
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
        self.reported = 0;
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

    /// Handles reports of late frames, one a second from the first second on. Returns the numbers of
    /// those that fired the trigger.
    fn report(trigger: &mut Trigger, late: &[(u32, u64)]) -> Vec<u64> {
        let mut fired = Vec::new();
        for (second, (late, stalled_ms)) in (1..).zip(late) {
            trigger.handle_report(ms(second * 1000), *late, Duration::from_millis(*stalled_ms));
            fired.extend(trigger.poll_event().map(|degraded| {
                assert_eq!(
                    (degraded.at, degraded.due),
                    (ms(second * 1000), degraded.at)
                );
                second
            }));
        }
        fired
    }

    #[test]
    fn reports_of_three_late_frames_fire_once() {
        assert_eq!(report(&mut trigger(), &[(3, 0), (30, 0), (30, 0)]), [1]);
        assert_eq!(report(&mut trigger(), &[(1, 0), (1, 0), (1, 0)]), [3]);
        assert_eq!(report(&mut trigger(), &[(2, 0), (0, 0), (2, 0)]), []);
        assert_eq!(report(&mut trigger(), &[(0, 449), (0, 0), (0, 450)]), [3]);
        assert_eq!(report(&mut trigger(), &[(u32::MAX, u64::MAX)]), [1]);
    }

    #[test]
    fn reports_in_the_hold_off_do_not_count() {
        let mut trigger = trigger();
        assert_eq!(report(&mut trigger, &[(3, 0)]), [1]);
        trigger.rearm(ms(1_500));
        assert_eq!(report(&mut trigger, &[(0, 0), (3, 0), (2, 0), (1, 0)]), [4]);
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
