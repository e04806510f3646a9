//! Basic authentication of a route (RFC 7617): users with hashes from a file, and the passwords
//! that were verified.
//!
//! A hash takes tens of milliseconds by design, so a password is verified once: the keyed hash of
//! the verified one is kept, one for each user. A hash has one password only, since longer ones
//! than bcrypt reads and control characters are refused. [`crate::serve::admission`] runs the
//! verification off the event loop.

use std::collections::HashMap;
use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use strait_http::head::Request;

use crate::config::edge::Auth;
use crate::config::password::{PasswordHash, Work};
use crate::config::route_name::RouteName;

/// Longest password that bcrypt reads.
const PASSWORD_BYTES_MAX: usize = 72;
/// Largest file of users.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Basic authentication of a route.
#[derive(Debug)]
pub(crate) struct BasicAuth {
    pub(crate) name: RouteName,
    users: Arc<Users>,
    /// Value of WWW-Authenticate.
    pub(crate) challenge: String,
    file: PathBuf,
    pub(crate) counts: Arc<Counts>,
}

/// Users of a file.
#[derive(Debug)]
struct Users {
    by_name: HashMap<Box<str>, Arc<User>>,
    /// User that is verified in place of an unknown one, which must take as long.
    dummy: Arc<User>,
    work: Work,
}

/// Files of users that were read for a configuration. Routes with the same file have the same
/// users, also if the file changes meanwhile, and a password is verified once for all of them.
#[derive(Debug, Default)]
pub(crate) struct UserFiles(HashMap<PathBuf, Result<Arc<Users>, String>>);

impl UserFiles {
    /// Returns the users of a file, which is read once; those with the same hash keep the state
    /// that they have in `before`.
    fn users(&mut self, path: &Path, before: &[Arc<BasicAuth>]) -> Result<Arc<Users>, String> {
        if let Some(read) = self.0.get(path) {
            return read.clone();
        }
        let known = before.iter().find(|auth| auth.file == path);
        let parse = |text: String| Users::new(&text, known.map(|auth| &*auth.users));
        let users = read(path).and_then(parse).map(Arc::new);
        self.0.insert(path.to_owned(), users.clone());
        users
    }
}

impl Users {
    /// Parses the text of a file.
    fn new(text: &str, known: Option<&Self>) -> Result<Self, String> {
        let mut by_name = HashMap::new();
        let mut work = Work::default();
        for (index, line) in text.lines().enumerate() {
            let wrong = |why: String| format!("line {}: {why}", index + 1);
            let Some((user, hash)) = entry(line).map_err(wrong)? else { continue };
            work.add(&hash).map_err(wrong)?;
            let same = known.and_then(|known| known.by_name.get(user));
            let same = same.filter(|same| same.hash == hash).cloned();
            let user_state = same.unwrap_or_else(|| Arc::new(User::new(hash)));
            if by_name.insert(user.into(), user_state).is_some() {
                return Err(format!("line {}: the user \"{user}\" occurs twice", index + 1));
            }
        }
        if by_name.is_empty() {
            return Err("the file has no users; htpasswd -B -c FILE USER adds one".to_owned());
        }
        let dummy = Arc::new(User::new(PasswordHash::dummy()));
        Ok(Self { by_name, dummy, work })
    }
}

/// Counters of a route, which a reload keeps.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Requests that were refused.
    pub(crate) refused: AtomicU64,
    /// Passwords that were hashed to verify them.
    pub(crate) hashed: AtomicU64,
}

/// User of a file. A reload keeps it if its hash is the same.
#[derive(Debug)]
pub(crate) struct User {
    hash: PasswordHash,
    /// Keyed hash of the verified password.
    verified: OnceLock<[u64; 2]>,
    keys: [RandomState; 2],
}

/// Result of the check of a request.
#[derive(Debug)]
pub(crate) enum Checked {
    Passed,
    Failed,
    /// The password has to be verified.
    Unverified(Credentials),
}

/// Password of a request that has not been verified.
#[derive(Debug)]
pub(crate) struct Credentials {
    user: Arc<User>,
    password: String,
    is_known: bool,
    /// All users of the file.
    users: Arc<Users>,
}

impl User {
    fn new(hash: PasswordHash) -> Self {
        let keys = [RandomState::new(), RandomState::new()];
        Self { hash, verified: OnceLock::new(), keys }
    }

    fn keyed(&self, password: &str) -> [u64; 2] {
        [0, 1].map(|index: usize| self.keys[index].hash_one(password))
    }

    fn has_verified(&self, password: &str) -> bool {
        self.verified.get().is_some_and(|verified| *verified == self.keyed(password))
    }
}

impl Credentials {
    /// Returns true if the password was verified meanwhile.
    pub(crate) fn are_verified(&self) -> bool {
        self.is_known && self.user.has_verified(&self.password)
    }

    /// Returns true if the verification needs the memory of Argon2id.
    pub(crate) fn need_memory(&self) -> bool {
        self.users.work.needs_memory()
    }

