use crate::judgement::Judgement;
use hawser_units::Instant;
use std::time::Duration;

/// A judgement is said again when nothing came of it for so long.
const AGAIN_AFTER: Duration = Duration::from_secs(2);

/// The last judgement, until a policy comes into force.
#[derive(Debug, Clone, Default)]
pub(crate) struct Proposal {
    said: Option<Judgement>,
    /// When it is to be said, the first time or again.
    due: Option<Instant>,
}

impl Proposal {
    pub(crate) fn say(&mut self, judgement: Judgement, now: Instant) {
        self.said = Some(judgement);
        self.due = Some(now);
    }

    /// What has been said and has not come into force.
    pub(crate) fn said(&self) -> Option<&Judgement> {
        self.said.as_ref()
    }

    /// Returns what had been said.
    pub(crate) fn withdraw(&mut self) -> Option<Judgement> {
        self.due = None;
        self.said.take()
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.due
    }

    pub(crate) fn poll(&mut self, now: Instant) -> Option<Judgement> {
        self.due.filter(|due| *due <= now)?;
        self.due = Some(now + AGAIN_AFTER);
        self.said.clone()
    }
}
