//! TLS certificates and keys, read at each start and reload.
//!
//! `io::tls` begins sessions with them. Certificates of origins are verified with the system's
//! authorities (rustls-native-certs), which its administrator keeps up to date.

use std::path::Path;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::{Ticketer, default_provider};
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ConfigBuilder, ConfigSide, RootCertStore, ServerConfig, WantsVerifier};
use strait_os::Kind;

use crate::config::error::{Error, Result};
use crate::config::file;

/// Protocols inside TLS, announced by ALPN (RFC 7301).
const PROTOCOL: &[u8] = b"http/1.1";
const HTTP2: &[u8] = b"h2";

/// TLS configurations for both sides.
#[derive(Clone, Debug)]
pub(crate) struct Tls {
    /// For connections from clients.
    pub(crate) server: Option<Arc<ServerConfig>>,
    /// For connections to origins.
    pub(crate) client: Option<Arc<ClientConfig>>,
    /// True if the kernel encrypts after the handshake.
    pub(crate) kernel: bool,
    /// Note for the operator: the kernel cannot encrypt, and why.
    pub(crate) note: Option<String>,
}

impl Tls {
    /// Reads certificates and keys; also authorities if the origin uses TLS.
    pub(crate) fn new(config: &file::Tls, uses_tls_to_origin: bool, has_http2: bool) -> Result<Self> {
        let files = files(config)?;
        let is_used = files.is_some() || uses_tls_to_origin;
        let (kernel, note) = if is_used && config.kernel { probe() } else { (false, None) };
        let server = files.map(|files| server(files, kernel, has_http2)).transpose()?;
        let client = uses_tls_to_origin.then(|| client(config.origin_ca.as_deref(), kernel)).transpose()?;
        let (server, client) = (server.map(Arc::new), client.map(Arc::new));
        Ok(Self { server, client, kernel, note })
    }
}

/// Returns the files of the certificate and its key, if there are addresses that use them.
fn files(config: &file::Tls) -> Result<Option<(&Path, &Path)>> {
    let wrong = |what: &str| Err(Error::Config(what.to_owned()));
    match (&config.certificate, &config.key) {
        (None, None) if config.listen.is_empty() => Ok(None),
        (None, _) => wrong("tls.certificate: TLS needs tls.certificate and tls.key"),
        (_, None) => wrong("tls.key: TLS needs tls.certificate and tls.key"),
        (Some(_), Some(_)) if config.listen.is_empty() => wrong(
            "tls.listen: the certificate is used on no address; list addresses, for example tls.listen = [\"0.0.0.0:443\"]",
        ),
        (Some(certificate), Some(key)) => Ok(Some((certificate, key))),
    }
}

/// Returns true if the kernel can encrypt; otherwise a note with the reason.
fn probe() -> (bool, Option<String>) {
    let Err(error) = strait_transfer::tls::probe() else { return (true, None) };
    let why = match error.kind() {
        Kind::Refused => error.cause(),
        _ => error.failure(),
    };
    (false, Some(format!("kTLS: {why}: bodies over TLS are copied")))
}

/// Begins a configuration for TLS 1.2 and 1.3.
fn versions<S: ConfigSide>(
    builder: fn(Arc<CryptoProvider>) -> ConfigBuilder<S, rustls::WantsVersions>,
) -> Result<ConfigBuilder<S, WantsVerifier>> {
    let builder = builder(Arc::new(default_provider())).with_safe_default_protocol_versions();
    builder.map_err(|error| Error::Config(format!("tls: {error}")))
}

fn server((certificate, key): (&Path, &Path), for_kernel: bool, has_http2: bool) -> Result<ServerConfig> {
    let chain = certificates("tls.certificate", certificate)?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| unread("tls.key", key, &error))?;
    let mut server = versions(ServerConfig::builder_with_provider)?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(|error| {
            let why = match error {
                rustls::Error::InconsistentKeys(_) => {
                    "this is not the key of the certificate in tls.certificate"
                }
                _ => "the certificate or the key cannot be used; RSA, ECDSA and Ed25519 are supported",
            };
            Error::Config(format!("tls.key = \"{}\": {why}", key.display()))
        })?;
    let protocols = [HTTP2, PROTOCOL].into_iter().skip(usize::from(!has_http2));
    server.alpn_protocols = protocols.map(<[u8]>::to_vec).collect();
    server.ticketer = Ticketer::new().map_err(|error| Error::Config(format!("tls: {error}")))?;
    server.enable_secret_extraction = for_kernel;
    Ok(server)
}

fn client(more: Option<&Path>, for_kernel: bool) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = more {
        for certificate in certificates("tls.origin_ca", path)? {
            roots.add(certificate).map_err(|_| {
                let path = path.display();
                Error::Config(format!("tls.origin_ca = \"{path}\": a certificate in it is damaged"))
            })?;
        }
    }
    if roots.is_empty() {
        return Err(Error::Config(
            "origin: the system has no certificates of authorities (Debian: ca-certificates), and tls.origin_ca is not set"
                .to_owned(),
        ));
    }
    let mut client =
        versions(ClientConfig::builder_with_provider)?.with_root_certificates(roots).with_no_client_auth();
    client.alpn_protocols = vec![PROTOCOL.to_vec()];
    client.enable_secret_extraction = for_kernel;
    Ok(client)
}

fn certificates(name: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let all = read.map_err(|error| unread(name, path, &error))?;
    if all.is_empty() { Err(unread(name, path, &pem::Error::NoItemsFound)) } else { Ok(all) }
}

fn unread(name: &str, path: &Path, error: &pem::Error) -> Error {
    let why = match error {
        pem::Error::Io(error) => format!("the file cannot be read: {error}"),
        pem::Error::NoItemsFound => "the file has no such block in PEM format".to_owned(),
        _ => "the file is damaged: a PEM block is incomplete or not base64".to_owned(),
    };
    Error::Config(format!("{name} = \"{}\": {why}", path.display()))
}
