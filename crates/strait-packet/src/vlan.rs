//! VLAN tags: four bytes between the MAC addresses and the Ethernet type of the payload.
//!
//! Layout (IEEE 802.1Q): after a type of 0x8100, 0x88a8 or 0x9100 come 3 bits of priority, 1 bit
//! drop eligible, 12 bits VLAN identifier, and then the next type. Tags can be stacked.

use crate::error::{Error, Header, Result, be16, split_head};
use crate::protocol::ether_type;

/// Bytes that one tag adds to a frame.
pub const TAG_LEN: usize = 4;

/// Maximum number of stacked tags; frames with more are refused.
pub const TAGS_MAX: usize = 4;

/// The highest VLAN identifier; 4095 is reserved.
pub const VLAN_ID_MAX: u16 = 4094;

/// One tag: the tag control information, and the Ethernet type before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tag {
    /// The Ethernet type of the tag: 0x8100, 0x88a8 or 0x9100.
    pub tpid: u16,
    /// Priority, drop eligible indicator and identifier.
    pub tci: u16,
}

impl Tag {
    /// Returns the VLAN identifier, 0 to 4095; 0 means that the tag has only a priority.
    pub fn id(self) -> u16 {
        self.tci & 0x0fff
    }

    /// Returns the priority code point, 0 to 7.
    pub fn priority(self) -> u8 {
        (self.tci >> 13) as u8
    }

    /// Returns the drop eligible indicator.
    pub fn drop_eligible(self) -> bool {
        self.tci & 0x1000 != 0
    }
}

/// Returns true if a type is that of a VLAN tag.
pub fn is_tag(ether_type: u16) -> bool {
    matches!(ether_type, ether_type::VLAN | ether_type::SERVICE_VLAN | ether_type::OLD_QINQ)
}

/// A payload and the tags before it, outermost first.
#[derive(Clone, Copy, Debug)]
pub struct Untagged<'a> {
    tags: [Tag; TAGS_MAX],
    count: usize,
    ether_type: u16,
    payload: &'a [u8],
}

impl<'a> Untagged<'a> {
    /// Parses the tags of `payload`, which has the type `ether_type`. Without a tag all of it is
    /// the payload. Fails on a tag that is cut, and on more than [`TAGS_MAX`] tags.
    pub fn parse(ether_type: u16, payload: &'a [u8]) -> Result<Self> {
        let mut untagged = Self { tags: [Tag::default(); TAGS_MAX], count: 0, ether_type, payload };
        while is_tag(untagged.ether_type) {
            untagged.take_tag()?;
        }
        Ok(untagged)
    }

    fn take_tag(&mut self) -> Result<()> {
        let too_many = Error::TooMany { header: Header::Vlan, limit: TAGS_MAX };
        let slot = self.tags.get_mut(self.count).ok_or(too_many)?;
        let (head, payload) = split_head::<TAG_LEN>(Header::Vlan, self.payload)?;
        *slot = Tag { tpid: self.ether_type, tci: be16(head, 0) };
        self.count += 1;
        (self.ether_type, self.payload) = (be16(head, 2), payload);
        Ok(())
    }

    /// Returns the tags, outermost first.
    pub fn tags(&self) -> &[Tag] {
        &self.tags[..self.count]
    }

    /// Returns the type of the payload.
    pub fn ether_type(&self) -> u16 {
        self.ether_type
    }

    /// Returns the bytes after the last tag.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}
