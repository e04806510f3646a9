//! Sets STRAIT_BUILD_DIRECTORY to Cargo's target directory, in which `strait run` finds its
//! library: `cargo install` installs programs only.
//!
//! STRAIT_RELOCATABLE=1 leaves it out: an installed program has its library in a fixed place, and
//! contains no path of the machine that built it. `scripts/install` sets it.

use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=STRAIT_RELOCATABLE");
    if std::env::var_os("STRAIT_RELOCATABLE").is_some_and(|set| set == "1") {
        return;
    }
    let out = std::env::var("OUT_DIR").expect("Cargo sets it");
    // TARGET/PROFILE/build/PACKAGE/out
    let directory = Path::new(&out).ancestors().nth(3).expect("the layout of OUT_DIR");
    println!("cargo:rustc-env=STRAIT_BUILD_DIRECTORY={}", directory.display());
}
