//! Formats of log lines. Text from outside is escaped, so that a client cannot forge a line or a
//! field.

use std::io::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use strait_http::head::{Request, Version};
use time::OffsetDateTime;

use super::Format;
use crate::config::auth::credentials;
use crate::config::trace::Trace;
use crate::observe::access::{Account, Outcome};

/// Writes the line of an exchange that has ended at `now`.
pub(super) fn write(out: &mut Vec<u8>, format: Format, account: &Account<'_, '_>, now: SystemTime) {
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    match format {
        Format::Common => common(out, account, now),
        Format::Combined => {
            common(out, account, now);
            for name in ["referer", "user-agent"] {
                out.push(b' ');
                quoted(out, &[field(account.request, name).unwrap_or(b"-")]);
            }
        }
        Format::Squid => squid(out, account, now),
        Format::Json => json(out, account, now),
    }
    // Writing to memory does not fail.
    let _ = match format {
        Format::Common | Format::Combined => {
            write!(out, " {} {} {}", account.record.outcome.name(), account.mechanism(), account.moved.sent)
        }
        Format::Squid => write!(out, " {} {}", account.mechanism(), account.moved.sent),
        Format::Json => Ok(()),
    };
    if format == Format::Combined {
        out.push(b' ');
        quoted(out, &[reason(account).unwrap_or("-").as_bytes()]);
    }
    out.push(b'\n');
}

/// Returns the reason of a response of the proxy itself, or of an incomplete one.
fn reason<'a>(account: &Account<'a, '_>) -> Option<&'a str> {
    let cut = (!account.is_whole).then_some("incomplete");
    account.record.why.as_deref().or(cut)
}

/// Returns the authenticated user.
fn user(account: &Account<'_, '_>) -> Option<String> {
    let request = account.request.filter(|_| account.record.is_authenticated)?;
    credentials(request).map(|(user, _)| user)
}

/// `host ident authuser [date] "request" status bytes`, as the servers of NCSA and Apache write it.
/// The size is that of the body as sent, `-` if there was none (Apache's `%b`).
fn common(out: &mut Vec<u8>, account: &Account<'_, '_>, now: Duration) {
    let _ = write!(out, "{} - ", account.client.ip().to_canonical());
    word(out, user(account).as_deref());
    out.extend_from_slice(b" [");
    date(out, now.as_secs());
    out.extend_from_slice(b"] ");
    match account.request {
        Some(request) => {
            let parts = [request.method, " ", request.target, " ", version(request)];
            quoted(out, &parts.map(str::as_bytes));
        }
        None => out.extend_from_slice(b"\"-\""),
    }
    let _ = match account.body_bytes() {
        0 => write!(out, " {:03} -", account.record.status),
        bytes => write!(out, " {:03} {bytes}", account.record.status),
    };
}

/// `time elapsed client code/status bytes method URL user hierarchy/peer type`, as Squid writes it.
/// Its size includes the head (`%<st`).
fn squid(out: &mut Vec<u8>, account: &Account<'_, '_>, now: Duration) {
    let (method, target) = account.request.map_or(("NONE", "error:no-request"), |it| (it.method, it.target));
    let _ = write!(
        out,
        "{}.{:03} {:6} {} {}/{:03} {} ",
        now.as_secs(),
        now.subsec_millis(),
        account.took.as_millis(),
        account.client.ip().to_canonical(),
        code(account.record.outcome),
        account.record.status,
        account.sent_bytes()
    );
    percent(out, method.as_bytes());
    out.push(b' ');
    percent(out, target.as_bytes());
    out.push(b' ');
    word(out, user(account).as_deref());
    let _ = match account.record.origin {
        Some(origin) => write!(out, " HIER_DIRECT/{} -", origin.ip().to_canonical()),
        None => write!(out, " HIER_NONE/- -"),
    };
}

/// Returns Squid's code of an outcome.
fn code(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Hit => "TCP_HIT",
        Outcome::Stale => "TCP_REFRESH_FAIL_OLD",
        Outcome::Revalidated => "TCP_REFRESH_UNMODIFIED",
        Outcome::Collapsed => "TCP_CF_MISS",
        Outcome::Miss | Outcome::Pass => "TCP_MISS",
        Outcome::Tunnel => "TCP_TUNNEL",
        Outcome::Own | Outcome::Unanswered => "NONE_NONE",
    }
}

