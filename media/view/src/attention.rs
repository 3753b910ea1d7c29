//! Decides whether the person who is shown is in the viewer's field of view.

use hawser_cloud::{Extent, FieldOfView, Pose};
use hawser_units::Instant;
use std::time::Duration;

/// The angles in degrees by which the field of view is wider on each side: in which the person comes into
/// view, since the first frames with all layers take a round trip, and in which the person stays.
const ENTERING_DEGREES: f32 = 10.0;
const STAYING_DEGREES: f32 = 20.0;

/// The share of the points in the wider field of view with which a person comes into view, and stays.
const ENTERING_SHARE: f32 = 0.02;
const STAYING_SHARE: f32 = 0.01;

/// The time for which a person who is out of view still counts as looked at. So what is looked at changes at most twice
/// in this time.
const LINGERING: Duration = Duration::from_millis(500);

/// Decides whether a person is looked at, from the pose of the viewer and where the points of the person are.
/// One of whom nothing is known yet is.
#[derive(Debug)]
pub(crate) struct Attention {
    entering: FieldOfView,
    staying: FieldOfView,
    extent: Option<Extent>,
    is_looked_at: bool,
    /// The newest time at which the person was in view.
    seen: Option<Instant>,
}

impl Attention {
    pub(crate) fn new() -> Self {
        let widened = |degrees: f32| FieldOfView::default().widened(degrees.to_radians());
        Attention {
            entering: widened(ENTERING_DEGREES),
            staying: widened(STAYING_DEGREES),
            extent: None,
            is_looked_at: true,
            seen: None,
        }
    }

    /// Says where the points of the person are. A frame without points changes nothing.
    pub(crate) fn set_extent(&mut self, extent: Extent) {
        if !extent.is_empty() {
            self.extent = Some(extent);
        }
    }

    /// Forgets where the person was: it may be another one.
    pub(crate) fn forget(&mut self) {
        self.extent = None;
    }

    /// Returns whether the person is looked at from a pose.
    pub(crate) fn look(&mut self, now: Instant, pose: &Pose) -> bool {
        let is_in_view = self
            .extent
            .as_ref()
            .is_none_or(|extent| match self.is_looked_at {
                true => extent.share_in(&self.staying, pose) >= STAYING_SHARE,
                false => extent.share_in(&self.entering, pose) >= ENTERING_SHARE,
            });
        if is_in_view {
            self.seen = Some(now);
        }
        let seen = *self.seen.get_or_insert(now);
        self.is_looked_at =
            is_in_view || self.is_looked_at && now.saturating_since(seen) < LINGERING;
        self.is_looked_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_cloud::Performer;

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    /// Two metres in front of the performer, turned to the left.
    fn turned(degrees: f32) -> Pose {
        Pose::looking([0.0, 1200.0, 2000.0], degrees.to_radians(), 0.0)
    }

    fn attention() -> Attention {
        let mut attention = Attention::new();
        let cloud = Performer::new(1, 3000).cloud(Duration::ZERO);
        attention.set_extent(Extent::of(&cloud));
        attention
    }

    #[test]
    fn one_of_whom_nothing_is_known_is_looked_at() {
        let mut attention = Attention::new();
        assert!(attention.look(at(0), &turned(180.0)));
        attention.set_extent(Extent::default());
        assert!(attention.look(at(5000), &turned(180.0)));
    }

    #[test]
    fn one_who_is_out_of_view_lingers_and_is_back_at_once() {
        let mut attention = attention();
        assert!(attention.look(at(0), &turned(0.0)));
        assert!(attention.look(at(100), &turned(180.0)));
        assert!(attention.look(at(499), &turned(180.0)));
        assert!(!attention.look(at(500), &turned(180.0)));
        assert!(attention.look(at(501), &turned(0.0)));
        assert!(attention.look(at(1000), &turned(180.0)));
        attention.forget();
        assert!(attention.look(at(9000), &turned(180.0)));
    }

    #[test]
    fn a_pose_at_the_edge_does_not_change_what_is_looked_at() {
        // The angle at which the person comes into view, from the right to the left.
        let comes = |is_looked_at: bool| {
            let is_seen = |degrees: &u16| {
                let mut attention = attention();
                attention.is_looked_at = is_looked_at;
                let pose = turned(f32::from(*degrees));
                attention.look(at(0), &pose);
                attention.look(at(1000), &pose)
            };
            (0..180).rev().find(is_seen).unwrap()
        };
        let (entering, staying) = (comes(false), comes(true));
        assert!(
            entering >= 60 && staying >= entering + 8,
            "{entering}, {staying}"
        );
    }
}
