//! TLS: certificates and keys, read once at the start, and what a connection begins with.
//!
//! rustls does the work, with the cryptography of ring. Nothing of it is known outside of [`crate::stream`]. Who signs for origins is the
//! system's to say (rustls-native-certs): whoever administers it adds and removes authorities there, and they are kept up to date.

mod session;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::{Ticketer, default_provider};
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, PrivateKeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, ConfigBuilder, ConfigSide, Connection, RootCertStore, ServerConfig,
    ServerConnection, WantsVerifier,
};

use crate::config;
use crate::error::{Error, Result};

pub(crate) use session::Session;

/// What the peer is told that is spoken inside (RFC 7301).
const PROTOCOL: &[u8] = b"http/1.1";

/// TLS on both sides.
#[derive(Clone, Debug)]
pub(crate) struct Tls {
    /// Addresses where clients begin with it.
    pub(crate) listen: Vec<SocketAddr>,
    server: Option<Arc<ServerConfig>>,
    client: Option<Arc<ClientConfig>>,
}

impl Tls {
    /// Reads certificates and keys; those of authorities if origins are asked over TLS.
    pub(crate) fn new(config: &config::Tls, asks_origins: bool) -> Result<Self> {
        let server = match (&config.certificate, &config.key) {
            (Some(_), Some(_)) if config.listen.is_empty() => {
                return Err(Error::Config(
                    "tls.certificate: no address begins with TLS; say which with tls.listen = [\"0.0.0.0:443\"]"
                        .to_owned(),
                ));
            }
            (Some(certificate), Some(key)) => Some(Arc::new(server(certificate, key)?)),
            (None, None) if config.listen.is_empty() => None,
            (certificate, _) => {
                let missing = if certificate.is_none() { "certificate" } else { "key" };
                return Err(Error::Config(format!("tls.{missing}: TLS needs tls.certificate and tls.key")));
            }
        };
        let client = asks_origins.then(|| client(config.origin_ca.as_deref())).transpose()?;
        Ok(Self { listen: config.listen.clone(), server, client: client.map(Arc::new) })
    }

    /// What a client's connection begins with.
    pub(crate) fn accept(&self) -> Option<Connection> {
        let config = self.server.clone()?;
        Some(ServerConnection::new(config).ok()?.into())
    }

    /// What a connection to the origin `host` begins with.
    pub(crate) fn connect(&self, host: &str) -> Result<Connection, InvalidDnsNameError> {
        let name = ServerName::try_from(host)?.to_owned();
        let config = self.client.clone().ok_or(InvalidDnsNameError)?;
        ClientConnection::new(config, name).map(Connection::from).map_err(|_| InvalidDnsNameError)
    }
}

/// TLS 1.2 and 1.3.
fn versions<S: ConfigSide>(
    builder: fn(Arc<CryptoProvider>) -> ConfigBuilder<S, rustls::WantsVersions>,
) -> Result<ConfigBuilder<S, WantsVerifier>> {
    let builder = builder(Arc::new(default_provider())).with_safe_default_protocol_versions();
    builder.map_err(|error| Error::Config(format!("tls: {error}")))
}

fn server(certificate: &Path, key: &Path) -> Result<ServerConfig> {
    let chain = certificates("tls.certificate", certificate)?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| unread("tls.key", key, &error))?;
    let mut server = versions(ServerConfig::builder_with_provider)?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(|error| {
            Error::Config(format!("tls.key = \"{}\": not for the certificate: {error}", key.display()))
        })?;
    server.alpn_protocols = vec![PROTOCOL.to_vec()];
    server.ticketer = Ticketer::new().map_err(|error| Error::Config(format!("tls: {error}")))?;
    Ok(server)
}

fn client(more: Option<&Path>) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = more {
        for certificate in certificates("tls.origin_ca", path)? {
            roots
                .add(certificate)
                .map_err(|error| Error::Config(format!("tls.origin_ca = \"{}\": {error}", path.display())))?;
        }
    }
    if roots.is_empty() {
        return Err(Error::Config(
            "origin: the system has no certificates of authorities (Debian: ca-certificates), and tls.origin_ca names none"
                .to_owned(),
        ));
    }
    let mut client =
        versions(ClientConfig::builder_with_provider)?.with_root_certificates(roots).with_no_client_auth();
    client.alpn_protocols = vec![PROTOCOL.to_vec()];
    Ok(client)
}

fn certificates(name: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let all = read.map_err(|error| unread(name, path, &error))?;
    if all.is_empty() { Err(unread(name, path, &pem::Error::NoItemsFound)) } else { Ok(all) }
}

fn unread(name: &str, path: &Path, error: &pem::Error) -> Error {
    let why = match error {
        pem::Error::Io(error) => error.to_string(),
        pem::Error::NoItemsFound => "there is none in it, in PEM".to_owned(),
        error => error.to_string(),
    };
    Error::Config(format!("{name} = \"{}\": {why}", path.display()))
}
