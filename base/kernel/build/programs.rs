//! Compiles eBPF programs and generates their typed skeletons: a module of the build scripts of the crates that have
//! programs.

use libbpf_cargo::SkeletonBuilder;
use std::env;
use std::path::PathBuf;

/// The headers that all programs share, as seen from a crate of a product.
const SHARED: &str = "../../base/kernel/src/c";

/// Compiles `src/c/NAME.bpf.c` to the skeleton `NAME.skel.rs` for each of the names.
pub(crate) fn compile(programs: &[&str]) {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets the target architecture");
    // The headers of the kernel, here and where Debian has those of another architecture.
    let uapi = format!("-I/usr/include/{arch}-linux-gnu");
    let cross = format!("-I/usr/{arch}-linux-gnu/include");
    let shared = format!("-I{SHARED}");
    for program in programs {
        SkeletonBuilder::new()
            .source(format!("src/c/{program}.bpf.c"))
            .clang_args([
                "-mcpu=v3", "-Wall", "-Wextra", "-Werror", &shared, &uapi, &cross,
            ])
            .build_and_generate(out.join(format!("{program}.skel.rs")))
            .unwrap_or_else(|error| panic!("{program}.bpf.c: {error:#}"));
    }
    println!("cargo::rerun-if-changed=src/c");
    println!("cargo::rerun-if-changed={SHARED}");
}
