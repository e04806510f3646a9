//! What a cache tells of how it came to its answer: Cache-Status (RFC 9211).

use std::fmt;

/// This cache's member of the field; written behind those that came from nearer the origin, or as a line of its own behind theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheStatus<'a> {
    /// The name of the cache, a token.
    pub by: &'a str,
    /// Where the answer came from.
    pub answer: Answer,
    /// Seconds for which it is still fresh, negative once it is stale; where freshness was looked at.
    pub ttl: Option<i64>,
    /// What else there is to say, a token.
    pub detail: Option<&'a str>,
}

/// Where an answer came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// From the cache, and nobody was asked (section 2.1).
    Hit,
    /// The request went on towards the origin.
    Forwarded {
        /// Why.
        why: Why,
        /// The status that came back, where it is not that of the answer, as the 304 of a validation (section 2.3).
        status: Option<u16>,
        /// Whether the response is stored (section 2.5).
        stored: bool,
        /// Whether one request went for several (section 2.6).
        collapsed: bool,
    },
}

/// Why a request was not answered from the cache (section 2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The cache is not to deal with it.
    Bypass,
    /// Its method is always passed on.
    Method,
    /// Nothing is stored for its URI.
    UriMiss,
    /// What is stored for its URI varies with something in which it differs.
    VaryMiss,
    /// Nothing is stored for it.
    Miss,
    /// It would not have what is stored.
    Request,
    /// What is stored is stale.
    Stale,
    /// Not all of what it asks for is stored.
    Partial,
}

impl Why {
    /// The token for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bypass => "bypass",
            Self::Method => "method",
            Self::UriMiss => "uri-miss",
            Self::VaryMiss => "vary-miss",
            Self::Miss => "miss",
            Self::Request => "request",
            Self::Stale => "stale",
            Self::Partial => "partial",
        }
    }
}

/// The member of the field's list.
impl fmt::Display for CacheStatus<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.by)?;
        match self.answer {
            Answer::Hit => out.write_str("; hit")?,
            Answer::Forwarded { why, status, stored, collapsed } => {
                write!(out, "; fwd={}", why.name())?;
                status.map_or(Ok(()), |status| write!(out, "; fwd-status={status}"))?;
                out.write_str(if stored { "; stored" } else { "" })?;
                out.write_str(if collapsed { "; collapsed" } else { "" })?;
            }
        }
        self.ttl.map_or(Ok(()), |ttl| write!(out, "; ttl={ttl}"))?;
        self.detail.map_or(Ok(()), |detail| write!(out, "; detail={detail}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_told_as_the_rfc_writes_them() {
        let status = |answer, ttl, detail| CacheStatus { by: "strait", answer, ttl, detail }.to_string();
        assert_eq!(status(Answer::Hit, Some(376), None), "strait; hit; ttl=376");
        assert_eq!(status(Answer::Hit, Some(-412), None), "strait; hit; ttl=-412");
        let validated =
            Answer::Forwarded { why: Why::Stale, status: Some(304), stored: true, collapsed: false };
        assert_eq!(status(validated, Some(60), None), "strait; fwd=stale; fwd-status=304; stored; ttl=60");
        let followed = Answer::Forwarded { why: Why::UriMiss, status: None, stored: false, collapsed: true };
        assert_eq!(
            status(followed, None, Some("no-store")),
            "strait; fwd=uri-miss; collapsed; detail=no-store"
        );
    }
}
