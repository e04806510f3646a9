//! Nor can it be written through a view, which others may have too.

use strait_sys::buffer::Frozen;

fn scribble(view: &mut Frozen) {
    view[0] = b's';
}

fn main() {
    let _ = scribble;
}
