//! `strait proxy`: a caching HTTP proxy.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytesize::ByteSize;
use clap::Args as ClapArgs;
use strait_proxy::{Clock, Config, Proxy};

use crate::Error;
use crate::output::tell;

/// Options of `strait proxy`.
#[derive(ClapArgs)]
#[command(after_help = "Examples:
  strait proxy --listen 127.0.0.1:3128 --cache-dir /var/cache/strait       # a forward cache for this machine
  strait proxy --listen [::]:80 --origin http://127.0.0.1:8080 --cache-dir /var/cache/strait --cache-size 20GB
  http_proxy=http://127.0.0.1:3128 curl -I http://deb.debian.org/debian/dists/stable/InRelease")]
pub(crate) struct Args {
    /// The configuration, strait.toml; what is given here goes before it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address and port to listen on; port 0 takes a free one [default: 127.0.0.1:3128]
    #[arg(long, value_name = "ADDR")]
    listen: Vec<SocketAddr>,
    /// Stand before this server: a reverse proxy
    #[arg(long, value_name = "URL")]
    origin: Option<String>,
    /// Keep responses here; without it small ones are kept in memory
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
    /// What they may take on disk [default: 1 GiB]
    #[arg(long, value_name = "SIZE")]
    cache_size: Option<ByteSize>,
    /// What small ones may take in memory [default: 64 MiB]
    #[arg(long, value_name = "SIZE")]
    memory: Option<ByteSize>,
    /// Threads [default: one a processor]
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// Read stored bodies and send them, in place of sendfile: to compare
    #[arg(long)]
    no_sendfile: bool,
    /// Read bodies from origins and write them, in place of splice: to compare
    #[arg(long)]
    no_splice: bool,
}

/// How often it is looked whether the process is to end.
const TERMINATION_POLL: Duration = Duration::from_millis(50);

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Error> {
    let terminated = strait_sys::process::on_termination()?;
    let config = config(args)?;
    let proxy = Proxy::start(&config, Clock::system())?;
    for address in proxy.addresses() {
        tell(format_args!("listening on {address}\n"));
    }
    while !terminated.load(Ordering::Relaxed) {
        std::thread::sleep(TERMINATION_POLL);
    }
    proxy.stop();
    Ok(())
}

fn config(args: &Args) -> Result<Config, Error> {
    let mut config = match &args.config {
        Some(path) => {
            let text = std::fs::read_to_string(path);
            let text = text.map_err(|error| Error::Usage(format!("{}: {error}", path.display())))?;
            Config::from_toml(&text)?
        }
        None => Config::default(),
    };
    if !args.listen.is_empty() {
        config.listen.clone_from(&args.listen);
    }
    config.origin = args.origin.clone().or(config.origin);
    config.cache.dir = args.cache_dir.clone().or(config.cache.dir);
    config.cache.size = args.cache_size.unwrap_or(config.cache.size);
    config.cache.memory = args.memory.unwrap_or(config.cache.memory);
    config.workers = args.workers.unwrap_or(config.workers);
    config.transfer.sendfile &= !args.no_sendfile;
    config.transfer.splice &= !args.no_splice;
    Ok(config)
}
