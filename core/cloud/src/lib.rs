//! RGB-D and point clouds: geometry, sampling, merging.
