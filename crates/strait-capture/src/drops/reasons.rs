//! Names of reasons in the running kernel.
//!
//! Reasons of subsystems have the subsystem's number in their upper 16 bits
//! (include/net/dropreason.h, Linux 6.4). Their own names are in the BTF of modules, so they are
//! shown by number.

use std::collections::HashMap;

use strait_sys::bpf::btf::Types;

const REASONS: &str = "skb_drop_reason";
const SUBSYSTEMS: &str = "skb_drop_reason_subsys";
const CONSUMED: &str = "SKB_CONSUMED";

/// Names by number.
#[derive(Debug, Default)]
pub(super) struct Reasons {
    names: HashMap<u32, String>,
    subsystems: HashMap<u32, String>,
    consumed: Option<u32>,
}

impl Reasons {
    /// Finds the reasons of the kernel; `None` if it has none.
    ///
    /// # Errors
    /// The format of the BTF is unknown.
    pub(super) fn of(types: &Types) -> strait_sys::Result<Option<Self>> {
        let Some(reasons) = types.enumeration(REASONS)? else { return Ok(None) };
        Ok(Some(Self::new(reasons, types.enumeration(SUBSYSTEMS)?.unwrap_or_default())))
    }

    fn new(reasons: Vec<(String, u32)>, subsystems: Vec<(String, u32)>) -> Self {
        let consumed = reasons.iter().find(|(name, _)| name == CONSUMED).map(|(_, value)| *value);
        let by_number = |values: Vec<(String, u32)>, prefixes: [&str; 2]| {
            let short = |name: &str| {
                let short = prefixes.iter().find_map(|prefix| name.strip_prefix(prefix));
                short.unwrap_or(name).to_owned()
            };
            values.into_iter().map(|(name, value)| (value, short(&name))).collect()
        };
        Self {
            names: by_number(reasons, ["SKB_DROP_REASON_", "SKB_"]),
            subsystems: by_number(subsystems, ["SKB_DROP_REASON_SUBSYS_", "SKB_"]),
            consumed,
        }
    }

    /// Returns the reason of packets that are freed after their use. They are no drops.
    pub(super) fn consumed(&self) -> Option<u32> {
        self.consumed
    }

    /// Returns the name of a reason: `NO_SOCKET`, `OPENVSWITCH:3`, or its number.
    pub(super) fn name(&self, reason: u32) -> String {
        if let Some(name) = self.names.get(&reason) {
            return name.clone();
        }
        match self.subsystems.get(&(reason >> 16)) {
            Some(subsystem) if reason >> 16 != 0 => format!("{subsystem}:{}", reason & 0xffff),
            _ => reason.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(names: &[(&str, u32)]) -> Vec<(String, u32)> {
        names.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    #[test]
    fn reasons_have_short_names_and_those_of_subsystems_a_number() {
        let reasons = Reasons::new(
            values(&[("SKB_CONSUMED", 1), ("SKB_DROP_REASON_NO_SOCKET", 3)]),
            values(&[("SKB_DROP_REASON_SUBSYS_CORE", 0), ("SKB_DROP_REASON_SUBSYS_OPENVSWITCH", 3)]),
        );
        assert_eq!(reasons.consumed(), Some(1));
        let names = [1, 3, 4, 3 << 16 | 7, 9 << 16].map(|reason| reasons.name(reason));
        assert_eq!(names, ["CONSUMED", "NO_SOCKET", "4", "OPENVSWITCH:7", "589824"]);
    }
}
