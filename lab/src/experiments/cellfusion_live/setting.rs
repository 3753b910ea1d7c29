//! The parameters and the results of a run of one drive with one scheme.

use super::route::Route;
use super::view::{Frame, View};
use crate::experiment::Measured;
use crate::experiments::cellfusion::Drive;
use crate::experiments::dashcam::Clip;
use crate::summary::Case;
use hawser_qoe::{Qoe, Window};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The parameters of a run.
pub(crate) struct Setting {
    pub(super) scheme: &'static str,
    pub(super) route: Route,
    pub(super) drive: Arc<Drive>,
    pub(super) port: u16,
    pub(super) clip: Arc<Clip>,
    pub(super) length: Duration,
    /// Seed of the links.
    pub(super) seed: u64,
}

/// The results of a run.
pub(crate) struct Trial {
    pub(super) scheme: &'static str,
    /// The name of the drive.
    pub(super) drive: String,
    pub(super) case: Case,
    pub(super) view: View,
    pub(super) window: Window,
    pub(super) qoe: Qoe,
    pub(super) invalid_because: Vec<String>,
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.scheme, self.drive.name)
    }
}

impl Measured for Trial {
    fn invalid_because(&self) -> Vec<String> {
        self.invalid_because.clone()
    }
}

impl Trial {
    /// Returns the frames of the drive, without those of the warm-up.
    pub(super) fn frames(&self) -> impl Iterator<Item = &Frame> {
        self.view
            .frames
            .iter()
            .filter(|frame| self.window.contains(frame.captured))
    }
}
