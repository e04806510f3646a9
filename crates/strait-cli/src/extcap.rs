//! `strait extcap`: Strait's capture as interfaces of Wireshark and tshark.
//!
//! Wireshark executes each program in its folders for extcap programs: once for the list of
//! interfaces, and then for the link types, the options and the capture of one (Wireshark
//! Developer's Guide, "Adding Capture Interfaces And Log Sources Using Extcap"). `--install` puts a
//! script there that executes this command. A capture is `strait capture -w FIFO` without notices.
//! That on another machine is the same by ssh ([`ssh`]).

mod ssh;

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args as ClapArgs;
use strait_capture::Path as CapturePath;
use strait_os::interface::Interface;

use crate::Error;
use crate::capture::{interfaces, link_name};
use crate::output::{print_line, print_text};
use crate::parse::path;
use crate::toolbar;

/// Prefix of the names of interfaces in Wireshark.
const PREFIX: &str = "strait:";
/// Name of the script.
const SCRIPT: &str = "strait";
/// Link type of a remote interface, which is known only to the pcapng stream.
const REMOTE_LINK_TYPE: &str = "dlt {number=147}{name=USER0}{display=Link type of the remote interface}";
/// Folders of a user's extcap programs in the home directory: of Wireshark 4.0, and since 4.2.
const FOLDERS: [&str; 2] = [".config/wireshark/extcap", ".local/lib/wireshark/extcap"];

/// Options of `strait extcap`, which Wireshark gives.
#[derive(ClapArgs)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Install this command for Wireshark and tshark of the present user
    #[arg(long, group = "action")]
    install: bool,
    /// List the interfaces
    #[arg(long, group = "action")]
    extcap_interfaces: bool,
    /// Version of Wireshark
    #[arg(long, value_name = "VERSION")]
    extcap_version: Option<String>,
    /// List the link types of an interface
    #[arg(long, group = "action", requires = "extcap_interface")]
    extcap_dlts: bool,
    /// List the options of an interface
    #[arg(long, group = "action", requires = "extcap_interface")]
    extcap_config: bool,
    /// Capture on an interface
    #[arg(long, group = "action", requires = "extcap_interface", requires = "fifo")]
    capture: bool,
    /// Interface, as in strait:eth0
    #[arg(long, value_name = "IF")]
    extcap_interface: Option<String>,
    /// Named pipe that Wireshark reads
    #[arg(long, value_name = "FILE")]
    fifo: Option<String>,
    /// Filter in libpcap's language; without --capture it is only checked
    #[arg(long, value_name = "FILTER")]
    extcap_capture_filter: Option<String>,
    /// Kernel path
    #[arg(short, long, value_parser = path(), default_value = CapturePath::Auto.name())]
    path: CapturePath,
    #[command(flatten)]
    toolbar: toolbar::Args,
    #[command(flatten, next_help_heading = "Interface strait-ssh")]
    remote: ssh::Args,
}

const EXAMPLES: &str = "Examples:
  strait extcap --install
  tshark -i strait:eth0
  tshark -i strait-ssh -o extcap.strait_ssh.remotehost:gateway.example";

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Error> {
    if args.install {
        return install();
    }
    if args.extcap_interfaces {
        return list();
    }
    let Some(interface) = &args.extcap_interface else {
        return Err(Error::Usage("Wireshark starts this command: give --install, and then tshark -D".into()));
    };
    let name = interface.strip_prefix(PREFIX).unwrap_or(interface);
    let is_remote = interface == ssh::INTERFACE;
    if args.extcap_dlts {
        let line = if is_remote { REMOTE_LINK_TYPE.to_owned() } else { link_type_line(name)? };
        return Ok(print_line(&line)?);
    }
    if args.extcap_config {
        return Ok(print_text(&options(is_remote))?);
    }
    let filter = args.extcap_capture_filter.as_deref().unwrap_or_default();
    match &args.fifo {
        Some(fifo) if args.capture && is_remote => {
            args.remote.capture(args.path, fifo, filter, args.toolbar.open()?)
        }
        Some(fifo) if args.capture => capture(args, name, fifo, filter),
        // Wireshark shows the text as the error of the filter.
        _ if filter.is_empty() || strait_capture::is_filter(filter) => Ok(()),
        _ => Ok(print_line(&format!("{filter}: no filter in the language of pcap-filter(7)"))?),
    }
}

