//! NICs that QEMU emulates for a guest, and the wires between them.

/// Kind of NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nic {
    /// Intel 82576, driver igb.
    Igb,
    /// Intel 82540EM, driver e1000.
    E1000,
    /// Intel 82574L, driver e1000e.
    E1000e,
    /// virtio-net, version 1, with the DMA API as AF_XDP zero-copy requires, with the longest
    /// receive queue.
    VirtioNet,
}

impl Nic {
    /// Returns its driver module.
    pub(super) fn driver(self) -> &'static str {
        match self {
            Self::Igb => "igb",
            Self::E1000 => "e1000",
            Self::E1000e => "e1000e",
            Self::VirtioNet => "virtio_net",
        }
    }

    /// Returns the PCI address of the `index`th NIC of a guest, an e1000.
    pub(super) fn e1000_address(index: usize) -> String {
        format!("0000:00:{:02x}.0", Self::e1000_slot(index))
    }

    fn e1000_slot(index: usize) -> usize {
        0x10 + index
    }

    /// Returns QEMU's arguments for the `index`th NIC of a guest, connected to `end`. Each NIC has
    /// its own PCI Express port, because the virtual functions of one igb would take the slots of
    /// the next, and the port's speed is one at which the kernel does not wait for a sign of its
    /// link after a reset, which QEMU does not give. An e1000, a PCI device, gets a slot on the
    /// root bus. No NIC has a boot ROM.
    pub(super) fn arguments(self, index: usize, end: &str) -> Vec<String> {
        let device = match self {
            Self::Igb => "igb",
            Self::E1000 => "e1000",
            Self::E1000e => "e1000e",
            Self::VirtioNet => "virtio-net-pci,disable-legacy=on,iommu_platform=on,rx_queue_size=1024",
        };
        let mut arguments = vec!["-netdev".to_owned(), format!("{end},id=end{index}")];
        let place = if self == Self::E1000 {
            format!("bus=pcie.0,addr={:#x}", Self::e1000_slot(index))
        } else {
            arguments.extend([
                "-device".to_owned(),
                format!("pcie-root-port,id=port{index},chassis={index},x-speed=5"),
            ]);
            format!("bus=port{index}")
        };
        let mac = format!("52:54:00:00:00:{:02x}", index + 1);
        arguments.extend([
            "-device".to_owned(),
            format!("{device},id=nic{index},netdev=end{index},{place},mac={mac},romfile="),
        ]);
        arguments
    }
}
