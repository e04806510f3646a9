//! Hashes of passwords in files of users: bcrypt, and Argon2id (RFC 9106) as a PHC string.
//!
//! Each verification against a file takes the same work, whatever the user: that of the largest
//! cost of bcrypt in the file, and that of each set of parameters of Argon2id. Otherwise the time
//! of an answer would show which users there are.

use argon2::{Algorithm, Argon2, Params, Version};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD_NO_PAD;

/// Largest cost of bcrypt: about a second on a processor of today.
const COST_MAX: u32 = 14;
/// Least cost of bcrypt.
pub(crate) const COST_MIN: u32 = 4;
/// Largest memory of Argon2id in KiB: 256 MiB.
const MEMORY_KIB_MAX: u32 = 256 << 10;
/// Largest product of memory in KiB and passes of Argon2id: about a second.
const PASSED_KIB_MAX: u64 = 1 << 20;
/// Largest number of lanes of Argon2id.
const LANES_MAX: u32 = 64;
/// Largest number of sets of parameters of Argon2id in a file: each verification takes all of them.
const SETS_MAX: usize = 2;

/// Hash of a password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PasswordHash {
    Bcrypt { text: Box<str>, cost: u32 },
    Argon2 { parameters: Parameters, salt: Box<[u8]>, hash: Box<[u8]> },
}

/// Parameters of Argon2id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parameters {
    memory_kib: u32,
    passes: u32,
    lanes: u32,
}

/// Work of each verification against the hashes of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Work {
    /// Largest cost of bcrypt.
    bcrypt: Option<u32>,
    argon2: Vec<Parameters>,
}

impl Work {
    /// Adds the work of a hash.
    ///
    /// # Errors
    /// The file has too many sets of parameters.
    pub(crate) fn add(&mut self, hash: &PasswordHash) -> Result<(), String> {
        match hash {
            PasswordHash::Bcrypt { cost, .. } => self.bcrypt = self.bcrypt.max(Some(*cost)),
            PasswordHash::Argon2 { parameters, .. } if self.argon2.contains(parameters) => {}
            PasswordHash::Argon2 { .. } if self.argon2.len() == SETS_MAX => {
                return Err(format!(
                    "the hashes of a file have at most {SETS_MAX} sets of parameters of Argon2id; make this one with those of another user"
                ));
            }
            PasswordHash::Argon2 { parameters, .. } => self.argon2.push(*parameters),
        }
        Ok(())
    }

    /// Returns true if it needs the memory of Argon2id.
    pub(crate) fn needs_memory(&self) -> bool {
        !self.argon2.is_empty()
    }
}

impl PasswordHash {
    /// Parses a hash as a file of users has it.
    ///
    /// # Errors
    /// A reason; `None` if the text has neither form.
    pub(crate) fn parse(text: &str) -> Result<Self, Option<String>> {
        if text.starts_with("$argon2id$") { argon2_of(text) } else { bcrypt_of(text) }
    }

    /// Returns a hash that no password has.
    pub(crate) fn dummy() -> Self {
        Self::Bcrypt { text: bcrypt_dummy(COST_MIN).into(), cost: COST_MIN }
    }

    /// Returns true if a password has this hash, after all of `work`, which includes that of the
    /// hash.
    pub(crate) fn verify(&self, password: &str, work: &Work) -> bool {
        let mut is_right = false;
        if let Some(max) = work.bcrypt {
            is_right |= self.verify_bcrypt(password, max);
        }
        for parameters in &work.argon2 {
            is_right |= self.verify_argon2(password, *parameters);
        }
        is_right
    }

    fn verify_bcrypt(&self, password: &str, max: u32) -> bool {
        let dummy = bcrypt_dummy(COST_MIN);
        let (text, own) = match self {
            Self::Bcrypt { text, cost } => (&**text, *cost),
            Self::Argon2 { .. } => (&*dummy, COST_MIN),
        };
        let is_right = bcrypt::verify(password, text).unwrap_or(false);
        for cost in padding(own, max) {
            // Only the time counts.
            let _ = bcrypt::verify(password, &bcrypt_dummy(cost));
        }
        is_right && matches!(self, Self::Bcrypt { .. })
    }

