//! A sender stays on its thread, because notifications change its account.

use strait_transfer::Sender;

fn send<T: Send>(_: T) {}

fn give(sender: Sender) {
    send(sender);
}

fn main() {
    let _ = give;
}
