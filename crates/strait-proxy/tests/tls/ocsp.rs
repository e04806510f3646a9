//! OCSP responses that the proxy sends with its certificate. openssl makes and reads them.

use std::fs;
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use strait_proxy::{Clock, Config, Proxy};

use crate::tls::rig::Authority;

/// Runs openssl and returns its output.
fn openssl(args: &[&str]) -> String {
    let run = Command::new("openssl").args(args).stdin(Stdio::null()).output().unwrap();
    assert!(run.status.success(), "{args:?}: {}", String::from_utf8_lossy(&run.stderr));
    String::from_utf8_lossy(&run.stdout).into_owned()
}

/// Writes the authority's response for the certificate `NAME.pem` to `OUT`. `state` begins the line
/// of the certificate in the authority's database: `V` if it is valid, `R` if it is revoked.
fn respond(authority: &Authority, name: &str, state: &str, out: &str) {
    let path = |file: &str| authority.file(file).display().to_string();
    let (ca, key, index, out) = (path("ca.pem"), path("ca.key"), path("index"), path(out));
    let certificate = path(&format!("{name}.pem"));
    let serial = openssl(&["x509", "-in", &certificate, "-noout", "-serial"]);
    let serial = serial.trim().strip_prefix("serial=").unwrap();
    let times = if state == "R" { "491231235959Z\t251231235959Z" } else { "491231235959Z\t" };
    let line = format!("{state}\t{times}\t{serial}\tunknown\t/CN=x\n");
    fs::write(authority.file("index"), if state.is_empty() { "" } else { &line }).unwrap();
    fs::write(authority.file("ca.key"), authority.key()).unwrap();
    let of_authority = ["ocsp", "-index", &index, "-CA", &ca, "-rsigner", &ca, "-rkey", &key, "-issuer", &ca];
    openssl(
        &[&of_authority[..], &["-cert", &certificate, "-ndays", "1", "-no_nonce", "-respout", &out]].concat(),
    );
}

fn config(authority: &Authority, ocsp: &str) -> Config {
    let path = |file: &str| authority.file(file).display().to_string();
    let text = format!(
        "workers = 1\nlisten = []\norigin = \"http://127.0.0.1:1\"\n[tls]\nlisten = [\"127.0.0.1:0\"]\n\
         certificate = \"{}\"\nkey = \"{}\"\nocsp = \"{}\"\n",
        path("proxy.pem"),
        path("proxy.key"),
        path(ocsp)
    );
    Config::from_toml(&text).unwrap()
}

/// Returns true if a client gets a response for a valid certificate.
fn is_stapled(address: SocketAddr) -> bool {
    let text =
        openssl(&["s_client", "-status", "-servername", "localhost", "-connect", &address.to_string()]);
    let has_none = text.contains("OCSP response: no response sent");
    let is_good = text.contains("OCSP Response Status: successful") && text.contains("Cert Status: good");
    assert_ne!(has_none, is_good, "{text}");
    is_good
}

fn note(proxy: &Proxy) -> String {
    let notes = proxy.notes();
    notes.into_iter().find(|note| note.starts_with("tls.ocsp = ")).unwrap_or_default()
}

#[test]
fn clients_get_responses_that_they_accept() {
    let authority = Authority::new();
    for name in ["proxy", "other"] {
        authority.sign(name, "localhost", 2999);
    }
    for (name, state, out) in
        [("proxy", "V", "good"), ("proxy", "R", "revoked"), ("proxy", "", "unknown"), ("other", "V", "other")]
    {
        respond(&authority, name, state, out);
    }
    // The last time is the end.
    let mut expired = fs::read(authority.file("good")).unwrap();
    let is_time = |at: &usize| expired[*at..].starts_with(b"\x18\x0f20");
    let end = (0..expired.len()).filter(is_time).max().unwrap();
    expired[end + 2..end + 6].copy_from_slice(b"2001");
    fs::write(authority.file("expired"), expired).unwrap();
    // A response of the status tryLater (RFC 6960, section 4.2.1).
    fs::write(authority.file("later"), b"\x30\x03\x0a\x01\x03").unwrap();
    fs::write(authority.file("long"), vec![0x30; (64 << 10) + 1]).unwrap();

    let mut proxy = Proxy::start(&config(&authority, "good"), Clock::system()).unwrap();
    assert!(is_stapled(proxy.address()) && note(&proxy).is_empty());
    for (file, expected) in [
        ("revoked", "the certificate is revoked"),
        ("unknown", "the responder does not know the certificate"),
        ("other", "for a certificate with another serial number"),
        ("expired", "the response has expired"),
        ("later", "the responder has answered with an error"),
        ("long", "longer than 64 KiB"),
        ("missing", "the file cannot be read"),
        ("proxy.pem", "not an OCSP response in DER format"),
    ] {
        proxy.reload(&config(&authority, file)).unwrap();
        assert!(!is_stapled(proxy.address()), "{file}");
        let note = note(&proxy);
        assert!(note.contains(expected) && note.ends_with("clients do not get an OCSP response"), "{note}");
        assert_eq!(config(&authority, file).check().unwrap(), proxy.notes());
    }
    proxy.reload(&config(&authority, "good")).unwrap();
    assert!(is_stapled(proxy.address()) && note(&proxy).is_empty());
}

#[test]
fn a_response_needs_a_certificate() {
    let alone = Config::from_toml("tls.ocsp = \"/x\"").unwrap();
    let error = Proxy::start(&alone, Clock::system()).unwrap_err().to_string();
    assert!(error.contains("tls.listen: "), "{error}");
}
