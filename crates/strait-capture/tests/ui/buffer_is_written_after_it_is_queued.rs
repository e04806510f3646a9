//! A transmit buffer belongs to the kernel after it is queued.

use strait_capture::Injector;

fn scribble(injector: &mut Injector) {
    let buffer = injector.buffer().unwrap();
    injector.push(60);
    buffer[0] = 0xff;
}

fn main() {
    let _ = scribble;
}
