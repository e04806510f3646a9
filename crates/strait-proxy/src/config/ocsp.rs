//! OCSP responses from files, which the proxy sends with its certificates ("stapling"; RFC 6066,
//! section 8).
//!
//! A response that clients would reject is not sent, and is reported. It ends neither a start nor a
//! reload: the certificate without it serves most clients. Clients verify the signature.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use der::Decode as _;
use x509_cert::Certificate;
use x509_ocsp::{BasicOcspResponse, CertStatus, OcspGeneralizedTime, OcspResponse, OcspResponseStatus};

/// Maximum length in bytes of a response.
const BYTES_MAX: u64 = 64 << 10;

/// Response for a certificate.
#[derive(Debug)]
pub(crate) struct Staple {
    pub(crate) der: Vec<u8>,
    pub(crate) validity: Validity,
}

/// Time during which clients accept a response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Validity {
    begin: SystemTime,
    /// `None` without a time of the next response.
    end: Option<SystemTime>,
}

impl Validity {
    /// Returns the reason why clients reject the response at that time.
    pub(crate) fn why_not(self, now: SystemTime) -> Option<&'static str> {
        if now < self.begin {
            Some("the response is not valid yet; check the clock")
        } else {
            let is_expired = self.end.is_some_and(|end| now >= end);
            is_expired.then_some("the response has expired; fetch a new one, and reload")
        }
    }
}

impl Staple {
    /// Reads the response for a certificate, or returns the reason why it cannot be used.
    pub(crate) fn read(path: &Path, certificate: &[u8]) -> Result<Self, String> {
        let mut der = Vec::new();
        let read = File::open(path).and_then(|file| file.take(BYTES_MAX + 1).read_to_end(&mut der));
        read.map_err(|error| format!("the file cannot be read: {error}"))?;
        let validity = validity(&der, certificate)?;
        Ok(Self { der, validity })
    }
}

/// Returns the validity of a response for that certificate, or the reason why it cannot be used.
fn validity(bytes: &[u8], certificate: &[u8]) -> Result<Validity, &'static str> {
    const FORM: &str = "this is not an OCSP response in DER format";
    if bytes.len() as u64 > BYTES_MAX {
        return Err("the file is longer than 64 KiB");
    }
    let response = OcspResponse::from_der(bytes).map_err(|_| FORM)?;
    let (OcspResponseStatus::Successful, Some(inner)) = (response.response_status, response.response_bytes)
    else {
        return Err("the responder has answered with an error; fetch the response again");
    };
    let basic = BasicOcspResponse::from_der(inner.response.as_bytes()).map_err(|_| FORM)?;
    let certificate = Certificate::from_der(certificate)
        .map_err(|_| "the certificate is not in strict DER, so its serial number is unknown")?;
    let serial = &certificate.tbs_certificate.serial_number;
    let own = basic.tbs_response_data.responses.iter().find(|own| own.cert_id.serial_number == *serial);
    let own = own.ok_or("the response is for a certificate with another serial number; fetch a new one")?;
    match own.cert_status {
        CertStatus::Good(_) => {}
        CertStatus::Revoked(_) => return Err("the certificate is revoked; get a new one"),
        CertStatus::Unknown(_) => {
            return Err("the responder does not know the certificate; fetch the response again");
        }
    }
    let time = |time: OcspGeneralizedTime| UNIX_EPOCH + time.0.to_unix_duration();
    Ok(Validity { begin: time(own.this_update), end: own.next_update.map(time) })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn response_is_valid_from_its_begin_to_its_end() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let validity = Validity { begin: at(10), end: Some(at(20)) };
        let is_valid = [9, 10, 19, 20].map(|now| validity.why_not(at(now)).is_none());
        assert_eq!(is_valid, [false, true, true, false]);
        assert!(Validity { end: None, ..validity }.why_not(at(1 << 32)).is_none());
    }
}
