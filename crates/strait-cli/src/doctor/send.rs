//! Findings for sends: which ways to send without a copy work here?

use rustix::io::Errno;
use strait_sys::ethtool::{Ethtool, Offload};
use strait_sys::interface::Interface;
use strait_sys::uring;

use super::args::{Args, Face};
use super::finding::{Finding, Notebook};
use super::{privilege, route};
use crate::Error;

/// Memory that a busy sender keeps locked: the pages that its peers have not acknowledged.
const LOCKED_BYTES: u64 = 64 << 20;

pub(super) fn examine(
    interface: Option<&Interface>,
    args: &Args,
    findings: &mut Vec<Finding>,
) -> Result<(), Error> {
    let mut notebook = Notebook::new(Face::Send, findings);
    io_uring(&mut notebook);
    let what_for = "the unacknowledged pages of a busy sender need";
    privilege::locked_memory(LOCKED_BYTES, what_for, &args.faces, &mut notebook)?;
    if let Some(interface) = interface {
        offloads(&interface.name, &mut notebook)?;
    }
    route::examine(args.to.as_ref(), &mut notebook)?;
    Ok(())
}

fn io_uring(notebook: &mut Notebook<'_>) {
    match uring::operations() {
        Ok(operations) if operations.send_zc && operations.sendmsg_zc => {
            notebook.ok("io_uring", "permitted, with SEND_ZC and SENDMSG_ZC");
        }
        Ok(operations) => {
            let has = if operations.send_zc { "SEND_ZC only" } else { "neither SEND_ZC nor SENDMSG_ZC" };
            notebook.better("io_uring", format!("permitted, with {has}"), "boot Linux 6.1 or newer");
        }
        Err(error) => no_io_uring(&error, notebook),
    }
}

/// Reports that io_uring is refused or missing. Any other error is reported as unknown, as it does
/// not show that io_uring is forbidden.
fn no_io_uring(error: &strait_sys::Error, notebook: &mut Notebook<'_>) {
    const INSTEAD: &str = "Strait copies, or uses MSG_ZEROCOPY where that is faster";
    let says = match error.errno().map(Errno::from_raw_os_error) {
        Some(Errno::PERM | Errno::ACCESS) => format!("not permitted: {INSTEAD}"),
        Some(Errno::NOSYS) => format!("not available: {INSTEAD}"),
        _ => return notebook.unknown("io_uring", error),
    };
    notebook.better("io_uring", says, error.advice().unwrap_or_default());
}

/// Checks the offloads without which the kernel copies, without an error.
fn offloads(name: &str, notebook: &mut Notebook<'_>) -> Result<(), Error> {
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
            Ok(true) => notebook.ok(subject, format!("on at {name}")),
            Ok(false) if ethtool.is_fixed(offload).unwrap_or(false) => {
                notebook.better(subject, format!("not available, {name}'s driver has none: {why}"), "");
            }
            Ok(false) => notebook.better(
                subject,
                format!("off at {name}: {why}"),
                format!("ethtool -K {name} {} on", offload.key()),
            ),
            Err(error) => notebook.unknown(subject, &error),
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
            let error = strait_sys::Error::os("set up", "io_uring", errno.raw_os_error()).remedy("do this");
            let mut findings = Vec::new();
            no_io_uring(&error, &mut Notebook::new(Face::Send, &mut findings));
            findings.remove(0)
        };
        assert!(judged(Errno::PERM).says.starts_with("not permitted"));
        assert!(judged(Errno::NOSYS).says.starts_with("not available"));
        for errno in [Errno::NOMEM, Errno::MFILE] {
            let finding = judged(errno);
            assert!(finding.says.starts_with("unknown: set up io_uring"), "{finding:?}");
            assert_eq!((finding.state, finding.fix.as_deref()), (State::Better, Some("do this")));
        }
    }
}
