//! Filters translated for tcx agree with libpcap and with the interpreter.
//!
//! A test run has a frame as the kernel received it on the loopback interface, with the VLAN tag in
//! its bytes. Captures of the same traffic on every path show frames with the tag in the metadata.

use strait_filter::cbpf::Program;
use strait_filter::translate::{Context, Options, translate};
use strait_filter::{Metadata, ebpf, ethernet_pkttype};
use strait_sys::bpf::Classifier;
use strait_sys::libpcap::Oracle;

use super::frames::frame;
use super::kernel::privileged_or_skip;
use super::programs::{Flavour, program};
use super::rng::Rng;
use super::texts::Place;
use super::{FRAMES, LINEAR_MAX, checked, compiler, filters, probes, programs, tuples};

const EINVAL: i32 = 22;
/// Address of the loopback interface.
const LOOPBACK_MAC: [u8; 6] = [0; 6];

struct Translated(Classifier);

impl Translated {
    fn load(program: &Program, context: Context) -> Self {
        let code = translate(program, &Options { context, ..Options::default() });
        let code = code.unwrap_or_else(|error| panic!("{error}: {program:x?}"));
        let loaded = Classifier::load("strait", &ebpf::encode(&code));
        Self(loaded.unwrap_or_else(|error| panic!("{error}: {program:x?}")))
    }

    /// Returns the program's result; `None` if the kernel refuses a test run of an IP packet
    /// without a complete header.
    fn run(&self, frame: &[u8]) -> Option<u32> {
        match self.0.test_run(frame) {
            Ok(returned) => Some(returned),
            Err(error) if is_cut(frame) => {
                assert_eq!(error.errno(), Some(EINVAL), "{error}");
                None
            }
            Err(error) => panic!("{error} on {frame:02x?}"),
        }
    }
}

/// Returns true if the frame is an IP packet that ends within its fixed header.
fn is_cut(frame: &[u8]) -> bool {
    match frame[12..14] {
        [0x08, 0x00] => frame.len() < 14 + 20,
        [0x86, 0xdd] => frame.len() < 14 + 40,
        _ => false,
    }
}

/// Returns the metadata of a frame of a test run.
fn metadata(frame: &[u8]) -> Metadata {
    let kind = u16::from_be_bytes([frame[12], frame[13]]);
    let protocol = match frame.get(14..16) {
        _ if kind >= 0x0600 => kind,
        Some([0xff, 0xff]) => 1,
        _ => 4,
    };
    let destination = frame[..6].try_into().expect("frames have 14 bytes");
    Metadata {
        wire_len: frame.len() as u32,
        protocol,
        pkttype: ethernet_pkttype(destination, LOOPBACK_MAC),
        ifindex: 1,
        hatype: 1,
        ..Metadata::default()
    }
}

#[test]
fn tcx_filters_agree_with_libpcap() {
    if !privileged_or_skip() {
        return;
    }
    let Some(compiler) = compiler(Place::Offline) else { return };
    let mut rng = Rng::new(31);
    let mut texts = Rng::new(32);
    let (mut pairs, mut matches) = (0, 0);
    for text in filters(&mut texts, Place::Offline, 480) {
        let optimize = rng.chance(70);
        let Ok(oracle) = compiler.compile_for_oracle(&text, optimize) else { continue };
        let program = checked(&compiler.compile(&text, optimize).expect("it compiled a moment ago"));
        let translated = Translated::load(&program, Context::Received);
        for _ in 0..FRAMES {
            let frame = frame(&mut rng, LINEAR_MAX);
            let expected = oracle.run(&frame, frame.len() as u32);
            let Some(returned) = translated.run(&frame) else { continue };
            assert_eq!(returned, expected, "{text:?} on {frame:02x?}");
            pairs += 1;
            matches += usize::from(expected != 0);
        }
    }
    eprintln!("{pairs} pairs, {matches} matches");
    assert!(pairs > 10_000 && matches > pairs / 20, "{pairs} pairs, {matches} matches are too few");
}

#[test]
fn raw_programs_on_tcx_agree_with_libpcap_and_the_interpreter() {
    if !privileged_or_skip() {
        return;
    }
    let mut rng = Rng::new(33);
    let (mut pairs, mut matches) = (0, 0);
    for round in 0..400 {
        let flavour = if round % 2 == 0 { Flavour::Portable } else { Flavour::Everything };
        let program = program(&mut rng, flavour, if round % 20 == 1 { 400 } else { 60 });
        let translated = Translated::load(&program, Context::Received);
        let oracle = (flavour == Flavour::Portable).then(|| Oracle::new(&tuples(&program)).unwrap());
        for _ in 0..FRAMES {
            let frame = frame(&mut rng, LINEAR_MAX);
            let expected = program.run(&frame, &metadata(&frame));
            let Some(returned) = translated.run(&frame) else { continue };
            assert_eq!(returned, expected, "{program:x?} on {frame:02x?}");
            if let Some(oracle) = &oracle {
                assert_eq!(oracle.run(&frame, frame.len() as u32), expected, "{program:x?} on {frame:02x?}");
            }
            pairs += 1;
            matches += usize::from(expected != 0);
        }
    }
    assert!(pairs > 8000 && matches > pairs / 20, "{pairs} pairs, {matches} matches are too few");
}

/// Every value that a program can have in A, including every ancillary value, for both hooks.
#[test]
fn every_value_agrees_with_its_translation_for_tcx() {
    if !privileged_or_skip() {
        return;
    }
    let mut rng = Rng::new(34);
    let mut matches = 0;
    for source in probes::sources() {
        let program = probes::whole(&source);
        for context in [Context::Received, Context::Sent] {
            let translated = Translated::load(&program, context);
            for _ in 0..4 {
                let frame = frame(&mut rng, LINEAR_MAX);
                let mut meta = metadata(&frame);
                if context == Context::Sent {
                    meta.pkttype = 4;
                }
                let expected = program.run(&frame, &meta);
                let Some(returned) = translated.run(&frame) else { continue };
                assert_eq!(returned, expected, "{source:x?}, {context:?}, on {frame:02x?}");
                matches += usize::from(expected != 0);
            }
        }
    }
    assert!(matches > 2000, "{matches} matches are too few to mean anything");
}

#[test]
fn largest_programs_load_for_tcx() {
    if !privileged_or_skip() {
        return;
    }
    let mut rng = Rng::new(35);
    for (name, program) in programs::extremes(&mut rng) {
        let translated = Translated::load(&program, Context::Received);
        for _ in 0..4 {
            let frame = frame(&mut rng, LINEAR_MAX);
            let expected = program.run(&frame, &metadata(&frame));
            let Some(returned) = translated.run(&frame) else { continue };
            assert_eq!(returned, expected, "{name} on {frame:02x?}");
        }
    }
}
