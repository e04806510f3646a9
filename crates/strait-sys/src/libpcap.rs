//! The system's libpcap, loaded at run time: compiles filter text to classic BPF.
//!
//! Strait is built without libpcap and runs without it until a user gives a filter as text.
//! [`Compiler::live`] opens a handle on a real interface, because libpcap generates other code for
//! it (VLAN tags are not in the frame, `inbound` exists); [`Compiler::offline`] compiles for files.
//! [`Oracle`] runs a program in libpcap's interpreter, for tests. [`Reader`] captures with libpcap,
//! for comparisons with Strait. The programs and the capture engine use this module.

mod live;

pub use self::live::{Breaker, Counts, Options, Packet, Reader};

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use crate::error::{Error, Kind, Result};
use crate::packet::Instruction;

/// File names of libpcap's shared object: Fedora and others, then Debian.
const NAMES: [&CStr; 2] = [c"libpcap.so.1", c"libpcap.so.0.8"];
const REMEDY: &str = "install libpcap0.8 (apt-get install libpcap0.8)";
const STATIC_REMEDY: &str = "text filters need the dynamically linked program: install the Debian package strait, or \
                             use the archive without -static in its name";

/// Bytes of the capture buffer of a handle that never captures.
const BUFFER_BYTES: c_int = 1 << 16;
/// Value that linux/if_ether.h assigns to no protocol.
const ETH_P_NONE: c_int = 0x00ff;
/// `PCAP_NETMASK_UNKNOWN`.
const NETMASK_UNKNOWN: u32 = u32::MAX;
/// `PCAP_ERRBUF_SIZE`.
const ERROR_BYTES: usize = 256;
/// `PCAP_ERROR_PERM_DENIED` and `PCAP_ERROR_PROMISC_PERM_DENIED` of pcap/pcap.h.
const PERMISSION_DENIED: [c_int; 2] = [-8, -11];
/// `PCAP_ERROR_NO_SUCH_DEVICE`.
const NO_SUCH_DEVICE: c_int = -5;

/// `DLT_EN10MB`: Ethernet.
pub const LINKTYPE_ETHERNET: i32 = crate::link_type::ETHERNET as i32;

/// `pcap_t`, opaque.
type Pcap = c_void;

/// `struct bpf_insn` of pcap/bpf.h.
#[repr(C)]
#[derive(Clone, Copy)]
struct BpfInstruction {
    code: u16,
    jt: u8,
    jf: u8,
    k: u32,
}

/// `struct bpf_program` of pcap/bpf.h.
#[repr(C)]
struct BpfProgram {
    len: u32,
    instructions: *mut BpfInstruction,
}

/// `struct pcap_pkthdr` of pcap/pcap.h.
#[repr(C)]
struct PacketHeader {
    time: libc::timeval,
    captured_bytes: u32,
    wire_bytes: u32,
}

/// `struct pcap_stat` of pcap/pcap.h.
#[repr(C)]
#[derive(Default)]
struct Statistics {
    received: c_uint,
    dropped: c_uint,
    interface_dropped: c_uint,
}

/// `pcap_handler` of pcap/pcap.h.
type Callback = unsafe extern "C" fn(*mut u8, *const PacketHeader, *const u8);

/// Functions of libpcap used here, with the types of pcap/pcap.h.
struct Library {
    create: unsafe extern "C" fn(*const c_char, *mut c_char) -> *mut Pcap,
    set_snaplen: unsafe extern "C" fn(*mut Pcap, c_int) -> c_int,
    set_buffer_size: unsafe extern "C" fn(*mut Pcap, c_int) -> c_int,
    set_promisc: unsafe extern "C" fn(*mut Pcap, c_int) -> c_int,
    set_timeout: unsafe extern "C" fn(*mut Pcap, c_int) -> c_int,
    set_immediate_mode: unsafe extern "C" fn(*mut Pcap, c_int) -> c_int,
    set_tstamp_precision: unsafe extern "C" fn(*mut Pcap, c_int) -> c_int,
    /// Since libpcap 1.9.
    set_protocol: Option<unsafe extern "C" fn(*mut Pcap, c_int) -> c_int>,
    activate: unsafe extern "C" fn(*mut Pcap) -> c_int,
    dispatch: unsafe extern "C" fn(*mut Pcap, c_int, Callback, *mut u8) -> c_int,
    breakloop: unsafe extern "C" fn(*mut Pcap),
    stats: unsafe extern "C" fn(*mut Pcap, *mut Statistics) -> c_int,
    fileno: unsafe extern "C" fn(*mut Pcap) -> c_int,
    open_dead: unsafe extern "C" fn(c_int, c_int) -> *mut Pcap,
    close: unsafe extern "C" fn(*mut Pcap),
    compile: unsafe extern "C" fn(*mut Pcap, *mut BpfProgram, *const c_char, c_int, u32) -> c_int,
    set_filter: unsafe extern "C" fn(*mut Pcap, *mut BpfProgram) -> c_int,
    free_code: unsafe extern "C" fn(*mut BpfProgram),
    error_text: unsafe extern "C" fn(*mut Pcap) -> *const c_char,
    status_text: unsafe extern "C" fn(c_int) -> *const c_char,
    version: unsafe extern "C" fn() -> *const c_char,
    validate: unsafe extern "C" fn(*const BpfInstruction, c_int) -> c_int,
    offline_filter: unsafe extern "C" fn(*const BpfProgram, *const PacketHeader, *const u8) -> c_int,
}

