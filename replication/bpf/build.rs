//! Compiles the eBPF programs and generates their typed skeletons.

use libbpf_cargo::SkeletonBuilder;
use std::env;
use std::path::PathBuf;

const PROGRAMS: [&str; 19] = [
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
];

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets the target architecture");
    // The headers of the kernel, here and where Debian has those of another architecture.
    let uapi = format!("-I/usr/include/{arch}-linux-gnu");
    let cross = format!("-I/usr/{arch}-linux-gnu/include");
    for program in PROGRAMS {
        SkeletonBuilder::new()
            .source(format!("src/c/{program}.bpf.c"))
            .clang_args(["-mcpu=v3", "-Wall", "-Wextra", "-Werror", &uapi, &cross])
            .build_and_generate(out.join(format!("{program}.skel.rs")))
            .unwrap_or_else(|error| panic!("{program}.bpf.c: {error:#}"));
    }
    println!("cargo::rerun-if-changed=src/c");
}
