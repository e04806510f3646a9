//! The library under test, and traffic for those that load it.

use std::path::PathBuf;
use std::time::Duration;

use lab::Wire;
use strait_capture::{InjectPath, Injector};
use strait_packet::traffic::{Kind, Traffic};

pub(crate) const LIMIT: Duration = Duration::from_secs(40);

/// The library, which Cargo builds beside its tests.
pub(crate) fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let built = test.with_file_name("libstrait_pcap.so");
    assert!(built.is_file(), "{} is not built", built.display());
    built
}

/// Sends `count` frames of `kinds` in turn from the left end, `pause` apart, unless `over` says that it is enough.
pub(crate) fn send(wire: &Wire, kinds: &[Kind], count: u64, pause: Duration, over: impl Fn() -> bool + Sync) {
    let traffic = Traffic::builder().flows(kinds.len() as u32).kinds(kinds).build().unwrap();
    wire.left().run(|| {
        let mut injector = Injector::open("left", InjectPath::Sendmmsg).unwrap();
        for sequence in (0..count).take_while(|_| !over()) {
            let len = traffic.write_frame(sequence, 1, injector.buffer().unwrap());
            injector.push(len);
            if !pause.is_zero() {
                injector.flush().unwrap();
                std::thread::sleep(pause);
            }
        }
        injector.finish().unwrap();
    });
}