/// Returns libpcap's version text, for example `libpcap version 1.10.3 (with TPACKET_V3)`.
pub fn version() -> Result<String> {
    // SAFETY: pcap_lib_version takes nothing and returns a static text.
    Ok(unsafe { text((library()?.version)()) })
}

/// Maximum number of words of an invalid filter in the search for the mistake.
const WORDS_MAX: usize = 64;

/// libpcap handle for compiling filters.
#[derive(Debug)]
pub struct Compiler {
    handle: Handle,
}

impl Compiler {
    /// Opens a compiler for live capture on `interface` of the calling thread's network namespace,
    /// with `snaplen` bytes a frame. The handle is bound to a protocol that no frame has, so
    /// keeping it for later filters costs nothing per frame.
    ///
    /// # Errors
    /// [`Kind::Refused`] without libpcap or without the privilege to open the interface,
    /// [`Kind::Usage`] if there is no such interface.
    pub fn live(interface: &str, snaplen: u32) -> Result<Self> {
        let handle = Handle::create(interface)?;
        // SAFETY: the handle is new and not yet active, as these calls require.
        unsafe {
            (handle.library.set_snaplen)(handle.pcap, snaplen_of(snaplen));
            (handle.library.set_buffer_size)(handle.pcap, BUFFER_BYTES);
            if let Some(set_protocol) = handle.library.set_protocol {
                set_protocol(handle.pcap, ETH_P_NONE);
            }
        }
        handle.activate(interface)?;
        Ok(Self { handle })
    }

    /// Opens a compiler for files with this link type (`DLT_*`, [`LINKTYPE_ETHERNET`]), `snaplen`
    /// bytes a frame.
    pub fn offline(linktype: i32, snaplen: u32) -> Result<Self> {
        let library = library()?;
        // SAFETY: pcap_open_dead takes two integers.
        let pcap = unsafe { (library.open_dead)(linktype, snaplen_of(snaplen)) };
        if pcap.is_null() {
            let subject = format!("link type {linktype}");
            return Err(Error::new(Kind::Failed, "open with libpcap", subject, "out of memory"));
        }
        Ok(Self { handle: Handle { library, pcap } })
    }

    /// Compiles a filter; an empty text matches everything. `optimize` lets libpcap shorten the
    /// program.
    ///
    /// # Errors
    /// [`Kind::Usage`] with libpcap's own message if the text is not a valid filter for this link
    /// type.
    pub fn compile(&self, filter: &str, optimize: bool) -> Result<Vec<Instruction>> {
        let oracle = self.compile_for_oracle(filter, optimize)?;
        // SAFETY: pcap_compile stored `len` instructions, which live until the oracle is dropped.
        let instructions =
            unsafe { std::slice::from_raw_parts(oracle.program.instructions, oracle.program.len as usize) };
        Ok(instructions.iter().map(|i| (i.code, i.jt, i.jf, i.k)).collect())
    }

    /// Compiles a filter for libpcap's own interpreter.
    pub fn compile_for_oracle(&self, filter: &str, optimize: bool) -> Result<Oracle> {
        self.handle.compile(filter, optimize)?.map_err(|message| {
            let error = Error::new(Kind::Usage, "compile the filter", format!("{filter:?}"), message);
            match self.longest_valid_prefix(filter) {
                Some(start) => error.remedy(format!(
                    "libpcap understands {start:?}, but not the text at character {}",
                    start.chars().count() + 2
                )),
                None => error,
            }
        })
    }

