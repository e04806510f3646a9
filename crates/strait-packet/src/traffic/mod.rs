//! Generated frames: valid Ethernet, IPv4 or IPv6, UDP or TCP, numbered and timed, over many flows.
//!
//! `generate` and the benchmarks create a [`Traffic`] once and then write one frame per sequence
//! number: a copy of a [`FrameTemplate`], with the varying fields filled in. Nothing here sends
//! frames or reads a clock, and nothing allocates after the traffic is built.
//!
//! The frame of a sequence number:
//! - flow = sequence mod flows;
//! - kind (UDP or TCP, IPv4 or IPv6) = flow mod kinds;
//! - size = slot (flow + sequence div flows) mod slots of the size pattern, so that every flow has
//!   every size.

mod builder;
mod sizes;
mod template;

pub use builder::{FLOWS_MAX, TrafficBuilder};
pub use sizes::{FCS_LEN, SIZE_MAX, SIZE_MIN, SIZES_MAX, Sizes};
pub use template::{Bases, FrameTemplate, Kind, Offsets};

/// The low bits of a flow number vary source address and source port, the rest destination address
/// and destination port.
pub const FLOW_LOW_BITS: u32 = 14;

/// The frames of a generator.
#[derive(Clone, Debug)]
pub struct Traffic {
    /// Ordered by kind, and for each kind one for each distinct size.
    templates: Vec<FrameTemplate>,
    /// For each slot of the size pattern, the index of its template among those of a kind.
    slots: Vec<u16>,
    /// Number of distinct sizes, which is the number of templates of each kind.
    sizes: usize,
    kinds: u32,
    flows: u32,
}

impl Traffic {
    /// Returns the default options: see [`TrafficBuilder`].
    pub fn builder() -> TrafficBuilder {
        TrafficBuilder::default()
    }

    /// Writes frame number `sequence`, sent at `now_ns`, to the start of `out`; returns its length
    /// in bytes, or 0 if `out` is too short for it ([`Traffic::frame_len_max`] always
    /// suffices).
    #[inline]
    pub fn write_frame(&self, sequence: u64, now_ns: u64, out: &mut [u8]) -> usize {
        let (template, flow) = self.select(sequence);
        match out.get_mut(..template.bytes().len()) {
            Some(frame) => {
                frame.copy_from_slice(template.bytes());
                template.patch(flow, sequence, now_ns, frame);
                frame.len()
            }
            None => 0,
        }
    }

    /// Returns the length of frame number `sequence` in bytes, without the frame check sequence.
    #[inline]
    pub fn frame_len(&self, sequence: u64) -> usize {
        self.select(sequence).0.bytes().len()
    }

    /// Returns the length of the longest frame in bytes, without the frame check sequence.
    pub fn frame_len_max(&self) -> usize {
        self.templates.iter().map(|template| template.bytes().len()).max().unwrap_or(0)
    }

    /// Returns the flow of frame number `sequence`, from 0.
    #[inline]
    pub fn flow_of(&self, sequence: u64) -> u32 {
        self.select(sequence).1
    }

    /// Returns the number of flows.
    pub fn flows(&self) -> u32 {
        self.flows
    }

    /// Returns the templates, one for each kind and distinct size.
    pub fn templates(&self) -> &[FrameTemplate] {
        &self.templates
    }

    /// Returns the template and the flow of a sequence number.
    #[inline]
    fn select(&self, sequence: u64) -> (&FrameTemplate, u32) {
        let (round, flow) = match self.flows {
            1 => (sequence, 0),
            flows => (sequence / u64::from(flows), (sequence % u64::from(flows)) as u32),
        };
        let slot = match self.slots.len() as u64 {
            1 => 0,
            slots => (u64::from(flow).wrapping_add(round) % slots) as usize,
        };
        let kind = if self.kinds == 1 { 0 } else { (flow % self.kinds) as usize };
        (&self.templates[kind * self.sizes + usize::from(self.slots[slot])], flow)
    }
}
