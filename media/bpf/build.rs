//! Compiles the eBPF programs and generates their typed skeletons.

#[path = "../../base/kernel/build/programs.rs"]
mod programs;

fn main() {
    programs::compile(&[
        "relay",
        "bench_delay",
        "bench_relay",
        "bench_rewrite",
        "bench_stream",
        "bench_syscalls",
    ]);
}
