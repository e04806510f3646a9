//! Words of a filter expression (pcap-filter(7)).

/// Returns true if `expression` has the keyword `vlan`. A host name or a label that contains the
/// letters is another word, and `\vlan` is a name (scanner.l of libpcap).
pub(crate) fn names_vlan(expression: &str) -> bool {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let mut rest = expression.as_bytes();
    while let Some(start) = rest.iter().position(|byte| is_name(*byte)) {
        let is_escaped = start > 0 && rest[start - 1] == b'\\';
        rest = &rest[start..];
        let len = rest.iter().position(|byte| !is_name(*byte)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(len);
        // A name does not end in these: they are operators behind it.
        let end = word.iter().rposition(|byte| !matches!(byte, b'-' | b'_')).map_or(0, |last| last + 1);
        if &word[..end] == b"vlan" && !is_escaped {
            return true;
        }
        rest = after;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::names_vlan;

    #[test]
    fn keyword_vlan_is_found_between_operators() {
        for expression in
            ["vlan", "vlan 5", "not vlan", "udp and(vlan)", "!vlan&&ip", "ip\tor\nvlan", "vlan-"]
        {
            assert!(names_vlan(expression), "{expression}");
        }
    }

    #[test]
    fn word_that_contains_vlan_is_no_keyword() {
        for expression in [
            "",
            "host vlan-gw",
            "host gw.vlan.example",
            "host gw-vlan",
            "host my_vlan",
            "host \\vlan",
            "vlan5",
            "VLAN",
        ] {
            assert!(!names_vlan(expression), "{expression}");
        }
    }
}
