//! Access to libpcap's own functions.
//!
//! In a program that is linked with libpcap, this library is preloaded, and libpcap's function is
//! the next one with the name (`dlsym(RTLD_NEXT)`). If this library is loaded in libpcap's place
//! (`LD_LIBRARY_PATH`) there is no next one, and the system's libpcap is opened.

use std::ffi::{CStr, CString, c_void};
use std::sync::OnceLock;

/// Directories that may contain libpcap.
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
/// File names of libpcap: Debian's, and the usual one.
const NAMES: [&str; 2] = ["libpcap.so.0.8", "libpcap.so.1"];
/// Environment variable with the path of a libpcap in another place.
const VARIABLE: &str = "STRAIT_LIBPCAP";

/// Returns the address of libpcap's function `name`. If there is none the process ends, as for a
/// missing symbol.
pub(super) fn function(name: &str) -> usize {
    let name = CStr::from_bytes_with_nul(name.as_bytes()).expect("the macro adds the NUL");
    // SAFETY: dlsym takes a C string.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    // SAFETY: dlsym takes a C string; the library is never closed.
    let found = if next.is_null() { unsafe { libc::dlsym(system(), name.as_ptr()) } } else { next };
    if found.is_null() {
        eprintln!("strait: libpcap has no function {}", name.to_string_lossy());
        std::process::abort();
    }
    found as usize
}

/// Returns an environment variable; `None` if the program was started with more privileges than its
/// caller has (`AT_SECURE`, as with secure_getenv(3)).
pub(super) fn variable(name: &str) -> Option<String> {
    // SAFETY: getauxval(3) has no requirements.
    let is_secure = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if is_secure { None } else { std::env::var(name).ok() }
}

/// Opens the system's libpcap.
fn system() -> *mut c_void {
    static FOUND: OnceLock<usize> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let named = variable(VARIABLE);
        let places = DIRECTORIES.iter().flat_map(|directory| NAMES.map(|name| format!("{directory}/{name}")));
        let opened = named.into_iter().chain(places).find_map(|file| {
            let file = CString::new(file).ok()?;
            // SAFETY: dlopen takes a C string; libpcap's initialisation has no requirements.
            let library = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            (!library.is_null() && !is_this(library)).then_some(library as usize)
        });
        opened.unwrap_or_else(|| {
            eprintln!(
                "strait: libpcap is not installed (apt-get install libpcap0.8); set {VARIABLE} to its path if it is elsewhere"
            );
            std::process::abort();
        })
    }) as *mut c_void
}

/// Returns true if a library is this one under libpcap's name.
fn is_this(library: *mut c_void) -> bool {
    // SAFETY: dlsym takes an open library and a C string.
    let found = unsafe { libc::dlsym(library, c"pcap_create".as_ptr()) };
    std::ptr::eq(found, super::open::pcap_create as *const c_void)
}
