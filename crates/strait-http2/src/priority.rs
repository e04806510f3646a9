//! Priorities (RFC 9218).

/// Priority of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priority {
    /// 0 to 7; 0 comes first.
    pub urgency: u8,
    /// True if the response is useful in parts, and shares the connection with others of its
    /// urgency.
    pub is_incremental: bool,
}

impl Default for Priority {
    /// Priority of a request without any signal: such requests share the connection. RFC 9218,
    /// section 10 leaves the choice to the server; one after the other would let a long response
    /// delay all others.
    fn default() -> Self {
        Self { urgency: 3, is_incremental: true }
    }
}

impl Priority {
    /// Parses a Priority field value: a dictionary of RFC 8941. Unknown and malformed members are
    /// ignored (RFC 9218, section 4).
    pub fn parse(value: &[u8]) -> Self {
        let mut priority = Self { urgency: 3, is_incremental: false };
        for member in value.split(|byte| *byte == b',') {
            match member.trim_ascii() {
                [b'u', b'=', digit @ b'0'..=b'7'] => priority.urgency = digit - b'0',
                b"i" | b"i=?1" => priority.is_incremental = true,
                b"i=?0" => priority.is_incremental = false,
                _ => {}
            }
        }
        priority
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_parsed_and_others_ignored() {
        for (value, urgency, is_incremental) in [
            ("", 3, false),
            ("u=0", 0, false),
            ("i, u=7", 7, true),
            ("u=1,\ti=?0", 1, false),
            ("u=8, i=1, x=2", 3, false),
        ] {
            assert_eq!(Priority::parse(value.as_bytes()), Priority { urgency, is_incremental }, "{value}");
        }
    }
}
