//! Findings for sends: the methods of sending without a copy that work here.

use rustix::io::Errno;
use strait_os::ethtool::{Ethtool, Offload};
use strait_os::interface::Interface;
use strait_transfer::probe;

use super::args::{Area, Args};
use super::finding::{Finding, Recorder};
use super::{privilege, route};
use crate::Error;

/// Memory that a busy sender keeps locked: the pages that its peers have not acknowledged.
const LOCKED_BYTES: u64 = 64 << 20;

pub(super) fn examine(
    interface: Option<&Interface>,
    args: &Args,
    findings: &mut Vec<Finding>,
) -> Result<(), Error> {
    let mut recorder = Recorder::new(Area::Send, findings);
    io_uring(&mut recorder);
    let what_for = "the unacknowledged pages of a busy sender need";
    privilege::locked_memory(LOCKED_BYTES, what_for, &args.areas, &mut recorder)?;
    if let Some(interface) = interface {
        offloads(&interface.name, &mut recorder)?;
    }
    route::examine(args.to.as_ref(), &mut recorder)?;
    Ok(())
}

fn io_uring(recorder: &mut Recorder<'_>) {
    match probe::io_uring() {
        Ok(operations) if operations.send_zc && operations.sendmsg_zc => {
            recorder.ok("io_uring", "permitted, with SEND_ZC and SENDMSG_ZC");
        }
        Ok(operations) => {
            let has = if operations.send_zc { "SEND_ZC only" } else { "neither SEND_ZC nor SENDMSG_ZC" };
            recorder.better("io_uring", format!("permitted, with {has}"), "boot Linux 6.1 or newer");
        }
        Err(error) => no_io_uring(&error, recorder),
    }
}

/// Reports that io_uring is refused or missing. Any other error is reported as unknown, as it does
/// not show that io_uring is forbidden.
fn no_io_uring(error: &strait_os::Error, recorder: &mut Recorder<'_>) {
    const INSTEAD: &str = "Strait copies, or uses MSG_ZEROCOPY where that is faster";
    let message = match error.errno().map(Errno::from_raw_os_error) {
        Some(Errno::PERM | Errno::ACCESS) => format!("not permitted: {INSTEAD}"),
        Some(Errno::NOSYS) => format!("not available: {INSTEAD}"),
        _ => return recorder.unknown("io_uring", error),
    };
    recorder.better("io_uring", message, error.advice().unwrap_or_default());
}

/// Checks the offloads without which the kernel copies, without an error.
fn offloads(name: &str, recorder: &mut Recorder<'_>) -> Result<(), Error> {
    let ethtool = Ethtool::open(name)?;
    for (offload, subject, why) in [
        (Offload::ScatterGather, "scatter-gather", "without it the kernel copies every send"),
        (
            Offload::TxChecksum,
            "checksum offload",
            "without it the kernel checksums, and so copies, every send",
        ),
        (Offload::Tso, "tso", "without it the CPU segments a large send"),
    ] {
        match ethtool.offload(offload) {
            Ok(true) => recorder.ok(subject, format!("on at {name}")),
            Ok(false) if ethtool.is_fixed(offload).unwrap_or(false) => {
                recorder.better(subject, format!("not available, {name}'s driver has none: {why}"), "");
            }
            Ok(false) => recorder.better(
                subject,
                format!("off at {name}: {why}"),
                format!("ethtool -K {name} {} on", offload.key()),
            ),
            Err(error) => recorder.unknown(subject, &error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::finding::State;
    use super::*;

    #[test]
    fn only_a_refusal_is_reported_as_not_permitted() {
        let judged = |errno: Errno| {
            let error = strait_os::Error::os("set up", "io_uring", errno.raw_os_error()).remedy("do this");
            let mut findings = Vec::new();
            no_io_uring(&error, &mut Recorder::new(Area::Send, &mut findings));
            findings.remove(0)
        };
        assert!(judged(Errno::PERM).message.starts_with("not permitted"));
        assert!(judged(Errno::NOSYS).message.starts_with("not available"));
        for errno in [Errno::NOMEM, Errno::MFILE] {
            let finding = judged(errno);
            assert!(finding.message.starts_with("unknown: set up io_uring"), "{finding:?}");
            assert_eq!((finding.state, finding.fix.as_deref()), (State::Better, Some("do this")));
        }
    }
}
