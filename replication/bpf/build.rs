//! Compiles the eBPF programs and generates their typed skeletons.

#[path = "../../base/kernel/build/programs.rs"]
mod programs;

fn main() {
    programs::compile(&[
        "dedup",
        "dedup_link",
        "device_drops",
        "fallback",
        "pass",
        "path_errors",
        "relay",
        "replicate_xdp",
        "replicate_tc",
        "signal",
        "watch",
        "bench_dedup",
        "bench_delay",
        "bench_relay",
        "bench_replicate_xdp",
        "bench_replicate_tc",
        "bench_rewrite",
        "bench_stream",
        "bench_syscalls",
    ]);
}