    /// Returns the longest run of words at the start of `filter` that is a valid filter: libpcap
    /// does not report the position of a syntax error.
    fn longest_valid_prefix<'a>(&self, filter: &'a str) -> Option<&'a str> {
        let ends = filter.match_indices(' ').map(|(at, _)| &filter[..at]);
        let starts: Vec<&str> = ends.filter(|start| !start.trim().is_empty()).take(WORDS_MAX).collect();
        starts.into_iter().rev().find(|start| matches!(self.handle.compile(start, false), Ok(Ok(_))))
    }
}

/// Open `pcap_t`, closed on drop.
struct Handle {
    library: &'static Library,
    pcap: *mut Pcap,
}

// SAFETY: a pcap_t is not tied to a thread. Two threads must not use it at once, and it is not
// Sync.
unsafe impl Send for Handle {}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}

impl Handle {
    /// Returns the program, or libpcap's message about the text.
    fn compile(&self, filter: &str, optimize: bool) -> Result<Result<Oracle, String>> {
        let Self { library, pcap } = self;
        let filter = c_string(filter, "compile the filter")?;
        let optimize = c_int::from(optimize);
        let mut program = BpfProgram { len: 0, instructions: std::ptr::null_mut() };
        // SAFETY: the handle is open, the text a C string, and program is written only.
        let returned =
            unsafe { (library.compile)(*pcap, &raw mut program, filter.as_ptr(), optimize, NETMASK_UNKNOWN) };
        Ok(if returned < 0 { Err(self.error()) } else { Ok(Oracle { library, program, own: None }) })
    }

    /// Creates a handle for `interface`, not yet active.
    fn create(interface: &str) -> Result<Self> {
        let library = library()?;
        let name = c_string(interface, "open with libpcap")?;
        let mut error = [0 as c_char; ERROR_BYTES];
        // SAFETY: name is a C string and error has the size that pcap_create writes at most.
        let pcap = unsafe { (library.create)(name.as_ptr(), error.as_mut_ptr()) };
        if pcap.is_null() {
            // SAFETY: pcap_create leaves a C string in error when it returns NULL.
            let cause = unsafe { text(error.as_ptr()) };
            return Err(Error::new(Kind::Failed, "open with libpcap", interface, cause));
        }
        Ok(Self { library, pcap })
    }

    fn activate(&self, interface: &str) -> Result<()> {
        let library = self.library;
        // SAFETY: the handle is new and not yet active, as pcap_activate requires.
        let status = unsafe { (library.activate)(self.pcap) };
        if status >= 0 {
            return Ok(());
        }
        // SAFETY: pcap_statustostr returns a text for every status, valid until it is called again.
        let cause = unsafe { text((library.status_text)(status)) };
        let detail = self.error();
        let cause = if detail.is_empty() || detail == cause { cause } else { format!("{cause} ({detail})") };
        let failed = |kind| Error::new(kind, "open with libpcap", interface, cause);
        Err(match status {
            status if PERMISSION_DENIED.contains(&status) => failed(Kind::Refused).remedy(
                "libpcap needs CAP_NET_RAW to open an interface, to compile a filter for it too: run as root",
            ),
            NO_SUCH_DEVICE => failed(Kind::Usage),
            _ => failed(Kind::Failed),
        })
    }

    fn error(&self) -> String {
        // SAFETY: the handle is open, so its error buffer holds a C string, empty if nothing
        // failed.
        unsafe { text((self.library.error_text)(self.pcap)) }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: this value is the only owner of an open handle.
        unsafe { (self.library.close)(self.pcap) }
    }
}

/// Program for `pcap_offline_filter`, libpcap's own interpreter.
pub struct Oracle {
    library: &'static Library,
    program: BpfProgram,
    /// The instructions, if libpcap did not allocate them.
    own: Option<Box<[BpfInstruction]>>,
}

