//! A ring stays on the thread that created it, which alone may enter it.

use strait_sys::uring::Ring;

fn send<T: Send>(_: T) {}

fn give(ring: Ring) {
    send(ring);
}

fn main() {
    let _ = give;
}
