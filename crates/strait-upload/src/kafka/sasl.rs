//! Logins of a connection by SASL: PLAIN (RFC 4616) and SCRAM (RFC 5802).

use std::env::{self, VarError};
use std::num::NonZeroU32;
use std::ops::RangeInclusive;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::rand::SecureRandom as _;
use ring::{digest, hmac, pbkdf2, rand};
use tokio::time::Instant;

use super::connection::Connection;
use super::requests::{Code, SASL_AUTHENTICATE, SASL_HANDSHAKE};
use super::wire::{Reader, put_bytes, put_text};

/// Iterations that a broker may request. With fewer than the minimum of RFC 7677, one that poses as
/// the broker could guess the password from the proof; more take CPU time.
const ITERATIONS: RangeInclusive<u32> = 4096..=100_000;
const NONCE_LEN: usize = 24;
/// Channel binding: none, in base64.
const UNBOUND: &str = "c=biws";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mechanism {
    Plain,
    ScramSha256,
    ScramSha512,
}

impl Mechanism {
    const ALL: [Self; 3] = [Self::Plain, Self::ScramSha256, Self::ScramSha512];

    const fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
        }
    }

    /// Reads if a broker takes this mechanism.
    fn check(self, answer: &[u8]) -> Result<(), String> {
        let mut from = Reader::new(answer);
        let (code, offered) = (Code(from.i16()?), from.all(Reader::text)?);
        let (name, offered) = (self.name(), offered.join(", "));
        match code {
            Code::NONE => Ok(()),
            Code::UNSUPPORTED_MECHANISM => {
                Err(format!("it takes no login by {name}: set KAFKA_SASL_MECHANISM to one of: {offered}"))
            }
            Code::ILLEGAL_SASL_STATE => {
                Err("it wants no login here: unset KAFKA_USER and KAFKA_PASSWORD, or give another port"
                    .into())
            }
            Code(other) => Err(format!("it has refused the login by {name} with error {other}")),
        }
    }
}

/// Returns the value of a variable; none if it is not set.
fn text(name: &str, value: Result<String, VarError>) -> Result<Option<String>, String> {
    match value {
        Ok(value) => Ok(Some(value)),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => Err(format!("{name} is not in UTF-8: set it in UTF-8")),
    }
}

/// User, password and mechanism.
#[derive(Clone)]
pub(super) struct Login {
    user: String,
    password: String,
    mechanism: Mechanism,
}

impl Login {
    /// Reads the login in the environment, if there is one.
    pub(super) fn from_environment(has_tls: bool) -> Result<Option<Self>, String> {
        let read = |name: &str| text(name, env::var(name));
        let (user, password) = (read("KAFKA_USER")?, read("KAFKA_PASSWORD")?);
        let mechanism = read("KAFKA_SASL_MECHANISM")?;
        let (user, password) = match (user, password) {
            (None, None) if mechanism.is_none() => return Ok(None),
            (Some(user), Some(password)) => (user, password),
            _ => return Err("set both KAFKA_USER and KAFKA_PASSWORD, or neither".into()),
        };
        let mechanism = match mechanism {
            None => Mechanism::ScramSha512,
            Some(name) => {
                Mechanism::ALL.into_iter().find(|mechanism| mechanism.name() == name).ok_or_else(|| {
                    format!("{name}: set KAFKA_SASL_MECHANISM to PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512")
                })?
            }
        };
        if mechanism == Mechanism::Plain && !has_tls {
            return Err("PLAIN would send the password as plain text: give kafka+tls://, or use SCRAM".into());
        }
        Ok(Some(Self { user, password, mechanism }))
    }

    /// Logs in on a new connection.
    pub(super) async fn log_in(&self, connection: &mut Connection, end: Instant) -> Result<(), String> {
        let mut body = Vec::new();
        put_text(&mut body, self.mechanism.name());
        let answer = connection.call(SASL_HANDSHAKE, &body, end).await?;
        self.mechanism.check(&answer)?;
        let (algorithm, hash, digest) = match self.mechanism {
            Mechanism::Plain => {
                let message = format!("\0{}\0{}", self.user, self.password);
                return exchange(connection, message.as_bytes(), end).await.map(drop);
            }
            Mechanism::ScramSha256 => (pbkdf2::PBKDF2_HMAC_SHA256, hmac::HMAC_SHA256, &digest::SHA256),
            Mechanism::ScramSha512 => (pbkdf2::PBKDF2_HMAC_SHA512, hmac::HMAC_SHA512, &digest::SHA512),
        };
        let mut nonce = [0; NONCE_LEN];
        let random = rand::SystemRandom::new().fill(&mut nonce);
        random.map_err(|_| "the system has no random numbers".to_owned())?;
        let scram = Scram { login: self, nonce: STANDARD.encode(nonce), algorithm, hash, digest };
        let first = exchange(connection, format!("n,,{}", scram.first()).as_bytes(), end).await?;
        let (last, signature) = scram.last(&first)?;
        let accepted = exchange(connection, last.as_bytes(), end).await?;
        // A broker that does not know the password cannot sign.
        if accepted.split(',').next() == Some(&format!("v={signature}")) {
            Ok(())
        } else {
            Err("it does not know the password of the user".into())
        }
    }
}

/// Sends a message, and returns the broker's.
async fn exchange(connection: &mut Connection, message: &[u8], end: Instant) -> Result<String, String> {
    let mut body = Vec::new();
    put_bytes(&mut body, message);
    let answer = connection.call(SASL_AUTHENTICATE, &body, end).await?;
    read(&answer)
}

