//! Rate control: the precision and the number of points with which a frame takes a number of bytes.
//!
//! Each frame is encoded once. Its size teaches how large the next ones become.

use crate::Setting;
use hawser_units::ByteSize;

/// A quality of an encoder with the size that it is expected to take before anything is known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// The quality, see [`Setting`].
    pub quality: u8,
    /// The size of a typical frame divided by its number of points, or of pixels with depth.
    pub bytes_per_point: f32,
}

/// The choices that an encoder offers.
#[derive(Debug, Clone, PartialEq)]
pub struct Choices {
    /// The steps of quality, at least one, the best first.
    pub steps: Vec<Step>,
    /// Whether a frame may also be sampled: whether it is a cloud.
    pub can_sample: bool,
}

impl Choices {
    /// Takes qualities with their expected bytes per point, the best first.
    pub(crate) fn new(steps: &[(u8, f32)], can_sample: bool) -> Self {
        let step = |(quality, bytes_per_point): &(u8, f32)| Step {
            quality: *quality,
            bytes_per_point: *bytes_per_point,
        };
        Choices {
            steps: steps.iter().map(step).collect(),
            can_sample,
        }
    }

    /// Returns the choices of an encoder of clouds that has one quality.
    pub(crate) fn only(bytes_per_point: f32) -> Self {
        Choices::new(&[(Setting::MAX_QUALITY, bytes_per_point)], true)
    }
}

/// How a frame is to be encoded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plan {
    /// The setting of the encoder.
    pub setting: Setting,
    /// The number of points to sample the frame to before it is encoded.
    pub points: usize,
    step: usize,
    share: f32,
}

/// Meets a target of bytes for each frame, with the best quality.
///
/// Quality goes before points as long as few points are missing: of the qualities, the best is taken
/// with which four fifths of the points fit, and the worst with which fewer do.
#[derive(Debug, Clone)]
pub struct RateControl {
    steps: Vec<Learnt>,
    can_sample: bool,
    /// Bytes that were sent beyond the targets, or less.
    debt: f32,
}

/// A step of quality, and its size as learnt from earlier frames.
#[derive(Debug, Clone, Copy)]
struct Learnt {
    quality: u8,
    /// Bytes per point if no points are left out.
    bytes_per_point: f32,
    is_known: bool,
}

/// The least share of points that is taken before the quality is lowered.
const MIN_SHARE: f32 = 0.8;
/// Points that are further apart cost more: bytes per point rise with the share to the power of
/// -0.2, as measured on recordings (`docs/design/codecs.md`).
const DENSITY_EXPONENT: f32 = 0.2;
/// The weight of a frame in what is known of its step, and in that of a step that is known already.
const GAIN: f32 = 0.6;
const GAIN_OTHERS: f32 = 0.3;
/// The part of the debt that is paid with each frame, and the maximum debt in targets.
const REPAYMENT: f32 = 0.3;
const MAX_DEBT: f32 = 1.0;

impl RateControl {
    /// Creates a control of an encoder with these choices.
    ///
    /// # Panics
    /// If there is no step.
    pub fn new(choices: &Choices) -> Self {
        assert!(!choices.steps.is_empty());
        let learnt = |step: &Step| Learnt {
            quality: step.quality,
            bytes_per_point: step.bytes_per_point,
            is_known: false,
        };
        RateControl {
            steps: choices.steps.iter().map(learnt).collect(),
            can_sample: choices.can_sample,
            debt: 0.0,
        }
    }

    /// Plans a frame of `points` points, or pixels with depth.
    pub fn plan(&self, points: usize, target: ByteSize) -> Plan {
        let target = target.0 as f32;
        let wanted = (target - REPAYMENT * self.debt).max(target / 4.0);
        let share = |step: &Learnt| {
            let all = step.bytes_per_point * points.max(1) as f32;
            (wanted / all).powf(1.0 / (1.0 - DENSITY_EXPONENT)).min(1.0)
        };
        let min_share = if self.can_sample { MIN_SHARE } else { 1.0 };
        let fits = self.steps.iter().position(|step| share(step) >= min_share);
        let step = fits.unwrap_or(self.steps.len() - 1);
        let share = if self.can_sample {
            share(&self.steps[step])
        } else {
            1.0
        };
        Plan {
            setting: Setting {
                quality: self.steps[step].quality,
            },
            points: (points as f32 * share).round() as usize,
            step,
            share: share.max(1e-6),
        }
    }

    /// Learns from a frame of `plan` that had `points` points when it was encoded to `size`.
    pub fn handle_encoded(&mut self, plan: &Plan, points: usize, size: ByteSize, target: ByteSize) {
        let (size, target) = (size.0 as f32, target.0 as f32);
        self.debt = (self.debt + size - target).clamp(-MAX_DEBT * target, MAX_DEBT * target);
        if points == 0 || size == 0.0 {
            return;
        }
        let Some(step) = self.steps.get(plan.step) else {
            return;
        };
        let found = size / points as f32 * plan.share.powf(DENSITY_EXPONENT);
        let ratio = found / step.bytes_per_point;
        for (number, step) in self.steps.iter_mut().enumerate() {
            let gain = match (number == plan.step, step.is_known) {
                (_, false) => 1.0,
                (true, true) => GAIN,
                (false, true) => GAIN_OTHERS,
            };
            step.bytes_per_point *= ratio.powf(gain);
            step.is_known |= number == plan.step;
        }
    }
}
