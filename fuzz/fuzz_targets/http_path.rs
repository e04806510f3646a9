//! Fuzzes the paths of routes: whatever a program does with a path, and in whatever order, it finds
//! the route that the proxy has selected, and a rewritten path stays below its prefix.
//!
//! Input: a byte for each step of the program up to 8, a zero, then the path.

#![no_main]

use libfuzzer_sys::fuzz_target;
use strait_http::path::{resolved, rewritten, select_by_all};

/// Paths of routes.
const ROUTES: [&[u8]; 3] = [b"/a/b", b"/a", b"/b.c"];
const STEPS_MAX: usize = 8;

fuzz_target!(|data: &[u8]| {
    let Some(at) = data.iter().take(STEPS_MAX + 1).position(|byte| *byte == 0) else { return };
    let (steps, path) = (&data[..at], &data[at + 1..]);
    // The bytes of a request's target.
    let is_target = path.first() == Some(&b'/') && path.iter().all(u8::is_ascii_graphic);
    let (true, Ok(path)) = (is_target, std::str::from_utf8(path)) else { return };
    let alone = path.split('?').next().unwrap_or_default();
    if let Some(selected) = select_by_all(path, longest) {
        assert_eq!(longest(&read(steps, alone.as_bytes())), selected, "{path} {steps:?}");
    }
    if let Some(to) = rewritten(path, "/a", "/new") {
        let read = read(steps, to.split('?').next().unwrap_or_default().as_bytes());
        assert!(read.starts_with(b"/new"), "{path} becomes {to}");
    }
    if let Some(form) = resolved(path) {
        assert!(form.split(|byte| *byte == b'/').all(|segment| segment != b".."), "{path}");
    }
});

/// Returns the length of the longest route that a form is equal to or below.
fn longest(form: &[u8]) -> usize {
    let is_below = |route: &&&[u8]| {
        form.strip_prefix(**route).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
    };
    ROUTES.iter().filter(is_below).map(|route| route.len()).max().unwrap_or(0)
}

/// Returns a path as a program reads it that takes these steps. It removes percent-encoding once,
/// by a step or at the end.
fn read(steps: &[u8], path: &[u8]) -> Vec<u8> {
    let (mut path, mut is_decoded) = (path.to_vec(), false);
    for step in steps {
        path = match step % 5 {
            0 if !is_decoded => {
                is_decoded = true;
                decoded(&path)
            }
            1 => path.iter().map(|byte| if *byte == b'\\' { b'/' } else { *byte }).collect(),
            2 => {
                path.dedup_by(|one, other| (*one, *other) == (b'/', b'/'));
                path
            }
            3 => by_segment(&path, |kept, segment| match segment {
                b"." => {}
                b".." => drop(kept.pop()),
                other => kept.push(other.to_vec()),
            }),
            4 => by_segment(&path, |kept, segment| {
                kept.push(segment.split(|byte| *byte == b';').next().unwrap_or_default().to_vec());
            }),
            _ => path,
        };
    }
    if is_decoded { path } else { decoded(&path) }
}

fn by_segment(path: &[u8], mut take: impl FnMut(&mut Vec<Vec<u8>>, &[u8])) -> Vec<u8> {
    let mut kept = Vec::new();
    path.split(|byte| *byte == b'/').skip(1).for_each(|segment| take(&mut kept, segment));
    [b"/", &*kept.join(&b'/')].concat()
}

fn decoded(path: &[u8]) -> Vec<u8> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let (mut bytes, mut rest) = (Vec::new(), path);
    while let Some((first, behind)) = rest.split_first() {
        let encoded = match behind {
            [high, low, ..] if *first == b'%' => digit(high).zip(digit(low)),
            _ => None,
        };
        match encoded {
            Some((high, low)) => bytes.push((high * 16 + low) as u8),
            None => bytes.push(*first),
        }
        rest = &behind[if encoded.is_some() { 2 } else { 0 }..];
    }
    bytes
}
