//! TLS configurations for both sides, made at each start and reload.
//!
//! `io::tls` begins sessions with them. Certificates of origins are verified with the system's
//! authorities (rustls-native-certs), which its administrator keeps up to date.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::{Ticketer, default_provider};
use rustls::{ClientConfig, ConfigBuilder, ConfigSide, RootCertStore, ServerConfig, WantsVerifier};
use strait_os::Kind;

use crate::config::certificates::{Certificates, OcspFile, chain_of};
use crate::config::edge::OriginHttp2;
use crate::config::error::{Error, Result};
use crate::config::file::Config;

/// Protocols inside TLS, announced by ALPN (RFC 7301).
const PROTOCOL: &[u8] = b"http/1.1";
pub(crate) const HTTP2: &[u8] = b"h2";

/// TLS configurations for both sides.
#[derive(Clone, Debug)]
pub(crate) struct Tls {
    /// For connections from clients.
    pub(crate) server: Option<Arc<ServerConfig>>,
    /// For connections to origins, and to a collector of spans.
    pub(crate) client: Option<OriginTls>,
    /// True if the kernel encrypts after the handshake.
    pub(crate) kernel: bool,
    /// Note for the operator: the kernel cannot encrypt, and why.
    note: Option<String>,
    ocsp: Vec<OcspFile>,
    certificates: Option<Arc<Certificates>>,
}

impl Tls {
    /// Reads certificates and keys; also authorities if the proxy is a client of TLS. Certificates
    /// of unchanged files are those of `before`.
    pub(crate) fn new(config: &Config, is_tls_client: bool, before: Option<&Self>) -> Result<Self> {
        let (tls, has_http2) = (&config.tls, config.http2.is_on(true));
        let mut ocsp = Vec::new();
        let before = before.and_then(|before| before.certificates.as_deref());
        let certificates = Certificates::read(config, &mut ocsp, before)?.map(Arc::new);
        let is_used = certificates.is_some() || is_tls_client;
        let (kernel, note) = if is_used && tls.kernel { probe() } else { (false, None) };
        let server = certificates.as_ref().map(|all| server(all, kernel, has_http2)).transpose()?;
        let client = is_tls_client.then(|| client(tls.origin_ca.as_deref(), kernel)).transpose()?;
        let (server, client) = (server.map(Arc::new), client.as_ref().map(OriginTls::new));
        Ok(Self { server, client, kernel, note, ocsp, certificates })
    }

    /// Returns the configurations of a client alone.
    #[cfg(feature = "otlp")]
    pub(crate) fn of_client(&self) -> Self {
        let (client, kernel) = (self.client.clone(), self.kernel);
        Self { server: None, client, kernel, note: None, ocsp: Vec::new(), certificates: None }
    }

    /// Returns the hosts of the certificates with the seconds at which they expire; `*` stands for
    /// all other hosts.
    pub(crate) fn expiries(&self) -> Vec<(&str, u64)> {
        self.certificates.as_ref().map(|all| all.expiries()).unwrap_or_default()
    }

    /// Returns a note for each site with hosts that its certificate is not for.
    pub(crate) fn foreign_hosts(&self, config: &Config) -> Vec<String> {
        self.certificates.as_ref().map(|all| all.foreign_hosts(config)).unwrap_or_default()
    }

    /// Returns notes for the operator at that time.
    pub(crate) fn notes(&self, now: SystemTime) -> Vec<String> {
        self.note.iter().cloned().chain(self.ocsp.iter().filter_map(|file| file.note(now))).collect()
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

fn server(certificates: &Arc<Certificates>, for_kernel: bool, has_http2: bool) -> Result<ServerConfig> {
    let mut server = versions(ServerConfig::builder_with_provider)?
        .with_no_client_auth()
        .with_cert_resolver(certificates.clone());
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
        for certificate in chain_of("tls.origin_ca", path)? {
            roots.add(certificate).map_err(|_| {
                let path = path.display();
                Error::Config(format!("tls.origin_ca = \"{path}\": a certificate in it is damaged"))
            })?;
        }
    }
    if roots.is_empty() {
        return Err(Error::Config(
            "TLS to origins and collectors: the system has no certificates of authorities (Debian: ca-certificates), and tls.origin_ca is not set"
                .to_owned(),
        ));
    }
    let mut client =
        versions(ClientConfig::builder_with_provider)?.with_root_certificates(roots).with_no_client_auth();
    client.enable_secret_extraction = for_kernel;
    Ok(client)
}
