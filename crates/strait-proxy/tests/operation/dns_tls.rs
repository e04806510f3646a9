//! Names of servers with TLS: certificates are for the name, not for the address or the target.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::dns_rig::{DnsServer, addresses, srv};
use crate::pool_rig::Rig;

/// Returns the configuration of a server with a certificate for `subject`, and writes its authority
/// to a file.
pub(crate) fn certified(subject: &str, authority: &Path) -> Arc<ServerConfig> {
    let (ca_key, key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    std::fs::write(authority, params.self_signed(&ca_key).unwrap().pem()).unwrap();
    let issuer = Issuer::new(params, ca_key);
    let certificate = CertificateParams::new([subject.to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    let certificate = CertificateDer::from(certificate.der().to_vec());
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], PrivateKeyDer::try_from(key.serialize_der()).unwrap());
    Arc::new(config.unwrap())
}

/// Starts a server with a certificate for `subject` at 127.0.0.2, and writes its authority to a
/// file. Its responses have the name in the handshake (SNI) as X-Server. Returns its port.
fn start(subject: &str, authority: &Path) -> u16 {
    let config = certified(subject, authority);
    let listener = TcpListener::bind("127.0.0.2:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // The thread ends with the test's process.
    thread::spawn(move || {
        for tcp in listener.incoming().filter_map(Result::ok) {
            let mut stream = StreamOwned::new(ServerConnection::new(config.clone()).unwrap(), tcp);
            let mut request = [0; 4096];
            // A handshake may fail.
            if stream.read(&mut request).is_ok_and(|len| len > 0) {
                let name = stream.conn.server_name().unwrap_or_default();
                let answer = format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-Server: {name}\r\nConnection: close\r\n\r\n"
                );
                let _ = stream.write_all(answer.as_bytes());
                stream.conn.send_close_notify();
                let _ = stream.flush();
            }
        }
    });
    port
}

#[test]
fn certificate_is_for_the_name() {
    let directory = tempfile::tempdir().unwrap();
    let ca = directory.path().join("ca.pem");
    for (subject, is_accepted) in [("app.test", true), ("target.test", false)] {
        let (dns, port) = (DnsServer::start(), start(subject, &ca));
        let mut records = addresses("app.test", 60, &["127.0.0.2"]);
        records.extend(addresses("target.test", 60, &["127.0.0.2"]));
        records.push(srv("_https._tcp.app.test", 60, (0, 0, port), "target.test"));
        dns.set(records);
        for server in [format!("https://app.test:{port}"), "srv+https://_https._tcp.app.test".to_owned()] {
            let rest = format!("tls.origin_ca = \"{}\"\n{}", ca.display(), dns.section());
            let rig = Rig::of(&[&server], "", &rest);
            let answer = rig.client().get("/x");
            let expected = if is_accepted { (200, Some("app.test")) } else { (503, None) };
            assert_eq!((answer.status(), answer.field("x-server")), expected, "{server} {subject}");
        }
    }
}
