//! Findings on the privileges of this process: packet sockets, AF_XDP, locked memory.
//!
//! The findings for captures and sends call it. It tries each operation that can be tried. A
//! capability counts only in the user namespace in which the kernel checks it.

use rustix::process::{Resource, getrlimit};
use strait_capture::probe;
use strait_os::process::{self, AF_XDP_CAPABILITIES, CAP_IPC_LOCK, CAP_NET_RAW, has_capability};
use strait_os::{Kind, Result};

use super::args::Area;
use super::finding::Recorder;

/// Fix for operations that root of a user namespace cannot do.
const OUTSIDE: &str = "run strait as root outside of the user namespace (containers: not rootless)";

/// Checks that packet sockets and their rings can be opened, and returns true if packet sockets
/// can. `name` is used in errors only.
pub(super) fn packet_sockets(name: &str, areas: &[Area], recorder: &mut Recorder<'_>) -> Result<bool> {
    const SUBJECT: &str = "packet sockets";
    match probe::packet_rings(name) {
        Ok(()) => recorder.ok(SUBJECT, "CAP_NET_RAW: recv, v2 and v3 can be opened"),
        Err(error) if probe::packet_socket(name).is_ok() => {
            recorder.better(SUBJECT, format!("recv only: {}", error.failure()), "--path recv");
        }
        Err(error) if error.kind() == Kind::Refused => {
            let (reason, fix) = packet_socket_denial(areas)?;
            recorder.broken(SUBJECT, format!("{reason}: nothing can be captured"), fix);
            return Ok(false);
        }
        Err(error) => {
            recorder.unknown(SUBJECT, &error);
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns why packet sockets are refused, and the fix.
fn packet_socket_denial(areas: &[Area]) -> Result<(&'static str, String)> {
    Ok(if !has_capability(CAP_NET_RAW)? {
        ("no CAP_NET_RAW", root_or_setcap(areas))
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
pub(super) fn af_xdp(areas: &[Area], recorder: &mut Recorder<'_>) -> Result<()> {
    const SUBJECT: &str = "af_xdp privilege";
    let mut missing = Vec::new();
    for (capability, name) in AF_XDP_CAPABILITIES {
        if !has_capability(capability)? {
            missing.push(name);
        }
    }
    match process::is_in_initial_user_namespace() {
        Err(error) => recorder.unknown(SUBJECT, &error),
        Ok(false) => {
            let message = "the privileges of a user namespace do not cover BPF: xdp cannot be opened";
            recorder.better(SUBJECT, message, OUTSIDE);
        }
        Ok(true) if !missing.is_empty() => {
            let message = format!("no {}: xdp cannot be opened", missing.join(", "));
            recorder.better(SUBJECT, message, root_or_setcap(areas));
        }
        // Creating the XSKMAP is the first step that the kernel refuses without privileges.
        Ok(true) => match probe::xdp_map() {
            Ok(()) => recorder.ok(SUBJECT, "this process has all privileges for xdp"),
            Err(error) => recorder.unknown(SUBJECT, &error),
        },
    }
    Ok(())
}

/// Checks that `needs_bytes` of memory can be locked. `what_for` names the use in the message.
pub(super) fn locked_memory(
    needs_bytes: u64,
    what_for: &str,
    areas: &[Area],
    recorder: &mut Recorder<'_>,
) -> Result<()> {
    const SUBJECT: &str = "locked memory";
    let Some(bytes) = getrlimit(Resource::Memlock).current else {
        recorder.ok(SUBJECT, "no limit of locked memory");
        return Ok(());
    };
    let raise = match process::is_in_initial_user_namespace() {
        Err(error) => {
            recorder.unknown(SUBJECT, &error);
            return Ok(());
        }
        Ok(true) if has_capability(CAP_IPC_LOCK)? => {
            recorder.ok(SUBJECT, "CAP_IPC_LOCK: the limit of locked memory does not apply");
            return Ok(());
        }
        Ok(true) => format!("or: {}", setcap(areas)),
        Ok(false) => "before the user namespace is entered".into(),
    };
    let message = format!("{} KiB can be locked; {what_for} {} KiB", bytes >> 10, needs_bytes >> 10);
    let fix = format!("ulimit -l unlimited (systemd: LimitMEMLOCK=infinity), {raise}");
    recorder.judge(bytes >= needs_bytes, SUBJECT, message, &fix);
    Ok(())
}

/// Returns the fix for missing privileges of AF_XDP.
pub(super) fn for_af_xdp(areas: &[Area]) -> String {
    if process::is_in_initial_user_namespace().unwrap_or(true) {
        root_or_setcap(areas)
    } else {
        OUTSIDE.into()
    }
}

fn root_or_setcap(areas: &[Area]) -> String {
    format!("run strait as root, or: {}", setcap(areas))
}

/// Returns one setcap(8) command for all `areas`. setcap replaces the capabilities of the program,
/// so the command includes those that this process already has.
fn setcap(areas: &[Area]) -> String {
    let needs = |capability| match capability {
        CAP_IPC_LOCK => areas.contains(&Area::Capture) || areas.contains(&Area::Send),
        _ => areas.contains(&Area::Capture),
    };
    let has = |capability| !process::is_root() && has_capability(capability).unwrap_or(false);
    let capabilities = AF_XDP_CAPABILITIES.into_iter().chain([(CAP_IPC_LOCK, "CAP_IPC_LOCK")]);
    let capabilities = capabilities.filter(|&(capability, _)| needs(capability) || has(capability));
    let capabilities: Vec<String> = capabilities.map(|(_, name)| name.to_lowercase()).collect();
    let program = std::env::current_exe().map_or_else(|_| "strait".into(), |path| path.display().to_string());
    format!("setcap {}+ep {program}", capabilities.join(","))
}
