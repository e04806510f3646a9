//! Bytes borrow from a view: they cannot be read after it, when the buffer may be written again.

use strait_sys::buffer::Frozen;

fn reuse(view: Frozen) -> u8 {
    let bytes = &view[..];
    let buffer = view.try_mut();
    drop(buffer);
    bytes[0]
}

fn main() {
    let _ = reuse;
}
