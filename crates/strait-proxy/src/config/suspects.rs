//! Clients with requests that failed at a server after they were sent and could not be repeated at
//! another one. Without I/O and without a clock; times are seconds.
//!
//! Such a failure counts, since there may be no other sign of a broken server. If requests of one
//! client fail at two servers, the client is likely to be the reason: otherwise it could eject all
//! servers by a POST that none answers.

use std::collections::VecDeque;
use std::net::IpAddr;

/// Maximum of remembered clients; the one that was noted first is forgotten.
const CLIENTS_MAX: usize = 64;
/// Time for which a client is remembered.
const SECONDS: u64 = 60;

/// Clients with failed requests to a pool.
#[derive(Debug, Default)]
pub(crate) struct Suspects(VecDeque<Suspect>);

#[derive(Debug)]
struct Suspect {
    client: IpAddr,
    /// Hash of the server's address.
    at: u64,
    /// Time of the first failure.
    noted: u64,
    /// True once its requests have failed at another server as well.
    is_reason: bool,
}

/// Decision about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Charge {
    /// It counts.
    Server,
    /// It does not count, and neither do those at the server with this hash, if there is one.
    Client(Option<u64>),
}

impl Suspects {
    /// Decides about a failure at the server with a hash.
    pub(crate) fn note(&mut self, client: IpAddr, at: u64, now: u64) -> Charge {
        self.0.retain(|suspect| now.saturating_sub(suspect.noted) < SECONDS);
        match self.0.iter_mut().find(|suspect| suspect.client == client) {
            Some(suspect) if suspect.is_reason => Charge::Client(None),
            Some(suspect) if suspect.at == at => Charge::Server,
            Some(suspect) => {
                suspect.is_reason = true;
                Charge::Client(Some(suspect.at))
            }
            None => {
                if self.0.len() == CLIENTS_MAX {
                    self.0.pop_front();
                }
                self.0.push_back(Suspect { client, at, noted: now, is_reason: false });
                Charge::Server
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    #[test]
    fn client_that_fails_at_two_servers_is_the_reason() {
        let mut suspects = Suspects::default();
        let mut note = |last, at, now| suspects.note(client(last), at, now);
        assert_eq!([note(1, 0, 100), note(1, 0, 101)], [Charge::Server; 2]);
        assert_eq!(note(1, 1, 102), Charge::Client(Some(0)));
        assert_eq!([note(1, 0, 103), note(1, 2, 159)], [Charge::Client(None); 2]);
        assert_eq!(note(2, 1, 103), Charge::Server, "another client");
        assert_eq!(note(1, 1, 160), Charge::Server, "after a while");
    }

    #[test]
    fn clients_are_limited() {
        let mut suspects = Suspects::default();
        for last in 0..200 {
            assert_eq!(suspects.note(client(last), 0, 100), Charge::Server);
        }
        assert_eq!(suspects.0.len(), CLIENTS_MAX);
        assert_eq!(suspects.note(client(199), 1, 100), Charge::Client(Some(0)));
        assert_eq!(suspects.note(client(0), 1, 100), Charge::Server);
    }
}
