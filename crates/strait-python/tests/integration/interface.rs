//! The interface of the package: its type stubs and the lines of its errors.

use lab::Launch;
use rustix::process::geteuid;

use crate::rig::{LIMIT, program, python_or_skip};

#[test]
fn stubs_have_the_names_and_arguments_of_the_package() {
    let Some(python) = python_or_skip() else { return };
    let printed = program(Launch::new(python), "stubs", &[]).run(LIMIT).unwrap().success().text();
    assert_eq!(printed, "");
}

#[test]
fn wrong_arguments_get_a_line_that_says_what_to_give() {
    let Some(python) = python_or_skip() else { return };
    let printed = program(Launch::new(python), "wrong", &[]).run(LIMIT).unwrap().success().text();
    let expected = "\
UsageError: frames=0: give 1 to 262144
UsageError: batch_rows=65537: give 1 to 65536
UsageError: count=-1: give 1 or more
UsageError: snaplen=262145: give 1 to 262144
UsageError: batch_time=0: give more than 0 and at most 3600 seconds
UsageError: duration=NaN: give more than 0 and at most 31536000 seconds
UsageError: ports: no such column; give basic, headers, standard, all or names of the table packets
UsageError: frame: frames=N adds this column, with N bytes of each packet
UsageError: process: only strait capture --owner has this column
UsageError: path=\"v4\": give one of auto, recv, v2, v3, xdp, xdp-zc, xdp-native, xdp-generic, tap, zerocopy
UsageError: direction=\"up\": give in, out or both
UsageError: the ring size must be 256 KiB to 2048 MiB
UsageError: find nothing0: no such interface; `ip link` lists them
Error: open /nowhere: No such file or directory (os error 2)
";
    assert_eq!(printed, expected);
}

#[test]
fn capture_without_the_privilege_is_refused_with_the_remedy() {
    let Some(python) = python_or_skip() else { return };
    let launch = if geteuid().is_root() {
        Launch::new("setpriv").arg("--bounding-set=-all").arg(python)
    } else {
        Launch::new(python)
    };
    let printed = program(launch, "refused", &[]).run(LIMIT).unwrap().success().text();
    assert!(printed.starts_with("RefusedError: ") && printed.contains("cap_net_raw"), "{printed}");
    assert_eq!(printed.lines().count(), 1, "{printed}");
}
