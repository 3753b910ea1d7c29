//! Runs the target `frames`.
#![cfg_attr(fuzzing, no_main)]

hawser_fuzz::engine!(hawser_fuzz::FRAMES);
