//! libpcap itself, behind this library.
//!
//! Preloaded into a program that is linked with libpcap, it is the next object with the name (`dlsym(RTLD_NEXT)`). Where
//! this library stands in libpcap's place (`LD_LIBRARY_PATH`) there is no next one: then it is the system's own file.

use std::ffi::{CStr, CString, c_void};
use std::sync::OnceLock;

/// Where systems keep it.
const DIRECTORIES: [&str; 8] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/riscv64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/lib64",
    "/lib",
    "/usr/local/lib",
];
/// Its names: Debian's, and everybody else's.
const NAMES: [&str; 2] = ["libpcap.so.0.8", "libpcap.so.1"];
/// Names the file where it is somewhere else.
const VARIABLE: &str = "STRAIT_LIBPCAP";

/// The address of its function; the process ends where there is none, as it would for a missing symbol.
pub(super) fn function(name: &str) -> usize {
    let name = CStr::from_bytes_with_nul(name.as_bytes()).expect("the macro adds the NUL");
    // SAFETY: dlsym takes a C string.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    // SAFETY: as before; the library stays open.
    let found = if next.is_null() { unsafe { libc::dlsym(system(), name.as_ptr()) } } else { next };
    if found.is_null() {
        eprintln!("strait: this libpcap has no {}", name.to_string_lossy());
        std::process::abort();
    }
    found as usize
}

/// The system's own file.
fn system() -> *mut c_void {
    static FOUND: OnceLock<usize> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let named = std::env::var(VARIABLE).ok();
        let places = DIRECTORIES.iter().flat_map(|directory| NAMES.map(|name| format!("{directory}/{name}")));
        let opened = named.into_iter().chain(places).find_map(|file| {
            let file = CString::new(file).ok()?;
            // SAFETY: dlopen takes a C string; libpcap's initialisation has no requirements.
            let library = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            (!library.is_null() && !is_this(library)).then_some(library as usize)
        });
        opened.unwrap_or_else(|| {
            eprintln!(
                "strait: no libpcap is installed (apt-get install libpcap0.8); {VARIABLE} can name its file"
            );
            std::process::abort();
        })
    }) as *mut c_void
}

/// Whether a library is this one under libpcap's name.
fn is_this(library: *mut c_void) -> bool {
    // SAFETY: dlsym takes an open library and a C string.
    let found = unsafe { libc::dlsym(library, c"pcap_create".as_ptr()) };
    std::ptr::eq(found, super::open::pcap_create as *const c_void)
}
