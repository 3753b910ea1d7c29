//! `hawser agent` in a real network: traffic while agents start, stop and change, and the errors of
//! agents that cannot start.

mod addresses;
mod controlled;
mod life;
mod modem;
mod modes;
mod narrow;
mod nested;
mod parameters;
mod reach;
mod refusals;
mod replay;
mod rig;
mod start;
mod support;
mod two_machines;
mod wide;
