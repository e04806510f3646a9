//! A buffer cannot be written through a view, because there may be other views.

use strait_sys::buffer::Frozen;

fn scribble(view: &mut Frozen) {
    view[0] = b's';
}

fn main() {
    let _ = scribble;
}
