use super::min_rtt::MinRtt;
use hawser_xnc::experiment::{Candidate, Extra, PathChoice, Scheduler, View, frame_size};

/// Sliding-window coding ahead of losses. Coded packets over the last packets follow these, at a
/// rate that depends on the measured loss, over the path with the most spare capacity. Losses that
/// they do not recover are final.
#[derive(Debug, Default)]
pub(super) struct Fec {
    /// The first packet that does not count towards `credit` yet.
    next: u64,
    /// The number of coded packets that may be sent.
    credit: f64,
}

/// The maximum number of packets that a coded packet covers.
pub(super) const WINDOW: u64 = 32;

/// Coded packets per lost packet. It exceeds 1 because losses come in bursts.
const FACTOR: f64 = 2.0;

/// The minimum and maximum of coded packets per packet.
const BOUNDS: std::ops::RangeInclusive<f64> = 0.05..=1.0;

impl Scheduler for Fec {
    fn select_path(&mut self, view: &View<'_>, candidate: Candidate) -> PathChoice {
        MinRtt.select_path(view, candidate)
    }

    fn extra(&mut self, view: &View<'_>) -> Option<Extra> {
        let sent = view.sent_packets.next();
        let fresh = sent.saturating_sub(self.next);
        self.next = sent;
        self.credit = (self.credit + fresh as f64 * share(view)).min(WINDOW as f64);
        if self.credit < 1.0 || sent == 0 {
            return None;
        }
        let start = sent.saturating_sub(WINDOW).max(view.sent_packets.first());
        let longest = (start..sent)
            .filter_map(|id| view.sent_packets.get(id))
            .map(|o| frame_size(&o.bytes))
            .max()?;
        let path = view
            .paths
            .iter()
            .filter(|path| path.fits(longest + 2))
            .max_by_key(|path| path.window())?;
        self.credit -= 1.0;
        Some(Extra::coded(start, (sent - start) as u8, path.id))
    }
}

/// Returns the coded packets per packet: the loss of the paths, weighted with the bytes in flight,
/// times [`FACTOR`].
fn share(view: &View<'_>) -> f64 {
    let weight: f64 = view
        .paths
        .iter()
        .map(|path| path.outstanding_bytes() as f64)
        .sum();
    let loss = view
        .paths
        .iter()
        .map(|path| path.loss() * path.outstanding_bytes() as f64)
        .sum::<f64>();
    let loss = if weight > 0.0 { loss / weight } else { 0.0 };
    (loss * FACTOR).clamp(*BOUNDS.start(), *BOUNDS.end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rivals::schemes::Scheme;
    use hawser_xnc::experiment::scene::{Scene, path};

    #[test]
    fn a_window_of_one_packet_is_repeated_and_a_longer_one_coded() {
        let mut scene = Scene::new(Scheme::Fec.config(), &[(20, 100_000)]);
        let mut fec = Fec {
            credit: 2.0,
            ..Fec::default()
        };
        let id = scene.send(path(0));
        let copy = Extra::Copy { id, path: path(0) };
        assert_eq!(fec.extra(&scene.view()), Some(copy));
        scene.send(path(0));
        let coded = Extra::Coded {
            start: id,
            count: 2,
            path: path(0),
        };
        assert_eq!(fec.extra(&scene.view()), Some(coded));
    }
}
