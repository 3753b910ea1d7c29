//! Runs the target `tun`.
#![cfg_attr(fuzzing, no_main)]

hawser_fuzz::engine!(hawser_fuzz::TUN);
