//! Compiles the eBPF programs and generates their typed skeletons.

#[path = "../../base/kernel/build/programs.rs"]
mod programs;

fn main() {
    programs::compile(&["relay", "relay_at"]);
}
