//! Random plans to peers that read slowly, in bursts, or not to the end.

use std::time::Duration;

use proptest::prelude::*;
use strait_sys::buffer::Frozen;
use strait_transfer::plan::Mixed;
use strait_transfer::{Engine, Error, FilePart, Options, Plan, Segment, Sender, StreamPart, ZeroCopy};

use crate::rig::{PATIENCE, Reads, connection, file_of, pattern, peer};

/// Part of a plan: its kind and length.
#[derive(Clone, Copy, Debug)]
enum Part {
    Heap(usize),
    Gathered(usize),
    Shared(usize),
    File(usize),
    Socket(usize),
}

fn length() -> impl Strategy<Value = usize> {
    prop_oneof![6 => 0..600_usize, 3 => 600..20_000_usize, 1 => 20_000..300_000_usize]
}

fn part() -> impl Strategy<Value = Part> {
    prop_oneof![
        3 => length().prop_map(Part::Heap),
        2 => length().prop_map(Part::Gathered),
        5 => length().prop_map(Part::Shared),
        1 => length().prop_map(Part::File),
        1 => length().prop_map(Part::Socket),
    ]
}

fn zero_copy() -> impl Strategy<Value = ZeroCopy> {
    prop_oneof![Just(ZeroCopy::Never), Just(ZeroCopy::Adaptive), (1..20_000_usize).prop_map(ZeroCopy::From)]
}

fn options() -> impl Strategy<Value = Options> {
    let mixed = prop_oneof![Just(Mixed::Join), Just(Mixed::Split)];
    (zero_copy(), mixed, 1..8_usize, 10_000..1_000_000_usize, any::<bool>()).prop_map(
        |(zero_copy, mixed, borrowed_max, borrowed_bytes_max, register)| Options {
            zero_copy,
            mixed,
            borrowed_max,
            borrowed_bytes_max,
            buffer_bytes: 16 << 10,
            buffers: 4,
            register,
        },
    )
}

fn reads() -> impl Strategy<Value = Reads> {
    let resets_after = prop_oneof![4 => Just(None), 1 => (1..100_000_usize).prop_map(Some)];
    (1..70_000_usize, 0..1500_u64, 1..40_usize, resets_after).prop_map(
        |(chunk, pause_us, pause_each, resets_after)| Reads {
            chunk,
            pause: Duration::from_micros(pause_us),
            pause_each,
            resets_after,
        },
    )
}

/// Builds a plan. Returns it with its bytes, and with the threads that feed its sockets.
fn build(parts: &[Part], engine: &mut Engine) -> (Plan, Vec<u8>, Vec<std::thread::JoinHandle<()>>) {
    let (mut plan, mut expected, mut feeders) = (Plan::new(), Vec::new(), Vec::new());
    for (seed, part) in parts.iter().enumerate() {
        let (Part::Heap(len) | Part::Gathered(len) | Part::Shared(len) | Part::File(len) | Part::Socket(len)) =
            *part;
        let bytes = pattern(len, seed);
        expected.extend_from_slice(&bytes);
        match part {
            Part::Heap(_) => plan.push(Segment::Bytes(bytes.into())),
            Part::Gathered(_) => plan.push(engine.gather(bytes.chunks(100))),
            Part::Shared(0) => {}
            Part::Shared(_) => plan.push(Segment::Shared(Frozen::copied(&bytes).unwrap())),
            Part::File(_) => {
                let file = file_of(&[b"before", &bytes[..], b"behind"].concat());
                plan.push(Segment::File(FilePart { file, offset: 6, len: len as u64 }));
            }
            Part::Socket(_) => {
                let (mut feeder, socket) = connection();
                socket.set_nonblocking(true).unwrap();
                feeders.push(std::thread::spawn(move || {
                    // A failed sender no longer reads.
                    let _ = std::io::Write::write_all(&mut feeder, &bytes);
                }));
                plan.push(Segment::Socket(StreamPart {
                    socket: std::sync::Arc::new(socket.into()),
                    len: len as u64,
                }));
            }
        }
    }
    (plan, expected, feeders)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, max_shrink_iters: 200, ..ProptestConfig::default() })]

    /// The planned bytes arrive unchanged; on a reset connection, their beginning. The account has
    /// each byte, and every buffer comes back.
    #[test]
    fn planned_bytes_arrive(
        parts in prop::collection::vec(part(), 0..40),
        options in options(),
        reads in reads(),
    ) {
        let mut engine = Engine::new(options.clone()).unwrap();
        let (plan, expected, feeders) = build(&parts, &mut engine);
        let (stream, far) = connection();
        let peer = peer(far, reads);
        let mut sender = Sender::new(stream).unwrap();
        let sent = sender.send(&mut engine, plan, PATIENCE);
        let still_lent = sender.finish(&mut engine, PATIENCE).unwrap();
        let account = sender.account();
        drop(sender);
        let got = peer.join().unwrap();
        prop_assert_eq!(still_lent, 0);
        prop_assert_eq!(engine.borrowed_bytes(), 0);
        match sent {
            Ok(()) if reads.resets_after.is_none() => {
                prop_assert!(got == expected, "{} bytes of {}", got.len(), expected.len());
                prop_assert_eq!(account.bytes(), expected.len() as u64);
                prop_assert_eq!(account.zero_copy_unreported, 0);
            }
            // The kernel may have accepted all bytes before the reset came.
            Ok(()) => prop_assert!(expected.starts_with(&got)),
            Err(Error::Closed { .. }) => {
                prop_assert!(reads.resets_after.is_some() && expected.starts_with(&got));
            }
            Err(error) => prop_assert!(false, "{}", error),
        }
        for feeder in feeders {
            feeder.join().unwrap();
        }
        // The whole pool is free again, except for the buffer in which small pieces are gathered.
        let buffers: Vec<_> = std::iter::from_fn(|| engine.buffer()).collect();
        prop_assert!(buffers.len() >= 3);
    }
}
