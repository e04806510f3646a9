//! Findings on the privileges of this process: packet sockets, AF_XDP, locked memory.
//!
//! The findings for captures and sends call it. It tries each operation that can be tried. A
//! capability counts only in the user namespace in which the kernel checks it. The fix of a finding
//! gives the capabilities of its operation and no others.

use rustix::process::{Resource, getrlimit};
use strait_capture::probe;
use strait_os::process::{self, AF_XDP_CAPABILITIES, CAP_IPC_LOCK, CAP_NET_RAW, has_capability};
use strait_os::{Kind, Result};

use super::args::Area;
use super::finding::Recorder;

/// Number and name of a capability.
type Capability = (u32, &'static str);

/// Capabilities for packet sockets.
const PACKET_SOCKETS: [Capability; 1] = [(CAP_NET_RAW, "CAP_NET_RAW")];
/// Fix for operations that root of a user namespace cannot do.
const OUTSIDE: &str = "run strait as root outside of the user namespace (containers: not rootless)";

/// Checks that packet sockets and their rings can be opened, and returns true if packet sockets
/// can. `name` is used in errors only.
pub(super) fn packet_sockets(name: &str, recorder: &mut Recorder<'_>) -> Result<bool> {
    const SUBJECT: &str = "packet sockets";
    match probe::packet_rings(name) {
        Ok(()) => recorder.ok(SUBJECT, "CAP_NET_RAW: recv, v2 and v3 can be opened"),
        Err(error) if probe::packet_socket(name).is_ok() => {
            recorder.better(SUBJECT, format!("recv only: {}", error.failure()), "--path recv");
        }
        Err(error) if error.kind() == Kind::Refused => {
            let (reason, fix) = packet_socket_denial()?;
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
fn packet_socket_denial() -> Result<(&'static str, String)> {
    Ok(if !has_capability(CAP_NET_RAW)? {
        ("no CAP_NET_RAW", root_or_setcap(&PACKET_SOCKETS))
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
pub(super) fn af_xdp(recorder: &mut Recorder<'_>) -> Result<()> {
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
            recorder.better(SUBJECT, message, root_or_setcap(&AF_XDP_CAPABILITIES));
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
        Ok(true) => format!("or: {}", setcap(&for_locked_memory(areas))),
        Ok(false) => "before the user namespace is entered".into(),
    };
    let message = format!("{} KiB can be locked; {what_for} {} KiB", bytes >> 10, needs_bytes >> 10);
    let fix = format!("ulimit -l unlimited (systemd: LimitMEMLOCK=infinity), {raise}");
    recorder.judge(bytes >= needs_bytes, SUBJECT, message, &fix);
    Ok(())
}

/// Returns the fix for missing privileges of AF_XDP or the tap.
pub(super) fn for_af_xdp() -> String {
    if process::is_in_initial_user_namespace().unwrap_or(true) {
        root_or_setcap(&AF_XDP_CAPABILITIES)
    } else {
        OUTSIDE.into()
    }
}

/// Returns the capabilities with which memory can be locked. For captures they include those of
/// AF_XDP, which locks its rings: setcap(8) replaces the capabilities of a program.
fn for_locked_memory(areas: &[Area]) -> Vec<Capability> {
    let af_xdp = AF_XDP_CAPABILITIES.into_iter().filter(|_| areas.contains(&Area::Capture));
    af_xdp.chain([(CAP_IPC_LOCK, "CAP_IPC_LOCK")]).collect()
}

fn root_or_setcap(needed: &[Capability]) -> String {
    format!("run strait as root, or: {}", setcap(needed))
}

/// Returns the setcap(8) command for the `needed` capabilities. setcap replaces the capabilities of
/// the program, so the command includes those that this process already has.
fn setcap(needed: &[Capability]) -> String {
    let has = |capability| !process::is_root() && has_capability(capability).unwrap_or(false);
    let all = AF_XDP_CAPABILITIES.into_iter().chain([(CAP_IPC_LOCK, "CAP_IPC_LOCK")]);
    let given = all.filter(|capability| needed.contains(capability) || has(capability.0));
    let given: Vec<String> = given.map(|(_, name)| name.to_lowercase()).collect();
    let program = std::env::current_exe().map_or_else(|_| "strait".into(), |path| path.display().to_string());
    format!("setcap {}+ep {program}", given.join(","))
}
