//! Agents under a controller: what becomes of traffic when policies come, controllers go and paths fail.

mod certificates;
mod elimination;
mod rig;
mod survival;
mod trigger;
mod wide;