    /// Verifies the password, which takes long, and as long for each user, known or not.
    pub(crate) fn verify(&self) -> bool {
        let is_right = self.user.hash.verify(&self.password, &self.users.work) && self.is_known;
        if is_right {
            // Another thread may have verified the same password.
            let _ = self.user.verified.set(self.user.keyed(&self.password));
        }
        is_right
    }
}

impl BasicAuth {
    /// Makes the authentication of a route, with its file of users.
    ///
    /// # Errors
    /// A text that follows the key of the section.
    pub(crate) fn new(
        name: &RouteName,
        config: &Auth,
        before: &[Arc<Self>],
        files: &mut UserFiles,
    ) -> Result<Self, String> {
        let is_quotable = |byte: u8| (byte.is_ascii_graphic() || byte == b' ') && !b"\"\\".contains(&byte);
        if !config.realm.bytes().all(is_quotable) {
            return Err(format!(
                ".realm = \"{}\": printable ASCII without quotes and backslashes is possible",
                config.realm.escape_default()
            ));
        }
        let Some(path) = &config.users else {
            return Err(
                ": it has no file of users; write for example { users = \"/etc/strait/users\" }".to_owned()
            );
        };
        let wrong = |why: String| format!(".users = \"{}\": {why}", path.display());
        Ok(Self {
            name: name.clone(),
            users: files.users(path, before).map_err(wrong)?,
            challenge: format!("Basic realm=\"{}\", charset=\"UTF-8\"", config.realm),
            file: path.clone(),
            counts: before
                .iter()
                .find(|auth| auth.name.is_of_same(name))
                .map(|auth| auth.counts.clone())
                .unwrap_or_default(),
        })
    }

    /// Checks the credentials of a request.
    pub(crate) fn check(&self, request: &Request<'_>) -> Checked {
        let Some((user, password)) = credentials(request) else { return Checked::Failed };
        let (user, is_known) = match self.users.by_name.get(&*user) {
            Some(user) => (user, true),
            None => (&self.users.dummy, false),
        };
        if is_known && user.has_verified(&password) {
            return Checked::Passed;
        }
        let users = self.users.clone();
        Checked::Unverified(Credentials { user: user.clone(), password, is_known, users })
    }
}

/// Returns user and password of a request; `None` if it has none that could be right.
pub(crate) fn credentials(request: &Request<'_>) -> Option<(String, String)> {
    let (scheme, token) = request.fields.one("authorization")?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(BASE64_STANDARD.decode(token.trim()).ok()?).ok()?;
    let (user, password) = decoded.split_once(':')?;
    // RFC 7617 s2: no control characters.
    let is_possible = password.len() <= PASSWORD_BYTES_MAX && !decoded.chars().any(char::is_control);
    is_possible.then(|| (user.to_owned(), password.to_owned()))
}

fn read(path: &Path) -> Result<String, String> {
    let unread = |error: std::io::Error| format!("the file cannot be read: {error}");
    let mut text = String::new();
    let file = File::open(path).map_err(unread)?;
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(unread)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err("the file is too long; the maximum is 16MiB".to_owned());
    }
    Ok(text)
}

/// Returns user and hash of a line; `None` for an empty one and a comment.
fn entry(line: &str) -> Result<Option<(&str, PasswordHash)>, String> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    let expected = || {
        "expected USER:HASH with a hash of bcrypt ($2y$..., as htpasswd -B FILE USER writes it) or Argon2id ($argon2id$v=19$m=...)"
            .to_owned()
    };
    let (user, hash) = line.split_once(':').filter(|(user, _)| !user.is_empty()).ok_or_else(expected)?;
    let hash = PasswordHash::parse(hash).map_err(|why| why.unwrap_or_else(expected))?;
    Ok(Some((user, hash)))
}

#[cfg(test)]
mod tests {
    use strait_http::head;

    use super::*;
    use crate::config::edge::Route;
    use crate::config::password::COST_MIN;

