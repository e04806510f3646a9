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
    /// Parses the value of a Priority field of a request.
    pub fn parse(value: &[u8]) -> Self {
        Self::of_lines(std::iter::once(value))
    }

    /// Parses the lines of a Priority field of a request; the default without any.
    pub(crate) fn of_lines<'v>(lines: impl Iterator<Item = &'v [u8]>) -> Self {
        let mut parameters = None;
        for line in lines {
            parameters.get_or_insert_with(Parameters::default).add(line);
        }
        let without = Self { urgency: 3, is_incremental: false };
        parameters.map_or_else(Self::default, |parameters| parameters.over(without))
    }
}

/// Parameters of a Priority field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parameters {
    urgency: Option<u8>,
    is_incremental: Option<bool>,
}

impl Parameters {
    /// Adds a line of a Priority field: a dictionary, of which several lines are one (RFC 8941,
    /// section 3.2). A later member replaces an earlier one. Unknown and malformed ones are ignored
    /// (RFC 9218, section 4).
    pub(crate) fn add(&mut self, line: &[u8]) {
        for member in line.split(|byte| *byte == b',') {
            match member.trim_ascii() {
                [b'u', b'=', digit @ b'0'..=b'7'] => self.urgency = Some(digit - b'0'),
                b"i" | b"i=?1" => self.is_incremental = Some(true),
                b"i=?0" => self.is_incremental = Some(false),
                _ => {}
            }
        }
    }

    /// Returns the priority of a client with these parameters of the response. One that the
    /// response does not have remains the client's (RFC 9218, section 8).
    pub(crate) fn over(self, client: Priority) -> Priority {
        Priority {
            urgency: self.urgency.unwrap_or(client.urgency),
            is_incremental: self.is_incremental.unwrap_or(client.is_incremental),
        }
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

    #[test]
    fn lines_are_joined() {
        let of = |lines: &[&str]| Priority::of_lines(lines.iter().map(|line| line.as_bytes()));
        assert_eq!(of(&["u=5", "i"]), Priority { urgency: 5, is_incremental: true });
        assert_eq!(of(&["u=5, i", "u=1"]), Priority { urgency: 1, is_incremental: true });
        assert_eq!(of(&[""]), Priority { urgency: 3, is_incremental: false });
        assert_eq!(of(&[]), Priority::default());
    }

    #[test]
    fn parameters_of_a_response_replace_those_of_its_client() {
        let client = Priority::parse(b"u=5, i");
        for (response, urgency, is_incremental) in
            [("", 5, true), ("u=1", 1, true), ("i=?0", 5, false), ("u=9, i=?0, u=2", 2, false)]
        {
            let mut parameters = Parameters::default();
            parameters.add(response.as_bytes());
            assert_eq!(parameters.over(client), Priority { urgency, is_incremental }, "{response}");
        }
    }
}
