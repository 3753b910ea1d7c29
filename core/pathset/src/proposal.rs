use crate::judgement::Judgement;
use hawser_units::Instant;
use std::time::Duration;

/// A judgement of which nothing came for so long is said again, or made anew.
const AGAIN_AFTER: Duration = Duration::from_secs(2);

/// The last judgement, until a policy comes into force.
#[derive(Debug, Clone, Default)]
pub(crate) struct Proposal {
    said: Option<(Judgement, Instant)>,
    is_new: bool,
}

impl Proposal {
    pub(crate) fn say(&mut self, judgement: Judgement, now: Instant) {
        self.said = Some((judgement, now));
        self.is_new = true;
    }

    pub(crate) fn say_again(&mut self, now: Instant) {
        if let Some((_, said_at)) = &mut self.said {
            *said_at = now;
            self.is_new = true;
        }
    }

    /// What has been said and has not come into force.
    pub(crate) fn said(&self) -> Option<&Judgement> {
        self.said.as_ref().map(|(judgement, _)| judgement)
    }

    /// It is in force, or no longer what should be.
    pub(crate) fn withdraw(&mut self) {
        self.said = None;
    }

    /// When what has been said should be said again.
    pub(crate) fn again_at(&self) -> Option<Instant> {
        self.said
            .as_ref()
            .map(|(_, said_at)| *said_at + AGAIN_AFTER)
    }

    /// What is to be said, once.
    pub(crate) fn poll(&mut self) -> Option<Judgement> {
        let (judgement, _) = self
            .said
            .as_ref()
            .filter(|_| std::mem::take(&mut self.is_new))?;
        Some(judgement.clone())
    }
}
