//! Limit of open files, and ports that need a privilege.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::Error;

/// Remedy for a port that needs a privilege.
pub const HELP_TO_LISTEN: &str = "; ports below 1024 need CAP_NET_BIND_SERVICE: setcap cap_net_bind_service=+ep, or \
    AmbientCapabilities=CAP_NET_BIND_SERVICE in a unit of systemd";

/// Raises the limit of open files to `wanted`, or as far as this process may. Returns the resulting
/// limit.
///
/// # Errors
/// setrlimit(2) fails.
pub fn allow_files(wanted: u64) -> Result<u64, Error> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let Some(current) = current.filter(|current| *current < wanted) else { return Ok(wanted) };
    let raised = |maximum| setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }).is_ok();
    // With CAP_SYS_RESOURCE past the hard limit too.
    if maximum.is_none_or(|maximum| wanted <= maximum) && raised(maximum) || raised(Some(wanted)) {
        return Ok(wanted);
    }
    let hard = maximum.unwrap_or(current);
    setrlimit(Resource::Nofile, Rlimit { current: Some(hard), maximum })
        .map_err(|error| Error::Failed(format!("raise the limit of open files: {error}")))?;
    Ok(hard)
}
