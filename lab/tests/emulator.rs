//! Real frames through emulated links.
