use super::min_rtt::MinRtt;
use hawser_xnc::experiment::{Candidate, Extra, PathChoice, Scheduler, View, fastest, frame_size};
use std::time::Duration;

/// Multipath QUIC that retransmits unacknowledged packets over another path when the viewer's
/// buffer runs low (Zheng et al., "XLINK: QoE-Driven Multi-Path QUIC Transport in Large-scale Video
/// Services", SIGCOMM 2021, section 5.2).
///
/// In the paper the viewer reports its remaining play time. Here a live stream has a play-out
/// buffer of fixed length, reduced by the age of the oldest unacknowledged packet.
#[derive(Debug, Default)]
pub(super) struct Xlink {
    /// Packets before this one were retransmitted if necessary.
    next: u64,
}

/// The longest gap between frames that is not a stall (Ni, appendix C).
const PLAYOUT_BUFFER: Duration = Duration::from_millis(200);

/// With less play time left, packets are always retransmitted (T_th1).
const LOW_BUFFER: Duration = Duration::from_millis(50);

/// With more play time left, packets are never retransmitted (T_th2). Between the two, they are if
/// delivery may take longer than the time left.
const HIGH_BUFFER: Duration = Duration::from_millis(150);

impl Scheduler for Xlink {
    fn select_path(&mut self, view: &View<'_>, candidate: Candidate) -> PathChoice {
        MinRtt.select_path(view, candidate)
    }

    fn extra(&mut self, view: &View<'_>) -> Option<Extra> {
        if view.waiting > 0 || !is_urgent(view) {
            return None;
        }
        let expected = fastest(view.paths.iter())?.state.rtt;
        self.next = self.next.max(view.sent_packets.first());
        while self.next < view.sent_packets.next() {
            let id = self.next;
            if let Some(original) = view
                .sent_packets
                .get(id)
                .filter(|original| !original.fate.is_settled())
            {
                // The fastest path could have delivered it by now. Copies of more recent packets
                // cost much and rarely help.
                if view.now.saturating_since(original.queued_at)
                    < expected.smoothed + expected.variation
                {
                    return None;
                }
                let size = frame_size(&original.bytes);
                let others = view
                    .paths
                    .iter()
                    .filter(|path| Some(path.id) != original.path && path.fits(size));
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
    let oldest = view
        .sent_packets
        .iter()
        .find(|(_, original)| !original.fate.is_settled());
    let Some((_, oldest)) = oldest else {
        return false;
    };
    let left = PLAYOUT_BUFFER.saturating_sub(view.now.saturating_since(oldest.queued_at));
    let slowest = view
        .paths
        .iter()
        .map(|path| path.state.rtt.smoothed + path.state.rtt.variation)
        .max();
    left < LOW_BUFFER || left <= HIGH_BUFFER && left < slowest.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rivals::schemes::Scheme;
    use hawser_xnc::experiment::scene::{Scene, path};

    /// Paths of 20 ms and of `slow_ms`, and a packet that was sent on the first one `age_ms` ago.
    fn scene(slow_ms: u64, age_ms: u64) -> Scene {
        let mut scene = Scene::new(Scheme::Xlink.config(), &[(20, 100_000), (slow_ms, 100_000)]);
        scene.send(path(0));
        scene.wait(age_ms);
        scene
    }

    #[test]
    fn what_is_sent_again_depends_on_the_time_left() {
        for slow_ms in [40, 300] {
            assert_eq!(
                Xlink::default().extra(&scene(slow_ms, 49).view()),
                None,
                "151 ms left"
            );
            let copy = Some(Extra::Copy {
                id: 0,
                path: path(1),
            });
            assert_eq!(
                Xlink::default().extra(&scene(slow_ms, 151).view()),
                copy,
                "49 ms left"
            );
        }
    }

    #[test]
    fn between_the_two_it_depends_on_how_long_a_packet_may_take() {
        let copy = Some(Extra::Copy {
            id: 0,
            path: path(1),
        });
        assert_eq!(
            Xlink::default().extra(&scene(120, 90).view()),
            copy,
            "110 ms left"
        );
        assert_eq!(
            Xlink::default().extra(&scene(100, 90).view()),
            None,
            "110 ms left"
        );
    }

    #[test]
    fn a_packet_is_repeated_once_and_not_while_others_wait() {
        let mut scene = scene(40, 151);
        scene.waiting = 1;
        let mut xlink = Xlink::default();
        assert_eq!(xlink.extra(&scene.view()), None);
        scene.waiting = 0;
        assert_eq!(
            xlink.extra(&scene.view()),
            Some(Extra::Copy {
                id: 0,
                path: path(1)
            })
        );
        assert_eq!(xlink.extra(&scene.view()), None);
        scene.send(path(1));
        scene.wait(19);
        assert_eq!(xlink.extra(&scene.view()), None);
        scene.wait(1);
        assert_eq!(
            xlink.extra(&scene.view()),
            Some(Extra::Copy {
                id: 1,
                path: path(0)
            })
        );
    }

    #[test]
    fn no_path_without_window_is_taken() {
        let mut scene = scene(40, 151);
        scene.update(path(1), 40, 0);
        assert_eq!(Xlink::default().extra(&scene.view()), None);
    }
}
