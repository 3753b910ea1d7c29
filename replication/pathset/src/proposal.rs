use crate::judgement::Judgement;
use hawser_units::Instant;
use std::time::Duration;

/// A judgement that no policy has followed for this long is repeated, or made again.
const REPEAT_AFTER: Duration = Duration::from_secs(2);

/// The last judgement, until a policy comes into force.
#[derive(Debug, Clone, Default)]
pub(crate) struct Proposal {
    pending: Option<(Judgement, Instant)>,
    is_new: bool,
}

impl Proposal {
    pub(crate) fn propose(&mut self, judgement: Judgement, now: Instant) {
        self.pending = Some((judgement, now));
        self.is_new = true;
    }

    pub(crate) fn repeat(&mut self, now: Instant) {
        if let Some((_, proposed_at)) = &mut self.pending {
            *proposed_at = now;
            self.is_new = true;
        }
    }

    /// Returns the judgement that has not come into force yet.
    pub(crate) fn pending(&self) -> Option<&Judgement> {
        self.pending.as_ref().map(|(judgement, _)| judgement)
    }

    /// Withdraws the judgement: it is in force, or outdated.
    pub(crate) fn withdraw(&mut self) {
        self.pending = None;
    }

    /// Returns when the judgement should be repeated.
    pub(crate) fn repeat_at(&self) -> Option<Instant> {
        self.pending
            .as_ref()
            .map(|(_, proposed_at)| *proposed_at + REPEAT_AFTER)
    }

    /// Returns the judgement once after each call of `propose` or `repeat`.
    pub(crate) fn poll(&mut self) -> Option<Judgement> {
        let (judgement, _) = self
            .pending
            .as_ref()
            .filter(|_| std::mem::take(&mut self.is_new))?;
        Some(judgement.clone())
    }
}
