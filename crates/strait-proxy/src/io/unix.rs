//! Connections to Unix sockets.
//!
//! [`crate::upstream::pool`] and the active checks use them. A connection becomes a `TcpStream`,
//! because every call on the bytes of a connection is the same for both: recv(2), send(2),
//! sendfile(2), splice(2) and epoll(7). Options of TCP fail on it, and their users ignore that.
//!
//! A socket in a directory that all users may write to, such as `/tmp`, can be planted: while the
//! server is not running, another user takes its path, and would receive the requests. Hence the
//! user of the listening process is checked (`SO_PEERCRED` in unix(7)).

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::{TcpStream, UnixStream};
use tokio::time::sleep;

/// Time between two attempts while the queue of the listening socket is full. The kernel reports
/// that at once (connect(2): EAGAIN), in contrast to TCP.
const FULL_WAIT: Duration = Duration::from_millis(5);

/// Connects to the socket at a path. Waits while its queue of connections is full; the caller has a
/// time limit.
///
/// # Errors
/// The connection fails, or another user may have planted the socket.
pub(crate) async fn connect(path: &Path) -> io::Result<TcpStream> {
    let stream = loop {
        match UnixStream::connect(path).await {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(FULL_WAIT).await,
            done => break done?,
        }
    };
    check_listener(path, stream.peer_cred()?.uid())?;
    TcpStream::from_std(OwnedFd::from(stream.into_std()?).into())
}

/// Refuses a socket of another user in a directory that all users may write to. Root and the user
/// of this process need not plant a socket to receive the requests.
fn check_listener(path: &Path, listener: u32) -> io::Result<()> {
    if [0, rustix::process::geteuid().as_raw()].contains(&listener) {
        return Ok(());
    }
    match open_to_all(path)? {
        None => Ok(()),
        Some(dir) => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!(
                "user {listener} listens there, and all users may write to {}; put the socket into a directory of the server's user",
                dir.display()
            ),
        )),
    }
}

/// Returns a directory above a path, with or without symbolic links, that all users may write to.
/// The sticky bit is no protection: it keeps users from replacing a file, not from making it first.
fn open_to_all(path: &Path) -> io::Result<Option<PathBuf>> {
    let real = std::fs::canonicalize(path)?;
    for dir in path.ancestors().chain(real.ancestors()).filter(|dir| *dir != path && *dir != real) {
        if std::fs::metadata(dir)?.mode() & 0o002 != 0 {
            return Ok(Some(dir.to_owned()));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::future::poll_fn;
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::pin::pin;
    use std::task::Poll;

    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};

    use super::*;

    #[tokio::test]
    async fn full_queue_of_connections_is_awaited() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        // The kernel queues one connection more than listen(2) allows.
        let _first = connect(&path).await.unwrap();
        let mut second = pin!(connect(&path));
        assert!(poll_fn(|context| Poll::Ready(second.as_mut().poll(context).is_pending())).await);
        rustix::net::accept(&listener).unwrap();
        second.await.unwrap();
        assert!(connect(&dir.path().join("other")).await.is_err());
    }

    #[test]
    fn socket_of_another_user_in_a_directory_open_to_all_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (own, other) = (rustix::process::geteuid().as_raw(), 4_242_424);
        let (open, closed) = (dir.path().join("open"), dir.path().join("closed"));
        for (dir, mode) in [(&open, 0o1777), (&closed, 0o755)] {
            std::fs::create_dir(dir).unwrap();
            std::fs::set_permissions(dir, Permissions::from_mode(mode)).unwrap();
            std::fs::write(dir.join("s"), "").unwrap();
        }
        symlink(&open, closed.join("link")).unwrap();
        for path in [open.join("s"), closed.join("link/s")] {
            let error = check_listener(&path, other).unwrap_err();
            assert!(error.to_string().contains("user 4242424 listens there"), "{error}");
            check_listener(&path, own).unwrap();
            check_listener(&path, 0).unwrap();
        }
        // The directory of all temporary files may be open to all as well.
        let beside = open_to_all(&closed.join("s")).unwrap();
        assert_ne!(beside.as_deref(), Some(&*closed));
        assert!(beside.is_none_or(|open| dir.path().starts_with(&open) && open != dir.path()));
        assert!(open_to_all(Path::new("/proc/version")).unwrap().is_none());
    }
}
