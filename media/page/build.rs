//! Looks whether the page is built. Programs are built without it where npm is not installed.

use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=dist");
    println!("cargo::rustc-check-cfg=cfg(has_page)");
    // The file that is written last.
    if Path::new("dist/licences.txt.gz").exists() {
        println!("cargo::rustc-cfg=has_page");
    }
}