impl Oracle {
    /// Makes an oracle of existing instructions; returns [`Kind::Usage`] if libpcap finds them
    /// invalid.
    pub fn new(instructions: &[Instruction]) -> Result<Self> {
        let library = library()?;
        let mut own: Box<[BpfInstruction]> =
            instructions.iter().map(|&(code, jt, jf, k)| BpfInstruction { code, jt, jf, k }).collect();
        let program = BpfProgram { len: own.len() as u32, instructions: own.as_mut_ptr() };
        // SAFETY: bpf_validate reads exactly that many instructions.
        if unsafe { (library.validate)(program.instructions, program.len as c_int) } == 0 {
            let subject = format!("{} instructions", own.len());
            return Err(Error::new(
                Kind::Usage,
                "load as a filter",
                subject,
                "libpcap refuses them as invalid",
            ));
        }
        Ok(Self { library, program, own: Some(own) })
    }

    /// Returns the result of libpcap's interpreter for a frame of `wire_bytes`, of which `bytes`
    /// were captured.
    pub fn run(&self, bytes: &[u8], wire_bytes: u32) -> u32 {
        let time = libc::timeval { tv_sec: 0, tv_usec: 0 };
        let header = PacketHeader { time, captured_bytes: bytes.len() as u32, wire_bytes };
        let (program, header) = (&raw const self.program, &raw const header);
        // SAFETY: libpcap made the program or found it valid, and reads no more than
        // captured_bytes.
        unsafe { (self.library.offline_filter)(program, header, bytes.as_ptr()) as u32 }
    }
}

impl Drop for Oracle {
    fn drop(&mut self) {
        if self.own.is_none() {
            // SAFETY: pcap_compile allocated these instructions, and this is their last use.
            unsafe { (self.library.free_code)(&raw mut self.program) }
        }
    }
}

/// Returns libpcap, loaded on first use.
fn library() -> Result<&'static Library> {
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    LIBRARY.get_or_init(load).as_ref().ok_or_else(|| {
        let (cause, remedy) = if cfg!(target_feature = "crt-static") {
            ("a static program cannot load libraries", STATIC_REMEDY)
        } else {
            ("this machine has no libpcap", REMEDY)
        };
        Error::new(Kind::Refused, "load", "libpcap.so.1", cause).remedy(remedy)
    })
}

fn load() -> Option<Library> {
    let flags = libc::RTLD_NOW | libc::RTLD_LOCAL;
    let object = NAMES.iter().find_map(|name| {
        // SAFETY: name is a C string; libpcap's constructors have no requirements.
        let object = unsafe { libc::dlopen(name.as_ptr(), flags) };
        (!object.is_null()).then_some(object)
    })?;
    // SAFETY: the names and types are those of pcap/pcap.h; the object is never closed.
    unsafe {
        Some(Library {
            create: symbol(object, c"pcap_create")?,
            set_snaplen: symbol(object, c"pcap_set_snaplen")?,
            set_buffer_size: symbol(object, c"pcap_set_buffer_size")?,
            set_promisc: symbol(object, c"pcap_set_promisc")?,
            set_timeout: symbol(object, c"pcap_set_timeout")?,
            set_immediate_mode: symbol(object, c"pcap_set_immediate_mode")?,
            set_tstamp_precision: symbol(object, c"pcap_set_tstamp_precision")?,
            set_protocol: symbol(object, c"pcap_set_protocol_linux"),
            activate: symbol(object, c"pcap_activate")?,
            dispatch: symbol(object, c"pcap_dispatch")?,
            breakloop: symbol(object, c"pcap_breakloop")?,
            stats: symbol(object, c"pcap_stats")?,
            fileno: symbol(object, c"pcap_fileno")?,
            open_dead: symbol(object, c"pcap_open_dead")?,
            close: symbol(object, c"pcap_close")?,
            compile: symbol(object, c"pcap_compile")?,
            set_filter: symbol(object, c"pcap_setfilter")?,
            free_code: symbol(object, c"pcap_freecode")?,
            error_text: symbol(object, c"pcap_geterr")?,
            status_text: symbol(object, c"pcap_statustostr")?,
            version: symbol(object, c"pcap_lib_version")?,
            validate: symbol(object, c"bpf_validate")?,
            offline_filter: symbol(object, c"pcap_offline_filter")?,
        })
    }
}

/// Looks up the function `name` of a loaded object.
///
/// # Safety
/// `F` is a function pointer of the type that the object gives this name.
unsafe fn symbol<F: Copy>(object: *mut c_void, name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: the object is open and the name a C string.
    let address = unsafe { libc::dlsym(object, name.as_ptr()) };
    // SAFETY: the caller guarantees that F is the function's type; both are one address wide.
    (!address.is_null()).then(|| unsafe { std::mem::transmute_copy::<*mut c_void, F>(&address) })
}

