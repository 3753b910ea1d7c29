use super::min_rtt::MinRtt;
use super::{Behaviour, Candidate, Extra, Place, View, fastest};
use crate::scheme::frame_size;
use std::time::Duration;

/// Multipath QUIC that sends unacknowledged packets again over another path while the viewer's buffer runs dry (Zheng et
/// al., "XLINK: QoE-Driven Multi-Path QUIC Transport in Large-scale Video Services", SIGCOMM 2021, section 5.2).
///
/// There the viewer reports the play time that it has left. A live stream has a play-out buffer of fixed length, from which
/// the age of the oldest packet that is not acknowledged takes away.
#[derive(Debug, Default)]
pub(crate) struct Xlink {
    /// Packets before this one were sent again, if they had to be.
    next: u64,
}

/// The longest gap between frames that is no stall (Ni, appendix C).
const BUFFER: Duration = Duration::from_millis(200);

/// With less than this left, packets are always sent again (T_th1).
const LITTLE: Duration = Duration::from_millis(50);

/// With more than this left, never (T_th2). Between the two, when a packet may take longer than that to be delivered.
const PLENTY: Duration = Duration::from_millis(150);

impl Behaviour for Xlink {
    fn place(&mut self, view: &View<'_>, candidate: Candidate) -> Place {
        MinRtt.place(view, candidate)
    }

    fn extra(&mut self, view: &View<'_>) -> Option<Extra> {
        if view.waiting > 0 || !is_urgent(view) {
            return None;
        }
        let expected = fastest(view.paths.iter())?.state.rtt;
        self.next = self.next.max(view.pool.first());
        while self.next < view.pool.next() {
            let id = self.next;
            if let Some(original) = view.pool.get(id).filter(|original| !original.fate.is_settled()) {
                // The fastest path could have delivered it by now. Younger ones cost much and help nobody.
                if view.now.saturating_since(original.since) < expected.smoothed + expected.variation {
                    return None;
                }
                let size = frame_size(&original.bytes);
                let others =
                    view.paths.iter().filter(|path| Some(path.id) != original.path && path.fits(size));
                let path = fastest(others)?.id;
                self.next += 1;
                return Some(Extra::Copy { id, path });
            }
            self.next += 1;
        }
        None
    }
}

fn is_urgent(view: &View<'_>) -> bool {
    let oldest = view.pool.iter().find(|(_, original)| !original.fate.is_settled());
    let Some((_, oldest)) = oldest else { return false };
    let left = BUFFER.saturating_sub(view.now.saturating_since(oldest.since));
    let slowest = view.paths.iter().map(|path| path.state.rtt.smoothed + path.state.rtt.variation).max();
    left < LITTLE || left <= PLENTY && left < slowest.unwrap_or_default()
}
