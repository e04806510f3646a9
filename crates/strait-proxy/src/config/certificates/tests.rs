//! Counts of parsed certificates, and refused keys of each type.

use std::fs;
use std::process::Command;

use rcgen::{CertificateParams, Issuer, KeyPair};
use tempfile::TempDir;

use super::*;

/// Authority, and the directory of its certificates.
struct Authority {
    dir: TempDir,
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

impl Authority {
    fn new() -> Self {
        let (key, params) = (KeyPair::generate().unwrap(), CertificateParams::default());
        let certificate = params.self_signed(&key).unwrap().pem();
        Self { dir: tempfile::tempdir().unwrap(), issuer: Issuer::new(params, key), certificate }
    }

    /// Writes a certificate, followed by that of the authority, to `NAME.pem`, and the key to
    /// `NAME.key`.
    fn sign(&self, name: &str, key: &KeyPair) {
        let own = CertificateParams::new([name.to_owned()]).unwrap().signed_by(key, &self.issuer).unwrap();
        fs::write(self.path(name, "pem"), own.pem() + &self.certificate).unwrap();
        fs::write(self.path(name, "key"), key.serialize_pem()).unwrap();
    }

    fn sign_new(&self, name: &str) {
        self.sign(name, &KeyPair::generate().unwrap());
    }

    fn path(&self, name: &str, end: &str) -> PathBuf {
        self.dir.path().join(format!("{name}.{end}"))
    }

    /// Reads the certificates of sites, which have the names of their files.
    fn read(&self, names: &[&str], before: Option<&Certificates>) -> Result<Certificates> {
        let site = |(number, name): (usize, &&str)| {
            let [certificate, key] = ["pem", "key"].map(|end| self.path(name, end).display().to_string());
            format!(
                "[[site]]\nhosts = [\"{number}.example\"]\ncertificate = \"{certificate}\"\nkey = \"{key}\"\n"
            )
        };
        let sites: String = names.iter().enumerate().map(site).collect();
        let toml = format!("tls.listen = [\"127.0.0.1:0\"]\n{sites}");
        let config = Config::from_toml(&toml).unwrap();
        Certificates::read(&config, &mut Vec::new(), before).map(Option::unwrap)
    }
}

fn pair(certificates: &Certificates, site: usize) -> &Arc<Pair> {
    &certificates.hosts.find_lower(&format!("{site}.example")).unwrap().pair
}

#[test]
fn files_with_the_bytes_of_before_are_not_parsed_again() {
    let authority = Authority::new();
    authority.sign_new("a");
    authority.sign_new("b");
    let first = authority.read(&["a", "b", "a"], None).unwrap();
    assert!(Arc::ptr_eq(pair(&first, 0), pair(&first, 2)), "one pair of files for two sites");
    assert_eq!(first.pairs.len(), 2);

    let second = authority.read(&["b", "a"], Some(&first)).unwrap();
    assert!(Arc::ptr_eq(pair(&second, 0), pair(&first, 1)) && Arc::ptr_eq(pair(&second, 1), pair(&first, 0)));

    authority.sign_new("b");
    let third = authority.read(&["a", "b"], Some(&second)).unwrap();
    assert!(Arc::ptr_eq(pair(&third, 0), pair(&first, 0)), "its files are the same");
    assert!(!Arc::ptr_eq(pair(&third, 1), pair(&first, 1)), "its files are others");
    assert_eq!(third.pairs.len(), 2, "no pair of before is left");
    // The issuer of both is in memory once.
    assert!(Arc::ptr_eq(&pair(&third, 0).chain[1], &pair(&third, 1).chain[1]));
}

#[test]
fn key_of_another_certificate_is_refused_in_each_read() {
    let authority = Authority::new();
    authority.sign_new("a");
    authority.sign_new("b");
    let first = authority.read(&["a", "b"], None).unwrap();
    fs::copy(authority.path("a", "key"), authority.path("b", "key")).unwrap();
    for before in [None, Some(&first)] {
        let error = authority.read(&["a", "b"], before).unwrap_err().to_string();
        assert!(error.starts_with("site[2].key = ") && error.contains("not the key of"), "{error}");
    }
    fs::write(authority.path("b", "key"), vec![b' '; FILE_BYTES_MAX as usize + 1]).unwrap();
    let error = authority.read(&["a", "b"], Some(&first)).unwrap_err().to_string();
    assert!(error.contains("longer than 4 MiB"), "{error}");
}

/// Changes qInv, the last number of an RSA key (RFC 8017, appendix A.1.2): the modulus stays that
/// of the certificate.
fn damaged(pem: &str) -> String {
    let mut lines: Vec<String> = pem.lines().map(str::to_owned).collect();
    let at = lines.len() - 4;
    let other = if lines[at].starts_with('A') { "B" } else { "A" };
    lines[at].replace_range(..1, other);
    lines.join("\n") + "\n"
}

#[test]
fn rsa_key_is_checked_as_a_whole_before_its_first_handshake() {
    let generated = Command::new("openssl")
        .args(["genpkey", "-quiet", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"])
        .output()
        .unwrap();
    let pem = String::from_utf8(generated.stdout).unwrap();
    let authority = Authority::new();
    authority.sign("a", &KeyPair::from_pem(&pem).unwrap());
    let read = authority.read(&["a"], None).unwrap();
    assert!(read.ready.of(pair(&read, 0)).is_some());
    fs::write(authority.path("a", "key"), damaged(&pem)).unwrap();
    let error = authority.read(&["a"], Some(&read)).unwrap_err().to_string();
    assert!(error.starts_with("site[1].key = ") && error.contains("cannot be used"), "{error}");
}

#[test]
fn latest_keys_are_ready_and_others_are_parsed() {
    let authority = Authority::new();
    authority.sign_new("a");
    let read = authority.read(&["a"], None).unwrap();
    let of = |number: u32| {
        let mut digest = [0; 32];
        digest[..4].copy_from_slice(&number.to_be_bytes());
        let Pair { chain, key, .. } = &**pair(&read, 0);
        Pair { digest, chain: chain.clone(), key: key.clone_key(), expiry: OnceLock::new() }
    };
    let keys = ReadyKeys::default();
    let first = keys.of(&of(0)).unwrap();
    assert!(Arc::ptr_eq(&first, &keys.of(&of(0)).unwrap()), "it is ready");
    for number in 1..=READY_MAX as u32 {
        keys.of(&of(number)).unwrap();
    }
    assert!(!Arc::ptr_eq(&first, &keys.of(&of(0)).unwrap()), "it was the oldest, and is parsed again");
    let ready = keys.0.lock().unwrap();
    assert_eq!((ready.keys.len(), ready.order.len()), (READY_MAX, READY_MAX));
}
