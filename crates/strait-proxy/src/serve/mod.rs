//! Requests of clients: route, lookup, miss, and the response.

pub(crate) mod admission;
pub(crate) mod ask;
pub(crate) mod bypass;
pub(crate) mod check;
pub(crate) mod coded;
pub(crate) mod deliver;
pub(crate) mod exchange;
pub(crate) mod files;
pub(crate) mod follow;
pub(crate) mod gaps;
pub(crate) mod lookup;
pub(crate) mod miss;
pub(crate) mod ranges;
pub(crate) mod respond;
pub(crate) mod response;
pub(crate) mod revalidate;
pub(crate) mod route;
pub(crate) mod storing;
pub(crate) mod wanted;