fn list() -> Result<(), Error> {
    let mut text = format!("extcap {{version={}}}{{display=Strait}}\n", env!("CARGO_PKG_VERSION"));
    let named = interfaces::all()?.into_iter().filter(|interface| interface.link_type().is_some());
    for name in named.map(|interface| interface.name).chain([interfaces::ANY.to_owned()]) {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "interface {{value={PREFIX}{name}}}{{display=Strait: {name}}}");
    }
    let _ = writeln!(text, "interface {{value={}}}{{display=Strait remote (ssh)}}", ssh::INTERFACE);
    text.push_str(toolbar::CONTROLS);
    Ok(print_text(&text)?)
}

fn link_type_line(name: &str) -> Result<String, Error> {
    let interface = if name == interfaces::ANY { Interface::any() } else { Interface::find(name)? };
    let number = interface.link_type().ok_or_else(|| {
        Error::Usage(format!("{name} has packets of a link type that Strait cannot capture"))
    })?;
    let full = link_name(number);
    let short = full.split(' ').next().unwrap_or_default();
    Ok(format!("dlt {{number={number}}}{{name={short}}}{{display={full}}}"))
}

/// Returns the options that Wireshark shows for an interface.
fn options(is_remote: bool) -> String {
    let mut text = String::from("arg {number=0}{call=--path}{display=Kernel path}{type=selector}\n");
    for path in CapturePath::ALL {
        let (name, is_default) = (path.name(), *path == CapturePath::Auto);
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "value {{arg=0}}{{value={name}}}{{display={name}: {}}}{{default={is_default}}}",
            path.description()
        );
    }
    if is_remote {
        text.push_str(&ssh::options(1));
    }
    text
}

/// Replaces this program by the capture. Wireshark ends it by SIGTERM, and then shows all text on
/// standard error as an error.
fn capture(args: &Args, interface: &str, fifo: &str, filter: &str) -> Result<(), Error> {
    let mut command = Command::new(own_path()?);
    command.args(["capture", "--no-notices", "-i", interface, "--path", args.path.name()]);
    command.args(["-U", "--format", "pcap", "-w", fifo]).args(args.toolbar.forward());
    if !filter.is_empty() {
        command.args(["--", filter]);
    }
    Err(Error::Failed(format!("execute strait capture: {}", command.exec())))
}

fn own_path() -> Result<PathBuf, Error> {
    env::current_exe().map_err(|error| Error::Failed(format!("find the program strait: {error}")))
}

fn install() -> Result<(), Error> {
    let home = env::var_os("HOME").filter(|home| !home.is_empty());
    let home =
        home.ok_or_else(|| Error::Usage("HOME is not set: it has the folder of extcap programs".into()))?;
    let program = own_path()?;
    // A single quote ends the quoted text.
    let quoted = program.display().to_string().replace('\'', r"'\''");
    let script = format!("#!/bin/sh\nexec '{quoted}' extcap \"$@\"\n");
    for folder in FOLDERS {
        let file = Path::new(&home).join(folder).join(SCRIPT);
        write(&file, &script).map_err(|error| Error::Failed(format!("write {}: {error}", file.display())))?;
        print_line(&format!("installed {}", file.display()))?;
    }
    Ok(print_line("tshark -D lists the interfaces; Wireshark shows them after a restart")?)
}

/// Replaces a file by an executable script.
fn write(file: &Path, script: &str) -> std::io::Result<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    let new = file.with_extension("new");
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o755);
    options.open(&new)?.write_all(script.as_bytes())?;
    fs::rename(new, file)
}
