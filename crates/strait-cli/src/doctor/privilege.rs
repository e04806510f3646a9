//! Findings on the privileges of this process: packet sockets, AF_XDP, locked memory.
//!
//! The findings for captures and sends call it. It tries each operation that can be tried. A
//! capability counts only in the user namespace in which the kernel checks it.

use rustix::process::{Resource, getrlimit};
use strait_sys::bpf::Map;
use strait_sys::packet::{self, v2, v3};
use strait_sys::process::{self, AF_XDP_CAPABILITIES, CAP_IPC_LOCK, CAP_NET_RAW, has_capability};
use strait_sys::{Kind, Result};

use super::args::Face;
use super::finding::Notebook;

/// Bytes of a ring that is created as a test.
const RING_BYTES: usize = 256 << 10;
/// Fix for operations that root of a user namespace cannot do.
const OUTSIDE: &str = "run strait as root outside of the user namespace (containers: not rootless)";

/// Checks that packet sockets and their rings can be opened, and returns true if packet sockets
/// can. `name` is used in errors only.
pub(super) fn packet_sockets(name: &str, faces: &[Face], notebook: &mut Notebook<'_>) -> Result<bool> {
    const SUBJECT: &str = "packet sockets";
    match rings(name) {
        Ok(()) => notebook.ok(SUBJECT, "CAP_NET_RAW: recv, v2 and v3 can be opened"),
        Err(error) if packet::Socket::open(name).is_ok() => {
            notebook.better(SUBJECT, format!("recv only: {}", error.failure()), "--path recv");
        }
        Err(error) if error.kind() == Kind::Refused => {
            let (reason, fix) = packet_socket_denial(faces)?;
            notebook.broken(SUBJECT, format!("{reason}: nothing can be captured"), fix);
            return Ok(false);
        }
        Err(error) => {
            notebook.unknown(SUBJECT, &error);
            return Ok(false);
        }
    }
    Ok(true)
}

/// Creates a small ring of each kind on unbound sockets.
fn rings(name: &str) -> Result<()> {
    v2::Ring::new(&packet::Socket::open(name)?, v2::Geometry::new(RING_BYTES, 2048))?;
    let geometry = v3::Geometry::new(RING_BYTES, RING_BYTES / 2, std::time::Duration::from_millis(1));
    v3::Ring::new(&packet::Socket::open(name)?, geometry, false).map(drop)
}

/// Returns why packet sockets are refused, and the fix.
fn packet_socket_denial(faces: &[Face]) -> Result<(&'static str, String)> {
    Ok(if !has_capability(CAP_NET_RAW)? {
        ("no CAP_NET_RAW", root_or_setcap(faces))
    } else if !process::is_in_initial_user_namespace()? {
        let reason = "CAP_NET_RAW of this user namespace does not reach the network namespace";
        (reason, OUTSIDE.into())
    } else if process::has_seccomp_filter() {
        (
            "a seccomp filter forbids packet sockets",
            "run the container with a profile that allows them".into(),
        )
    } else {
        ("the kernel refuses packet sockets in spite of CAP_NET_RAW", String::new())
    })
}

/// Checks that this process has the privileges for AF_XDP.
pub(super) fn af_xdp(faces: &[Face], notebook: &mut Notebook<'_>) -> Result<()> {
    const SUBJECT: &str = "af_xdp privilege";
    let mut missing = Vec::new();
    for (capability, name) in AF_XDP_CAPABILITIES {
        if !has_capability(capability)? {
            missing.push(name);
        }
    }
    match process::is_in_initial_user_namespace() {
        Err(error) => notebook.unknown(SUBJECT, &error),
        Ok(false) => {
            let says = "the privileges of a user namespace do not cover BPF: xdp cannot be opened";
            notebook.better(SUBJECT, says, OUTSIDE);
        }
        Ok(true) if !missing.is_empty() => {
            let says = format!("no {}: xdp cannot be opened", missing.join(", "));
            notebook.better(SUBJECT, says, root_or_setcap(faces));
        }
        // Creating the XSKMAP is the first step that the kernel refuses without privileges.
        Ok(true) => match Map::xskmap("strait_doctor", 1) {
            Ok(_) => notebook.ok(SUBJECT, "this process has all privileges for xdp"),
            Err(error) => notebook.unknown(SUBJECT, &error),
        },
    }
    Ok(())
}

/// Checks that `needs_bytes` of memory can be locked. `what_for` names the use in the message.
pub(super) fn locked_memory(
    needs_bytes: u64,
    what_for: &str,
    faces: &[Face],
    notebook: &mut Notebook<'_>,
) -> Result<()> {
    const SUBJECT: &str = "locked memory";
    let Some(bytes) = getrlimit(Resource::Memlock).current else {
        notebook.ok(SUBJECT, "no limit of locked memory");
        return Ok(());
    };
    let raise = match process::is_in_initial_user_namespace() {
        Err(error) => {
            notebook.unknown(SUBJECT, &error);
            return Ok(());
        }
        Ok(true) if has_capability(CAP_IPC_LOCK)? => {
            notebook.ok(SUBJECT, "CAP_IPC_LOCK: the limit of locked memory does not apply");
            return Ok(());
        }
        Ok(true) => format!("or: {}", setcap(faces)),
        Ok(false) => "before the user namespace is entered".into(),
    };
    let says = format!("{} KiB can be locked; {what_for} {} KiB", bytes >> 10, needs_bytes >> 10);
    let fix = format!("ulimit -l unlimited (systemd: LimitMEMLOCK=infinity), {raise}");
    notebook.judge(bytes >= needs_bytes, SUBJECT, says, &fix);
    Ok(())
}

/// Returns the fix for missing privileges of AF_XDP.
pub(super) fn for_af_xdp(faces: &[Face]) -> String {
    if process::is_in_initial_user_namespace().unwrap_or(true) {
        root_or_setcap(faces)
    } else {
        OUTSIDE.into()
    }
}

fn root_or_setcap(faces: &[Face]) -> String {
    format!("run strait as root, or: {}", setcap(faces))
}

/// Returns one setcap(8) command for all `faces`. setcap replaces the program's capabilities, so
/// that the command includes those that this process already has.
fn setcap(faces: &[Face]) -> String {
    let needs = |capability| match capability {
        CAP_IPC_LOCK => faces.contains(&Face::Capture) || faces.contains(&Face::Send),
        _ => faces.contains(&Face::Capture),
    };
    let has = |capability| !process::is_root() && has_capability(capability).unwrap_or(false);
    let capabilities = AF_XDP_CAPABILITIES.into_iter().chain([(CAP_IPC_LOCK, "CAP_IPC_LOCK")]);
    let capabilities = capabilities.filter(|&(capability, _)| needs(capability) || has(capability));
    let capabilities: Vec<String> = capabilities.map(|(_, name)| name.to_lowercase()).collect();
    let program = std::env::current_exe().map_or_else(|_| "strait".into(), |path| path.display().to_string());
    format!("setcap {}+ep {program}", capabilities.join(","))
}