    fn auth(text: &str) -> Result<BasicAuth, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("users");
        std::fs::write(&path, text).unwrap();
        let config = Auth { users: Some(path), ..Auth::default() };
        BasicAuth::new(&name("a"), &config, &[], &mut UserFiles::default())
    }

    fn name(position: &str) -> RouteName {
        RouteName::new(position, &[], &Route::default())
    }

    #[test]
    fn file_of_several_routes_is_read_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("users");
        let config = Auth { users: Some(path.clone()), ..Auth::default() };
        std::fs::write(&path, format!("a:{}\n", hash("x"))).unwrap();
        let mut files = UserFiles::default();
        let one = BasicAuth::new(&name("a"), &config, &[], &mut files).unwrap();
        std::fs::write(&path, "").unwrap();
        let other = BasicAuth::new(&name("b"), &config, &[], &mut files).unwrap();
        let Checked::Unverified(credentials) = check(&one, &basic("a:x")) else { panic!() };
        assert!(credentials.verify());
        assert!(matches!(check(&other, &basic("a:x")), Checked::Passed));
        // The next configuration reads it again.
        let error =
            BasicAuth::new(&name("a"), &config, &[Arc::new(one)], &mut UserFiles::default()).unwrap_err();
        assert!(error.contains("the file has no users"), "{error}");
    }

    fn hash(password: &str) -> String {
        bcrypt::hash_with_salt(password, COST_MIN, [7; 16]).unwrap().to_string()
    }

    fn check(auth: &BasicAuth, field: &str) -> Checked {
        let bytes = format!("GET / HTTP/1.1\r\nHost: a\r\n{field}\r\n");
        let (request, _) = head::request(bytes.as_bytes()).unwrap().unwrap();
        auth.check(&request)
    }

    fn basic(pair: &str) -> String {
        format!("Authorization: Basic {}\r\n", BASE64_STANDARD.encode(pair))
    }

    #[test]
    fn users_of_both_forms_are_verified_with_the_work_of_the_file() {
        let argon2 = "$argon2id$v=19$m=256,t=2,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4";
        for (text, needs_memory) in
            [(format!("a:{}\nb:{argon2}\n", hash("x")), true), (format!("a:{}\n", hash("x")), false)]
        {
            let auth = auth(&text).unwrap();
            for (pair, is_right) in [
                ("a:x", true),
                ("b:password", needs_memory),
                ("a:password", false),
                ("b:x", false),
                ("nobody:x", false),
            ] {
                let Checked::Unverified(credentials) = check(&auth, &basic(pair)) else { panic!("{pair}") };
                assert_eq!(credentials.need_memory(), needs_memory, "{pair}");
                assert_eq!(credentials.verify(), is_right, "{pair}");
                assert_eq!(matches!(check(&auth, &basic(pair)), Checked::Passed), is_right, "{pair}");
            }
        }
    }

    #[test]
    fn right_password_is_verified_once() {
        let auth = auth(&format!("# users\n\na:{}\nb:{}\n", hash("x:y"), hash(""))).unwrap();
        let Checked::Unverified(credentials) = check(&auth, &basic("a:x:y")) else { panic!() };
        assert!(!credentials.are_verified() && credentials.verify() && credentials.are_verified());
        assert!(matches!(check(&auth, &basic("a:x:y")), Checked::Passed));
        for pair in ["a:x", "a:x:y ", "b:x:y", "c:x:y", "A:x:y", ":x:y"] {
            let Checked::Unverified(credentials) = check(&auth, &basic(pair)) else { panic!("{pair}") };
            assert!(!credentials.verify() && !credentials.are_verified(), "{pair}");
        }
        let Checked::Unverified(empty) = check(&auth, &basic("b:")) else { panic!() };
        assert!(empty.verify());
    }

    #[test]
    fn requests_without_possible_credentials_fail_at_once() {
        let auth = auth(&format!("a:{}", hash("x"))).unwrap();
        let right = basic("a:x");
        for field in [
            String::new(),
            format!("{right}{right}"),
            "Authorization: Bearer YTp4\r\n".to_owned(),
            "Authorization: Basic\r\n".to_owned(),
            "Authorization: Basic ***\r\n".to_owned(),
            "Authorization: Basic YTp4YTp\r\n".to_owned(),
            basic("a"),
            // bcrypt would read the password cyclically up to its NUL, or its first 72 bytes.
            basic("a:x\0x"),
            basic(&format!("a:{}", "x".repeat(73))),
        ] {
            assert!(matches!(check(&auth, &field), Checked::Failed), "{field}");
        }
        assert!(matches!(check(&auth, &right.replace("Basic", "bAsIc")), Checked::Unverified(_)));
    }

    #[test]
    fn wrong_files_are_named_with_the_line() {
        let right = hash("x");
        for (text, expected) in [
            (String::new(), "the file has no users"),
            ("\na".to_owned(), "line 2: expected USER:HASH"),
            (format!(":{right}"), "line 1: expected USER:HASH"),
            ("a:{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=".to_owned(), "line 1: expected USER:HASH"),
            ("a:$apr1$x$y".to_owned(), "line 1: expected USER:HASH"),
            (format!("a:{}", right.replace("$2b$", "$2x$")), "line 1: expected USER:HASH"),
            (format!("a:{}", right.replace("$04$", "$15$")), "line 1: the hash has the cost 15"),
            (format!("a:{}", right.replace("$04$", "$03$")), "line 1: the hash has the cost 3"),
            (
                "a:$argon2i$v=19$m=8,t=1,p=1$YWFhYWFhYWE$".to_owned() + &"A".repeat(43),
                "line 1: expected USER:HASH",
            ),
            (
                "a:$argon2id$v=19$m=262145,t=1,p=1$YWFhYWFhYWE$".to_owned() + &"A".repeat(43),
                "line 1: the hash needs 262145 KiB of memory",
            ),
            (format!("a:{right}\na:{right}"), "line 2: the user \"a\" occurs twice"),
        ] {
            let error = auth(&text).unwrap_err();
            assert!(error.starts_with(".users = \"") && error.contains(expected), "{text}: {error}");
        }
    }
}