    fn verify_argon2(&self, password: &str, of: Parameters) -> bool {
        match self {
            Self::Argon2 { parameters, salt, hash } if *parameters == of => {
                let mut made = vec![0; hash.len()];
                let is_made = of.hash(password, salt, &mut made);
                let differences = made.iter().zip(hash).fold(0, |all, (one, other)| all | (one ^ other));
                is_made && differences == 0
            }
            _ => {
                // Only the time counts.
                of.hash(password, &[0; 16], &mut [0; 32]);
                false
            }
        }
    }
}

impl Parameters {
    /// Writes the hash of a password. Returns false if that is impossible.
    fn hash(self, password: &str, salt: &[u8], made: &mut [u8]) -> bool {
        let params = Params::new(self.memory_kib, self.passes, self.lanes, Some(made.len()));
        params.is_ok_and(|params| {
            let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
            argon2.hash_password_into(password.as_bytes(), salt, made).is_ok()
        })
    }
}

/// Parses `$argon2id$v=19$m=KIB,t=PASSES,p=LANES$SALT$HASH`.
fn argon2_of(text: &str) -> Result<PasswordHash, Option<String>> {
    let parts: Vec<_> = text.split('$').collect();
    let ["", "argon2id", "v=19", parameters, salt, hash] = parts[..] else { return Err(None) };
    let parameters: Vec<_> = parameters.split(',').collect();
    let [memory, passes, lanes] = parameters[..] else { return Err(None) };
    let number = |text: &str, name: &str| text.strip_prefix(name)?.parse::<u32>().ok();
    let memory_kib = number(memory, "m=").ok_or(None)?;
    let passes = number(passes, "t=").ok_or(None)?;
    let lanes = number(lanes, "p=").ok_or(None)?;
    let bytes = |text: &str| BASE64_STANDARD_NO_PAD.decode(text).map_err(|_| None);
    let (salt, hash) = (bytes(salt)?, bytes(hash)?);
    if memory_kib > MEMORY_KIB_MAX {
        return Err(Some(format!(
            "the hash needs {memory_kib} KiB of memory; the maximum is {MEMORY_KIB_MAX} (256 MiB): make it with m={MEMORY_KIB_MAX} or less"
        )));
    }
    if u64::from(memory_kib) * u64::from(passes) > PASSED_KIB_MAX {
        return Err(Some(format!(
            "the hash takes too long: memory in KiB times passes is at most {PASSED_KIB_MAX}; make it with a smaller m or t"
        )));
    }
    let is_possible = lanes <= LANES_MAX
        && (8..=64).contains(&salt.len())
        && (16..=64).contains(&hash.len())
        && Params::new(memory_kib, passes, lanes, Some(hash.len())).is_ok();
    if !is_possible {
        return Err(Some(format!(
            "the parameters of the hash are impossible: m is at least 8 times p, t and p are at least 1, p is at most {LANES_MAX}, the salt has 8 to 64 bytes, and the hash 16 to 64"
        )));
    }
    let parameters = Parameters { memory_kib, passes, lanes };
    Ok(PasswordHash::Argon2 { parameters, salt: salt.into(), hash: hash.into() })
}

/// Parses a hash of bcrypt. `$2x$` marks those of a wrong implementation.
fn bcrypt_of(text: &str) -> Result<PasswordHash, Option<String>> {
    let is_version = ["$2y$", "$2b$", "$2a$"].iter().any(|version| text.starts_with(version));
    let parts: bcrypt::HashParts = text.parse().ok().filter(|_| is_version).ok_or(None)?;
    let cost = parts.get_cost();
    if !(COST_MIN..=COST_MAX).contains(&cost) {
        return Err(Some(format!(
            "the hash has the cost {cost}; {COST_MIN} to {COST_MAX} are possible: htpasswd -B -C 10"
        )));
    }
    Ok(PasswordHash::Bcrypt { text: text.into(), cost })
}

/// Returns a hash of bcrypt with that cost that no password has.
fn bcrypt_dummy(cost: u32) -> String {
    format!("$2b${cost:02}${}", ".".repeat(53))
}

