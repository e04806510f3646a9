//! Certificates of the proxy and their keys, found by the host that a client names.
//!
//! [`crate::config::tls`] reads them at each start and reload, and each key is checked then. A pair
//! of files with the bytes of before is not parsed again.
//!
//! Most of many certificates are idle, so they are kept small: in DER, and the certificate of an
//! issuer once. A handshake copies its chain. The keys that were parsed last are kept ready to
//! sign, which takes twice the memory; that of another one is parsed in the handshake.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::SystemTime;

use der::Decode as _;
use rustls::client::verify_server_name;
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::default_provider;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert};
use rustls::sign::{CertifiedKey, SigningKey};
use sha2::{Digest as _, Sha256};

use crate::config::check::refused;
use crate::config::edge::Site;
use crate::config::error::{Error, Result};
use crate::config::file::Config;
use crate::config::hosts::Hosts;
use crate::config::ocsp::{Staple, Validity};

/// Maximum length in bytes of a file with a certificate or a key.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Maximum of keys that are ready to sign.
const READY_MAX: usize = 1024;

/// SHA-256 of the bytes of a certificate's two files.
type Digest = [u8; 32];

/// Certificates by the host that a client names (SNI, RFC 6066, section 3); the default one is for
/// all other clients.
#[derive(Debug)]
pub(crate) struct Certificates {
    hosts: Hosts<Certificate>,
    /// Parsed files, for the next reload.
    pairs: HashMap<Digest, Arc<Pair>>,
    ready: ReadyKeys,
}

/// Certificate with its key, and its OCSP response if there is one.
#[derive(Clone, Debug)]
struct Certificate {
    pair: Arc<Pair>,
    staple: Option<Arc<Staple>>,
}

/// Chain of a certificate, and its key, which were checked against each other.
#[derive(Debug)]
struct Pair {
    digest: Digest,
    /// Certificates in DER; the first one is the proxy's own.
    chain: Box<[Arc<[u8]>]>,
    key: PrivateKeyDer<'static>,
    /// Second at which the certificate expires, once it was asked for.
    expiry: OnceLock<Option<u64>>,
}

/// Keys that were parsed last, ready to sign.
#[derive(Debug, Default)]
struct ReadyKeys(Mutex<Ready>);

#[derive(Debug, Default)]
struct Ready {
    keys: HashMap<Digest, Arc<dyn SigningKey>>,
    /// Digests in the order in which the keys were added.
    order: VecDeque<Digest>,
}

impl ReadyKeys {
    /// Returns the key of a pair. Parses it if it is not ready; it then replaces the oldest one.
    fn of(&self, pair: &Pair) -> Option<Arc<dyn SigningKey>> {
        let ready = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(key) = ready().keys.get(&pair.digest) {
            return Some(key.clone());
        }
        // Parsed without the lock. It was checked before, so it does not fail.
        let key = any_supported_type(&pair.key).ok()?;
        ready().add(pair.digest, key.clone());
        Some(key)
    }
}

impl Ready {
    fn add(&mut self, digest: Digest, key: Arc<dyn SigningKey>) {
        if self.keys.insert(digest, key).is_some() {
            return;
        }
        self.order.push_back(digest);
        if self.order.len() > READY_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.keys.remove(&oldest);
        }
    }
}

impl Certificate {
    /// Returns the certificate for a handshake, with its OCSP response while clients accept that.
    fn current(&self, ready: &ReadyKeys) -> Option<CertifiedKey> {
        let key = ready.of(&self.pair)?;
        let cert = self.pair.chain.iter().map(|der| CertificateDer::from(der.to_vec())).collect();
        let is_valid = |staple: &&Arc<Staple>| staple.validity.why_not(SystemTime::now()).is_none();
        let ocsp = self.staple.as_ref().filter(is_valid).map(|staple| staple.der.clone());
        Some(CertifiedKey { cert, key, ocsp })
    }

