//! Device lists: libpcap's devices, and each Ethernet interface once more with the prefix `xdp:`.

use std::ffi::{CStr, CString, c_char, c_int};

use strait_capture::Path;

use super::{Device, PCAP_ERROR, guarded, text};
use crate::choice::split;

/// `PCAP_IF_LOOPBACK`.
const LOOPBACK: u32 = 1;

/// `pcap_findalldevs(3PCAP)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_findalldevs(list: *mut *mut Device, errbuf: *mut c_char) -> c_int {
    guarded(PCAP_ERROR, || {
        let code = real!(pcap_findalldevs(list: *mut *mut Device, errbuf: *mut c_char) -> c_int);
        if code == 0 {
            // SAFETY: libpcap stored a null-terminated list there.
            unsafe { add_xdp(*list) };
        }
        code
    })
}

/// Appends the interfaces that AF_XDP can capture on to the list. If memory runs out, some are
/// omitted.
///
/// # Safety
/// `first` is null or points to a device list of libpcap's.
unsafe fn add_xdp(first: *mut Device) {
    // SAFETY: every entry of the list is complete; pcap_freealldevs frees names and entries with
    // free(3).
    unsafe {
        let (mut names, mut last, mut at) = (Vec::new(), first, first);
        while let Some(device) = at.as_ref() {
            let name = CStr::from_ptr(device.name);
            let suits = name.to_str().is_ok_and(|name| Path::Xdp.suits(name));
            if device.flags & LOOPBACK == 0 && suits {
                names.push((name.to_owned(), device.flags));
            }
            (last, at) = (at, device.next);
        }
        for (name, flags) in names {
            let Some(device) = entry(&name, flags) else { return };
            (*last).next = device;
            last = device;
        }
    }
}

/// Returns an entry for the list, allocated with malloc(3).
fn entry(name: &CStr, flags: u32) -> Option<*mut Device> {
    let name = name.to_string_lossy();
    let described =
        CString::new(format!("{name} through AF_XDP: the host does not receive the captured packets"))
            .ok()?;
    let named = CString::new(format!("xdp:{name}")).ok()?;
    // SAFETY: strdup reads C strings; a zeroed entry is valid; free accepts memory of malloc, and
    // null.
    unsafe {
        let device = libc::calloc(1, size_of::<Device>()).cast::<Device>();
        let (name, description) = (libc::strdup(named.as_ptr()), libc::strdup(described.as_ptr()));
        if device.is_null() || name.is_null() || description.is_null() {
            libc::free(device.cast());
            libc::free(name.cast());
            libc::free(description.cast());
            return None;
        }
        (*device).name = name;
        (*device).description = description;
        (*device).flags = flags;
        Some(device)
    }
}

/// `pcap_lookupnet(3PCAP)`: removes a path prefix from the device's name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_lookupnet(
    device: *const c_char,
    net: *mut u32,
    mask: *mut u32,
    errbuf: *mut c_char,
) -> c_int {
    guarded(PCAP_ERROR, || {
        let named = text(device);
        let Ok(name) = CString::new(split(&named).1) else { return PCAP_ERROR };
        let device = if device.is_null() { device } else { name.as_ptr() };
        real!(pcap_lookupnet(device: *const c_char, net: *mut u32, mask: *mut u32, errbuf: *mut c_char) -> c_int)
    })
}
