//! Records that the kernel's run of the program writes.

use std::os::fd::{AsFd, AsRawFd};

use strait_filter::cbpf::Program;
use strait_filter::ebpf;
use strait_filter::tap::layout::{self, Record, Sizes};
use strait_filter::tap::{TapOptions, tap_program};
use strait_filter::translate::{Context, Options};
use strait_os::process;
use strait_sys::Kind;
use strait_sys::bpf::Classifier;

use super::memory::{self, Memory};

const SIZES: Sizes = Sizes { ring_bytes: 4096, spill_bytes: 4096, frame_bytes_max: 2048 };
/// Fills memory that the program must not write.
const UNUSED: u8 = 0xee;

/// Program with its rings.
struct Tap {
    memory: Memory,
    program: Classifier,
}

impl Tap {
    /// Loads a program that cuts all frames to `snaplen`; `None` without privilege.
    fn load(sizes: Sizes, cpus: u32, snaplen: u32) -> Option<Self> {
        let memory = match Memory::new(&sizes, cpus, 1) {
            Err(error) if error.kind() == Kind::Refused => {
                lab::skip(error.to_string());
                return None;
            }
            memory => memory.unwrap(),
        };
        let doorbells = memory.doorbells.iter().map(|bell| bell.as_fd().as_raw_fd()).collect::<Vec<_>>();
        let options = TapOptions {
            interface: Options { context: Context::Received, ..Options::default() },
            rings_fd: memory.rings.as_fd().as_raw_fd(),
            doorbells: &doorbells,
            sizes,
            rx_hash: false,
            owner: None,
            confinement: None,
        };
        let code = tap_program(&Program::accept_all(snaplen), &options).unwrap();
        let program = Classifier::load("strait_tap", &ebpf::encode(&code)).unwrap();
        Some(Self { memory, program })
    }

    /// Runs the program on a frame. Returns the first ring and the bytes behind it.
    fn run(&self, frame: &[u8]) -> Vec<u8> {
        let rings = &self.memory.rings;
        let mut value = vec![UNUSED; SIZES.value_bytes()];
        value[..layout::DATA].fill(0);
        (0..rings.entries()).for_each(|cpu| rings.set(cpu, &value).unwrap());
        self.program.test_run(frame).unwrap();
        let has_record = |value: &[u8]| value[layout::PRODUCER..][..8] != [0; 8];
        for cpu in 0..rings.entries() {
            rings.get(cpu, &mut value).unwrap();
            if has_record(&value) {
                return value[layout::DATA..SIZES.spill()].to_vec();
            }
        }
        panic!("no ring has a record of {} bytes", frame.len());
    }
}

fn frame(len: usize) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..len).map(|at| (at * 7 + at / 256) as u8).collect();
    // No protocol of the kernel, which would check its header.
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame
}

/// The program has several ways to copy a frame, by its length.
#[test]
fn record_has_the_captured_bytes_and_nothing_behind_them_changes() {
    let cpus = process::possible_cpus().unwrap();
    for snaplen in [1, 7, 9, 31, 96, 500, 262_144] {
        let Some(tap) = Tap::load(SIZES, cpus, snaplen) else { return };
        for len in (14..=600).chain([1024, 1514, 2047]) {
            let frame = frame(len);
            let ring = tap.run(&frame);
            let captured = len.min(snaplen as usize);
            let record = Record::parse(ring.first_chunk().unwrap());
            assert_eq!((record.captured as usize, record.wire_len as usize), (captured, len));
            assert!(record.timestamp_ns > 0);
            let (bytes, behind) = ring[Record::BYTES..].split_at(captured);
            assert!(bytes == &frame[..captured], "{len} bytes cut to {snaplen}: {bytes:x?}");
            assert!(behind.iter().all(|byte| *byte == UNUSED), "{len} bytes cut to {snaplen}: {behind:x?}");
        }
    }
}

/// The verifier limits the offsets that the program may compute.
#[test]
fn program_with_the_largest_rings_is_loaded() {
    let sizes = memory::sizes(Some(usize::MAX), 1);
    let _loaded = Tap::load(sizes, 1, 262_144);
}