    /// Adds the OCSP response of a file.
    fn staple(&mut self, path: &Path) -> std::result::Result<Validity, String> {
        let staple = Staple::read(path, self.pair.chain.first().map_or(&[], |leaf| leaf))?;
        let validity = staple.validity;
        self.staple = Some(Arc::new(staple));
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
    pub(crate) fn note(&self, now: SystemTime) -> Option<String> {
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
        let found = match hello.server_name() {
            // rustls has converted the name to lower case.
            Some(name) => self.hosts.find_lower(name),
            None => self.hosts.default.as_ref(),
        };
        found?.current(&self.ready).map(Arc::new)
    }
}

impl Certificates {
    /// Reads all certificates and keys; `None` if no address uses TLS. Adds the files of OCSP
    /// responses to `ocsp`.
    pub(crate) fn read(
        config: &Config,
        ocsp: &mut Vec<OcspFile>,
        before: Option<&Self>,
    ) -> Result<Option<Self>> {
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
        let mut reader = Reader::new(before);
        let mut problems = Vec::new();
        let mut read = |files: Files<'_>, section: &str| {
            files.read(section, &mut reader, ocsp).unwrap_or_else(|error| {
                problems.push(error.to_string());
                None
            })
        };
        let mut hosts = Hosts::new(read(own, "tls"));
        for (index, site) in config.site.iter().enumerate() {
            let section = format!("site[{}]", index + 1);
            let Some(own) = read(Files::of(site), &section) else { continue };
            for host in &site.hosts {
                // The table of sites reports hosts that are wrong or occur twice.
                let _ = hosts.add(host, own.clone());
            }
            if site.hosts.is_empty() {
                hosts.default = Some(own);
            }
        }
        refused(&problems)?;
        Ok(Some(Self { hosts, pairs: reader.pairs, ready: ReadyKeys::default() }))
    }
}

impl Certificates {
    /// Returns the hosts with the seconds at which their certificates expire.
    pub(crate) fn expiries(&self) -> Vec<(&str, u64)> {
        let expiry = |(host, own): (_, &Certificate)| Some((host, own.pair.expiry()?));
        self.hosts.iter().filter_map(expiry).collect()
    }

    /// Returns a note for each site with a host that its certificate is not for. Sites without a
    /// certificate of their own may have clients without TLS alone, unless they need it.
    pub(crate) fn foreign_hosts(&self, config: &Config) -> Vec<String> {
        let mut notes = Vec::new();
        for (index, site) in config.site.iter().enumerate() {
            let needs_tls = site.https || site.certificate.is_some();
            let Some(host) = site.hosts.iter().find(|host| needs_tls && self.is_foreign(host)) else {
                continue;
            };
            let of = if site.certificate.is_some() { "of the site" } else { "of [tls]" };
            notes.push(format!(
                "site[{}].hosts: the certificate {of} is not for \"{host}\"; clients refuse it",
                index + 1
            ));
        }
        notes
    }

    /// Returns true if the certificate of a host is for other names.
    fn is_foreign(&self, host: &str) -> bool {
        let name = host.to_ascii_lowercase();
        // A certificate for all names below a domain is for each of them.
        let name = name.strip_prefix("*.").map_or(name.clone(), |domain| format!("any.{domain}"));
        let leaf = self.hosts.find_lower(&name).and_then(|own| own.pair.chain.first());
        let (Some(leaf), Ok(name)) = (leaf, ServerName::try_from(name.trim_matches(['[', ']']))) else {
            return false;
        };
        let leaf = CertificateDer::from(&**leaf);
        ParsedCertificate::try_from(&leaf).is_ok_and(|leaf| verify_server_name(&leaf, &name).is_err())
    }
}

impl Pair {
    /// Returns the second at which the certificate expires; `None` if it is not in strict DER.
    fn expiry(&self) -> Option<u64> {
        let parse = || {
            let leaf = x509_cert::Certificate::from_der(self.chain.first()?).ok()?;
            Some(leaf.tbs_certificate.validity.not_after.to_unix_duration().as_secs())
        };
        *self.expiry.get_or_init(parse)
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
    fn read(
        &self,
        section: &str,
        reader: &mut Reader<'_>,
        ocsp: &mut Vec<OcspFile>,
    ) -> Result<Option<Certificate>> {
        let wrong = |missing: &str| {
            let text = format!("{section}.{missing}: TLS needs {section}.certificate and {section}.key");
            Err(Error::Config(text))
        };
        let pair = match (self.certificate, self.key) {
            (None, None) if self.ocsp.is_some() => return wrong("certificate"),
            (None, None) => return Ok(None),
            (None, _) => return wrong("certificate"),
            (_, None) => return wrong("key"),
            (Some(certificate), Some(key)) => reader.pair(section, certificate, key)?,
        };
        let mut certificate = Certificate { pair, staple: None };
        if let Some(path) = self.ocsp {
            let state = certificate.staple(path);
            ocsp.push(OcspFile { name: format!("{section}.ocsp = \"{}\"", path.display()), state });
        }
        Ok(Some(certificate))
    }
}

/// Reader of the files of certificates and keys.
struct Reader<'a> {
    before: Option<&'a Certificates>,
    provider: CryptoProvider,
    pairs: HashMap<Digest, Arc<Pair>>,
    /// Certificates of issuers, in DER.
    issuers: HashSet<Arc<[u8]>>,
    /// Bytes of the current files, and of earlier ones.
    certificate: Vec<u8>,
    key: Vec<u8>,
}

