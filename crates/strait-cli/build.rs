//! Sets STRAIT_BUILT_IN to Cargo's target directory, in which `strait run` finds its library:
//! `cargo install` installs programs only.

use std::path::Path;

fn main() {
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    // TARGET/PROFILE/build/PACKAGE/out
    let built_in = Path::new(&out).ancestors().nth(3).expect("cargo's directory layout");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-env=STRAIT_BUILT_IN={}", built_in.display());
}
