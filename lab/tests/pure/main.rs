//! The tests that need neither root nor other programs of the system.

mod collect;
mod documentation;
#[path = "../ends/mod.rs"]
mod ends;
#[path = "../../../tunnel/xnc/tests/network/mod.rs"]
mod network;
mod published;
mod schemes;
