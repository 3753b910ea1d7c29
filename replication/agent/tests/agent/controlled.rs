//! Agents under a controller: traffic while policies change, controllers are unreachable and paths
//! fail.

mod certificates;
mod discovery;
mod experience;
mod keys;
mod pruning;
mod rig;
mod survival;
mod transparent;
mod trigger;
mod wide;
