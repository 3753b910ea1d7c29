//! Compiles the eBPF programs and generates their typed skeletons.

#[path = "../../base/kernel/build/programs.rs"]
mod programs;

fn main() {
    programs::compile(&[
        "bench_dedup",
        "bench_delay",
        "bench_deliver",
        "bench_replicate_tc",
        "bench_replicate_xdp",
        "bench_rewrite",
        "bench_stream",
        "bench_syscalls",
    ]);
    // Their programs are measured together with code of the benchmarks.
    println!("cargo::rerun-if-changed=../../media/bpf/src/c");
    println!("cargo::rerun-if-changed=../../replication/bpf/src/c");
}
