//! Fuzzes plans of segments in memory under any policy: the runs have the same bytes in the same
//! order, none is empty, each keeps its limits, and zero-copy segments are not copied.
//!
//! Input: a byte for the policy; two for its threshold; then two for the kind and length of each of
//! up to 64 segments.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use strait_sys::buffer::{BufMut, Frozen};
use strait_transfer::plan::{FRAGMENTS_MAX, Mixed, PIECES_MAX, Piece, Policy, Run, TINY_BYTES_MAX};
use strait_transfer::{Plan, Segment};

/// Limit of a plan in bytes.
const BYTES_MAX: usize = 1 << 20;

/// Bytes that depend on their position; the segments are consecutive parts.
static STREAM: LazyLock<Frozen> = LazyLock::new(|| {
    let mut buffer = BufMut::with_len(BYTES_MAX).expect("memory");
    for (at, byte) in buffer.iter_mut().enumerate() {
        *byte = ((at as u32).wrapping_mul(0x9e37_79b1) >> 24) as u8;
    }
    buffer.freeze(0..BYTES_MAX)
});

fuzz_target!(|data: &[u8]| {
    let [choice, low, high, segments @ ..] = data else { return };
    let mixed = if choice & 1 == 0 { Mixed::Join } else { Mixed::Split };
    let threshold = usize::from(u16::from_le_bytes([*low, *high]));
    let policy = Policy { threshold: (choice & 2 == 0).then_some(threshold), mixed };
    let (plan, bytes) = plan(segments);
    assert_eq!(plan.len(), bytes as u64);
    let mut at = 0;
    for run in plan.runs(&policy) {
        assert!(!run.is_empty());
        let len = run.len();
        let begin = at;
        match &run {
            Run::Copy(pieces) => check_copy(pieces, &policy, &mut at),
            Run::ZeroCopy { gathered, views } => check_zero_copy(gathered, views, &policy, &mut at),
            Run::File(_) | Run::Socket(_) => unreachable!("none was planned"),
        }
        assert_eq!((at - begin) as u64, len);
    }
    assert_eq!(at, bytes);
});

/// Returns the plan of the input, and its length in bytes.
fn plan(segments: &[u8]) -> (Plan, usize) {
    let (mut plan, mut at) = (Plan::new(), 0);
    for code in segments.chunks_exact(2) {
        let (on_heap, unit, count) =
            (code[0] & 1 == 1, [1, 200][usize::from(code[0] >> 1 & 1)], code[0] >> 2);
        for _ in 0..=count {
            let end = (at + usize::from(code[1]) * unit).min(BYTES_MAX);
            plan.push(match on_heap {
                true => Segment::Bytes(STREAM[at..end].into()),
                false => Segment::Shared(STREAM.slice(at..end)),
            });
            at = end;
        }
    }
    (plan, at)
}

/// Compares with the next bytes of the stream, and advances.
fn follow(bytes: &[u8], at: &mut usize) {
    assert!(!bytes.is_empty());
    assert!(*bytes == STREAM[*at..*at + bytes.len()]);
    *at += bytes.len();
}

fn is_zero_copy(bytes: &[u8], policy: &Policy) -> bool {
    policy.threshold.is_some_and(|threshold| bytes.len() >= threshold)
}

fn check_copy(pieces: &[Piece], policy: &Policy, at: &mut usize) {
    assert!((1..=PIECES_MAX).contains(&pieces.len()));
    for piece in pieces {
        follow(piece, at);
        assert!(matches!(piece, Piece::Bytes(_)) || !is_zero_copy(piece, policy));
    }
}

fn check_zero_copy(gathered: &[Piece], views: &[Frozen], policy: &Policy, at: &mut usize) {
    assert!(gathered.len() <= PIECES_MAX);
    assert!(views.len() + usize::from(!gathered.is_empty()) <= FRAGMENTS_MAX);
    assert!(views.last().is_some_and(|view| is_zero_copy(view, policy)));
    for piece in gathered {
        assert!(piece.len() <= TINY_BYTES_MAX);
        follow(piece, at);
    }
    let own = STREAM.as_ptr_range();
    for view in views {
        assert!(own.contains(&view.as_ptr()), "the view is sent from its own memory");
        assert!(view.len() <= TINY_BYTES_MAX || is_zero_copy(view, policy));
        follow(view, at);
    }
    let all_large = views.iter().all(|view| is_zero_copy(view, policy));
    assert!(policy.mixed == Mixed::Join || gathered.is_empty() && all_large);
}
