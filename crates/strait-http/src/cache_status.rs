//! Cache-Status (RFC 9211): how the cache handled a request.

/// The member of this cache in the field. It follows the members of caches nearer the origin, or is
/// a line of its own after theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheStatus<'a> {
    /// Name of the cache, a token.
    pub by: &'a str,
    /// Source of the response.
    pub answer: Answer,
    /// Remaining freshness in seconds, negative for a stale response; `None` if freshness was not
    /// evaluated.
    pub ttl: Option<i64>,
    /// Further detail, a token.
    pub detail: Option<&'a str>,
}

/// Source of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The response came from the cache, without a request to the origin (section 2.1).
    Hit,
    /// The request was forwarded towards the origin.
    Forwarded {
        /// Reason for forwarding.
        why: Why,
        /// Status of the forwarded request's response, if it differs from that of the answer, such
        /// as the 304 of a validation (section 2.3).
        status: Option<u16>,
        /// True if the response is stored (section 2.5).
        stored: bool,
        /// True if the request was collapsed with others (section 2.6).
        collapsed: bool,
    },
}

/// Reason for forwarding a request (section 2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The cache is configured not to handle the request.
    Bypass,
    /// The method is always forwarded.
    Method,
    /// No response is stored for the URI.
    UriMiss,
    /// The stored responses for the URI vary on fields in which the request differs.
    VaryMiss,
    /// No response is stored for the request.
    Miss,
    /// No response is stored, because the last one was private (hit-for-miss).
    Private,
    /// The request's directives do not allow the stored response.
    Request,
    /// The stored response is stale.
    Stale,
    /// The stored response does not contain all of the requested range.
    Partial,
}

impl Why {
    /// Token of the reason.
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
    /// Writes the member of the field's list. Avoids formatting, because every response has the
    /// field.
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
    fn members_are_written_as_in_the_rfc() {
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
