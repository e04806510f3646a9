//! Certificate authority of a test.

use std::fs;
use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

/// Certificate authority, and the directory of its files.
pub(crate) struct Authority {
    pub(crate) directory: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Makes one; `ca.pem` has its certificate.
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (key, mut params) = (KeyPair::generate().unwrap(), CertificateParams::default());
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "authority of a test");
        fs::write(directory.path().join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Self { directory, issuer: Issuer::new(params, key) }
    }

    /// Signs a certificate; writes it and its key to `SUBJECT.pem` and `SUBJECT.key`.
    pub(crate) fn sign(&self, subject: &str) {
        self.sign_for(subject, &[subject]);
    }

    /// Signs a certificate for several hosts; writes it and its key to `NAME.pem` and `NAME.key`.
    pub(crate) fn sign_for(&self, name: &str, hosts: &[&str]) {
        let key = KeyPair::generate().unwrap();
        let hosts: Vec<_> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut params = CertificateParams::new(hosts).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        fs::write(self.file(&format!("{name}.pem")), certificate.pem()).unwrap();
        fs::write(self.file(&format!("{name}.key")), key.serialize_pem()).unwrap();
    }

    /// Returns the path of one of its files.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}
