// SPDX-License-Identifier: GPL-2.0
/*
 * Functions that Intel's gigabit NICs have in common: the receiver's switch and
 * filter, the link, the counters of losses.
 */
#include <linux/iopoll.h>
#include <linux/mii.h>
#include <linux/unaligned.h>

#include "intel.h"

bool intel_link_is_up(struct zc_nic *nic)
{
	u32 status = rd(nic, REG_STATUS);

	return status != ~0u && status & STATUS_LU; /* all ones: it is gone */
}

/* Waits until the bits of @mask in a register are @value; false if they stay. */
bool intel_wait_for(struct zc_nic *nic, unsigned int reg, u32 mask, u32 value,
		    unsigned int limit_us)
{
	u32 read;

	return !read_poll_timeout(rd, read, (read & mask) == value, DONE_US,
				  limit_us, false, nic, reg);
}

static bool ask_phy(struct zc_nic *nic, u32 request)
{
	wr(nic, REG_MDIC, request | MDIC_PHY);
	if (intel_wait_for(nic, REG_MDIC, MDIC_READY, MDIC_READY,
			   DONE_LIMIT_US))
		return true;
	netdev_warn_once(nic->netdev, "the PHY does not answer\n");
	return false;
}

void intel_write_phy(struct zc_nic *nic, unsigned int reg, u16 value)
{
	ask_phy(nic, MDIC_WRITE | MDIC_REG(reg) | value);
}

/* The stock drivers turn the PHY off; a reset of the MAC does not turn it on. */
void intel_power_up_phy(struct zc_nic *nic)
{
	u16 control;

	if (!ask_phy(nic, MDIC_READ | MDIC_REG(MII_BMCR)))
		return;
	control = rd(nic, REG_MDIC);
	if (control & BMCR_PDOWN)
		intel_write_phy(nic, MII_BMCR, control & ~BMCR_PDOWN);
}

/* A NIC that is gone reads as all ones, also the bit of the reset. */
bool intel_reset_is_over(struct zc_nic *nic)
{
	return !(rd(nic, REG_CTRL) & CTRL_RST);
}

void intel_read_address(struct zc_nic *nic, u8 *address)
{
	put_unaligned_le32(rd(nic, REG_RAL), address);
	put_unaligned_le16(rd(nic, REG_RAH), address + 4);
}

/* The NIC's own may be invalid; the interface has another one then. */
void intel_write_address(struct zc_nic *nic)
{
	const u8 *address = nic->netdev->dev_addr;

	wr(nic, REG_RAL, get_unaligned_le32(address));
	wr(nic, REG_RAH, get_unaligned_le16(address + 4) | RAH_VALID);
}

/* Losses. */

/*
 * Returns the count since the last call. A read clears the register, but not
 * all registers of QEMU. So it is read twice: if the first read cleared it, the
 * second value is smaller. A value of all ones is not a count: the device was
 * removed.
 */
u32 intel_take(struct zc_nic *nic, struct zc_counter *counter)
{
	u32 first = rd(nic, counter->reg), second = rd(nic, counter->reg);
	u32 before = counter->before;

	if (first == ~0u || second == ~0u)
		return 0;
	if (second < first || second < before) {
		counter->before = 0;
		return first + second;
	}
	counter->before = second;
	return second - before;
}

/* Frames that the NIC dropped as invalid; no frame is in two counters. */
u32 intel_take_damaged(struct zc_nic *nic)
{
	u32 damaged = 0;
	int i;

	for (i = 0; i < ZC_ERROR_COUNTERS; i++)
		damaged += intel_take(nic, &nic->damaged[i]);
	return damaged;
}

void intel_init(struct zc_nic *nic)
{
	static const unsigned int damaged[ZC_ERROR_COUNTERS] = {
		REG_CRCERRS, REG_RUC, REG_RFC, REG_ROC
	};
	int i;

	for (i = 0; i < ZC_ERROR_COUNTERS; i++)
		nic->damaged[i].reg = damaged[i];
}

/* A reset has cleared the registers. */
void intel_forget_losses(struct zc_nic *nic)
{
	int i;

	spin_lock_bh(&nic->losses_lock);
	for (i = 0; i < ZC_QUEUES_MAX; i++)
		nic->missed[i].before = 0;
	for (i = 0; i < ZC_ERROR_COUNTERS; i++)
		nic->damaged[i].before = 0;
	spin_unlock_bh(&nic->losses_lock);
}

/* The receiver. */

/* Its switch and filter. With receiver_lock. */
static void write_rctl(struct zc_nic *nic)
{
	const struct net_device *netdev = nic->netdev;
	unsigned int flags = READ_ONCE(netdev->flags);
	u32 rctl = RCTL_EN | RCTL_BAM | RCTL_SECRC;

	if (flags & IFF_PROMISC)
		rctl |= RCTL_UPE | RCTL_MPE;
	else if (flags & IFF_ALLMULTI || !netdev_mc_empty(netdev))
		rctl |= RCTL_MPE;
	wr(nic, REG_RCTL, nic->receiving ? rctl : 0);
}

void intel_set_receiving(struct zc_nic *nic, bool receiving)
{
	spin_lock_bh(&nic->receiver_lock);
	nic->receiving = receiving;
	write_rctl(nic);
	spin_unlock_bh(&nic->receiver_lock);
}

/*
 * With the lock of the addresses, but not always with RTNL. A NIC that does not
 * receive is left alone, as it may be in reset.
 */
void intel_set_filter(struct net_device *netdev)
{
	struct zc_nic *nic = netdev_priv(netdev);

	spin_lock_bh(&nic->receiver_lock);
	if (nic->receiving)
		write_rctl(nic);
	spin_unlock_bh(&nic->receiver_lock);
}

void intel_clear_multicast(struct zc_nic *nic)
{
	unsigned int i;

	for (i = 0; i < MTA_ENTRIES; i++)
		wr(nic, REG_MTA + i * sizeof(u32), 0);
}
