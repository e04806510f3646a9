//! Translated programs in the kernel: loaded once, run on many frames.

use std::sync::OnceLock;

use strait_filter::cbpf::Program;
use strait_filter::translate::{Options, translate};
use strait_filter::{Metadata, ebpf, ethernet_pkttype};
use strait_sys::Kind;
use strait_sys::bpf::{LoadOptions, TestRun, XdpContext, XdpProgram};

use super::frames::DEVICE_MAC;

/// `r0 = data_end - data; exit`, which needs every privilege that a filter needs.
const LENGTH: [u64; 4] = [0x0004_1061, 0x1261, 0x201f, 0x95];

/// Interface of test runs: the loopback interface of the namespace.
const IFINDEX: u32 = 1;

/// Returns true if this process may load XDP programs; otherwise tests that need them are skipped.
pub(crate) fn privileged_or_skip() -> bool {
    static REFUSED: OnceLock<Option<String>> = OnceLock::new();
    let refused = REFUSED.get_or_init(|| match XdpProgram::load("strait", &LENGTH, LoadOptions::default()) {
        Ok(_) => None,
        Err(error) if error.kind() == Kind::Refused => Some(error.to_string()),
        Err(error) => panic!("{error}"),
    });
    if let Some(reason) = refused {
        lab::skip(reason);
    }
    refused.is_none()
}

/// Returns the kernel's metadata of a frame of a test run.
pub(crate) fn metadata(frame: &[u8]) -> Metadata {
    let destination = frame[..6].try_into().expect("frames have 14 bytes");
    Metadata {
        wire_len: frame.len() as u32,
        pkttype: ethernet_pkttype(destination, DEVICE_MAC),
        ifindex: IFINDEX,
        // Queue 0, stored plus one.
        queue: 1,
        hatype: 1,
        ..Metadata::default()
    }
}

/// Translation that the verifier accepted.
pub(crate) struct Translated {
    program: XdpProgram,
}

impl Translated {
    pub(crate) fn load(program: &Program, fragments: bool) -> Self {
        let options = Options { fragments, device_mac: DEVICE_MAC, ..Options::default() };
        let code = translate(program, &options).unwrap_or_else(|error| panic!("{error}: {program:x?}"));
        let options = LoadOptions { fragments, device: None };
        match XdpProgram::load("strait", &ebpf::encode(&code), options) {
            Ok(program) => Self { program },
            Err(error) => panic!("{error}: {program:x?}"),
        }
    }

    /// Returns the program's result for a frame with `linear` bytes in the first buffer.
    pub(crate) fn run(&self, frame: &[u8], linear: Option<usize>) -> u32 {
        let context = |linear_bytes| XdpContext { linear_bytes, ..XdpContext::default() };
        let run = |linear| {
            self.program.test_run(TestRun {
                data: frame,
                context: Some(context(linear)),
                ..TestRun::default()
            })
        };
        let outcome = match linear.map(|bytes| bytes as u32) {
            // Before Linux 6.18 the kernel decides where the first buffer ends.
            Some(bytes) => run(Some(bytes)).or_else(|_| run(None)),
            None => run(None),
        };
        outcome.expect("a test run of a loaded program").returned
    }
}
