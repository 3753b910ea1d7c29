//! Runs the target `upstream`.
#![cfg_attr(fuzzing, no_main)]

hawser_fuzz::engine!(hawser_fuzz::UPSTREAM);