impl<'a> Reader<'a> {
    fn new(before: Option<&'a Certificates>) -> Self {
        let pairs = before.iter().flat_map(|before| before.pairs.values());
        let issuers = pairs.flat_map(|pair| pair.chain.iter().skip(1).cloned()).collect();
        Self {
            before,
            provider: default_provider(),
            pairs: HashMap::new(),
            issuers,
            certificate: Vec::new(),
            key: Vec::new(),
        }
    }

    /// Reads a certificate and its key.
    fn pair(&mut self, section: &str, certificate: &Path, key: &Path) -> Result<Arc<Pair>> {
        let unread = |of: &str, path: &Path, error| unread(&format!("{section}.{of}"), path, &error);
        let own = read(certificate, &mut self.certificate)
            .map_err(|error| unread("certificate", certificate, error));
        let of_key = read(key, &mut self.key).map_err(|error| unread("key", key, error));
        match own {
            Ok(()) => of_key?,
            Err(error) => return Err(error.and(|| of_key.err())),
        }
        let digest = self.digest();
        let known = self.pairs.get(&digest);
        let known = known.or_else(|| self.before.and_then(|before| before.pairs.get(&digest)));
        let pair = match known.cloned() {
            Some(pair) => pair,
            None => Arc::new(self.parse(digest, section, (certificate, key))?),
        };
        self.pairs.insert(digest, pair.clone());
        Ok(pair)
    }

    /// Returns the digest of the current files.
    fn digest(&self) -> Digest {
        let mut digest = Sha256::new();
        // The length separates the files.
        digest.update((self.certificate.len() as u64).to_be_bytes());
        digest.update(&self.certificate);
        digest.update(&self.key);
        digest.finalize().into()
    }

    /// Parses the current files, and checks that the key is that of the certificate.
    fn parse(&mut self, digest: Digest, section: &str, (certificate, key): (&Path, &Path)) -> Result<Pair> {
        let name = format!("{section}.key");
        let chain = certificates(&self.certificate);
        let chain = chain.map_err(|error| unread(&format!("{section}.certificate"), certificate, &error))?;
        let private = PrivateKeyDer::from_pem_slice(&self.key).map_err(|error| unread(&name, key, &error))?;
        // A copy has no spare capacity.
        let kept = private.clone_key();
        let certified = CertifiedKey::from_der(chain, private, &self.provider).map_err(|error| {
            let why = match error {
                rustls::Error::InconsistentKeys(_) => {
                    format!("this is not the key of the certificate in {section}.certificate")
                }
                _ => "the certificate or the key cannot be used; RSA, ECDSA and Ed25519 are supported"
                    .to_owned(),
            };
            Error::Config(format!("{name} = \"{}\": {why}", key.display()))
        })?;
        let chain = certified.cert.iter().enumerate().map(|(place, der)| match place {
            0 => Arc::from(&**der),
            _ => self.issuer(der),
        });
        Ok(Pair { digest, chain: chain.collect(), key: kept, expiry: OnceLock::new() })
    }

    /// Returns the certificate of an issuer, of which there is one copy.
    fn issuer(&mut self, der: &[u8]) -> Arc<[u8]> {
        if let Some(known) = self.issuers.get(der) {
            return known.clone();
        }
        let issuer: Arc<[u8]> = der.into();
        self.issuers.insert(issuer.clone());
        issuer
    }
}

/// Reads a file into a buffer.
fn read(path: &Path, buffer: &mut Vec<u8>) -> std::result::Result<(), pem::Error> {
    buffer.clear();
    let read = File::open(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(buffer));
    match read {
        Err(error) => Err(pem::Error::Io(error)),
        Ok(len) if len as u64 > FILE_BYTES_MAX => {
            Err(pem::Error::Io(io::Error::other("it is longer than 4 MiB")))
        }
        Ok(_) => Ok(()),
    }
}

/// Returns the certificates of a file.
pub(crate) fn chain_of(name: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let mut bytes = Vec::new();
    let chain = read(path, &mut bytes).and_then(|()| certificates(&bytes));
    chain.map_err(|error| unread(name, path, &error))
}

/// Returns the certificates in a text in PEM, of which there is at least one.
fn certificates(bytes: &[u8]) -> std::result::Result<Vec<CertificateDer<'static>>, pem::Error> {
    let all = CertificateDer::pem_slice_iter(bytes).collect::<std::result::Result<Vec<_>, _>>()?;
    if all.is_empty() { Err(pem::Error::NoItemsFound) } else { Ok(all) }
}

fn unread(name: &str, path: &Path, error: &pem::Error) -> Error {
    let why = match error {
        pem::Error::Io(error) => format!("the file cannot be read: {error}"),
        pem::Error::NoItemsFound => "the file has no such block in PEM format".to_owned(),
        _ => "the file is damaged: a PEM block is incomplete or not base64".to_owned(),
    };
    Error::Config(format!("{name} = \"{}\": {why}", path.display()))
}

#[cfg(test)]
mod tests;
