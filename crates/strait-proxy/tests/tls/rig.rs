//! A certificate authority, its certificates, a proxy with TLS, and clients.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, StreamOwned};
use strait_proxy::{Clock, Config, Proxy};
use tempfile::TempDir;

/// Timeout of a step on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_mins(1);

/// Certificate authority of one test, and the directory of its files.
pub(crate) struct Authority {
    pub(crate) directory: TempDir,
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        // The name is unique: a client must not take one authority for another.
        params.distinguished_name.push(DnType::CommonName, directory.path().display().to_string());
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        fs::write(directory.path().join("ca.pem"), certificate.pem()).unwrap();
        Self { directory, certificate: certificate.der().clone(), issuer: Issuer::new(params, key) }
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Returns the private key in PEM.
    pub(crate) fn key(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// Signs a certificate for `subject`, and writes it and its key to `NAME.pem` and `NAME.key`.
    pub(crate) fn sign(&self, name: &str, subject: &str, last_year: i32) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([subject.to_owned()]).unwrap();
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(last_year, 1, 1);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        fs::write(self.file(&format!("{name}.pem")), certificate.pem()).unwrap();
        fs::write(self.file(&format!("{name}.key")), key.serialize_pem()).unwrap();
    }

    /// Returns the configuration of a server with the certificate `NAME.pem`.
    pub(crate) fn server(&self, name: &str) -> Arc<ServerConfig> {
        let certificate = CertificateDer::from_pem_file(self.file(&format!("{name}.pem"))).unwrap();
        let key = PrivateKeyDer::from_pem_file(self.file(&format!("{name}.key"))).unwrap();
        let server = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key);
        Arc::new(server.unwrap())
    }

    /// Returns the configuration of a client that trusts the authority.
    pub(crate) fn client(&self) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        let client = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Arc::new(client)
    }
}

/// Proxy of one worker that listens with and without TLS.
pub(crate) struct Rig {
    pub(crate) authority: Authority,
    pub(crate) proxy: Proxy,
    client: Arc<ClientConfig>,
}

impl Rig {
    /// Starts a reverse proxy for `origin`.
    pub(crate) fn for_origin(authority: Authority, origin: &str) -> Self {
        Self::with(authority, &format!("origin = \"{origin}\"\nforwarded = \"off\""))
    }

    pub(crate) fn with(authority: Authority, config: &str) -> Self {
        authority.sign("proxy", "localhost", 2999);
        let path = |name| authority.file(name).display().to_string();
        let text = format!(
            "{config}\nlisten = [\"127.0.0.1:0\"]\nworkers = 1\ntimeouts.drain = 1\ncache.dir = \"{}\"\n\
             [tls]\nlisten = [\"127.0.0.1:0\"]\ncertificate = \"{}\"\nkey = \"{}\"\norigin_ca = \"{}\"\n",
            path("cache"),
            path("proxy.pem"),
            path("proxy.key"),
            path("ca.pem"),
        );
        let proxy = Proxy::start(&Config::from_toml(&text).unwrap(), Clock::system()).unwrap();
        let client = authority.client();
        Self { authority, proxy, client }
    }

    fn address(&self, index: usize) -> SocketAddr {
        self.proxy.addresses().nth(index).unwrap()
    }

    pub(crate) fn plain_address(&self) -> SocketAddr {
        self.address(0)
    }

    pub(crate) fn tls_address(&self) -> SocketAddr {
        self.address(1)
    }

    /// Connects a client without TLS.
    pub(crate) fn plain(&self) -> Client {
        Client::new(Box::new(connect(self.plain_address())))
    }

    /// Connects a client with TLS.
    pub(crate) fn tls(&self) -> Client {
        Client::new(Box::new(self.tls_stream()))
    }

    pub(crate) fn tls_stream(&self) -> StreamOwned<ClientConnection, TcpStream> {
        let name = ServerName::try_from("localhost").unwrap();
        let session = ClientConnection::new(self.client.clone(), name).unwrap();
        StreamOwned::new(session, connect(self.tls_address()))
    }
}

pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let tcp = TcpStream::connect(address).unwrap();
    tcp.set_read_timeout(Some(LIMIT)).unwrap();
    tcp.set_write_timeout(Some(LIMIT)).unwrap();
    tcp
}

pub(crate) trait Bytes: Read + Write + Send {}

impl<T: Read + Write + Send> Bytes for T {}

/// Connection of a client.
pub(crate) struct Client {
    pub(crate) stream: Box<dyn Bytes>,
}

/// Response.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Client {
    fn new(stream: Box<dyn Bytes>) -> Self {
        Self { stream }
    }

    /// Sends a request without a body.
    pub(crate) fn ask(&mut self, line: &str) {
        write!(self.stream, "{line} HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        self.stream.flush().unwrap();
    }

    pub(crate) fn get(&mut self, path: &str) -> Response {
        self.ask(&format!("GET {path}"));
        self.response().unwrap()
    }

    /// Reads a head.
    pub(crate) fn head(&mut self) -> io::Result<String> {
        read_head(&mut self.stream)
    }

    /// Reads a response.
    pub(crate) fn response(&mut self) -> io::Result<Response> {
        let head = self.head()?;
        let mut body = Vec::new();
        if let Some(length) = field(&head, "Content-Length") {
            body = self.read(length.parse().unwrap())?;
        } else if field(&head, "Transfer-Encoding").is_some() {
            loop {
                let line = read_to(&mut self.stream, b"\r\n")?;
                let len = usize::from_str_radix(line.trim(), 16).unwrap();
                body.extend_from_slice(&self.read(len)?);
                self.read(2)?;
                if len == 0 {
                    break;
                }
            }
        } else {
            self.stream.read_to_end(&mut body)?;
        }
        Ok(Response { head, body })
    }

    pub(crate) fn read(&mut self, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

/// Returns the value of a field of a head.
pub(crate) fn field<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    let fields = head.lines().filter_map(|line| line.split_once(": "));
    fields.filter(|field| field.0.eq_ignore_ascii_case(name)).map(|field| field.1).next()
}

/// Reads a head byte by byte, so that the bytes after it stay in the stream.
pub(crate) fn read_head(stream: &mut impl Read) -> io::Result<String> {
    read_to(stream, b"\r\n\r\n")
}

fn read_to(stream: &mut impl Read, end: &[u8]) -> io::Result<String> {
    let mut bytes = Vec::new();
    while !bytes.ends_with(end) {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        bytes.push(byte[0]);
    }
    Ok(String::from_utf8(bytes).unwrap())
}

/// Returns a body of words that all differ.
pub(crate) fn body(len: usize) -> Vec<u8> {
    (0_u32..).flat_map(|number| number.wrapping_mul(0x9e37_79b1).to_le_bytes()).take(len).collect()
}
