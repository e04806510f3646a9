//! Configuration: the file `strait.toml`, its checks, and the settings made from it.
//!
//! The lowest layer. Nothing here opens a connection or knows a request.

pub(crate) mod access;
pub(crate) mod auth;
pub(crate) mod balance;
pub(crate) mod certificates;
pub(crate) mod changes;
pub(crate) mod check;
pub(crate) mod compress;
pub(crate) mod dns;
pub(crate) mod edge;
pub(crate) mod entry;
pub(crate) mod error;
pub(crate) mod export;
pub(crate) mod file;
pub(crate) mod health;
pub(crate) mod hosts;
pub(crate) mod keys;
pub(crate) mod limits;
pub(crate) mod member;
pub(crate) mod ocsp;
pub(crate) mod password;
pub(crate) mod path_regex;
pub(crate) mod pieces;
pub(crate) mod pool;
pub(crate) mod prefixes;
pub(crate) mod rate;
pub(crate) mod read;
pub(crate) mod rewrite;
pub(crate) mod route_name;
pub(crate) mod rules;
pub(crate) mod rules_check;
pub(crate) mod schema;
pub(crate) mod sections;
pub(crate) mod server;
pub(crate) mod settings;
pub(crate) mod site_check;
pub(crate) mod sites;
pub(crate) mod sticky;
pub(crate) mod suspects;
pub(crate) mod tls;
pub(crate) mod trace;
pub(crate) mod variables;
pub(crate) mod via;
