//! Where the viewer is, and how much of what is shown is to be received there.

use crate::attention::Attention;
use crate::poses::Poses;
use crate::summary::Looked;
use crate::{Config, EncodingName};
use hawser_cloud::{Extent, Pose};
use hawser_packets::feedback;
use hawser_units::Instant;
use std::sync::mpsc::Receiver;
use std::time::Duration;

/// The time between two looks at what is in view.
const INTERVAL: Duration = Duration::from_millis(20);

/// Where the viewer is, and whether what is shown is in view from there.
pub(crate) struct Viewpoint {
    poses: Option<Source>,
    attention: Attention,
    /// Where the points of the newest frames are.
    extents: Receiver<Extent>,
    layers: u8,
    layers_unseen: u8,
    encoding: EncodingName,
    is_looked_at: bool,
    looked: Looked,
    updated: Instant,
}

enum Source {
    Fixed(Pose),
    Moving(Poses),
}

impl Source {
    fn at(&self, now: Instant) -> Pose {
        match self {
            Source::Fixed(pose) => *pose,
            Source::Moving(poses) => poses.at(now),
        }
    }
}

impl Viewpoint {
    /// Takes the viewer's poses, which begin now, and the way on which comes where the points are.
    ///
    /// # Errors
    /// If there is no valid table of poses.
    pub(crate) fn open(
        config: &Config,
        now: Instant,
        extents: Receiver<Extent>,
    ) -> anyhow::Result<Self> {
        let table = config.poses.as_deref();
        let moving = table.map(|path| Poses::read(path, now)).transpose()?;
        let fixed = || config.pictures.pose.map(Source::Fixed);
        Ok(Viewpoint {
            poses: moving.map(Source::Moving).or_else(fixed),
            attention: Attention::new(),
            extents,
            layers: config.layers,
            layers_unseen: config.layers_unseen.min(config.layers),
            encoding: config.encoding,
            is_looked_at: true,
            looked: Looked::default(),
            updated: now,
        })
    }

    /// Returns the encoding of each source to receive.
    pub(crate) const fn encoding(&self) -> EncodingName {
        self.encoding
    }

    /// Returns whether it is known where the viewer is.
    pub(crate) const fn has_pose(&self) -> bool {
        self.poses.is_some()
    }

    /// Returns the pose for reports.
    pub(crate) fn reported(&self, now: Instant) -> Option<feedback::Pose> {
        let pose = self.poses.as_ref()?.at(now);
        let position = pose.position_mm.map(|mm| mm / 1000.0);
        feedback::Pose::new(position, pose.rotation)
    }

    /// Returns the pose if it changes over time.
    pub(crate) fn moving(&self, now: Instant) -> Option<Pose> {
        match self.poses.as_ref()? {
            Source::Fixed(_) => None,
            Source::Moving(poses) => Some(poses.at(now)),
        }
    }

    /// Returns whether it is time to look at what is in view.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.has_pose() && now >= self.updated + INTERVAL
    }

    /// Looks at what is in view. Returns whether that has changed.
    pub(crate) fn look(&mut self, now: Instant) -> bool {
        let Some(pose) = self.poses.as_ref().map(|poses| poses.at(now)) else {
            return false;
        };
        if let Some(extent) = self.extents.try_iter().last() {
            self.attention.set_extent(extent);
        }
        let elapsed = now.saturating_since(self.updated);
        self.updated = now;
        match self.is_looked_at {
            true => self.looked.at += elapsed,
            false => self.looked.away += elapsed,
        }
        let before = self.is_looked_at;
        self.is_looked_at = self.attention.look(now, &pose);
        let has_changed = self.is_looked_at != before;
        self.looked.changes += u64::from(has_changed);
        has_changed
    }

    /// Takes everything as in view until the points of another session are known: it may show another person.
    pub(crate) fn begin_again(&mut self, now: Instant) {
        while self.extents.try_recv().is_ok() {}
        self.attention.forget();
        self.look(now);
    }

    pub(crate) const fn is_looked_at(&self) -> bool {
        self.is_looked_at
    }

    /// Returns for how long what is shown was in view; `None` without a pose.
    pub(crate) fn looked(&self) -> Option<Looked> {
        self.has_pose().then_some(self.looked)
    }

    /// Returns the number of layers to receive.
    pub(crate) const fn layers(&self) -> u8 {
        match self.is_looked_at {
            true => self.layers,
            false => self.layers_unseen,
        }
    }
}
