//! RGB-D and point clouds: geometry, sampling, merging, pictures.
//!
//! All cameras use one world frame, in whole millimetres with y up, so merging views means
//! appending their points. Images, files and clouds are passed as bytes; this crate opens no file
//! and reads no clock.
//!
//! ```
//! use hawser_cloud::{Cloud, Point, ply};
//!
//! let mut cloud = Cloud::new();
//! cloud.push(Point { x: 120, y: 1650, z: -40, r: 210, g: 160, b: 140 });
//! let file = ply::write(&cloud);
//! assert_eq!(ply::read(&file, ply::MILLIMETRES_PER_METRE).unwrap(), cloud);
//! ```

mod background;
mod camera;
mod cloud;
mod extent;
mod level;
pub mod pcd;
mod performer;
pub mod ply;
mod render;
mod view;
mod viewpoint;
mod visibility;

pub use background::Background;
pub use camera::{Camera, Extrinsics, HueRange, ImageError, Intrinsics};
pub use cloud::{Cloud, Digest, MAX_POINTS, POINT_BYTES, PartialPoint, Point};
pub use extent::Extent;
pub use level::{Level, UnknownLevel};
pub use performer::Performer;
pub use render::{Image, Renderer, RendererError, point_side_mm};
pub use view::{MAX_PIXELS, View};
pub use visibility::{FieldOfView, Pose};
