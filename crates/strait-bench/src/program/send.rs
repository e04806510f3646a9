//! `strait bench send`: cost of sends, by way and by route.

use std::io::ErrorKind;
use std::net::{SocketAddr, ToSocketAddrs as _};

use clap::{Args as ClapArgs, ValueEnum};
use strait_bench::send::{self, Contestant, Load, Over, Plan, Rig, Way};
use strait_os::netlink::Netlink;

use strait_program::parse::{self, NumberList};

use crate::options::SharedOptions;
use crate::start::{cpus_of_both_sides, given_or, launcher, without_repetitions};
use strait_program::Error;

#[derive(ClapArgs)]
#[command(after_help = "Examples:
  strait bench send --html report.html
  strait bench send mixed --over no-copy
  strait bench send file --over loopback,veth
  strait bench send file --ways sendfile,mmap-zc,strait
  strait bench send relay
  strait bench send peers --ways strait --rounds 3
  strait bench send --to 203.0.113.7:9000 -i eth1        there: nc -lk 9000 >/dev/null

A point takes a second and a half: all ways and sizes over three routes, three rounds, some seven minutes. The pairs need root.")]
pub(crate) struct Args {
    /// Load
    #[arg(value_enum, default_value = "buffer")]
    load: LoadArg,
    /// Routes: loopback, veth, no-copy [default: all three; of a relay loopback, of peers veth and
    /// no-copy]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    over: Vec<Over>,
    /// Send to this host and port, where a program reads
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "over")]
    to: Option<String>,
    /// Interface of the route to --to
    #[arg(short, long, value_name = "IFACE", requires = "to")]
    interface: Option<String>,
    /// Ways: send (copies), coalesce (into one buffer, and send), zc (SEND_ZC always),
    /// zc-registered (from registered memory), mmap-zc (SEND_ZC always, of a mapped file), split
    /// (pieces copied, the body by SEND_ZC), sendfile, haproxy, strait (adaptive) [default:
    /// all that carry the load]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    ways: Vec<Way>,
    /// Bytes of the buffer or file, or numbers of pieces [default: a range in which the
    /// best way changes]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    at: Vec<u32>,
    /// CPUs of the sender [default: the first]
    #[arg(long, value_name = "LIST")]
    cpus: Option<NumberList>,
    /// CPUs of the far end [default: all but the first]
    #[arg(long, value_name = "LIST")]
    far_cpus: Option<NumberList>,
    #[command(flatten)]
    options: SharedOptions,
}

#[derive(Clone, Copy, ValueEnum)]
enum LoadArg {
    /// Buffers from 64 MiB of memory, one after the other
    Buffer,
    /// Small pieces and a body of 64 KiB
    Mixed,
    /// A file in memory
    File,
    /// Bytes of another connection
    Relay,
    /// Buffers to many peers, or slowly to one: the share sent by zero-copy
    Peers,
}

impl From<LoadArg> for Load {
    fn from(load: LoadArg) -> Self {
        match load {
            LoadArg::Buffer => Self::Buffer,
            LoadArg::Mixed => Self::Mixed,
            LoadArg::File => Self::File,
            LoadArg::Relay => Self::Relay,
            LoadArg::Peers => Self::Peers,
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Error> {
    args.options.check_files()?;
    let terminated = strait_os::process::on_termination()?;
    let plan = args.plan()?;
    let [first, others] = cpus_of_both_sides()?;
    let cpus = (given_or(args.cpus.as_ref(), first), given_or(args.far_cpus.as_ref(), others));
    for &cpu in cpus.0.iter().chain(&cpus.1) {
        strait_os::process::check_cpu(cpu)?;
    }
    let rig = Rig::create(launcher()?, &plan.contestants, cpus, args.options.seconds, terminated)?;
    args.options.measure(|machine, progress| send::run(&rig, &plan, machine, progress))
}

impl Args {
    fn plan(&self) -> Result<Plan, Error> {
        let load = Load::from(self.load);
        let ways = if self.ways.is_empty() { load.ways().to_vec() } else { without_repetitions(&self.ways) };
        if let Some(way) = ways.iter().find(|way| !load.ways().contains(way)) {
            let names: Vec<_> = load.ways().iter().map(ToString::to_string).collect();
            return Err(Error::usage(format!("{way} does not carry this load: give {}", names.join(", "))));
        }
        let routes = self.routes()?;
        if load == Load::Relay && routes != load.routes() {
            return Err(Error::usage("a relay is measured over loopback: omit --over and --to"));
        }
        if load == Load::Peers
            && !(self.at.is_empty() && routes.iter().all(|over| load.routes().contains(over)))
        {
            return Err(Error::usage("peers have fixed loads over veth and no-copy: omit --at and --to"));
        }
        let over = |&over| ways.iter().map(move |&way| Contestant { over, way });
        let places = if self.at.is_empty() { load.places().to_vec() } else { without_repetitions(&self.at) };
        Ok(Plan {
            load,
            contestants: routes.iter().flat_map(over).collect(),
            places,
            rounds: self.options.rounds,
        })
    }

    fn routes(&self) -> Result<Vec<Over>, Error> {
        match &self.to {
            Some(to) => {
                let address = look_up(to)?;
                if let Some(interface) = &self.interface {
                    check_route(address, interface)?;
                }
                Ok(vec![Over::Peer(address)])
            }
            None if self.over.is_empty() => Ok(Load::from(self.load).routes().to_vec()),
            None => Ok(without_repetitions(&self.over)),
        }
    }
}

/// Returns the first address of a HOST:PORT.
fn look_up(to: &str) -> Result<SocketAddr, Error> {
    let found = parse::host_and_port(to).to_socket_addrs().map_err(|error| match error.kind() {
        ErrorKind::InvalidInput => Error::usage(format!("'{to}': write it as HOST:PORT")),
        _ => Error::failed(format!("look up {to}: {error}")),
    });
    found?.next().ok_or_else(|| Error::failed(format!("look up {to}: the name has no address")))
}

/// Checks that an address is reached by this interface.
fn check_route(to: SocketAddr, interface: &str) -> Result<(), Error> {
    let mut netlink = Netlink::open()?;
    let asked = netlink.interface(interface)?.index;
    let found = netlink.route(None, to)?.index;
    if found == asked {
        return Ok(());
    }
    let found = netlink.interface_at(found)?.name;
    Err(Error::usage(format!("{to} is reached by {found}: give -i {found}, or add a route by {interface}")))
}
