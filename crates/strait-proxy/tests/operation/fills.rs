//! Methods that move bodies into the store.

use crate::rig::{Rig, body};

/// Length of a body that is long enough to be measured.
const LENGTH: usize = 2 << 20;
/// Bodies that are moved before the proxy chooses by cost, of both methods, and some more.
const BODIES: usize = 40;

#[test]
fn both_methods_are_measured_and_move_the_same_bytes() {
    let rig = Rig::start("workers = 1\ntransfer.fill = \"auto\"");
    let mut client = rig.client();
    for number in 0..BODIES {
        let path = format!("/200/1000/{LENGTH}/{number}");
        assert!(client.get(&path).body == body(LENGTH), "{path}");
        assert!(client.get(&path).body == body(LENGTH), "{path} as a hit");
    }
    let report = rig.proxy.report();
    assert_eq!(rig.origin.asked(), BODIES);
    // The copied bytes include those that arrive with the head.
    let all = (BODIES * LENGTH) as u64;
    assert_eq!(report.filled_copied + report.filled_spliced, all, "{report:?}");
    let least = 3 * LENGTH as u64;
    assert!(report.filled_copied > least && report.filled_spliced > least, "{report:?}");
}
