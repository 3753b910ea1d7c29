//! The dashcam's recording as an H.264 video: its encode, its frames, and the similarity of what is
//! decoded of it to what was sent.

mod access_unit;
mod clip;
mod similarity;

pub(super) use access_unit::{AccessUnit, KEY_SLICE, TYPE};
pub(super) use clip::{Clip, FPS, frames};
pub(super) use similarity::{Received, Showing, screenshot, ssim, ssim_on_screen};
