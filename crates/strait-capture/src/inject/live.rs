//! Generator in the kernel: an XDP program that writes frames and redirects them to an interface.
//!
//! `BPF_PROG_TEST_RUN` with live frames (Linux 5.18) needs no system call, copy or socket buffer
//! per frame, so one core sends millions of frames a second. The driver must support redirected
//! frames (`ndo_xdp_xmit`). A veth supports them if its peer receives with NAPI, that is with GRO
//! or an XDP program at the peer.

use rustix::io::Errno;
use strait_filter::xdp::{
    GeneratorFields, GeneratorOptions, PACE_SHIFT, Pace, STATE_BYTES, generator_program,
};
use strait_ledger as ledger;
use strait_os::clock;
use strait_os::interface::Interface;
use strait_os::netlink::{LinkStats, Netlink};
use strait_packet::traffic::{FLOW_LOW_BITS, FrameTemplate, Traffic};
use strait_sys::Kind;
use strait_sys::bpf::{LoadOptions, Map, TestRun, XdpContext, XdpProgram};

use crate::error::Error;

/// Frames that the kernel processes at a time: a quarter of a veth's receive ring.
const BATCH: u32 = 64;

/// Generator of the frames of one template.
pub struct LiveGenerator {
    program: XdpProgram,
    state: Map,
    frame: Vec<u8>,
    interface: Interface,
    before: LinkStats,
}

impl LiveGenerator {
    /// Loads the program for the first template of `traffic`. It sends at most `count` frames,
    /// `rate_pps` a second from now on, or as fast as possible.
    ///
    /// # Errors
    /// No privilege (CAP_BPF, CAP_NET_ADMIN), or a kernel without live frames.
    pub fn open(
        interface: &str,
        traffic: &Traffic,
        rate_pps: Option<u64>,
        count: u64,
    ) -> Result<Self, Error> {
        let interface = Interface::find(interface)?;
        let template =
            traffic.templates().first().ok_or_else(|| Error::Usage("no traffic to generate".to_owned()))?;
        let state = Map::array("strait_state", STATE_BYTES, 1)?;
        let pace = rate_pps.map(pace);
        let options =
            GeneratorOptions { frames_max: count, pace, ..options(&interface, traffic, template, &state) };
        let assembled =
            generator_program(&options).map_err(|error| Error::Usage(format!("generate: {error}")))?;
        let program = XdpProgram::load("strait_generate", &assembled.words(), LoadOptions::default())?;
        let before = Netlink::open()?.stats(interface.index)?;
        let frame = template.bytes().to_vec();
        Ok(Self { program, state, frame, interface, before })
    }

    /// Runs the program `runs` times. Each run sends a frame if one is due. Returns the number of
    /// frames since the start. A signal ends it early. Each call costs the kernel some 20 ms
    /// besides its frames, to set up and clear their pages.
    pub fn run(&mut self, runs: u32) -> Result<u64, Error> {
        self.reset_time()?;
        let run = TestRun {
            data: &self.frame,
            context: Some(XdpContext::default()),
            repeat: runs,
            live_frames: true,
            batch: BATCH.min(runs),
            ..TestRun::default()
        };
        match self.program.test_run(run) {
            // A signal ended the run.
            Err(error) if !error.is_one_of(&[Errno::INTR]) => Err(error.into()),
            _ => self.generated(),
        }
    }

    /// Clears the program's last clock reading, which would otherwise be the time of the first
    /// frames of the next run.
    fn reset_time(&self) -> Result<(), Error> {
        let mut value = [0; STATE_BYTES as usize];
        value[..size_of::<u64>()].copy_from_slice(&self.generated()?.to_ne_bytes());
        Ok(self.state.set(0, &value)?)
    }

    /// Returns the number of frames that the program has generated.
    fn generated(&self) -> Result<u64, Error> {
        let mut value = [0; STATE_BYTES as usize];
        self.state.get(0, &mut value)?;
        let (generated, _time) = value.split_first_chunk().expect("a value begins with a number of 64 bits");
        Ok(u64::from_ne_bytes(*generated))
    }

    /// Returns the account: the frames that the interface's counters report as sent, and the others
    /// as dropped.
    ///
    /// # Errors
    /// The interface did not send any frame.
    pub fn finish(self) -> Result<ledger::Send, Error> {
        let generated = self.generated()?;
        let after = Netlink::open()?.stats(self.interface.index)?;
        let frames = (after.tx_packets - self.before.tx_packets).min(generated);
        if frames == 0 && generated > 0 {
            let cause = "it does not send redirected frames";
            let remedy = "for a veth, switch on GRO at the other end: ethtool -K PEER gro on";
            return Err(strait_sys::Error::new(
                Kind::Refused,
                "send live frames on",
                self.interface.name,
                cause,
            )
            .remedy(remedy)
            .into());
        }
        let bytes = frames * self.frame.len() as u64;
        Ok(ledger::Send { frames, bytes, dropped: generated - frames, ..ledger::Send::default() })
    }
}

/// Returns a pace of `rate_pps` from now on.
fn pace(rate_pps: u64) -> Pace {
    let interval = (1_000_000_000_u64 << PACE_SHIFT) / rate_pps.max(1);
    Pace { start_ns: clock::monotonic_ns(), interval }
}

fn options(
    interface: &Interface,
    traffic: &Traffic,
    template: &FrameTemplate,
    state: &Map,
) -> GeneratorOptions {
    use std::os::fd::{AsFd, AsRawFd};
    let (offsets, bases) = (template.offsets(), template.bases());
    GeneratorOptions {
        state_fd: state.as_fd().as_raw_fd(),
        ifindex: interface.index,
        frame_bytes: template.bytes().len(),
        flows: traffic.flows(),
        flow_low_bits: FLOW_LOW_BITS,
        fields: GeneratorFields {
            source_address: offsets.source_address,
            destination_address: offsets.destination_address,
            header_checksum: offsets.header_checksum,
            source_port: offsets.source_port,
            destination_port: offsets.destination_port,
            transport_checksum: offsets.transport_checksum,
            sequence: offsets.sequence,
            sent_ns: offsets.sent_ns,
        },
        addresses: [bases.source_address, bases.destination_address],
        ports: [bases.source_port, bases.destination_port],
        header_sum: template.header_sum(),
        transport_sum: template.transport_sum(),
        udp: !template.kind().is_tcp(),
        frames_max: u64::MAX,
        pace: None,
        clock_offset_ns: clock::realtime_offset_ns(),
    }
}
