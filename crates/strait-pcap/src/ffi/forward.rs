//! Functions without relation to live capture. They call libpcap, for programs that load this
//! library in its place.

use std::ffi::{c_char, c_int, c_long, c_uchar, c_uint, c_void};

use super::{BpfInstruction, BpfProgram, Device, PacketHeader, Pcap};

/// Defines exported functions that call libpcap's functions of the same names.
macro_rules! forward {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "` of libpcap.")]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
                real!($name($($argument: $type),*) -> $result)
            }
        )*
    };
}

forward! {
    bpf_dump(program: *const BpfProgram, option: c_int) -> ();
    bpf_filter(program: *const BpfInstruction, bytes: *const c_uchar, wire_len: c_uint, len: c_uint) -> c_uint;
    bpf_image(instruction: *const BpfInstruction, number: c_int) -> *mut c_char;
    bpf_validate(program: *const BpfInstruction, len: c_int) -> c_int;
    pcap_compile_nopcap(snaplen: c_int, linktype: c_int, program: *mut BpfProgram, filter: *const c_char, optimize: c_int, netmask: u32) -> c_int;
    pcap_datalink_ext(p: *mut Pcap) -> c_int;
    pcap_datalink_name_to_val(name: *const c_char) -> c_int;
    pcap_datalink_val_to_description(value: c_int) -> *const c_char;
    pcap_datalink_val_to_description_or_dlt(value: c_int) -> *const c_char;
    pcap_datalink_val_to_name(value: c_int) -> *const c_char;
    pcap_dump(dumper: *mut c_uchar, header: *const PacketHeader, bytes: *const c_uchar) -> ();
    pcap_dump_close(dumper: *mut c_void) -> ();
    pcap_dump_file(dumper: *mut c_void) -> *mut libc::FILE;
    pcap_dump_flush(dumper: *mut c_void) -> c_int;
    pcap_dump_ftell(dumper: *mut c_void) -> c_long;
    pcap_dump_ftell64(dumper: *mut c_void) -> i64;
    pcap_ether_aton(text: *const c_char) -> *mut c_uchar;
    pcap_ether_hostton(name: *const c_char) -> *mut c_uchar;
    pcap_file(p: *mut Pcap) -> *mut libc::FILE;
    pcap_fopen_offline(file: *mut libc::FILE, errbuf: *mut c_char) -> *mut Pcap;
    pcap_fopen_offline_with_tstamp_precision(file: *mut libc::FILE, precision: c_uint, errbuf: *mut c_char) -> *mut Pcap;
    pcap_free_datalinks(list: *mut c_int) -> ();
    pcap_free_tstamp_types(list: *mut c_int) -> ();
    pcap_freealldevs(list: *mut Device) -> ();
    pcap_freecode(program: *mut BpfProgram) -> ();
    pcap_init(options: c_uint, errbuf: *mut c_char) -> c_int;
    pcap_is_swapped(p: *mut Pcap) -> c_int;
    pcap_lib_version() -> *const c_char;
    pcap_lookupdev(errbuf: *mut c_char) -> *mut c_char;
    pcap_major_version(p: *mut Pcap) -> c_int;
    pcap_minor_version(p: *mut Pcap) -> c_int;
    pcap_nametoaddr(name: *const c_char) -> *mut *mut u32;
    pcap_nametoaddrinfo(name: *const c_char) -> *mut c_void;
    pcap_nametoeproto(name: *const c_char) -> c_int;
    pcap_nametollc(name: *const c_char) -> c_int;
    pcap_nametonetaddr(name: *const c_char) -> u32;
    pcap_nametoport(name: *const c_char, port: *mut c_int, protocol: *mut c_int) -> c_int;
    pcap_nametoportrange(name: *const c_char, first: *mut c_int, last: *mut c_int, protocol: *mut c_int) -> c_int;
    pcap_nametoproto(name: *const c_char) -> c_int;
    pcap_next_etherent(file: *mut libc::FILE) -> *mut c_void;
    pcap_offline_filter(program: *const BpfProgram, header: *const PacketHeader, bytes: *const c_uchar) -> c_int;
    pcap_open_dead(linktype: c_int, snaplen: c_int) -> *mut Pcap;
    pcap_open_dead_with_tstamp_precision(linktype: c_int, snaplen: c_int, precision: c_uint) -> *mut Pcap;
    pcap_open_offline(name: *const c_char, errbuf: *mut c_char) -> *mut Pcap;
    pcap_open_offline_with_tstamp_precision(name: *const c_char, precision: c_uint, errbuf: *mut c_char) -> *mut Pcap;
    pcap_statustostr(status: c_int) -> *const c_char;
    pcap_strerror(errno: c_int) -> *mut c_char;
    pcap_tstamp_type_name_to_val(name: *const c_char) -> c_int;
    pcap_tstamp_type_val_to_description(value: c_int) -> *const c_char;
    pcap_tstamp_type_val_to_name(value: c_int) -> *const c_char;
}

/// `pcap_version`, which libpcap exports for old programs. `pcap_lib_version` returns the real
/// version.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "C's name")]
pub static pcap_version: [u8; 32] = *b"libpcap version 1.10, on Strait\0";

/// An entry of [`eproto_db`].
#[repr(C)]
pub struct Protocol {
    name: *const c_char,
    number: u16,
}

// SAFETY: the pointers are to constants.
unsafe impl Sync for Protocol {}

/// `eproto_db` of libpcap: names of ethertypes.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "C's name")]
pub static eproto_db: [Protocol; 6] = [
    Protocol { name: c"ip".as_ptr(), number: 0x0800 },
    Protocol { name: c"ip6".as_ptr(), number: 0x86dd },
    Protocol { name: c"arp".as_ptr(), number: 0x0806 },
    Protocol { name: c"rarp".as_ptr(), number: 0x8035 },
    Protocol { name: c"loopback".as_ptr(), number: 0x9000 },
    Protocol { name: std::ptr::null(), number: 0 },
];