/// Returns the costs of the hashes that take, with one of cost `own`, as long as one of cost `max`:
/// each cost doubles the time, and 2^own + 2^own + 2^(own + 1) + ... + 2^(max - 1) = 2^max.
fn padding(own: u32, max: u32) -> std::ops::Range<u32> {
    own..max
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the PHC string of a password.
    fn phc(password: &str, memory_kib: u32, passes: u32, lanes: u32) -> String {
        let mut made = [0; 32];
        assert!(Parameters { memory_kib, passes, lanes }.hash(password, b"somesalt", &mut made));
        let encoded = |bytes: &[u8]| BASE64_STANDARD_NO_PAD.encode(bytes);
        let (salt, hash) = (encoded(b"somesalt"), encoded(&made));
        format!("$argon2id$v=19$m={memory_kib},t={passes},p={lanes}${salt}${hash}")
    }

    fn bcrypt(password: &str, cost: u32) -> String {
        bcrypt::hash_with_salt(password, cost, [7; 16]).unwrap().to_string()
    }

    fn work(hashes: &[PasswordHash]) -> Work {
        let mut work = Work::default();
        for hash in hashes {
            work.add(hash).unwrap();
        }
        work
    }

    #[test]
    fn hash_of_the_reference_program_is_verified() {
        // From the tests of https://github.com/P-H-C/phc-winner-argon2.
        let text = "$argon2id$v=19$m=256,t=2,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4";
        let hash = PasswordHash::parse(text).unwrap();
        let work = work(std::slice::from_ref(&hash));
        assert!(hash.verify("password", &work));
        assert!(["passwor", "password ", "Password", ""].iter().all(|wrong| !hash.verify(wrong, &work)));
    }

    #[test]
    fn users_of_a_file_with_both_forms_have_their_passwords_alone() {
        let texts =
            [bcrypt("a", 4), bcrypt("b", 6), phc("c", 8, 1, 1), phc("d", 32, 2, 2), phc("e", 8, 1, 1)];
        let hashes = texts.each_ref().map(|text| PasswordHash::parse(text).unwrap());
        let work = work(&hashes);
        assert_eq!((work.bcrypt, work.argon2.len(), work.needs_memory()), (Some(6), 2, true));
        for (own, hash) in ["a", "b", "c", "d", "e"].iter().zip(&hashes) {
            for password in ["a", "b", "c", "d", "e", ""] {
                assert_eq!(hash.verify(password, &work), password == *own, "{own} {password}");
            }
        }
        assert!(["", "a", "c"].iter().all(|password| !PasswordHash::dummy().verify(password, &work)));
        // A file has few sets of parameters.
        let mut full = work.clone();
        let other = PasswordHash::parse(&phc("f", 16, 1, 1)).unwrap();
        assert!(full.add(&other).unwrap_err().contains("at most 2 sets of parameters"));
        assert_eq!(full, work);
    }

    #[test]
    fn each_cost_of_bcrypt_takes_as_long_as_the_largest() {
        let work = |cost: u32| 1_u64 << cost;
        for (own, max) in [(4, 4), (4, 5), (5, 14), (14, 14)] {
            assert_eq!(work(own) + padding(own, max).map(work).sum::<u64>(), work(max));
        }
    }

    #[test]
    fn hashes_beyond_the_limits_are_refused_without_work() {
        let of = |parameters: &str| format!("$argon2id$v=19${parameters}$c29tZXNhbHQ${}", "A".repeat(43));
        for (parameters, expected) in [
            ("m=262145,t=1,p=1", "the hash needs 262145 KiB of memory; the maximum is 262144"),
            ("m=4294967295,t=4294967295,p=1", "the hash needs 4294967295 KiB"),
            ("m=262144,t=5,p=1", "the hash takes too long"),
            ("m=8,t=4294967295,p=1", "the hash takes too long"),
            ("m=8,t=1,p=2", "the parameters of the hash are impossible"),
            ("m=8,t=0,p=1", "the parameters of the hash are impossible"),
            ("m=8,t=1,p=0", "the parameters of the hash are impossible"),
            ("m=1024,t=1,p=65", "the parameters of the hash are impossible"),
        ] {
            let why = PasswordHash::parse(&of(parameters)).unwrap_err();
            assert!(why.is_some_and(|why| why.starts_with(expected)), "{parameters}");
        }
        assert!(PasswordHash::parse(&of("m=262144,t=4,p=4")).is_ok());
        let right = of("m=8,t=1,p=1");
        for text in [
            right.replace("argon2id", "argon2i"),
            right.replace("v=19", "v=16"),
            right.replace("$v=19", ""),
            right.replace(",p=1", ""),
            right.replace("m=8", "m=-8"),
            right.replace("m=8,t=1", "t=1,m=8"),
            right.replace("p=1", "p=1,keyid=x"),
            right.replace("c29t", "*29t"),
            format!("{right}$"),
            String::new(),
        ] {
            assert_eq!(PasswordHash::parse(&text), Err(None), "{text}");
        }
    }
}
