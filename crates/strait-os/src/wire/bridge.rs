//! Bridge between two private wires, for measurements of a host that forwards frames.
//!
//! ```text
//!   sender ──▶ near port ─ bridge ─ far port ──▶ sink
//! ```
//!
//! Sender and sink are in one namespace, the bridge is in another. The bridge floods frames with an
//! unknown destination, so everything that the sender sends reaches the sink.

use super::{End, Wire};
use crate::Result;
use crate::ethtool::{Ethtool, Offload};
use crate::interface::Interface;
use crate::netlink::{Netlink, VethEnd};

const BRIDGE: &str = "bridge";
const SINK: &str = "sink";
const FAR_PORT: &str = "far-port";

/// Bridge with two ports, and the ends of their wires.
#[derive(Debug)]
pub struct Bridge {
    /// Wire with the bridge as its receiver.
    pub bridge: Wire,
    /// Wire with the bridge's near port as its receiver.
    pub port: Wire,
    /// End that the forwarded frames reach.
    pub sink: End,
}

impl Wire {
    /// Creates a bridge that receives in batches at its near port.
    ///
    /// # Errors
    /// Those of [`Wire::private`]; the kernel has no bridges.
    pub fn bridged() -> Result<Bridge> {
        let port = Self::lay(1, |_| Ok(()))?;
        port.sender.run(|| {
            let (near, far) = (VethEnd::new(SINK), VethEnd::new(FAR_PORT));
            let far = VethEnd { namespace: port.receiver.namespace_fd(), ..far };
            Netlink::open()?.add_veth(&near, &far)
        })??;
        let sink = port.sender.sibling(SINK)?;
        let bridge = port.receiver.sibling(BRIDGE)?;
        let ports = [port.receiver.interface(), FAR_PORT];
        bridge.run(|| connect(&ports))??;
        let far = Self { sender: sink, receiver: port.receiver.sibling(FAR_PORT)? };
        for wire in [&port, &far] {
            wire.switch_offloads(&[Offload::Gro, Offload::Tso, Offload::Gso, Offload::TxChecksum], false)?;
            wire.raise()?;
        }
        // As in `Wire::private`: the port takes redirected frames.
        port.receiver.run(|| Ethtool::open(port.receiver.interface())?.set_offload(Offload::Gro, true))??;
        let bridge = Self { sender: port.sender.sibling(port.sender.interface())?, receiver: bridge };
        Ok(Bridge { bridge, port, sink: far.sender })
    }
}

/// Creates the bridge, up, with `ports`.
fn connect(ports: &[&str]) -> Result<()> {
    let mut netlink = Netlink::open()?;
    netlink.add_bridge(BRIDGE)?;
    let bridge = netlink.interface(BRIDGE)?.index;
    for port in ports {
        netlink.add_port(bridge, Interface::find(port)?.index)?;
    }
    netlink.set_up(bridge, true)
}

#[cfg(test)]
mod tests {
    use strait_sys::packet::Socket;

    use super::*;
    use crate::wait;
    use std::time::{Duration, Instant};

    const FRAMES: u64 = 3;

    #[test]
    fn frames_of_the_sender_reach_the_sink() {
        let bridge = match Wire::bridged() {
            Err(error) => return eprintln!("SKIP bridge: {error}"),
            Ok(bridge) => bridge,
        };
        let sender = bridge.port.sender();
        let frame = [&[2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 0x88, 0xb5][..], &[0; 46]].concat();
        sender
            .run(|| {
                let socket = Socket::open(sender.interface()).unwrap();
                socket.bind_for_sending(Interface::find(sender.interface()).unwrap().index).unwrap();
                (0..FRAMES).for_each(|_| socket.send(&frame).unwrap());
            })
            .unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while bridge.sink.stats().unwrap().rx_packets < FRAMES {
            assert!(Instant::now() < deadline, "{:?}", bridge.sink.stats());
            wait::sleep(Duration::from_millis(5));
        }
        assert_eq!(bridge.sink.stats().unwrap().rx_packets, FRAMES);
    }
}
