//! Runs the target `stream`.
#![cfg_attr(fuzzing, no_main)]

hawser_fuzz::engine!(hawser_fuzz::STREAM);
