//! Differential test of filters: libpcap's interpreter, the kernel's classic BPF on a packet
//! socket, this workspace's interpreter, and the translated eBPF in the kernel must agree.
//!
//! Programs and frames are random, from fixed seeds (`STRAIT_TEST_SEED` changes them). Every
//! translated program has to pass the verifier. Without privilege, tests that need it are skipped
//! with a message.

mod device;
mod frames;
mod kernel;
mod probes;
mod programs;
mod rng;
mod tcx;
mod texts;
mod wire;
mod xdp;

use strait_filter::Metadata;
use strait_filter::cbpf::Program;
use strait_sys::libpcap::{Compiler, LINKTYPE_ETHERNET, Oracle};
use strait_sys::packet::Instruction;

use frames::{chained, frame, is_tagged};
use kernel::{Translated, metadata, privileged_or_skip};
use programs::{Flavour, program};
use rng::Rng;
use texts::{FIXED, Place, text};

/// Snaplen of compiled filters.
const SNAPLEN: u32 = 262_144;
/// Number of frames for each program.
const FRAMES: usize = 24;
/// Maximum size of a frame of an XDP test run without fragments.
const LINEAR_MAX: usize = 3400;

/// Returns a handle for compiling. If there is none it prints the reason and returns `None`.
fn compiler(place: Place) -> Option<Compiler> {
    let compiler = match place {
        Place::Offline => Compiler::offline(LINKTYPE_ETHERNET, SNAPLEN),
        Place::Live => Compiler::live("lo", SNAPLEN),
    };
    compiler.map_err(|error| lab::skip(error.to_string())).ok()
}

fn checked(instructions: &[Instruction]) -> Program {
    Program::check(instructions.iter().map(|i| (*i).into()).collect())
        .expect("libpcap keeps the kernel's rules")
}

fn tuples(program: &Program) -> Vec<Instruction> {
    program.instructions().iter().map(|i| (i.code, i.jt, i.jf, i.k)).collect()
}

/// Returns fixed texts, then random ones that libpcap accepts.
fn filters(rng: &mut Rng, place: Place, random: usize) -> impl Iterator<Item = String> {
    FIXED.iter().map(|text| (*text).to_owned()).chain((0..random).map(move |_| text(rng, place)))
}

/// libpcap, the interpreter and, on frames without a tag, the translation agree on what a file's
/// filter matches.
#[test]
fn offline_filters_agree_with_libpcap() {
    let Some(compiler) = compiler(Place::Offline) else { return };
    let privileged = privileged_or_skip();
    let mut rng = Rng::new(1);
    let mut texts = Rng::new(2);
    let (mut pairs, mut matches) = (0, 0);
    for text in filters(&mut texts, Place::Offline, 250) {
        let optimize = rng.chance(70);
        let Ok(oracle) = compiler.compile_for_oracle(&text, optimize) else { continue };
        let program = checked(&compiler.compile(&text, optimize).expect("it compiled a moment ago"));
        let translated = privileged.then(|| Translated::load(&program, rng.chance(50)));
        for _ in 0..FRAMES {
            let frame = frame(&mut rng, LINEAR_MAX);
            let expected = oracle.run(&frame, frame.len() as u32);
            let meta = metadata(&frame);
            assert_eq!(program.run(&frame, &meta), expected, "{text:?} on {frame:02x?}");
            if let Some(translated) = translated.as_ref().filter(|_| !is_tagged(&frame)) {
                assert_eq!(translated.run(&frame, None), expected, "{text:?} on {frame:02x?}");
            }
            pairs += 1;
            matches += usize::from(expected != 0);
        }
    }
    eprintln!("{pairs} pairs, {matches} matches");
    assert!(
        pairs > 4000 && matches > pairs / 20,
        "{pairs} pairs, {matches} matches are too few to mean anything"
    );
}

/// libpcap, the interpreter and the translation agree on programs of all opcodes.
#[test]
fn raw_programs_agree_with_libpcap() {
    let privileged = privileged_or_skip();
    let mut rng = Rng::new(3);
    let (mut pairs, mut matches) = (0, 0);
    for _ in 0..250 {
        let program = program(&mut rng, Flavour::Portable, 60);
        let oracle = match Oracle::new(&tuples(&program)) {
            Ok(oracle) => oracle,
            Err(error) => return lab::skip(error.to_string()),
        };
        let translated = privileged.then(|| Translated::load(&program, rng.chance(50)));
        for _ in 0..FRAMES {
            let frame = frame(&mut rng, LINEAR_MAX);
            let expected = oracle.run(&frame, frame.len() as u32);
            assert_eq!(program.run(&frame, &metadata(&frame)), expected, "{program:x?} on {frame:02x?}");
            if let Some(translated) = translated.as_ref().filter(|_| !is_tagged(&frame)) {
                assert_eq!(translated.run(&frame, None), expected, "{program:x?} on {frame:02x?}");
            }
            pairs += 1;
            matches += usize::from(expected != 0);
        }
    }
    assert!(matches > pairs / 20, "{matches} matches of {pairs} are too few to mean anything");
}

