//! HTTP rules of a caching proxy, without I/O and without a clock: heads and bodies of HTTP/1.1
//! messages (RFC 9112), ranges (RFC 9110, section 14), and the conditions under which a shared
//! cache may store and reuse a response (RFC 9111).
//!
//! All results depend only on the given bytes and times. Input that violates the grammar is refused
//! and never repaired: request smuggling relies on two programs that read one message differently
//! (RFC 9112, section 11.2).
//!
//! ```
//! use strait_http::{framing::BodyFraming, head};
//!
//! let bytes = b"POST /cart HTTP/1.1\r\nHost: shop\r\nContent-Length: 5\r\n\r\nmilk\n";
//! let (request, len) = head::request(bytes)?.expect("it is whole");
//! assert_eq!((request.method, request.target, len), ("POST", "/cart", 54));
//! assert_eq!(strait_http::framing::of_request(&request)?, BodyFraming::Length(5));
//! # Ok::<(), strait_http::Malformed>(())
//! ```

pub mod cache_control;
pub mod cache_status;
pub mod chunked;
pub mod coding;
pub mod conditional;
pub mod cookies;
mod error;
pub mod fields;
pub mod forward;
pub mod forwarded;
pub mod framing;
pub mod freshness;
pub mod head;
pub mod invalidation;
pub mod lifetimes;
pub mod method;
pub mod multipart;
pub mod partial;
pub mod path;
pub mod poisoning;
pub mod range;
pub mod reuse;
pub mod rules;
pub mod storing;
mod structured;
pub mod target;
pub mod trace;
pub mod trailer;
pub mod update;
pub mod vary;

pub use error::Malformed;
pub use fields::{Field, Fields};
