//! Start and reload of Strait's proxy with many certificates, each of a site of its own: time, CPU
//! time and memory.
//!
//! The contestants are the types of keys, and the same sites without certificates. Each certificate
//! is signed by one authority, and its file also has the certificate of this authority, as usual.

use std::fmt::{self, Write as _};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustix::process::Signal;

use crate::child::{Child, Launcher};
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::proxy::peer::{Directories, Directory, STRAIT, find};
use crate::proxy::tree;
use crate::results::{Figures, Results};
use crate::rounds::{self, Definition, Report};
use crate::wire::End;

/// Number of RSA keys, which the certificates have in turn: to make one takes a tenth of a second.
const RSA_KEYS: usize = 16;
/// Limit of the time of a start, and of a reload.
const READY_MAX: Duration = Duration::from_mins(5);
/// Name of the configuration.
const FILE: &str = "strait.toml";

/// Numbers of certificates, and rounds.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Numbers of certificates.
    pub certificates: Vec<u32>,
    /// Number of starts.
    pub rounds: u32,
}

/// Keys of the certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keys {
    /// The sites have no certificates.
    None,
    EcdsaP256,
    Rsa2048,
}

impl fmt::Display for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::EcdsaP256 => "ecdsa-p256",
            Self::Rsa2048 => "rsa-2048",
        })
    }
}

/// Measures starts with each number of certificates. Their files are below `directory`.
///
/// # Errors
/// The proxy cannot be measured; the signal.
pub fn run(
    launcher: &Launcher,
    directory: &Path,
    plan: &Plan,
    machine: Machine,
    progress: &mut Report<'_>,
    terminated: &AtomicBool,
) -> Result<Results> {
    let directories = Directories::new(directory)?;
    let definition = Definition {
        benchmark: "certificates",
        about: "Start of the proxy with one worker and many sites, each with a certificate of its own and that of its issuer, \
             until it listens; then a reload of the same files. Memory at rest is the resident memory after the start."
            .to_owned(),
        axis: "certificates",
        unit: "certificates",
        labels: Vec::new(),
        contestants: &[Keys::None, Keys::EcdsaP256, Keys::Rsa2048],
        places: &plan.certificates,
        rounds: plan.rounds,
        seconds: 0.0,
    };
    let probe = |keys| match keys {
        Keys::Rsa2048 => find("openssl").map(drop),
        Keys::None | Keys::EcdsaP256 => STRAIT.version(launcher).map(drop),
    };
    rounds::run(&definition, machine, progress, probe, |keys, count| {
        let started = rounds::attempt(terminated, || {
            let files = directories.next()?;
            write_files(&files, keys, count)?;
            start(launcher, &files)
        })?;
        Ok((started, String::new()))
    })
}

/// Starts the proxy, lets it reload, and returns the figures of both.
fn start(launcher: &Launcher, files: &Directory) -> Result<Figures> {
    let config = format!("--config={}", files.path().join(FILE).display());
    let program = launcher.strait(["proxy".to_owned(), "--workers=1".to_owned(), config]);
    let began = Instant::now();
    let mut proxy = launcher.start(&End::own("lo"), &program, &[], READY_MAX * 2)?;
    proxy.wait_until(READY_MAX, |child| has_line(child, "listening on "))?;
    let start_time = began.elapsed();
    let start_cpu = proxy.cost()?.cpu;
    let (at_rest, start_peak) = (tree::resident(proxy.id()), tree::memory(proxy.id()));
    let began = Instant::now();
    proxy.signal(Signal::HUP)?;
    proxy.wait_until(READY_MAX, |child| has_line(child, "reloaded"))?;
    let reload_time = began.elapsed();
    let reload_cpu = proxy.cost()?.cpu.saturating_sub(start_cpu);
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let figures = [
        ("start_ms", ms(start_time)),
        ("start_cpu_ms", ms(start_cpu)),
        ("at_rest_mib", mib(at_rest)),
        ("start_peak_mib", mib(start_peak)),
        ("reload_ms", ms(reload_time)),
        ("reload_cpu_ms", ms(reload_cpu)),
        ("memory_mib", mib(tree::memory(proxy.id()))),
    ];
    crate::proxy::peer::stop(proxy);
    Ok(figures.map(|(name, value)| (name.to_owned(), value)).into())
}

fn has_line(proxy: &Child, begin: &str) -> Result<bool> {
    Ok(proxy.stderr()?.lines().any(|line| line.starts_with(begin)))
}

/// Writes certificates, keys and the configuration.
fn write_files(files: &Directory, keys: Keys, count: u32) -> Result<()> {
    let listen = match keys {
        Keys::None => "listen = [\"127.0.0.1:0\"]\n",
        _ => "listen = []\n[tls]\nlisten = [\"127.0.0.1:0\"]\n",
    };
    let authority = Authority::new(keys)?;
    let mut config = listen.to_owned();
    for number in 0..count {
        let host = format!("www{number}.example");
        let mut lines = String::new();
        if keys != Keys::None {
            let (certificate, key) = authority.sign(&host, number)?;
            let [certificate_file, key_file] = ["pem", "key"].map(|end| format!("{number}.{end}"));
            files.write(&certificate_file, &certificate)?;
            files.write(&key_file, &key)?;
            let dir = files.path().display();
            lines = format!("certificate = \"{dir}/{certificate_file}\"\nkey = \"{dir}/{key_file}\"\n");
        }
        // Writing to a string cannot fail.
        let _ = write!(
            config,
            "[[site]]\nhosts = [\"{host}\"]\n{lines}[[site.route]]\nrespond = {{ body = \"{number}\" }}\n"
        );
    }
    files.write(FILE, &config)
}

/// Certificate authority.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
    /// Keys of the certificates, in PEM. Empty: a new one for each.
    keys: Vec<String>,
}

impl Authority {
    fn new(keys: Keys) -> Result<Self> {
        let key = KeyPair::generate().map_err(|error| unmade(&error))?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "strait bench certificates");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).map_err(|error| unmade(&error))?.pem();
        let keys = match keys {
            Keys::Rsa2048 => (0..RSA_KEYS).map(|_| rsa_key()).collect::<Result<_>>()?,
            Keys::None | Keys::EcdsaP256 => Vec::new(),
        };
        Ok(Self { issuer: Issuer::new(params, key), certificate, keys })
    }

    /// Returns a certificate for a host, followed by that of the authority, and its key, in PEM.
    fn sign(&self, host: &str, number: u32) -> Result<(String, String)> {
        let key = match self.keys.get(number as usize % self.keys.len().max(1)) {
            Some(pem) => KeyPair::from_pem(pem),
            None => KeyPair::generate(),
        };
        let key = key.map_err(|error| unmade(&error))?;
        let params = CertificateParams::new([host.to_owned()]).map_err(|error| unmade(&error))?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(|error| unmade(&error))?.pem();
        Ok((certificate + &self.certificate, key.serialize_pem()))
    }
}

fn unmade(error: &rcgen::Error) -> Error {
    Error::Invalid(format!("no certificate can be made: {error}"))
}

/// Makes an RSA key, which the library for certificates cannot.
fn rsa_key() -> Result<String> {
    let failed = |error| Error::file("start openssl", error);
    let arguments = ["genpkey", "-quiet", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"];
    let output = Command::new(find("openssl")?).args(arguments).output().map_err(failed)?;
    match String::from_utf8(output.stdout) {
        Ok(key) if output.status.success() => Ok(key),
        _ => Err(Error::Invalid(format!("openssl makes no key: {}", output.status))),
    }
}