fn json(out: &mut Vec<u8>, account: &Account<'_, '_>, now: Duration) {
    let _ = write!(
        out,
        "{{\"time\":{}.{:06},\"client\":\"{}\"",
        now.as_secs(),
        now.subsec_micros(),
        account.client.ip().to_canonical()
    );
    if let Some(request) = account.request {
        let referer = field(account.request, "referer");
        let agent = field(account.request, "user-agent");
        for (name, value) in [
            ("method", Some(request.method.as_bytes())),
            ("target", Some(request.target.as_bytes())),
            ("host", field(account.request, "host")),
            ("version", Some(version(request).as_bytes())),
            ("referer", referer),
            ("user_agent", agent),
        ] {
            let Some(value) = value else { continue };
            let _ = write!(out, ",\"{name}\":");
            json_string(out, value);
        }
    }
    client(out, account);
    let (record, moved) = (account.record, account.moved);
    let _ = write!(
        out,
        ",\"status\":{},\"cache\":\"{}\",\"mechanism\":\"{}\",\"body_bytes\":{},\"sent_bytes\":{},\"copied\":{},\"sendfile\":{},\"spliced\":{},\"seconds\":{}.{:06},\"whole\":{}",
        record.status,
        record.outcome.name(),
        account.mechanism(),
        account.body_bytes(),
        account.sent_bytes(),
        moved.sent,
        moved.sendfile,
        moved.spliced,
        account.took.as_secs(),
        account.took.subsec_micros(),
        account.is_whole
    );
    if let Some(coding) = record.coding {
        let _ = write!(out, ",\"coding\":\"{coding}\"");
    }
    if let Some(origin) = record.origin {
        let _ = write!(out, ",\"origin\":\"{origin}\"");
    }
    if let Some(Trace { context, parent }) = &record.trace {
        let _ = write!(out, ",\"trace\":\"{:032x}\",\"span\":\"{:016x}\"", context.trace, context.span);
        if let Some(parent) = parent {
            let _ = write!(out, ",\"parent\":\"{parent:016x}\"");
        }
        let _ = write!(out, ",\"sampled\":{}", context.is_sampled());
    }
    if let Some(why) = &record.why {
        out.extend_from_slice(b",\"why\":");
        json_string(out, why.as_bytes());
    }
    out.push(b'}');
}

/// Writes the members about the client's connection.
fn client(out: &mut Vec<u8>, account: &Account<'_, '_>) {
    if let Some(user) = user(account) {
        out.extend_from_slice(b",\"user\":");
        json_string(out, user.as_bytes());
    }
    let scheme = if account.tls.is_some() { "https" } else { "http" };
    let _ = write!(out, ",\"scheme\":\"{scheme}\"");
    if let Some(tls) = account.tls {
        let _ = write!(out, ",\"tls\":\"{tls}\"");
    }
    if let Some(stream) = account.stream {
        let _ = write!(out, ",\"stream\":{stream}");
    }
}

fn version(request: &Request<'_>) -> &'static str {
    match request.version {
        Version::Http10 => "HTTP/1.0",
        Version::Http11 => "HTTP/1.1",
        Version::Http2 => "HTTP/2.0",
    }
}

fn field<'b>(request: Option<&Request<'b>>, name: &str) -> Option<&'b [u8]> {
    request?.fields.all(name).next().map(|field| field.value)
}

/// Writes quoted text, with quotes, backslashes and unprintable bytes as `\"`, `\\` and `\xHH`.
fn quoted(out: &mut Vec<u8>, parts: &[&[u8]]) {
    out.push(b'"');
    for byte in parts.iter().copied().flatten() {
        let _ = match byte {
            b'"' | b'\\' => out.write_all(&[b'\\', *byte]),
            b' '..=b'~' => out.write_all(&[*byte]),
            _ => write!(out, "\\x{byte:02x}"),
        };
    }
    out.push(b'"');
}

/// Writes a word, with blanks and unprintable bytes as `%HH`.
fn percent(out: &mut Vec<u8>, bytes: &[u8]) {
    for byte in bytes {
        let _ = match byte {
            b'!'..=b'~' => out.write_all(&[*byte]),
            _ => write!(out, "%{byte:02X}"),
        };
    }
}

/// Writes the name of a user as a word, `-` for none. Blanks, quotes and unprintable bytes are
/// `%HH`, and so is a percent sign.
fn word(out: &mut Vec<u8>, user: Option<&str>) {
    let Some(user) = user.filter(|user| !user.is_empty()) else { return out.push(b'-') };
    for byte in user.bytes() {
        let _ = match byte {
            b'"' | b'%' | b'\\' => write!(out, "%{byte:02X}"),
            b'!'..=b'~' => out.write_all(&[byte]),
            _ => write!(out, "%{byte:02X}"),
        };
    }
}

/// Writes a JSON string (RFC 8259, section 7) in ASCII; other bytes as U+0080 to U+00FF.
fn json_string(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(b'"');
    for byte in bytes {
        let _ = match byte {
            b'"' | b'\\' => out.write_all(&[b'\\', *byte]),
            b' '..=b'~' => out.write_all(&[*byte]),
            _ => write!(out, "\\u{byte:04x}"),
        };
    }
    out.push(b'"');
}

