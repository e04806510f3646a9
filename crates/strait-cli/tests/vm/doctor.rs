//! Findings of `strait doctor` on NICs and PF_ZEROCOPY. `xdp.rs` and `pf_zerocopy.rs` test that the
//! findings are true. `send.rs` and `tls.rs` test the findings on sends and kTLS.

use lab::vm::{Kernel, Nic, Run, vm_or_skip};
use serde_json::Value;

use super::pf_zerocopy::with_module;
use super::{assert_output, guest, part, run, xdp};

/// `examine NAME ARGUMENT...` prints the doctor's report in one line.
pub(super) const EXAMINE: &str = r#"
examine() {
    examined=$1
    shift
    strait doctor "$@" --json >findings
    echo "$examined: $(tr -d '\n' <findings)"
}
"#;

/// Returns state, text and fix of the finding on `subject` in the examination `name`.
fn finding(run: &Run, name: &str, subject: &str) -> (String, String, String) {
    let line = run.output.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let line = line.unwrap_or_else(|| panic!("no {name}:\n{}", run.output));
    let report: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{name}: {error}: {line}"));
    let findings = report["findings"].as_array().unwrap();
    let finding = findings.iter().find(|finding| finding["subject"] == subject);
    let finding = finding.unwrap_or_else(|| panic!("{name} says nothing of {subject}: {line}"));
    let word = |field: &str| finding[field].as_str().unwrap_or_default().to_owned();
    (word("state"), word("message"), word("fix"))
}

/// Asserts the state of a finding, and a part of its text.
fn assert_found(run: &Run, name: &str, subject: &str, wanted: (&str, &str)) {
    let (state, says, _) = finding(run, name, subject);
    assert!(state == wanted.0 && says.contains(wanted.1), "{name}, {subject}: {state}: {says}");
}

#[test]
fn af_xdp_modes_are_reported_for_each_nic() {
    if !vm_or_skip() {
        return;
    }
    for nic in [Nic::Igb, Nic::VirtioNet] {
        let run = part(&xdp::scripts(nic), "found");
        assert_found(&run, "declared", "xdp", ("ok", "declares zero-copy"));
        assert_found(&run, "probed", "xdp zero-copy", ("ok", "zero-copy binds to queue"));
        assert_found(&run, "probed", "xdp native", ("ok", "native copy binds to queue"));
        assert_found(&run, "probed", "xdp generic", ("ok", "generic binds to queue"));
    }
    for nic in [Nic::E1000, Nic::E1000e] {
        let run = part(&xdp::scripts(nic), "found");
        assert_found(
            &run,
            "declared",
            "xdp",
            ("better", "has no native XDP: the kernel's generic program only"),
        );
        assert_found(&run, "probed", "xdp zero-copy", ("better", "no zero-copy on queue 0 of eth1"));
        assert_found(&run, "probed", "xdp native", ("better", "no native copy on queue 0 of eth1"));
        assert_found(&run, "probed", "xdp generic", ("ok", "generic binds to queue 0 of eth1"));
    }
}

#[test]
fn pf_zerocopy_is_found_and_its_fix_binds_a_nic() {
    if !vm_or_skip() {
        return;
    }
    let script = format!(
        r#"{EXAMINE}
examine none --for capture
examine absent eth1 --for capture || true
examine foreign eth2 --for capture || true
take_for_zerocopy
up zc0
examine taken zc0 --for capture
up eth0
examine given eth0 --for capture
fix=$(sed -n 's/^ *"fix": "\(echo .*drivers_probe\)",*$/\1/p' findings)
echo "fix $fix"
sh -c "$fix"
up zc1
examine fixed zc1 --for capture
rmmod pf_zerocopy
examine unloaded --for capture
"#
    );
    for kernel in [Kernel::V7_2, Kernel::V6_12] {
        let guest = guest(kernel).wire(Nic::E1000, Nic::E1000).wire(Nic::E1000e, Nic::E1000e);
        let run = run(with_module(guest, kernel), &script);
        let subject = "pf_zerocopy";
        let only = "it drives only the NICs Intel 82540EM and 82576";
        for name in ["none", "foreign", "unloaded"] {
            assert_found(&run, name, subject, ("ok", only));
        }
        assert_found(
            &run,
            "absent",
            subject,
            ("better", "its module is not loaded: eth1 cannot be captured"),
        );
        assert!(finding(&run, "absent", subject).2.starts_with("modprobe pf_zerocopy"), "{}", run.output);
        for (name, taken) in [("taken", "zc0"), ("fixed", "zc1")] {
            assert_found(&run, name, subject, ("ok", &format!("its module drives {taken}")));
        }
        assert_found(&run, "given", subject, ("better", "its module is loaded, and eth0 is driven by e1000"));
        assert_output(&run, &["fix echo 0000:"]);
    }
}
