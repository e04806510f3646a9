//! A frozen buffer cannot be written.

use strait_sys::buffer::{BufMut, Frozen};

fn scribble(mut buffer: BufMut) -> Frozen {
    let view = buffer.freeze(0..6);
    buffer[0] = b's';
    view
}

fn main() {
    let _ = scribble;
}
