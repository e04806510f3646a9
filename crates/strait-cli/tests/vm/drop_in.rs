//! libpcap programs that inject frames on `PF_ZEROCOPY`, on which only the capturing socket can
//! send.

use std::path::Path;

use lab::vm::{Guest, Kernel, vm_or_skip};
use lab::{compile, program_or_skip};
use serde_json::Value;

use super::pf_zerocopy::with_misuse;
use super::{assert_output, run, strait};

/// Number of frames that the program `inject` answers.
const ANSWERED: u64 = 200;

/// Returns a guest with the drop-in library and the program `inject`.
fn with_inject(kernel: Kernel) -> Guest {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("inject");
    let source = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vm/inject.c"));
    compile(source, &["-lpcap"], &program);
    with_misuse(kernel).program(&program).program(strait().with_file_name("libstrait_pcap.so"))
}

/// Returns the bytes of all answers of `inject.c`.
fn answered_bytes() -> u64 {
    (0..ANSWERED).map(|n| 60 + n * 37 % 1455).sum()
}

#[test]
fn program_injects_during_a_capture_without_privileges() {
    if !vm_or_skip() || !program_or_skip("cc") {
        return;
    }
    let script = format!(
        "
take_for_zerocopy
up eth0 zc0
receiver=eth0
capture came --path v3 --direction in
strait run --strict --report=report --path zerocopy -- inject zc0 {ANSWERED} >injected &
injector=$!
until grep -q listening injected; do sleep 0.1; done
up eth0 zc0
sleep 2
send {ANSWERED} 64
wait $injector
sleep 1
end_capture
cat injected report
echo ledger $(cat came.json)
strait capture -r came.pcap --json 'ether proto 0x88b5 and ether[14] = 100 and ether[849] = 100 and len = 850'
echo pinned $(pinned)
"
    );
    for kernel in [Kernel::V7_2, Kernel::V6_12] {
        let run = run(with_inject(kernel), &script);
        let wanted = [
            "captured 200, injected 200",
            "path zerocopy",
            "the ledger balances",
            r#""delivered":1,"#,
            "pinned 0",
        ];
        assert_output(&run, &wanted);
        let line = run.output.lines().find_map(|line| line.strip_prefix("ledger ")).unwrap();
        let ledger: Value = serde_json::from_str(line).unwrap();
        let received = ["delivered", "bytes"].map(|name| ledger[name].as_u64().unwrap());
        assert_eq!(received, [ANSWERED, answered_bytes()], "{ledger}");
    }
}

#[test]
fn failed_injection_reports_its_reason_and_affects_no_other() {
    if !vm_or_skip() || !program_or_skip("cc") {
        return;
    }
    // The limit of locked memory has room for the receive ring only.
    let script = "
take_for_zerocopy
up eth0 zc0
receiver=eth0
capture came --path v3 --direction in
strait run --strict --path zerocopy -- inject zc0 down
sleep 1
end_capture
cat came.json
(ulimit -l 8192; exec misuse as raw strait run --strict --path zerocopy -- inject zc0 100) >limited &
limited=$!
until grep -q listening limited; do sleep 0.1; done
up eth0 zc0
sleep 2
send 100 64
wait $limited
cat limited
";
    let run = run(with_inject(Kernel::V7_2), script);
    let wanted = [
        "refused, then sent",
        r#""delivered":200,"#,
        "not injected: register a buffer for zc0",
        "raise the limit of locked memory",
        "captured 100, injected 0",
    ];
    assert_output(&run, &wanted);
}
