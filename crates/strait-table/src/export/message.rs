//! Messages: flows that are sent together.

use crate::flows::FlowRow;

/// Flow with the name of its interface.
#[derive(Clone, Copy)]
pub(crate) struct Record<'a> {
    pub(crate) row: &'a FlowRow,
    pub(crate) interface: Option<&'a str>,
}

/// Flows that are sent together.
#[derive(Debug, Default)]
pub(crate) struct Message {
    pub(crate) bytes: Vec<u8>,
    /// Templates of the sets of an IPFIX message.
    pub(crate) templates: Vec<u16>,
    /// Lane and packets of each flow.
    pub(crate) flows: Vec<(u32, u64)>,
}

impl Message {
    /// Adds lane and packets of a flow. The message has its bytes already.
    pub(crate) fn count(&mut self, row: &FlowRow) {
        self.flows.push((row.lane, row.packets()));
    }
}

/// Builder of messages in one format.
pub(crate) trait Build: Send {
    /// Adds a flow to a message of at most `bytes_max` bytes, which are enough for any flow.
    /// Returns the message before it, if the flow did not fit into that.
    fn push(&mut self, record: &Record<'_>, bytes_max: usize) -> Option<Message>;
    /// Returns the last message, if it has a flow.
    fn finish(&mut self) -> Option<Message>;
}
