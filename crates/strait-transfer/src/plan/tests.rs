//! Plans and their runs.

use proptest::prelude::*;

use super::*;

const KIB: usize = 1024;

fn shared(len: usize) -> Segment {
    Segment::Shared(Frozen::copied(&vec![b's'; len]).unwrap())
}

fn heap(len: usize) -> Segment {
    Segment::Bytes(vec![b'h'; len].into())
}

fn policy(mixed: Mixed) -> Policy {
    Policy { threshold: Some(16 * KIB), mixed }
}

fn runs(segments: impl IntoIterator<Item = Segment>, policy: Policy) -> Vec<Run> {
    let mut plan = Plan::new();
    segments.into_iter().for_each(|segment| plan.push(segment));
    plan.runs(&policy).into()
}

/// Describes a run: `c` copy, `z` zero-copy, `g` gathered pieces, with the sizes.
fn shape(run: &Run) -> String {
    let sizes = |lens: Vec<usize>| lens.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    match run {
        Run::Copy(pieces) => format!("c[{}]", sizes(pieces.iter().map(|piece| piece.len()).collect())),
        Run::ZeroCopy { gathered, views } => {
            let views = sizes(views.iter().map(|view| view.len()).collect());
            if gathered.is_empty() {
                format!("z[{views}]")
            } else {
                format!("z[g{}*{},{views}]", gathered.len(), gathered[0].len())
            }
        }
        Run::File(part) => format!("f[{}]", part.len),
        Run::Socket(part) => format!("s[{}]", part.len),
    }
}

fn shapes(segments: impl IntoIterator<Item = Segment>, policy: Policy) -> Vec<String> {
    runs(segments, policy).iter().map(shape).collect()
}

#[test]
fn example_of_d5_makes_three_requests() {
    let list = || [4, 4, 16, 32, 2].map(|kib| shared(kib * KIB));
    for mixed in [Mixed::Join, Mixed::Split] {
        assert_eq!(shapes(list(), policy(mixed)), ["c[4096,4096]", "z[16384,32768]", "c[2048]"]);
    }
}

#[test]
fn few_tiny_buffers_go_in_the_request_of_the_body() {
    let list = || (0..8).map(|_| shared(64)).chain([shared(64 * KIB)]);
    assert_eq!(shapes(list(), policy(Mixed::Join)), ["z[64,64,64,64,64,64,64,64,65536]"]);
    assert_eq!(shapes(list(), policy(Mixed::Split)), ["c[64,64,64,64,64,64,64,64]", "z[65536]"]);
}

#[test]
fn many_tiny_buffers_are_gathered_before_the_body() {
    let list = || (0..100).map(|_| shared(64)).chain([shared(64 * KIB)]);
    assert_eq!(shapes(list(), policy(Mixed::Join)), ["z[g100*64,65536]"]);
}

#[test]
fn bytes_on_the_heap_are_always_copied() {
    assert_eq!(
        shapes([heap(64), shared(64 * KIB), heap(64 * KIB)], policy(Mixed::Join)),
        ["z[g1*64,65536]", "c[65536]"]
    );
}

#[test]
fn everything_is_copied_without_a_threshold() {
    let copy = Policy { threshold: None, mixed: Mixed::Join };
    assert_eq!(shapes([shared(64), shared(64 * KIB)], copy), ["c[64,65536]"]);
}

#[test]
fn request_has_no_more_views_than_a_packet_has_fragments() {
    let runs = shapes((0..FRAGMENTS_MAX + 3).map(|_| shared(64 * KIB)), policy(Mixed::Join));
    let of = |views: usize| format!("z[{}]", vec!["65536"; views].join(","));
    assert_eq!(runs, [of(FRAGMENTS_MAX), of(3)]);
}

#[test]
fn files_are_runs_of_their_own() {
    let file = Arc::new(tempfile::tempfile().unwrap());
    let part = Segment::File(FilePart { file, offset: 0, len: 10 });
    assert_eq!(shapes([heap(5), part, shared(64 * KIB)], policy(Mixed::Join)), ["c[5]", "f[10]", "z[65536]"]);
}

/// Appends the bytes of a run in memory, in order.
fn content(run: &Run, into: &mut Vec<u8>) {
    match run {
        Run::Copy(pieces) => pieces.iter().for_each(|piece| into.extend_from_slice(piece)),
        Run::ZeroCopy { gathered, views } => {
            for bytes in gathered.iter().map(|piece| &**piece).chain(views.iter().map(|view| &**view)) {
                into.extend_from_slice(bytes);
            }
        }
        Run::File(_) | Run::Socket(_) => unreachable!("none was planned"),
    }
}

proptest! {
    /// For all segments and policies, runs have the same bytes in the same order, and are within
    /// their limits.
    #[test]
    fn runs_keep_order_and_length(
        segments in prop::collection::vec((any::<bool>(), prop_oneof![0..2000_usize, 10_000..40_000_usize]), 0..60),
        threshold in prop::option::of(1..50_000_usize),
        mixed in prop_oneof![Just(Mixed::Join), Just(Mixed::Split)],
    ) {
        let (mut plan, mut expected) = (Plan::new(), Vec::new());
        for (number, (on_heap, len)) in segments.into_iter().enumerate() {
            let bytes: Vec<u8> = (0..len).map(|at| (at * 31 + number * 7) as u8).collect();
            expected.extend_from_slice(&bytes);
            match (on_heap, len) {
                (true, _) | (_, 0) => plan.push(Segment::Bytes(bytes.into())),
                _ => plan.push(Segment::Shared(Frozen::copied(&bytes).unwrap())),
            }
        }
        prop_assert_eq!(plan.len(), expected.len() as u64);
        let mut sent = Vec::new();
        for run in plan.runs(&Policy { threshold, mixed }) {
            prop_assert!(!run.is_empty());
            match &run {
                Run::Copy(pieces) => prop_assert!(pieces.len() <= PIECES_MAX),
                Run::ZeroCopy { gathered, views } => {
                    let buffers = views.len() + usize::from(!gathered.is_empty());
                    prop_assert!(!views.is_empty() && buffers <= FRAGMENTS_MAX);
                    prop_assert!(threshold.is_some());
                }
                Run::File(_) | Run::Socket(_) => prop_assert!(false),
            }
            content(&run, &mut sent);
        }
        prop_assert_eq!(sent, expected);
    }
}
