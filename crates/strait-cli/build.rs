//! Tells the program where Cargo builds it, and so the library of `strait run`: `cargo install`
//! installs programs alone.

use std::path::Path;

fn main() {
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    // TARGET/PROFILE/build/PACKAGE/out
    let built_in = Path::new(&out).ancestors().nth(3).expect("cargo makes it that deep");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-env=STRAIT_BUILT_IN={}", built_in.display());
}
