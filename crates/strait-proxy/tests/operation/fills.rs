//! Methods that move bodies into the store.

use crate::rig::{Rig, body};

/// Length of a body that is long enough to be measured.
const LENGTH: usize = 2 << 20;
/// Bodies that are moved before the proxy chooses by cost, of both methods, and some more.
const BODIES: usize = 40;

#[test]
fn both_methods_are_measured_and_move_the_same_bytes() {
    let rig = Rig::start("workers = 1\ntransfer.fill = \"auto\"");
    let mut client = rig.client();
    for number in 0..BODIES {
        let path = format!("/200/1000/{LENGTH}/{number}");
        assert!(client.get(&path).body == body(LENGTH), "{path}");
        assert!(client.get(&path).body == body(LENGTH), "{path} as a hit");
    }
    let report = rig.proxy.report();
    assert_eq!(rig.origin.asked(), BODIES);
    // The copied bytes include those that arrive with the head.
    let all = (BODIES * LENGTH) as u64;
    assert_eq!(report.filled_copied + report.filled_spliced, all, "{report:?}");
    let least = 3 * LENGTH as u64;
    assert!(report.filled_copied > least && report.filled_spliced > least, "{report:?}");
}

#[test]
fn short_bodies_of_many_clients_are_hits_on_their_next_request() {
    const CLIENTS: usize = 24;
    const ROUNDS: usize = 8;
    let rig = Rig::start("workers = 2");
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| rig.client()).collect();
    for round in 0..ROUNDS {
        let path = |number: usize| format!("/200/1000/{}/{round}-{number}", 100 + 1200 * number);
        // All are under way at a time, each twice, and then each is requested by another client.
        for offset in [0, 1] {
            for (number, client) in clients.iter_mut().enumerate() {
                let path = path(usize::midpoint(number, offset) % CLIENTS);
                client.send(format!("GET {path} HTTP/1.1\r\nHost: www.example\r\n\r\n"));
            }
            for (number, client) in clients.iter_mut().enumerate() {
                let length = 100 + 1200 * (usize::midpoint(number, offset) % CLIENTS);
                assert!(client.answer().unwrap().body == body(length), "{round} {number}");
            }
        }
        assert_eq!(rig.origin.asked(), (round + 1) * (CLIENTS / 2 + 1), "each is requested once");
    }
    let report = rig.proxy.stop();
    assert_eq!(report.store.map(|store| store.records), Some((ROUNDS * (CLIENTS / 2 + 1)) as u64));
}
