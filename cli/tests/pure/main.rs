//! The tests that need neither root nor other programs of the system.

mod control_ctl;
mod documentation;
mod exit_codes;
mod hangup;
mod output;
mod siblings;
mod tracks;
