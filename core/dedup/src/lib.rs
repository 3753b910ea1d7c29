//! The elimination window: which copy of a packet is the first.
