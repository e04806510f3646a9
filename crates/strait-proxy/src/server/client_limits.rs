//! Limit on the connections of one client, counted over all workers.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use crate::config::settings::Settings;
use crate::io::gate;
use crate::observe::refusals::Refusal;

/// Party that connections are counted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Party {
    Client(gate::Client),
    /// Connections that have not named their client yet (PROXY protocol).
    Unnamed,
}

impl Party {
    pub(crate) fn client(address: IpAddr) -> Self {
        Self::Client(gate::Client::of(address))
    }

    /// Returns the reason for which a connection beyond the maximum is refused.
    pub(crate) fn refusal(self) -> Refusal {
        match self {
            Self::Client(_) => Refusal::PerClient,
            Self::Unnamed => Refusal::Unnamed,
        }
    }

    /// Returns the maximum of connections; `None` if they are not counted.
    fn most(self, settings: &Settings) -> Option<u32> {
        match self {
            Self::Client(_) => Some(settings.connections_per_client_max).filter(|most| *most > 0),
            // Peers that name no client leave half of all connections to the others.
            Self::Unnamed => Some(u32::try_from(settings.connections_max.div_ceil(2)).unwrap_or(u32::MAX)),
        }
    }
}

/// Number of connections of each party. Only parties with a limit are counted.
#[derive(Debug, Default)]
pub(crate) struct ClientLimits(Mutex<HashMap<Party, u32>>);

/// Connection of a party, counted until it is dropped.
pub(crate) struct Share {
    limits: Arc<ClientLimits>,
    /// `None` if the party has no limit.
    party: Option<Party>,
}

impl Share {
    /// Counts a connection; `None` if the party has as many as it may have.
    pub(crate) fn of(limits: &Arc<ClientLimits>, settings: &Settings, party: Party) -> Option<Self> {
        let mut share = Self { limits: limits.clone(), party: None };
        share.count(settings, party).then_some(share)
    }

    /// Counts the connection for the client that it has named; returns false, and counts it for no
    /// party, if that client has as many as it may have.
    pub(crate) fn name_client(&mut self, settings: &Settings, client: IpAddr) -> bool {
        let named = Self::of(&self.limits, settings, Party::client(client));
        let is_free = named.is_some();
        *self = named.unwrap_or(Self { limits: self.limits.clone(), party: None });
        is_free
    }

    /// Counts a stream of the connection as a connection of its client; `None` if that has as many
    /// as it may have.
    pub(crate) fn of_stream(&self, settings: &Settings, client: IpAddr) -> Option<Self> {
        Self::of(&self.limits, settings, Party::client(client))
    }

    /// Returns true if [`Self::of_stream`] would count a stream. `open`: number of connections of
    /// all clients. While these are few, the client's are not looked up.
    pub(crate) fn has_room_for_stream(&self, settings: &Settings, client: IpAddr, open: usize) -> bool {
        let party = Party::client(client);
        let Some(most) = party.most(settings).filter(|most| *most as usize <= open) else { return true };
        let counts = self.limits.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.get(&party).is_none_or(|count| *count < most)
    }

    fn count(&mut self, settings: &Settings, party: Party) -> bool {
        let Some(most) = party.most(settings) else { return true };
        let mut counts = self.limits.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(party).or_default();
        if *count >= most {
            return false;
        }
        *count += 1;
        self.party = Some(party);
        true
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let Some(party) = &self.party else { return };
        let mut counts = self.limits.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(party) {
            *count -= 1;
            if *count == 0 {
                counts.remove(party);
            }
        }
    }
}
