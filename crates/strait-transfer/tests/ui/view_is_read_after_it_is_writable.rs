//! A view cannot be read after its conversion to a writable buffer.

use strait_sys::buffer::{BufMut, Frozen};

fn both(view: Frozen) -> (Option<BufMut>, u8) {
    let buffer = view.try_mut().ok();
    (buffer, view[0])
}

fn main() {
    let _ = both;
}
