//! Runs the target `ply`.
#![cfg_attr(fuzzing, no_main)]

hawser_fuzz::engine!(hawser_fuzz::PLY);