/// Reads the message of a broker.
fn read(answer: &[u8]) -> Result<String, String> {
    let mut from = Reader::new(answer);
    let (code, message) = (Code(from.i16()?), from.text()?);
    if code != Code::NONE {
        return Err(format!("{}: {message}", code.text("")));
    }
    Ok(String::from_utf8_lossy(from.bytes()?).into_owned())
}

/// A login by SCRAM.
struct Scram<'a> {
    login: &'a Login,
    nonce: String,
    algorithm: pbkdf2::Algorithm,
    hash: hmac::Algorithm,
    digest: &'static digest::Algorithm,
}

impl Scram<'_> {
    /// Returns the client's first message, without the header about the channel.
    fn first(&self) -> String {
        let user = self.login.user.replace('=', "=3D").replace(',', "=2C");
        format!("n={user},r={}", self.nonce)
    }

    /// Returns the client's last message, and the signature of the broker that it expects.
    fn last(&self, server: &str) -> Result<(String, String), String> {
        let wrong = || "its answer is not in the protocol of SCRAM".to_owned();
        let mut fields = server.split(',');
        let mut field = |name: &str| fields.next().and_then(|field| field.strip_prefix(name));
        let nonce = field("r=").filter(|nonce| nonce.starts_with(&self.nonce)).ok_or_else(wrong)?;
        let salt = field("s=").and_then(|salt| STANDARD.decode(salt).ok()).ok_or_else(wrong)?;
        let iterations = field("i=").and_then(|count| count.parse::<NonZeroU32>().ok()).ok_or_else(wrong)?;
        if !ITERATIONS.contains(&iterations.get()) {
            let (min, max) = (ITERATIONS.start(), ITERATIONS.end());
            return Err(format!("it requests {iterations} iterations of SCRAM, not {min} to {max}"));
        }
        let mut salted = vec![0; self.digest.output_len()];
        pbkdf2::derive(self.algorithm, iterations, &salt, self.login.password.as_bytes(), &mut salted);
        let sign = |key: &[u8], text: &[u8]| hmac::sign(&hmac::Key::new(self.hash, key), text);
        let without_proof = format!("{UNBOUND},r={nonce}");
        let signed = format!("{},{server},{without_proof}", self.first());
        let client_key = sign(&salted, b"Client Key");
        let stored_key = digest::digest(self.digest, client_key.as_ref());
        let signature = sign(stored_key.as_ref(), signed.as_bytes());
        let proof: Vec<u8> =
            client_key.as_ref().iter().zip(signature.as_ref()).map(|(one, other)| one ^ other).collect();
        let server_key = sign(&salted, b"Server Key");
        let expected = sign(server_key.as_ref(), signed.as_bytes());
        Ok((format!("{without_proof},p={}", STANDARD.encode(proof)), STANDARD.encode(expected)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::num::u8;
    use proptest::prelude::proptest;

    use super::*;

    proptest! {
        #[test]
        fn answers_of_any_bytes_are_read_or_refused(bytes in vec(u8::ANY, 0..100), count in 0_u8..4) {
            // Small numbers, which are lengths, let the rest be read.
            let small: Vec<u8> = bytes.iter().map(|byte| byte % (count + 1)).collect();
            for bytes in [bytes, small] {
                let results = [Mechanism::Plain.check(&bytes).is_ok(), read(&bytes).is_ok()];
                assert!(bytes.len() >= 6 || results == [false; 2]);
            }
        }
    }

    #[test]
    fn login_ends_if_the_broker_takes_none() {
        let answer = |code: i16| {
            let mut answer = code.to_be_bytes().to_vec();
            answer.extend(1_i32.to_be_bytes());
            put_text(&mut answer, "PLAIN");
            Mechanism::ScramSha512.check(&answer)
        };
        assert_eq!(answer(0), Ok(()));
        for (code, words) in [(33, "to one of: PLAIN"), (34, "unset KAFKA_USER"), (35, "error 35")] {
            assert!(answer(code).unwrap_err().contains(words), "{code}");
        }
    }

    #[test]
    fn value_that_is_not_text_is_refused() {
        assert_eq!(text("N", Ok("v".into())), Ok(Some("v".into())));
        assert_eq!(text("N", Err(VarError::NotPresent)), Ok(None));
        assert!(text("N", Err(VarError::NotUnicode("v".into()))).unwrap_err().contains("N is not in UTF-8"));
    }

    /// The exchange of RFC 7677 section 3.
    #[test]
    fn proof_and_signature_are_those_of_the_example() {
        let login =
            Login { user: "user".into(), password: "pencil".into(), mechanism: Mechanism::ScramSha256 };
        let scram = |login| Scram {
            login,
            nonce: "rOprNGfwEbeRWgbNEkqO".into(),
            algorithm: pbkdf2::PBKDF2_HMAC_SHA256,
            hash: hmac::HMAC_SHA256,
            digest: &digest::SHA256,
        };
        let nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
        let server = format!("r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096");
        let last = format!("c=biws,r={nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=");
        let signature = "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=".to_owned();
        assert_eq!(scram(&login).last(&server), Ok((last, signature)));
        for wrong in [
            server.replace("i=4096", "i=100001"),
            server.replace("i=4096", "i=4095"),
            server.replace("i=4096", "i=0"),
            server.replace("r=rO", "r=xO"),
            "e=no".into(),
        ] {
            assert!(scram(&login).last(&wrong).is_err(), "{wrong}");
        }
        let odd = Login { user: "a=b,c".into(), ..login.clone() };
        assert_eq!(scram(&odd).first(), "n=a=3Db=2Cc,r=rOprNGfwEbeRWgbNEkqO");
    }
}
