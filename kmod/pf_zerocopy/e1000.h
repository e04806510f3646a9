/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The NIC, an Intel 82540EM: its registers and descriptors (Intel's "PCI/PCI-X
 * Family of Gigabit Ethernet Controllers Software Developer's Manual", chapters
 * 3 and 13), and the functions of e1000.c for device.c.
 */
#ifndef _ZEROCOPY_E1000_H
#define _ZEROCOPY_E1000_H

#include "internal.h"

#define REG_CTRL 0x0000
#define CTRL_ASDE BIT(5)
#define CTRL_SLU BIT(6)
#define CTRL_RST BIT(26)
#define REG_STATUS 0x0008
#define STATUS_LU BIT(1)
#define REG_ICR 0x00c0
#define REG_ITR 0x00c4
#define REG_IMS 0x00d0
#define REG_IMC 0x00d8
#define INT_TXDW BIT(0)
#define INT_LSC BIT(2)
#define INT_RXDMT0 BIT(4)
#define INT_RXO BIT(6)
#define INT_RXT0 BIT(7)
#define INT_RX (INT_RXT0 | INT_RXO | INT_RXDMT0)
#define REG_RCTL 0x0100
#define RCTL_EN BIT(1)
#define RCTL_UPE BIT(3)
#define RCTL_MPE BIT(4)
#define RCTL_BAM BIT(15)
#define RCTL_SECRC BIT(26) /* and, by zeros, buffers of 2048 bytes */
#define REG_TCTL 0x0400
#define TCTL_EN BIT(1)
#define TCTL_PSP BIT(3)
#define TCTL_CT (0x0f << 4)
#define TCTL_COLD (0x40 << 12)
#define REG_TIPG 0x0410
#define TIPG_COPPER (10 | 8 << 10 | 6 << 20)
#define REG_RDBAL 0x2800
#define REG_RDBAH 0x2804
#define REG_RDLEN 0x2808
#define REG_RDH 0x2810
#define REG_RDT 0x2818
#define REG_RDTR 0x2820
#define REG_RADV 0x282c
#define REG_TDBAL 0x3800
#define REG_TDBAH 0x3804
#define REG_TDLEN 0x3808
#define REG_TDH 0x3810
#define REG_TDT 0x3818
#define REG_TIDV 0x3820
#define REG_CRCERRS 0x4000
#define REG_MPC 0x4010
#define REG_RUC 0x40a4
#define REG_RFC 0x40a8
#define REG_ROC 0x40ac
#define REG_MTA 0x5200
#define MTA_ENTRIES 128
#define REG_RAL 0x5400
#define REG_RAH 0x5404

/* Time for the NIC to finish running transfers. */
#define STOP_MS 10
#define RESET_MS 2

struct e1000_rx_desc {
	__le64 addr;
	__le16 length;
	__le16 checksum;
	u8 status;
	u8 errors;
	__le16 special;
};

#define RX_DD BIT(0)
#define RX_EOP BIT(1)

struct e1000_tx_desc {
	__le64 addr;
	__le16 length;
	u8 checksum_offset;
	u8 command;
	u8 status;
	u8 checksum_start;
	__le16 special;
};

#define TX_CMD_EOP BIT(0)
#define TX_CMD_IFCS BIT(1)
#define TX_CMD_RS BIT(3)
#define TX_DD BIT(0)

/* A register that counts losses of the NIC, and its last value. */
struct e1000_counter {
	unsigned int reg;
	u32 before; /* where reading does not clear it */
};

#define E1000_ERROR_COUNTERS 4

/* The NIC's own ring: its memory, which no process sees. */
struct e1000_queue {
	void *descs;
	dma_addr_t dma;
	size_t bytes;
};

struct zc_nic {
	struct net_device *netdev;
	struct pci_dev *pdev;
	u8 __iomem *regs;
	struct napi_struct napi;
	u32 interrupts; /* that are asked for; TXDW comes and goes */

	/*
	 * Protects RCTL: the network stack sets a filter at any time, without
	 * RTNL, and must not start a stopped receiver.
	 */
	spinlock_t rctl_lock;
	bool receiving;

	/* RTNL, and changed only while NAPI is disabled. */
	struct zc_sock *owner;
	struct e1000_queue rx_queue;
	struct e1000_queue tx_queue;

	/* Counts over all owners. With the lock of the counted ring. */
	u64 rx_frames;
	u64 rx_bytes;
	u64 rx_errors;
	u64 rx_missed;
	u64 tx_frames;
	u64 tx_bytes;

	/* With the lock of the receive ring. */
	struct e1000_counter missed;
	struct e1000_counter damaged[E1000_ERROR_COUNTERS];
};

static inline u32 rd(const struct zc_nic *nic, unsigned int reg)
{
	return readl(nic->regs + reg);
}

static inline void wr(struct zc_nic *nic, unsigned int reg, u32 value)
{
	writel(value, nic->regs + reg);
}

/* Called at any time: */
irqreturn_t e1000_interrupt(int irq, void *data);
int e1000_poll(struct napi_struct *napi, int budget);
void e1000_set_filter(struct net_device *netdev);
/* Once, before all others: */
void e1000_init(struct zc_nic *nic);
/* Under RTNL. The device is up; NAPI is disabled, but for e1000_show_link(). */
void e1000_show_link(struct zc_nic *nic);
void e1000_set_link_up(struct zc_nic *nic);
void e1000_start(struct zc_nic *nic);
void e1000_stop(struct zc_nic *nic);
void e1000_reset(struct zc_nic *nic);

#endif /* _ZEROCOPY_E1000_H */
