use super::min_rtt::MinRtt;
use super::{Behaviour, Candidate, Extra, Place, View, frame_size};

/// Sliding-window coding ahead of losses, after Pluribus (Mahajan et al., "High Performance Vehicular Connectivity using
/// Opportunistic Erasure Coding", ATC 2012): combinations of the last packets follow them, as many as the losses measured
/// ask for, over the path with the most spare capacity. What they do not recover stays lost.
#[derive(Debug, Default)]
pub(crate) struct Fec {
    /// The next packet for which nothing was added.
    next: u64,
    /// Combinations that are owed.
    owed: f64,
}

/// Packets that a combination covers at most.
pub(crate) const WINDOW: u64 = 32;

/// Combinations for each lost packet: losses come in bursts.
const FACTOR: f64 = 2.0;

/// Combinations for each packet, at least and at most.
const BOUNDS: std::ops::RangeInclusive<f64> = 0.05..=1.0;

impl Behaviour for Fec {
    fn place(&mut self, view: &View<'_>, candidate: Candidate) -> Place {
        MinRtt.place(view, candidate)
    }

    fn extra(&mut self, view: &View<'_>) -> Option<Extra> {
        let sent = view.pool.next();
        let fresh = sent.saturating_sub(self.next);
        self.next = sent;
        self.owed = (self.owed + fresh as f64 * share(view)).min(WINDOW as f64);
        if self.owed < 1.0 || sent == 0 {
            return None;
        }
        let start = sent.saturating_sub(WINDOW).max(view.pool.first());
        let longest = (start..sent)
            .filter_map(|id| view.pool.get(id))
            .map(|o| frame_size(&o.bytes))
            .max()?;
        let path = view
            .paths
            .iter()
            .filter(|path| path.fits(longest + 2))
            .max_by_key(|path| path.window())?;
        self.owed -= 1.0;
        Some(Extra::Coded {
            start,
            count: (sent - start) as u8,
            path: path.id,
        })
    }
}

/// Combinations for each packet: the loss of the paths in proportion to what is under way over them.
fn share(view: &View<'_>) -> f64 {
    let weight: f64 = view
        .paths
        .iter()
        .map(|path| path.outstanding_bytes() as f64)
        .sum();
    let loss = view
        .paths
        .iter()
        .map(|path| path.outstanding.loss() * path.outstanding_bytes() as f64)
        .sum::<f64>();
    let loss = if weight > 0.0 { loss / weight } else { 0.0 };
    (loss * FACTOR).clamp(*BOUNDS.start(), *BOUNDS.end())
}
