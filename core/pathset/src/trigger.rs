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
    late: u32,
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
            fired: false,
            resumes: Instant::ZERO,
            event: None,
        }
    }

    /// A request passed.
    pub fn handle_request(&mut self, at: Instant) {
        self.handle_timeout(at);
        let at = self.last.map_or(at, |last| last.max(at));
        if self.last.is_some_and(|last| at.saturating_since(last) <= self.config.late_after) {
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
            if self.late >= self.config.in_a_row {
                let silent = now.saturating_since(self.last.unwrap_or(now));
                self.event = Some(Degraded { at: now, due, silent });
                self.fired = true;
            }
        }
    }

    /// What there is to say.
    pub fn poll_event(&mut self) -> Option<Degraded> {
        self.event.take()
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
