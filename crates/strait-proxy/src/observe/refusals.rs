//! Refused connections and HTTP/2 requests, which have no line in the access log.
//!
//! Workers note them; a thread takes a line for each reason at an interval.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

/// Reason for which a connection, or a request of an HTTP/2 connection, is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Its address is not allowed.
    Access,
    /// All clients have as many connections as they may have.
    Connections,
    /// Its client has as many connections as it may have.
    PerClient,
    /// As many connections as may be have not sent their PROXY header.
    Unnamed,
}

impl Refusal {
    pub(crate) const ALL: [Self; 4] = [Self::Access, Self::Connections, Self::PerClient, Self::Unnamed];

    /// Returns its label in metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Access => "access",
            Self::Connections => "connections",
            Self::PerClient => "connections_per_client",
            Self::Unnamed => "proxy_header",
        }
    }

    /// Returns the key that is the reason.
    fn key(self) -> &'static str {
        match self {
            Self::Access => "access.allow",
            Self::Connections => "limits.connections",
            Self::PerClient => "limits.connections_per_client",
            Self::Unnamed => "limits.connections (half of it for connections without a PROXY header)",
        }
    }
}

/// Refusals since the last line of each reason.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Mutex<[Option<Count>; Refusal::ALL.len()]>);

/// Refusals of one reason since its last line.
#[derive(Clone, Copy, Debug)]
struct Count {
    client: IpAddr,
    /// Number of this client's.
    own: u64,
    others: u64,
    /// True if the first one was an HTTP/2 request.
    is_stream: bool,
}

impl Refusals {
    pub(crate) fn note(&self, refusal: Refusal, client: IpAddr, is_stream: bool) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let counted = &mut all[refusal as usize];
        let counted = counted.get_or_insert(Count { client, own: 0, others: 0, is_stream });
        let count = if counted.client == client { &mut counted.own } else { &mut counted.others };
        *count = count.saturating_add(1);
    }

    /// Returns a line for each reason since the last call.
    pub(crate) fn take(&self) -> Vec<String> {
        let all = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let lines = Refusal::ALL.into_iter().zip(all).filter_map(|(refusal, it)| Some(it?.line(refusal)));
        lines.collect()
    }
}

impl Count {
    fn line(self, refusal: Refusal) -> String {
        let Self { client, own, others, is_stream } = self;
        let key = refusal.key();
        let kind = if is_stream { "HTTP/2 requests" } else { "connections" };
        let others = if others > 0 { format!("; of other clients: {others}") } else { String::new() };
        format!("{key}: {kind} of {} were refused: {own}{others}", client.to_canonical())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_of_a_reason_make_one_line() {
        let refusals = Refusals::default();
        for (last, refusal) in
            [(1, Refusal::PerClient), (1, Refusal::PerClient), (2, Refusal::PerClient), (3, Refusal::Access)]
        {
            refusals.note(refusal, [192, 0, 2, last].into(), refusal == Refusal::PerClient);
        }
        assert_eq!(
            refusals.take(),
            [
                "access.allow: connections of 192.0.2.3 were refused: 1",
                "limits.connections_per_client: HTTP/2 requests of 192.0.2.1 were refused: 2; of other clients: 1",
            ]
        );
        assert!(refusals.take().is_empty());
        assert!(Refusal::ALL.iter().enumerate().all(|(index, it)| *it as usize == index));
    }
}
