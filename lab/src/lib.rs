//! Emulated networks and the experiments that run on them.
