//! Bytes are borrowed from a view: they are not read after it, when the buffer may be written anew.

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
