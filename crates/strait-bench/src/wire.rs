//! Links to measure on, one for each number of lanes.

pub use strait_os::wire::{Bridge, End, Reception, Wire};

use crate::error::{Error, Result};

/// Wires of a benchmark: two interfaces of the machine for every receiver, or a private pair for
/// each number of lanes, because an AF_XDP receiver has as many lanes as its interface has queues.
#[derive(Debug)]
pub struct Wires {
    wires: Vec<(u32, Wire)>,
}

impl Wires {
    /// Creates a private pair for each number of lanes.
    ///
    /// # Errors
    /// Those of [`Wire::private`]; usage if `lanes` is empty.
    pub fn private(lanes: &[u32], reception: Reception) -> Result<Self> {
        let mut numbers = lanes.to_vec();
        numbers.sort_unstable();
        numbers.dedup();
        if numbers.is_empty() {
            return Err(Error::Usage("give a number of lanes".into()));
        }
        let wire = |lanes| Ok((lanes, Wire::private(lanes, reception)?));
        Ok(Self { wires: numbers.into_iter().map(wire).collect::<Result<_>>()? })
    }

    /// Uses two interfaces of this machine, for any number of lanes.
    ///
    /// # Errors
    /// Those of [`Wire::of`].
    pub fn cabled(sender: &str, receiver: &str) -> Result<Self> {
        Ok(Self { wires: vec![(1, Wire::of(sender, receiver)?)] })
    }

    /// Uses one wire for any number of lanes.
    pub(crate) fn single(wire: Wire) -> Self {
        Self { wires: vec![(1, wire)] }
    }

    /// Returns the wire for a receiver with this number of lanes.
    pub fn of(&self, lanes: u32) -> &Wire {
        let found = self.wires.iter().find(|(has, _)| *has == lanes);
        &found.unwrap_or(&self.wires[0]).1
    }

    /// Returns true if the wires were created for the measurement.
    pub fn are_private(&self) -> bool {
        self.wires[0].1.is_private()
    }
}
