//! Compiles the eBPF programs and generates their typed skeletons.

#[path = "../../base/kernel/build/programs.rs"]
mod programs;

fn main() {
    programs::compile(&[
        "dedup",
        "dedup_link",
        "device_drops",
        "fallback",
        "judge",
        "pass",
        "path_errors",
        "replicate_xdp",
        "replicate_tc",
        "signal",
        "watch",
    ]);
}
