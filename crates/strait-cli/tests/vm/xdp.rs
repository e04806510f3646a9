//! AF_XDP where the driver has zero-copy, and where it has none.

use lab::vm::{Kernel, Nic, vm_or_skip};

use super::{assert_said, guest, run};

#[test]
fn igb_captures_without_a_copy() {
    if !vm_or_skip() {
        return;
    }
    let script = "
up eth0 eth1
capture zc --path xdp-zc
send 300 64,128,594,1518
sleep 1
end_capture
cat zc.json
";
    let run = run(guest(Kernel::V7_2).wire(Nic::Igb, Nic::Igb), script);
    assert_said(&run, &[r#""mode":"zero-copy""#, r#""delivered":300"#, r#""copied_bytes":0"#]);
}
