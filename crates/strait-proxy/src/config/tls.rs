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
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ConfigBuilder, ConfigSide, RootCertStore, ServerConfig, WantsVerifier};
use strait_os::Kind;

use crate::config::edge::OriginHttp2;
use crate::config::error::{Error, Result};
use crate::config::file::Config;
use crate::config::hosts::Hosts;

/// Protocols inside TLS, announced by ALPN (RFC 7301).
const PROTOCOL: &[u8] = b"http/1.1";
pub(crate) const HTTP2: &[u8] = b"h2";

/// TLS configurations for both sides.
#[derive(Clone, Debug)]
pub(crate) struct Tls {
    /// For connections from clients.
    pub(crate) server: Option<Arc<ServerConfig>>,
    /// For connections to origins.
    pub(crate) client: Option<OriginTls>,
    /// True if the kernel encrypts after the handshake.
    pub(crate) kernel: bool,
    /// Note for the operator: the kernel cannot encrypt, and why.
    pub(crate) note: Option<String>,
}

impl Tls {
    /// Reads certificates and keys; also authorities if the origin uses TLS.
    pub(crate) fn new(config: &Config, uses_tls_to_origin: bool) -> Result<Self> {
        let (tls, has_http2) = (&config.tls, config.http2.enabled);
        let certificates = Certificates::new(config)?;
        let is_used = certificates.is_some() || uses_tls_to_origin;
        let (kernel, note) = if is_used && tls.kernel { probe() } else { (false, None) };
        let server = certificates.map(|all| server(all, kernel, has_http2)).transpose()?;
        let client = uses_tls_to_origin.then(|| client(tls.origin_ca.as_deref(), kernel)).transpose()?;
        Ok(Self { server: server.map(Arc::new), client: client.as_ref().map(OriginTls::new), kernel, note })
    }
}

/// TLS configurations for connections to origins, which differ in the announced protocols.
#[derive(Clone, Debug)]
pub(crate) struct OriginTls {
    http1: Arc<ClientConfig>,
    any: Arc<ClientConfig>,
    http2: Arc<ClientConfig>,
}

impl OriginTls {
    fn new(client: &ClientConfig) -> Self {
        let with = |protocols: &[&[u8]]| {
            let mut client = client.clone();
            client.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
            Arc::new(client)
        };
        Self { http1: with(&[PROTOCOL]), any: with(&[HTTP2, PROTOCOL]), http2: with(&[HTTP2]) }
    }

    /// Returns the configuration that announces the protocols of a pool.
    pub(crate) fn announcing(&self, http2: OriginHttp2) -> &Arc<ClientConfig> {
        match http2 {
            OriginHttp2::Off => &self.http1,
            OriginHttp2::Auto => &self.any,
            OriginHttp2::On => &self.http2,
        }
    }
}

/// Certificates by the host that a client names (SNI, RFC 6066, section 3); the default one is for
/// all other clients.
#[derive(Debug)]
struct Certificates(Hosts<Arc<CertifiedKey>>);

impl ResolvesServerCert for Certificates {
    /// Returns `None`, which ends the handshake, if no certificate is for the client.
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        match hello.server_name() {
            // rustls has converted the name to lower case.
            Some(name) => self.0.find_lower(name).cloned(),
            None => self.0.default.clone(),
        }
    }
}

impl Certificates {
    /// Reads all certificates and keys; `None` if no address uses TLS.
    fn new(config: &Config) -> Result<Option<Self>> {
        let tls = &config.tls;
        let has_any = tls.certificate.is_some()
            || tls.key.is_some()
            || config.site.iter().any(|site| site.certificate.is_some() || site.key.is_some());
        let wrong = |what: &str| Err(Error::Config(what.to_owned()));
        match (has_any, tls.listen.is_empty()) {
            (false, true) => return Ok(None),
            (true, false) => {}
            (false, false) => return wrong("tls.certificate: TLS needs tls.certificate and tls.key"),
            (true, true) => {
                return wrong(
                    "tls.listen: the certificate is used on no address; list addresses, for example tls.listen = [\"0.0.0.0:443\"]",
                );
            }
        }
        let mut hosts = Hosts::new(pair("tls", tls.certificate.as_deref(), tls.key.as_deref())?);
        for (index, site) in config.site.iter().enumerate() {
            let section = format!("site[{}]", index + 1);
            let pair = pair(&section, site.certificate.as_deref(), site.key.as_deref())?;
            let Some(own) = pair else { continue };
            for host in &site.hosts {
                // The table of sites reports hosts that are wrong or occur twice.
                let _ = hosts.add(host, own.clone());
            }
            if site.hosts.is_empty() {
                hosts.default = Some(own);
            }
        }
        Ok(Some(Self(hosts)))
    }
}

/// Reads a certificate chain and its key from the files of a section, if it names them.
fn pair(section: &str, certificate: Option<&Path>, key: Option<&Path>) -> Result<Option<Arc<CertifiedKey>>> {
    let wrong = |missing: &str| {
        let text = format!("{section}.{missing}: TLS needs {section}.certificate and {section}.key");
        Err(Error::Config(text))
    };
    match (certificate, key) {
        (None, None) => Ok(None),
        (None, _) => wrong("certificate"),
        (_, None) => wrong("key"),
        (Some(certificate), Some(key)) => certified(section, certificate, key).map(Arc::new).map(Some),
    }
}

fn certified(section: &str, certificate: &Path, key: &Path) -> Result<CertifiedKey> {
    let chain = certificates(&format!("{section}.certificate"), certificate)?;
    let name = format!("{section}.key");
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| unread(&name, key, &error))?;
    CertifiedKey::from_der(chain, private, &default_provider()).map_err(|error| {
        let why = match error {
            rustls::Error::InconsistentKeys(_) => {
                format!("this is not the key of the certificate in {section}.certificate")
            }
            _ => "the certificate or the key cannot be used; RSA, ECDSA and Ed25519 are supported".to_owned(),
        };
        Error::Config(format!("{name} = \"{}\": {why}", key.display()))
    })
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

fn server(certificates: Certificates, for_kernel: bool, has_http2: bool) -> Result<ServerConfig> {
    let mut server = versions(ServerConfig::builder_with_provider)?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(certificates));
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
