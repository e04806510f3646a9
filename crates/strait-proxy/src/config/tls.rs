//! TLS certificates and keys, read at each start and reload.
//!
//! `io::tls` begins sessions with them. Certificates of origins are verified with the system's
//! authorities (rustls-native-certs), which its administrator keeps up to date.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::{Ticketer, default_provider};
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ConfigBuilder, ConfigSide, RootCertStore, ServerConfig, WantsVerifier};
use strait_os::Kind;

use crate::config::edge::{OriginHttp2, Site};
use crate::config::error::{Error, Result};
use crate::config::file::Config;
use crate::config::hosts::Hosts;
use crate::config::ocsp::{Staple, Validity};

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
    note: Option<String>,
    ocsp: Vec<OcspFile>,
}

impl Tls {
    /// Reads certificates and keys; also authorities if the origin uses TLS.
    pub(crate) fn new(config: &Config, uses_tls_to_origin: bool) -> Result<Self> {
        let (tls, has_http2) = (&config.tls, config.http2.is_on(true));
        let mut ocsp = Vec::new();
        let certificates = Certificates::new(config, &mut ocsp)?;
        let is_used = certificates.is_some() || uses_tls_to_origin;
        let (kernel, note) = if is_used && tls.kernel { probe() } else { (false, None) };
        let server = certificates.map(|all| server(all, kernel, has_http2)).transpose()?;
        let client = uses_tls_to_origin.then(|| client(tls.origin_ca.as_deref(), kernel)).transpose()?;
        let (server, client) = (server.map(Arc::new), client.as_ref().map(OriginTls::new));
        Ok(Self { server, client, kernel, note, ocsp })
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

/// Certificates by the host that a client names (SNI, RFC 6066, section 3); the default one is for
/// all other clients.
#[derive(Debug)]
struct Certificates(Hosts<Certificate>);

/// Certificate with its key.
#[derive(Clone, Debug)]
struct Certificate {
    alone: Arc<CertifiedKey>,
    /// With an OCSP response, and its validity.
    stapled: Option<(Arc<CertifiedKey>, Validity)>,
}

impl Certificate {
    /// Returns the certificate, with its OCSP response while clients accept that.
    fn current(&self) -> Arc<CertifiedKey> {
        match &self.stapled {
            Some((stapled, validity)) if validity.why_not(SystemTime::now()).is_none() => stapled.clone(),
            _ => self.alone.clone(),
        }
    }

    /// Adds the OCSP response of a file.
    fn staple(&mut self, path: &Path) -> std::result::Result<Validity, String> {
        let Staple { der, validity } = Staple::read(path, self.alone.cert.first().map_or(&[], |leaf| leaf))?;
        let stapled = CertifiedKey { ocsp: Some(der), ..CertifiedKey::clone(&self.alone) };
        self.stapled = Some((Arc::new(stapled), validity));
        Ok(validity)
    }
}

/// File of an OCSP response, for reports.
#[derive(Clone, Debug)]
pub(crate) struct OcspFile {
    /// Key and path.
    name: String,
    /// Its validity, or the reason why it is not used.
    state: std::result::Result<Validity, String>,
}

impl OcspFile {
    /// Returns a note if clients do not get the response.
    fn note(&self, now: SystemTime) -> Option<String> {
        let why = match &self.state {
            Ok(validity) => validity.why_not(now)?,
            Err(why) => why,
        };
        Some(format!("{}: {why}; clients do not get an OCSP response", self.name))
    }
}

impl ResolvesServerCert for Certificates {
    /// Returns `None`, which ends the handshake, if no certificate is for the client.
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        match hello.server_name() {
            // rustls has converted the name to lower case.
            Some(name) => self.0.find_lower(name),
            None => self.0.default.as_ref(),
        }
        .map(Certificate::current)
    }
}

impl Certificates {
    /// Reads all certificates and keys; `None` if no address uses TLS. Adds the files of OCSP
    /// responses to `ocsp`.
    fn new(config: &Config, ocsp: &mut Vec<OcspFile>) -> Result<Option<Self>> {
        let tls = &config.tls;
        let own = Files { certificate: &tls.certificate, key: &tls.key, ocsp: &tls.ocsp };
        let has_any = own.are_any() || config.site.iter().any(|site| Files::of(site).are_any());
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
        let mut hosts = Hosts::new(own.read("tls", ocsp)?);
        for (index, site) in config.site.iter().enumerate() {
            let section = format!("site[{}]", index + 1);
            let Some(own) = Files::of(site).read(&section, ocsp)? else { continue };
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

/// Files of a certificate that a section names.
struct Files<'a> {
    certificate: &'a Option<PathBuf>,
    key: &'a Option<PathBuf>,
    ocsp: &'a Option<PathBuf>,
}

impl<'a> Files<'a> {
    fn of(site: &'a Site) -> Self {
        Self { certificate: &site.certificate, key: &site.key, ocsp: &site.ocsp }
    }

    fn are_any(&self) -> bool {
        [self.certificate, self.key, self.ocsp].into_iter().any(Option::is_some)
    }

    /// Reads the files, if the section names them.
    fn read(&self, section: &str, ocsp: &mut Vec<OcspFile>) -> Result<Option<Certificate>> {
        let wrong = |missing: &str| {
            let text = format!("{section}.{missing}: TLS needs {section}.certificate and {section}.key");
            Err(Error::Config(text))
        };
        let alone = match (self.certificate, self.key) {
            (None, None) if self.ocsp.is_some() => return wrong("certificate"),
            (None, None) => return Ok(None),
            (None, _) => return wrong("certificate"),
            (_, None) => return wrong("key"),
            (Some(certificate), Some(key)) => certified(section, certificate, key)?,
        };
        let mut certificate = Certificate { alone: Arc::new(alone), stapled: None };
        if let Some(path) = self.ocsp {
            let state = certificate.staple(path);
            ocsp.push(OcspFile { name: format!("{section}.ocsp = \"{}\"", path.display()), state });
        }
        Ok(Some(certificate))
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
