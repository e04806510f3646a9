//! What a cache tells of how it came to its answer: Cache-Status (RFC 9211).

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
    /// Nothing is stored, for the last response was for one client alone (hit-for-miss).
    Private,
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
            Self::Miss | Self::Private => "miss",
            Self::Request => "request",
            Self::Stale => "stale",
            Self::Partial => "partial",
        }
    }
}

impl CacheStatus<'_> {
    /// Writes the member of the field's list. Every answer has one: it is not formatted.
    pub fn write(&self, out: &mut Vec<u8>) {
        let mut push = |text: &str| out.extend_from_slice(text.as_bytes());
        push(self.by);
        match self.answer {
            Answer::Hit => push("; hit"),
            Answer::Forwarded { why, status, stored, collapsed } => {
                push("; fwd=");
                push(why.name());
                if let Some(status) = status {
                    push("; fwd-status=");
                    push(itoa::Buffer::new().format(status));
                }
                push(if stored { "; stored" } else { "" });
                push(if collapsed { "; collapsed" } else { "" });
            }
        }
        if let Some(ttl) = self.ttl {
            push("; ttl=");
            push(itoa::Buffer::new().format(ttl));
        }
        let is_private = matches!(self.answer, Answer::Forwarded { why: Why::Private, .. });
        if let Some(detail) = self.detail.or(is_private.then_some("hit-for-miss")) {
            push("; detail=");
            push(detail);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_told_as_the_rfc_writes_them() {
        let status = |answer, ttl, detail| {
            let mut out = Vec::new();
            CacheStatus { by: "strait", answer, ttl, detail }.write(&mut out);
            String::from_utf8(out).unwrap()
        };
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
        let private = Answer::Forwarded { why: Why::Private, status: None, stored: false, collapsed: false };
        assert_eq!(status(private, None, None), "strait; fwd=miss; detail=hit-for-miss");
    }
}
