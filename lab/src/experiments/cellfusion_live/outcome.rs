//! The results of a trial.

use super::view::{Frame, View};
use crate::experiment::Measured;
use crate::summary::Case;
use hawser_qoe::{Qoe, Window};

/// The results of a trial.
pub(crate) struct Outcome {
    /// The name of the route.
    pub(super) scheme: &'static str,
    /// The name of the drive.
    pub(super) drive: String,
    pub(super) case: Case,
    pub(super) view: View,
    pub(super) window: Window,
    pub(super) qoe: Qoe,
    pub(super) invalid_because: Vec<String>,
}

impl Measured for Outcome {
    fn invalid_because(&self) -> Vec<String> {
        self.invalid_because.clone()
    }
}

impl Outcome {
    /// Returns the frames of the drive, without those of the warm-up.
    pub(super) fn frames(&self) -> impl Iterator<Item = &Frame> {
        self.view
            .frames
            .iter()
            .filter(|frame| self.window.contains(frame.captured))
    }
}
