//! Point-cloud codecs.
