//! Passes the list of exported names to the linker.

fn main() {
    let map = format!("{}/libpcap.map", std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    println!("cargo:rerun-if-changed={map}");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={map}");
}
