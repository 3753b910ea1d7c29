//! `hawser agent` in a real network: what becomes of traffic when agents come, go and change, and what they refuse.

mod controlled;
mod life;
mod refusals;
mod replay;
mod rig;
mod start;
#[path = "../support/mod.rs"]
mod support;
mod wide;
