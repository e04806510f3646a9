//! `PF_ZEROCOPY`: the module under the program, and under programs that mean it ill.

use std::fs;
use std::path::Path;

use lab::vm::{Guest, Kernel, Nic, vm_or_skip};

use super::{assert_said, guest, run};

/// A guest with two e1000 and the module built for its kernel.
fn with_module(kernel: Kernel) -> Guest {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(format!("../../kmod/build/{}/pf_zerocopy.ko", kernel.version()));
    let module =
        fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}: run make -C kmod", path.display()));
    guest(kernel).wire(Nic::E1000, Nic::E1000).file("/pf_zerocopy.ko", &module)
}

#[test]
fn frames_come_without_a_copy() {
    if !vm_or_skip() {
        return;
    }
    for kernel in [Kernel::V7_2, Kernel::V6_12] {
        let script = "
take_for_zerocopy
up eth0 zc0
capture zc --path zerocopy
send 300 64,128,594,1518
sleep 1
end_capture
cat zc.json
";
        let run = run(with_module(kernel), script);
        let zero_copy =
            [r#""path":"zerocopy","mode":"zero-copy""#, r#""delivered":300"#, r#""copied_bytes":0"#];
        assert_said(&run, &zero_copy);
    }
}
