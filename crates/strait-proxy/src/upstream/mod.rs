//! Requests to origins: connections and their pool, DNS, the request and the head of its response.

pub(crate) mod background;
pub(crate) mod dns;
pub(crate) mod error;
pub(crate) mod fetch;
pub(crate) mod hedge;
pub(crate) mod incoming;
pub(crate) mod links;
pub(crate) mod origin;
pub(crate) mod origin_request;
pub(crate) mod pool;
pub(crate) mod upload;
pub(crate) mod uploading;
