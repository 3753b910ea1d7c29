//! Runs the target `codec`.
#![cfg_attr(fuzzing, no_main)]

hawser_fuzz::engine!(hawser_fuzz::CODEC);