/// `10/Oct/2000:13:55:36 +0000`.
fn date(out: &mut Vec<u8>, seconds: u64) {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let time =
        i64::try_from(seconds).ok().and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok());
    let time = time.unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let ((year, month, day), (hour, minute, second)) = (time.to_calendar_date(), time.to_hms());
    let month = MONTHS[usize::from(u8::from(month)) - 1];
    let _ = write!(out, "{day:02}/{month}/{year}:{hour:02}:{minute:02}:{second:02} +0000");
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use strait_http::head;

    use super::*;
    use crate::io::socket::Moved;
    use crate::observe::access::Record;

    const REQUEST: &[u8] =
        b"GET /a\\\"b HTTP/1.1\r\nHost: x.example\r\nReferer: http://r/\"\\\xff\r\nUser-Agent: me\t1\r\n\r\n";

    fn line(format: Format, bytes: &[u8]) -> String {
        let (request, _) = head::request(bytes).unwrap().unwrap();
        let account = Account {
            stream: None,
            tls: Some("TLSv1.3"),
            client: SocketAddr::from(([192, 0, 2, 1], 5)),
            request: Some(&request),
            record: &Record {
                status: 200,
                outcome: Outcome::Miss,
                coding: Some("br"),
                origin: Some(SocketAddr::from(([10, 0, 0, 1], 80))),
                why: Some("a \"b\"".to_owned()),
                is_authenticated: true,
                trace: None,
            },
            moved: Moved { sent: 300, sendfile: 4096, overhead: 296, ..Moved::default() },
            took: Duration::from_micros(1_234_567),
            is_whole: true,
        };
        let mut out = Vec::new();
        write(&mut out, format, &account, UNIX_EPOCH + Duration::from_millis(951_827_696_007));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn formats_have_cache_result_and_copies_and_escape_text() {
        assert_eq!(
            line(Format::Common, REQUEST),
            "192.0.2.1 - - [29/Feb/2000:12:34:56 +0000] \"GET /a\\\\\\\"b HTTP/1.1\" 200 4100 miss sendfile 300\n"
        );
        assert_eq!(
            line(Format::Combined, REQUEST),
            "192.0.2.1 - - [29/Feb/2000:12:34:56 +0000] \"GET /a\\\\\\\"b HTTP/1.1\" 200 4100 \"http://r/\\\"\\\\\\xff\" \"me\\x091\" miss sendfile 300 \"a \\\"b\\\"\"\n"
        );
        assert_eq!(
            line(Format::Squid, REQUEST),
            "951827696.007   1234 192.0.2.1 TCP_MISS/200 4396 GET /a\\\"b - HIER_DIRECT/10.0.0.1 - sendfile 300\n"
        );
        assert_eq!(
            line(Format::Json, REQUEST),
            "{\"time\":951827696.007000,\"client\":\"192.0.2.1\",\"method\":\"GET\",\"target\":\"/a\\\\\\\"b\",\
             \"host\":\"x.example\",\"version\":\"HTTP/1.1\",\"referer\":\"http://r/\\\"\\\\\\u00ff\",\"user_agent\":\"me\\u00091\",\
             \"scheme\":\"https\",\"tls\":\"TLSv1.3\",\"status\":200,\"cache\":\"miss\",\"mechanism\":\"sendfile\",\"body_bytes\":4100,\"sent_bytes\":4396,\"copied\":300,\"sendfile\":4096,\"spliced\":0,\
             \"seconds\":1.234567,\"whole\":true,\"coding\":\"br\",\"origin\":\"10.0.0.1:80\",\"why\":\"a \\\"b\\\"\"}\n"
        );
    }

    #[test]
    fn name_of_an_authenticated_user_is_one_word() {
        // The user is `a "b%` with the password c.
        let request = b"GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Basic YSAiYiU6Yw==\r\n\r\n";
        for (format, expected) in [
            (Format::Common, "192.0.2.1 - a%20%22b%25 ["),
            (Format::Combined, "192.0.2.1 - a%20%22b%25 ["),
            (Format::Squid, " / a%20%22b%25 HIER_DIRECT/"),
            (Format::Json, "\"user\":\"a \\\"b%\","),
        ] {
            let line = line(format, request);
            assert!(line.contains(expected), "{line}");
        }
    }

    #[test]
    fn days_are_converted_to_dates() {
        for (days, expected) in [
            (0, "01/Jan/1970"),
            (59, "01/Mar/1970"),
            (365, "01/Jan/1971"),
            (789, "29/Feb/1972"),
            (11_016, "29/Feb/2000"),
            (11_017, "01/Mar/2000"),
            (11_322, "31/Dec/2000"),
            (47_540, "28/Feb/2100"),
            (47_541, "01/Mar/2100"),
        ] {
            let mut text = Vec::new();
            date(&mut text, days * 86_400 + 3661);
            assert_eq!(text, format!("{expected}:01:01:01 +0000").into_bytes());
        }
    }
}
