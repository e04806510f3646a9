//! The operator's view of the proxy, over real sockets: configuration, reload, log, admin address,
//! limits.

mod admin;
mod auth;
mod chains;
mod changes;
mod churn;
mod clients;
mod damage;
mod files;
mod fills;
mod headers;
mod http2;
mod log;
mod matches;
mod origins;
mod pool_rig;
mod pools;
mod priorities;
mod rates;
mod rig;
mod scale;
mod servers;
mod sites;
mod soft;
mod sticky;
mod tags;
