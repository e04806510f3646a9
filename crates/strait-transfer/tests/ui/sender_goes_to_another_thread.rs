//! Nor does a sender, whose account the notifications change.

use strait_transfer::Sender;

fn send<T: Send>(_: T) {}

fn give(sender: Sender) {
    send(sender);
}

fn main() {
    let _ = give;
}