/// Copies a C string of libpcap.
///
/// # Safety
/// `from` is a C string, or null.
unsafe fn text(from: *const c_char) -> String {
    if from.is_null() {
        return String::new();
    }
    // SAFETY: the caller guarantees a C string.
    unsafe { CStr::from_ptr(from) }.to_string_lossy().into_owned()
}

fn c_string(from: &str, operation: &'static str) -> Result<CString> {
    CString::new(from)
        .map_err(|_| Error::new(Kind::Usage, operation, format!("{from:?}"), "it contains a NUL"))
}

fn snaplen_of(snaplen: u32) -> c_int {
    c_int::try_from(snaplen).unwrap_or(c_int::MAX)
}

#[cfg(test)]
mod tests {
    //! Compilation of filters, and messages for invalid ones.

    use std::os::fd::BorrowedFd;

    use super::{Compiler, LINKTYPE_ETHERNET, Oracle, version};
    use crate::error::Kind;

    /// The `ethertype is IPv4` program: ldh [12]; jeq #0x800; ret #n; ret #0.
    const IP: [(u16, u8, u8, u32); 4] =
        [(0x28, 0, 0, 12), (0x15, 0, 1, 0x800), (0x06, 0, 0, 65_535), (0x06, 0, 0, 0)];

    fn compiler() -> Option<Compiler> {
        match Compiler::offline(LINKTYPE_ETHERNET, 65_535) {
            Ok(compiler) => Some(compiler),
            Err(error) => {
                eprintln!("SKIP libpcap: {error}");
                None
            }
        }
    }

    #[test]
    fn a_filter_becomes_classic_bpf() {
        let Some(compiler) = compiler() else { return };
        assert!(version().unwrap().starts_with("libpcap"));
        assert_eq!(compiler.compile("ip", true).unwrap(), IP);
    }

    #[test]
    fn syntax_error_is_a_usage_error_with_libpcaps_message() {
        let Some(compiler) = compiler() else { return };
        let error = compiler.compile("tcp port 80 prot 80", true).unwrap_err();
        assert_eq!(error.kind(), Kind::Usage);
        let message = error.to_string();
        assert!(
            message.contains("syntax error") && message.contains(r#"understands "tcp port 80", "#),
            "{message}"
        );
        assert!(message.ends_with("at character 13"), "{message}");
        assert!(!compiler.compile("prot 80", true).unwrap_err().to_string().contains("character"));
        assert_eq!(compiler.compile("ip\0", true).unwrap_err().kind(), Kind::Usage);
    }

    #[test]
    fn unknown_interface_is_a_usage_error() {
        if compiler().is_none() {
            return;
        }
        let error = Compiler::live("no-such-if0", 65_535).unwrap_err();
        assert!([Kind::Usage, Kind::Refused].contains(&error.kind()), "{error}");
    }

    #[test]
    fn live_handle_compiles_inbound() {
        if compiler().is_none() {
            return;
        }
        match Compiler::live("lo", 65_535) {
            Ok(live) => assert!(!live.compile("inbound", true).unwrap().is_empty()),
            Err(error) => eprintln!("SKIP live libpcap handle: {error}"),
        }
    }

    #[test]
    fn a_live_handle_receives_no_frame() {
        let Some(live) = compiler().and_then(|_| Compiler::live("lo", 65_535).ok()) else {
            eprintln!("SKIP live libpcap handle");
            return;
        };
        // SAFETY: the handle is active, so it has a descriptor, which lives as long as the handle.
        let socket = unsafe { BorrowedFd::borrow_raw((live.handle.library.fileno)(live.handle.pcap)) };
        let inode = rustix::fs::fstat(socket).unwrap().st_ino.to_string();
        let sockets = std::fs::read_to_string("/proc/thread-self/net/packet").unwrap();
        let fields = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let own = sockets.lines().map(fields).find(|fields| fields.last() == Some(&inode)).unwrap();
        assert_eq!(own[3], "00ff", "its protocol: {sockets}");
    }

    #[test]
    fn the_oracle_runs_valid_programs_only() {
        if compiler().is_none() {
            return;
        }
        let mut frame = [0; 60];
        frame[12] = 8;
        assert_eq!(Oracle::new(&IP).unwrap().run(&frame, 60), 65_535);
        assert_eq!(Oracle::new(&IP).unwrap().run(&frame[..13], 60), 0);
        assert!(Oracle::new(&IP[..2]).is_err());
    }
}
