//! Limit of open files, and ports that need a privilege.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::Error;

/// Remedy for a port that needs a privilege.
pub const HELP_TO_LISTEN: &str = "; ports below 1024 need CAP_NET_BIND_SERVICE: setcap cap_net_bind_service=+ep, or \
    AmbientCapabilities=CAP_NET_BIND_SERVICE in a unit of systemd";

/// Raises the limit of open files to `requested`, or as far as this process is allowed to. Returns
/// the resulting limit.
///
/// # Errors
/// setrlimit(2) fails.
pub fn allow_files(requested: u64) -> Result<u64, Error> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let Some(current) = current.filter(|current| *current < requested) else { return Ok(requested) };
    let raise = |maximum| setrlimit(Resource::Nofile, Rlimit { current: Some(requested), maximum }).is_ok();
    // With CAP_SYS_RESOURCE a process may also exceed the hard limit.
    if maximum.is_none_or(|maximum| requested <= maximum) && raise(maximum) || raise(Some(requested)) {
        return Ok(requested);
    }
    let hard = maximum.unwrap_or(current);
    setrlimit(Resource::Nofile, Rlimit { current: Some(hard), maximum })
        .map_err(|error| Error::Failed(format!("raise the limit of open files: {error}")))?;
    Ok(hard)
}