/// The interpreter and the translation agree on frames from the wire, with tags, cuts and
/// fragments.
#[test]
fn live_filters_agree_with_their_translation() {
    if !privileged_or_skip() {
        return;
    }
    let Some(compiler) = compiler(Place::Live) else { return };
    let mut rng = Rng::new(4);
    let mut texts = Rng::new(5);
    let (mut pairs, mut matches) = (0, 0);
    for text in filters(&mut texts, Place::Live, 250) {
        let Ok(instructions) = compiler.compile(&text, rng.chance(70)) else { continue };
        let program = checked(&instructions);
        let (p, m) = agree_on_the_wire(&mut rng, &program, &text);
        pairs += p;
        matches += m;
    }
    eprintln!("{pairs} pairs, {matches} matches");
    assert!(
        pairs > 5000 && matches > pairs / 20,
        "{pairs} pairs, {matches} matches are too few to mean anything"
    );
}

#[test]
fn raw_programs_agree_with_their_translation() {
    if !privileged_or_skip() {
        return;
    }
    let mut rng = Rng::new(6);
    let (mut pairs, mut matches) = (0, 0);
    for round in 0..400 {
        let len_max = if round % 20 == 0 { 400 } else { 60 };
        let program = program(&mut rng, Flavour::Everything, len_max);
        let (p, m) = agree_on_the_wire(&mut rng, &program, &program);
        pairs += p;
        matches += m;
    }
    eprintln!("{pairs} pairs, {matches} matches");
    assert!(
        pairs > 8000 && matches > pairs / 20,
        "{pairs} pairs, {matches} matches are too few to mean anything"
    );
}

/// The interpreter and the translation agree on every value that a program can have in A.
#[test]
fn every_value_agrees_with_its_translation() {
    if !privileged_or_skip() {
        return;
    }
    let mut rng = Rng::new(13);
    let mut matches = 0;
    for (at, source) in probes::sources().iter().enumerate() {
        // Metadata depends most on the frame.
        let rounds = if at < probes::FACT_COUNT { 40 } else { 1 };
        for _ in 0..rounds {
            matches += agree_on_the_wire(&mut rng, &probes::whole(source), source).1;
        }
    }
    assert!(matches > 5000, "{matches} matches are too few to mean anything");
}

/// Runs `program` on frames with and without fragments. Returns the number of pairs and of matches.
fn agree_on_the_wire(rng: &mut Rng, program: &Program, name: &dyn std::fmt::Debug) -> (usize, usize) {
    let fragments = rng.chance(50);
    let translated = Translated::load(program, fragments);
    let mut matches = 0;
    for _ in 0..FRAMES {
        let frame = frame(rng, if fragments { 9000 } else { LINEAR_MAX });
        let linear = (fragments && rng.chance(60)).then(|| rng.below(frame.len().min(LINEAR_MAX)));
        let expected = program.run_wire(&frame, &metadata(&frame));
        let returned = translated.run(&frame, linear);
        assert_eq!(returned, expected, "{name:x?}, first buffer {linear:?}, on {frame:02x?}");
        matches += usize::from(expected != 0);
    }
    (FRAMES, matches)
}

/// The longest programs that the kernel accepts as classic BPF pass the verifier too.
#[test]
fn largest_programs_translate_and_load() {
    if !privileged_or_skip() {
        return;
    }
    let mut rng = Rng::new(7);
    for (name, program) in programs::extremes(&mut rng) {
        for fragments in [false, true] {
            let translated = Translated::load(&program, fragments);
            for _ in 0..4 {
                let frame = frame(&mut rng, LINEAR_MAX);
                let expected = program.run_wire(&frame, &metadata(&frame));
                assert_eq!(translated.run(&frame, None), expected, "{name} on {frame:02x?}");
            }
        }
    }
}

/// libpcap and the interpreter agree on programs that the kernel refuses: loops and long ones.
#[test]
fn programs_that_the_kernel_refuses_agree_with_libpcap() {
    let Some(compiler) = compiler(Place::Offline) else { return };
    let mut rng = Rng::new(21);
    let ports: Vec<String> = (0..900).map(|port| format!("tcp port {}", 20 * port + 3)).collect();
    let long = format!("{} or udp port 53", ports.join(" or "));
    let texts = [
        "ip6 protochain 17",
        "ip protochain 6",
        "protochain 17 and not host 10.0.0.1",
        "ip6 protochain 58 or arp",
        "not ip6 protochain 6",
        &long,
    ];
    let (mut matches, mut pairs) = (0, 0);
    for text in texts {
        // Unoptimized, because libpcap's optimizer is slow.
        let oracle = compiler.compile_for_oracle(text, false).unwrap();
        let instructions = compiler.compile(text, false).unwrap();
        let program =
            Program::check_interpretable(instructions.into_iter().map(Into::into).collect()).unwrap();
        assert!(program.refusal().is_some(), "{text:.40}: {} instructions", program.instructions().len());
        for round in 0..400 {
            let frame = if round % 2 == 0 { chained(&mut rng) } else { frame(&mut rng, LINEAR_MAX) };
            let expected = oracle.run(&frame, frame.len() as u32);
            assert_eq!(program.run(&frame, &metadata(&frame)), expected, "{text:.40} on {frame:02x?}");
            pairs += 1;
            matches += usize::from(expected != 0);
        }
    }
    assert!(matches > pairs / 20, "{matches} matches of {pairs} are too few to mean anything");
}

/// `run` uses the protocol of the metadata for a frame that does not come from a wire.
#[test]
fn frame_passed_to_run_keeps_its_tag() {
    let program = checked(&[(0x28, 0, 0, 12), (0x16, 0, 0, 0)]);
    let mut frame = vec![0; 60];
    frame[12..14].copy_from_slice(&[0x81, 0x00]);
    assert_eq!(program.run(&frame, &Metadata::default()), 0x8100);
    assert_eq!(program.run_wire(&frame, &Metadata::default()), 0);
}
