//! Looks whether the page is built. Programs are built without it where npm is not installed.

use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=dist");
    println!("cargo::rustc-check-cfg=cfg(has_page)");
    if Path::new("dist/index.html").exists() {
        println!("cargo::rustc-cfg=has_page");
    }
}
