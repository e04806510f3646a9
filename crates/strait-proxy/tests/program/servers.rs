//! Real origins: nginx, Apache and Python's http.server, each on a loopback address of its own,
//! with a log of its requests.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, SystemTime};

use lab::{Launch, Process, program_or_skip, skip, wait_until};
use tempfile::TempDir;

use crate::rig::LIMIT;

/// Ports without and with TLS. They are fixed, because these servers do not print a free port; the
/// addresses differ.
const PORT: u16 = 8080;
pub(crate) const TLS_PORT: u16 = 8443;

/// Web server and its files.
pub(crate) struct Web {
    process: Process,
    pub(crate) address: SocketAddr,
    /// Directory of this server; its files are in `files`.
    directory: TempDir,
    log: PathBuf,
}

/// Server program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Nginx,
    Apache,
    Python,
}

impl Kind {
    fn program(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::Apache => "apache2",
            Self::Python => "python3",
        }
    }
}

impl Web {
    /// Starts one that serves the files that `make` creates, fresh for an hour. Skips the test if
    /// the program is missing.
    pub(crate) fn start(kind: Kind, make: impl FnOnce(&Path)) -> Option<Self> {
        Self::start_at(own_address(), kind, "", make)
    }

    /// Starts one at an address, with more configuration.
    pub(crate) fn start_at(ip: Ipv4Addr, kind: Kind, more: &str, make: impl FnOnce(&Path)) -> Option<Self> {
        let program = find(kind.program())?;
        let directory = tempfile::tempdir().unwrap();
        let files = directory.path().join("files");
        fs::create_dir(&files).unwrap();
        make(&files);
        let address = SocketAddr::from((ip, PORT));
        let (at, log) = (directory.path(), directory.path().join("log"));
        let config = at.join("config");
        let launch = Launch::new(program);
        let launch = match kind {
            Kind::Nginx => {
                fs::write(&config, nginx(at, address, more)).unwrap();
                launch.arg("-p").arg(at).arg("-e").arg(at.join("errors")).arg("-c").arg(&config)
            }
            Kind::Apache => {
                fs::write(&config, apache(at, address, more)).unwrap();
                launch.args(["-X", "-f"]).arg(&config)
            }
            Kind::Python => {
                let bind = address.ip().to_string();
                let arguments = ["-u", "-m", "http.server", "8080", "--bind", &bind, "--directory"];
                launch.args(arguments).arg(&files)
            }
        };
        let process = launch.spawn().unwrap();
        let is_up = wait_until(LIMIT, || TcpStream::connect(address).is_ok());
        assert!(is_up, "{kind:?}: {}", process.stderr());
        Some(Self { process, address, directory, log })
    }

    /// Returns the directory of its files.
    pub(crate) fn files(&self) -> PathBuf {
        self.directory.path().join("files")
    }

    /// Returns the URL of a file.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address)
    }

    /// Returns the lines of its log about complete and partial responses, without those about 304.
    pub(crate) fn sent(&self) -> Vec<String> {
        let text = fs::read_to_string(&self.log).unwrap_or_else(|_| self.process.stderr());
        let is_sent = |line: &&str| line.contains("\" 200 ") || line.contains("\" 206 ");
        text.lines().filter(is_sent).map(str::to_owned).collect()
    }
}

/// Finds a program: on the PATH, where Debian keeps daemons, or where `make setup` unpacked it.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    let unpacked = cache.map(|cache| cache.join("strait/programs").join(program).join("usr/sbin"));
    let daemons = [Some("/usr/sbin".into()), unpacked].into_iter().flatten();
    let found = daemons.map(|folder| folder.join(program)).find(|path| path.is_file());
    if found.is_none() && program_or_skip(program) { Some(program.into()) } else { found }
}

/// Returns a loopback address for this process and one of its servers alone.
pub(crate) fn own_address() -> Ipv4Addr {
    static TAKEN: AtomicU8 = AtomicU8::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 1 + high % 254, low, TAKEN.fetch_add(1, Ordering::Relaxed))
}

/// Configuration of an installed nginx, with directories of its own.
fn nginx(at: &Path, address: SocketAddr, more: &str) -> String {
    let at = at.display();
    format!(
        "daemon off; master_process off; pid {at}/pid;
events {{}}
http {{
    access_log {at}/log;
    client_body_temp_path {at}/body; proxy_temp_path {at}/proxy; fastcgi_temp_path {at}/fastcgi;
    uwsgi_temp_path {at}/uwsgi; scgi_temp_path {at}/scgi;
    types {{ text/html html; text/css css; text/javascript js; image/svg+xml svg; }}
    sendfile on; tcp_nopush on; expires 1h; root {at}/files;
    server {{ listen {address}; {more} }}
}}
"
    )
}

/// Configuration of Apache with the modules that it needs.
fn apache(at: &Path, address: SocketAddr, more: &str) -> String {
    const MODULES: [&str; 10] =
        ["mpm_event", "authz_core", "mime", "dir", "expires", "env", "alias", "dav", "dav_fs", "cgid"];
    let load = |name: &str| format!("LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so\n");
    let (modules, at): (String, _) = (MODULES.map(load).concat(), at.display());
    format!(
        "{modules}ServerName origin.test
Listen {address}
ServerRoot {at}
PidFile {at}/pid
DefaultRuntimeDir {at}
ScriptSock {at}/cgid
Mutex file:{at}
ErrorLog {at}/errors
LogFormat \"%h %l %u %t \\\"%r\\\" %>s %b\" common
CustomLog {at}/log common
DocumentRoot {at}/files
TypesConfig /dev/null
AddType text/html .html
DavLockDB {at}/locks
ExpiresActive On
ExpiresDefault \"access plus 1 hour\"
{more}
"
    )
}

/// Writes a file last changed ten days ago: a response without a lifetime is then stored by
/// heuristic freshness (RFC 9111, section 4.2.2).
pub(crate) fn write_old(path: &Path, bytes: &[u8]) {
    const AGE: Duration = Duration::from_hours(240);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::now() - AGE).unwrap();
}

/// Makes a certificate for an address and its key, as files in one directory. Skips the test
/// without openssl.
pub(crate) fn certificate(folder: &Path, address: Ipv4Addr) -> Option<(PathBuf, PathBuf)> {
    if !program_or_skip("openssl") {
        return None;
    }
    let (certificate, key) = (folder.join("certificate.pem"), folder.join("key.pem"));
    let names = format!("subjectAltName=IP:{address}");
    let launch = Launch::new("openssl").args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]);
    let launch = launch.args(["-subj", "/CN=origin.test", "-addext", &names, "-keyout"]).arg(&key);
    let made = launch.arg("-out").arg(&certificate).run(LIMIT).unwrap();
    if !made.status.success() {
        skip(format!("openssl makes no certificate: {}", made.stderr));
        return None;
    }
    Some((certificate, key))
}
