//! Requests to origins: connections and their pool, DNS, the request and the head of its response.

pub(crate) mod background;
pub(crate) mod dns;
pub(crate) mod fetch;
pub(crate) mod pool;
pub(crate) mod upload;
