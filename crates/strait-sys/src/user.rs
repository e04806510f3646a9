//! User database, and the user as whom the process runs: getpwnam_r(3), setuid(2).
//!
//! `service` of strait-os offers it to the programs, which call it before they start threads.

use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::ptr;

use crate::error::{Error, Kind, Result, check};

/// First size of the buffer for the strings of an entry, in bytes.
const ENTRY_BYTES: usize = 1 << 10;
/// Maximum size of the buffer: longer entries are refused.
const ENTRY_BYTES_MAX: usize = 1 << 20;

/// Entry of the user database.
struct User {
    name: CString,
    uid: libc::uid_t,
    gid: libc::gid_t,
}

/// Checks that there is a user of this name (getpwnam_r(3)).
///
/// # Errors
/// If there is no such user, or the user database cannot be read.
pub fn check_user(name: &str) -> Result<()> {
    find_user(name).map(drop)
}

fn find_user(name: &str) -> Result<User> {
    let unknown = || Error::new(Kind::Usage, "become user", name, "there is no such user");
    let c_name = CString::new(name).map_err(|_| unknown())?;
    let mut strings = vec![0; ENTRY_BYTES];
    loop {
        match look_up(&c_name, &mut strings) {
            Ok(Some((uid, gid))) => return Ok(User { name: c_name, uid, gid }),
            Ok(None) => return Err(unknown()),
            Err(libc::ERANGE) if strings.len() < ENTRY_BYTES_MAX => strings.resize(2 * strings.len(), 0),
            Err(errno) => return Err(Error::os("look up user", name, errno)),
        }
    }
}

/// Calls getpwnam_r(3) with a buffer for the strings of the entry. Returns the uid and the gid,
/// `None` if there is no such user, or the error number, ERANGE if the buffer is too short.
fn look_up(name: &CStr, strings: &mut [u8]) -> Result<Option<(libc::uid_t, libc::gid_t)>, i32> {
    let mut entry = MaybeUninit::<libc::passwd>::uninit();
    let mut found = ptr::null_mut();
    let (into, bytes) = (strings.as_mut_ptr().cast(), strings.len());
    // SAFETY: the name ends with NUL. The entry, the buffer of this length and the result are
    // borrowed by this function alone and outlive the call.
    let errno = unsafe { libc::getpwnam_r(name.as_ptr(), entry.as_mut_ptr(), into, bytes, &raw mut found) };
    match errno {
        0 if !found.is_null() => {
            // SAFETY: a result that is not null points to `entry`, which the call has filled.
            let entry = unsafe { entry.assume_init_ref() };
            Ok(Some((entry.pw_uid, entry.pw_gid)))
        }
        // getpwnam(3), "ERRORS": some C libraries report a missing user as an error.
        0 | libc::ENOENT | libc::ESRCH => Ok(None),
        errno => Err(errno),
    }
}

/// Becomes another user permanently, with that user's groups: setgroups(2), setgid(2), setuid(2),
/// of all threads. A process without privileges that runs as this user already keeps its groups.
///
/// # Errors
/// If there is no such user, the user database cannot be read, or this process may not become the
/// user.
pub fn become_user(name: &str) -> Result<()> {
    let User { name: c_name, uid, gid } = find_user(name)?;
    if uid != 0 && runs_as(uid, gid) {
        return Ok(());
    }
    // SAFETY: the name ends with NUL.
    check(unsafe { libc::initgroups(c_name.as_ptr(), gid) }, "become user", name)?;
    // SAFETY: both take numbers.
    check(unsafe { libc::setgid(gid) }, "become user", name)?;
    // SAFETY: as above.
    check(unsafe { libc::setuid(uid) }, "become user", name)?;
    Ok(())
}

/// Returns true if all ids of this process are these: it cannot become another user then.
fn runs_as(uid: libc::uid_t, gid: libc::gid_t) -> bool {
    let (mut uids, mut gids) = ([0; 3], [0; 3]);
    let [real, effective, saved] = &mut uids;
    // SAFETY: getresuid(2) writes to three numbers, which are borrowed for the call.
    let has_uids = unsafe { libc::getresuid(real, effective, saved) } == 0;
    let [real, effective, saved] = &mut gids;
    // SAFETY: as above.
    let has_gids = unsafe { libc::getresgid(real, effective, saved) } == 0;
    has_uids && has_gids && uids == [uid; 3] && gids == [gid; 3]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names and numbers in /etc/passwd.
    fn users() -> Vec<(String, libc::uid_t)> {
        let text = std::fs::read_to_string("/etc/passwd").unwrap();
        let user = |line: &str| {
            let mut fields = line.split(':');
            Some((fields.next()?.to_owned(), fields.nth(1)?.parse().ok()?))
        };
        text.lines().filter_map(user).collect()
    }

    #[test]
    fn concurrent_lookups_return_their_own_user() {
        const LOOKUPS: usize = 2_000;
        let users = users();
        std::thread::scope(|scope| {
            for (name, uid) in users.iter().take(4) {
                scope.spawn(move || {
                    for _ in 0..LOOKUPS {
                        assert_eq!(find_user(name).unwrap().uid, *uid, "{name}");
                    }
                });
            }
        });
    }

    #[test]
    fn unknown_user_is_reported_as_such() {
        for name in ["no-such-user", "", "with\0nul"] {
            let error = check_user(name).unwrap_err();
            assert!(error.to_string().contains("there is no such user"), "{error}");
        }
    }

    #[test]
    fn short_buffer_is_reported_as_erange() {
        assert_eq!(look_up(c"root", &mut [0; 1]), Err(libc::ERANGE));
        assert_eq!(look_up(c"root", &mut [0; ENTRY_BYTES]), Ok(Some((0, 0))));
    }
}
