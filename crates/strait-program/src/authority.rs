//! `HOST[:PORT]` in a URL.

/// Parses `HOST[:PORT]`; the port is `default` if there is none. The host is a name, an IPv4
/// address, or an IPv6 address in brackets. Returns `HOST:PORT`.
///
/// # Errors
/// `remedy` if the host is wrong, or text about the port.
pub fn parse(authority: &str, default: u16, remedy: &str) -> Result<String, String> {
    let (host, port) = split(authority).ok_or(remedy)?;
    let port = match port {
        None => default,
        Some(port) => {
            let digits = Some(port).filter(|port| port.bytes().all(|byte| byte.is_ascii_digit()));
            let number = digits.and_then(|port| port.parse().ok()).filter(|port| *port > 0);
            number.ok_or_else(|| format!("{port}: give a port from 1 to 65535"))?
        }
    };
    Ok(format!("{host}:{port}"))
}

/// Splits an authority into host and port.
fn split(authority: &str) -> Option<(&str, Option<&str>)> {
    let end = match authority.strip_prefix('[') {
        Some(rest) => {
            let length = rest.find(']')?;
            rest[..length].parse::<std::net::Ipv6Addr>().ok()?;
            length + 2
        }
        None => authority.find(':').unwrap_or(authority.len()),
    };
    let (host, rest) = authority.split_at(end);
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let is_valid = host.starts_with('[') || (!host.is_empty() && host.chars().all(is_name));
    match rest {
        "" => is_valid.then_some((host, None)),
        _ => rest.strip_prefix(':').filter(|_| is_valid).map(|port| (host, Some(port))),
    }
}
