// SPDX-License-Identifier: GPL-2.0
/*
 * Intel 82576, "igb": D1's NIC. Each queue has its rings and an MSI-X vector.
 * Registers and descriptors: Intel's datasheet in intel.h, chapters 7 and 8.
 */
#include <linux/delay.h>
#include <linux/mii.h>
#include <linux/unaligned.h>

#include "datapath.h"
#include "intel.h"

#define CTRL_FORCE (BIT(11) | BIT(12)) /* speed, duplex */
#define REG_EECD 0x0010
#define EECD_AUTO_RD BIT(9) /* the EEPROM was read */
#define REG_CTRL_EXT 0x0018
#define CTRL_EXT_DRV_LOAD BIT(28)
#define REG_GPIE 0x1514
#define GPIE_NSICR BIT(0) /* reading ICR clears it */
#define GPIE_MSIX BIT(4)
#define GPIE_PBA BIT(31)
#define REG_EIMS 0x1524
#define REG_EIMC 0x1528
#define REG_EIAC 0x152c
#define REG_EITR(vector) (0x1680 + 4 * (vector))
#define EITR_KEEP BIT(31)
#define REG_IVAR(queue) (0x1700 + 4 * (queue)) /* of queues 0 to 7 */
#define IVAR_RX(vector) ((vector) | 0x80)
#define IVAR_TX(vector) (((vector) | 0x80) << 8)
#define REG_IVAR_MISC 0x1740
#define IVAR_MISC_OTHER(vector) (((vector) | 0x80) << 8)
#define REG_RXCSUM 0x5000
#define RXCSUM_PCSD BIT(13) /* needed for RSS */
#define REG_MRQC 0x5818
#define MRQC_RSS 2
#define MRQC_TCP4 BIT(16)
#define MRQC_IP4 BIT(17)
#define MRQC_IP6 BIT(20)
#define MRQC_TCP6 BIT(21)
#define REG_RETA 0x5c00
#define RETA_ENTRIES 128
#define REG_RSSRK 0x5c80
#define RSSRK_WORDS 10

#define REG_RX(queue, offset) (0xc000 + 0x40 * (queue) + (offset))
#define REG_TX(queue, offset) (0xe000 + 0x40 * (queue) + (offset))
#define DBAL 0x00
#define DBAH 0x04
#define DLEN 0x08
#define SRRCTL 0x0c
#define SRRCTL_2048 2 /* bytes of a buffer, in units of 1024 */
#define SRRCTL_ADVANCED BIT(25)
#define SRRCTL_DROP BIT(31) /* a full queue does not hold up the others */
#define DH 0x10
#define DT 0x18
#define DCTL 0x28
#define DCTL_ENABLE BIT(25)
#define RQDPC 0x30

/* Of the driver, in microseconds. */
#define MASTER_LIMIT_US 80000
#define FINISH_LIMIT_MS 100

struct rx_desc {
	union {
		__le64 addr; /* until the NIC writes the rest */
		__le64 hash;
	};
	__le64 status; /* status, errors, length, VLAN tag; 0: to be filled */
};

#define RX_DD BIT_ULL(0)
#define RX_EOP BIT_ULL(1)
#define RX_ERROR BIT_ULL(31) /* RXE: of the MAC */
#define RX_LENGTH(status) ((u16)((status) >> 32))

struct tx_desc {
	__le64 addr;
	__le32 command;
	__le32 status;
};

#define TX_DATA (3 << 20)
#define TX_EOP BIT(24)
#define TX_IFCS BIT(25)
#define TX_RS BIT(27)
#define TX_ADVANCED BIT(29)
#define TX_TOTAL(bytes) ((bytes) << 14)
#define TX_DD BIT(0)

/* Descriptors. */

/* The NIC has written over the address, so it is written again. */
static __always_inline void post(void *descs, u32 index, dma_addr_t slot,
				 bool changed)
{
	struct rx_desc *desc = (struct rx_desc *)descs + index;

	desc->addr = cpu_to_le64(slot);
	desc->status = 0;
}

static __always_inline bool received(const void *descs, u32 index, u32 *length)
{
	const struct rx_desc *desc = (const struct rx_desc *)descs + index;
	u64 status = le64_to_cpu(READ_ONCE(desc->status));

	if (!(status & RX_DD))
		return false;
	/* The frame is there once DD is. */
	dma_rmb();
	*length = RX_LENGTH(status);
	if (unlikely((status & (RX_EOP | RX_ERROR)) != RX_EOP))
		*length = ZC_DAMAGED;
	return true;
}

static __always_inline void fill(void *descs, u32 index, dma_addr_t slot,
				 u32 length)
{
	((struct tx_desc *)descs)[index] = (struct tx_desc){
		.addr = cpu_to_le64(slot),
		.command = cpu_to_le32(length | TX_DATA | TX_EOP | TX_IFCS |
				       TX_RS | TX_ADVANCED),
		.status = cpu_to_le32(TX_TOTAL(length)),
	};
}

static __always_inline bool sent(const void *descs, u32 index)
{
	const struct tx_desc *desc = (const struct tx_desc *)descs + index;

	return le32_to_cpu(READ_ONCE(desc->status)) & TX_DD;
}

/* Data. */

static void refill(struct zc_queue *queue, struct zc_ring *rx, u32 most)
{
	if (zc_refill(queue, rx, most, post))
		wr(queue->nic, REG_RX(queue->index, DT), rx->nic_tail);
}

static bool has(const struct zc_queue *queue, const struct zc_ring *rx,
		u32 frames)
{
	return zc_has(queue, rx, frames, received);
}

static int harvest(struct zc_queue *queue, struct zc_ring *rx, int budget)
{
	return zc_harvest(queue, rx, budget, received, post);
}

static int send(struct zc_queue *queue, struct zc_ring *tx)
{
	int count = zc_send(queue, tx, sent, fill);

	if (count > 0)
		wr(queue->nic, REG_TX(queue->index, DT), zc_nic_index(tx, tx->tail));
	return count;
}

static void reclaim(struct zc_queue *queue, struct zc_ring *tx)
{
	zc_reclaim(queue, tx, sent);
}

/* Interrupts. Vector n is that of queue n; the link has the next one. */

static unsigned int link_vector(const struct zc_nic *nic)
{
	return nic->queue_count;
}

/* Sent frames raise interrupts only if the queue awaits room. */
static void await_room(struct zc_queue *queue, bool on)
{
	u32 routes = IVAR_RX(queue->index);

	if (on)
		routes |= IVAR_TX(queue->index);
	wr(queue->nic, REG_IVAR(queue->index), routes);
}

static irqreturn_t interrupt(int irq, void *data)
{
	struct zc_nic *nic = data;
	u32 cause = rd(nic, REG_ICR); /* which clears it */

	if (cause == ~0u)
		return IRQ_NONE;
	if (cause & INT_LSC)
		zc_nic_show_link(nic);
	return IRQ_HANDLED;
}

static void mask(struct zc_queue *queue)
{
	wr(queue->nic, REG_EIMC, BIT(queue->index));
}

static void unmask(struct zc_queue *queue)
{
	if (queue->owner)
		wr(queue->nic, REG_EIMS, BIT(queue->index));
}

/* In units of 0.25 us. The running interval continues. */
static void set_interval(struct zc_queue *queue, u32 us)
{
	wr(queue->nic, REG_EITR(queue->index), us * 4 | EITR_KEEP);
}

static u32 take_missed(struct zc_queue *queue)
{
	return intel_take(queue->nic, &queue->nic->missed[queue->index]);
}

/* Starting and stopping. */

static void init(struct zc_nic *nic)
{
	unsigned int i;

	BUILD_BUG_ON(sizeof(struct rx_desc) != 16);
	BUILD_BUG_ON(sizeof(struct tx_desc) != 16);
	intel_init(nic);
	for (i = 0; i < ZC_QUEUES_MAX; i++)
		nic->missed[i].reg = REG_RX(i, RQDPC);
}

/* A reset amid a transfer could hang the bus. */
static void end_transfers(struct zc_nic *nic)
{
	wr(nic, REG_CTRL, rd(nic, REG_CTRL) | CTRL_MASTER_DISABLE);
	if (!intel_wait_for(nic, REG_STATUS, STATUS_MASTER, 0, MASTER_LIMIT_US))
		netdev_warn_once(nic->netdev, "transfers do not end\n");
}

static bool reset(struct zc_nic *nic)
{
	wr(nic, REG_IMC, ~0u);
	wr(nic, REG_EIMC, ~0u);
	intel_set_receiving(nic, false);
	wr(nic, REG_TCTL, 0);
	rd(nic, REG_STATUS); /* the writes are there */
	msleep(STOP_MS);
	wr(nic, REG_CTRL_EXT, rd(nic, REG_CTRL_EXT) & ~CTRL_EXT_DRV_LOAD);
	end_transfers(nic);
	wr(nic, REG_CTRL, rd(nic, REG_CTRL) | CTRL_RST);
	msleep(RESET_MS);
	intel_wait_for(nic, REG_EECD, EECD_AUTO_RD, EECD_AUTO_RD, DONE_LIMIT_US);
	wr(nic, REG_IMC, ~0u);
	wr(nic, REG_EIMC, ~0u);
	rd(nic, REG_ICR);
	return intel_reset_is_over(nic);
}

/* A reset of the MAC may leave the PHY without a link. */
static void negotiate(struct zc_nic *nic)
{
	if (intel_link_is_up(nic))
		return;
	intel_write_phy(nic, MII_BMCR, BMCR_ANENABLE | BMCR_ANRESTART |
					       BMCR_FULLDPLX | BMCR_SPEED1000);
}

/*
 * The key hashes both directions of a flow to one queue, as its words repeat
 * (Woo and Park, "Scalable TCP Session Monitoring with Symmetric RSS").
 * Ports of UDP are not hashed: fragments have none.
 */
static void spread(struct zc_nic *nic)
{
	unsigned int i;

	for (i = 0; i < RSSRK_WORDS; i++)
		wr(nic, REG_RSSRK + i * sizeof(u32), 0x5a6d5a6d);
	for (i = 0; i < RETA_ENTRIES; i += 4) {
		u8 entries[4];
		unsigned int j;

		for (j = 0; j < 4; j++)
			entries[j] = (i + j) % nic->queue_count;
		wr(nic, REG_RETA + i, get_unaligned_le32(entries));
	}
	wr(nic, REG_RXCSUM, RXCSUM_PCSD);
	wr(nic, REG_MRQC, MRQC_RSS | MRQC_TCP4 | MRQC_IP4 | MRQC_IP6 | MRQC_TCP6);
}

static void start(struct zc_nic *nic)
{
	unsigned int i;

	intel_forget_losses(nic);
	wr(nic, REG_CTRL_EXT, rd(nic, REG_CTRL_EXT) | CTRL_EXT_DRV_LOAD);
	wr(nic, REG_CTRL, (rd(nic, REG_CTRL) & ~CTRL_FORCE) | CTRL_SLU);
	intel_write_address(nic);
	intel_clear_multicast(nic);
	wr(nic, REG_GPIE, GPIE_NSICR | GPIE_MSIX | GPIE_PBA);
	wr(nic, REG_EIAC, BIT(nic->queue_count + 1) - 1);
	for (i = 0; i <= nic->queue_count; i++)
		wr(nic, REG_EITR(i), 0);
	wr(nic, REG_IVAR_MISC, IVAR_MISC_OTHER(link_vector(nic)));
	for (i = 0; i < ZC_QUEUES_MAX; i++) {
		wr(nic, REG_RX(i, DCTL), 0);
		wr(nic, REG_TX(i, DCTL), 0);
	}
	spread(nic);
	wr(nic, REG_TCTL, TCTL_EN | TCTL_PSP | TCTL_CT | TCTL_COLD);
	wr(nic, REG_IMS, INT_LSC);
	wr(nic, REG_EIMS, BIT(link_vector(nic)));
	negotiate(nic);
}

/*
 * Switches one ring of a queue, and waits until the NIC has done it. Returns
 * false if it does not.
 */
static bool enable(struct zc_nic *nic, unsigned int reg, bool on)
{
	u32 value = rd(nic, reg), done = on ? DCTL_ENABLE : 0;

	wr(nic, reg, on ? value | DCTL_ENABLE : value & ~DCTL_ENABLE);
	if (intel_wait_for(nic, reg, DCTL_ENABLE, done, DONE_LIMIT_US))
		return true;
	if (net_ratelimit())
		netdev_warn(nic->netdev, "a queue does not %s\n",
			    on ? "start" : "stop");
	return false;
}

static void set_ring(struct zc_nic *nic, unsigned int base,
		     const struct zc_nic_ring *ring)
{
	wr(nic, base + DBAL, lower_32_bits(ring->dma));
	wr(nic, base + DBAH, upper_32_bits(ring->dma));
	wr(nic, base + DLEN, ring->bytes);
	wr(nic, base + DH, 0);
	wr(nic, base + DT, 0);
}

static bool start_receiver(struct zc_queue *queue, struct zc_ring *rx)
{
	unsigned int base = REG_RX(queue->index, 0);
	struct zc_nic *nic = queue->nic;
	bool started;

	zc_post_all(queue, rx, post);
	set_ring(nic, base, &queue->rx);
	wr(nic, base + SRRCTL, SRRCTL_2048 | SRRCTL_ADVANCED | SRRCTL_DROP);
	started = enable(nic, base + DCTL, true);
	wr(nic, base + DT, rx->nic_tail);
	intel_set_receiving(nic, true);
	return started;
}

static bool start_transmitter(struct zc_queue *queue)
{
	unsigned int base = REG_TX(queue->index, 0);

	set_ring(queue->nic, base, &queue->tx);
	return enable(queue->nic, base + DCTL, true);
}

static bool start_queue(struct zc_queue *queue)
{
	bool started = true;

	await_room(queue, false);
	if (queue->owner->rx)
		started &= start_receiver(queue, queue->owner->rx);
	if (queue->owner->tx)
		started &= start_transmitter(queue);
	return started;
}

/*
 * Lets the NIC send the frames that it has, as it must have none when the ring
 * is disabled: as long as it sends any, up to a limit, as RTNL is held. Without a
 * link it sends none.
 */
static void finish_sending(struct zc_queue *queue)
{
	unsigned long end = jiffies + msecs_to_jiffies(FINISH_LIMIT_MS);
	unsigned int head_reg = REG_TX(queue->index, DH);
	u32 tail = rd(queue->nic, REG_TX(queue->index, DT)), before, head;

	if (!netif_carrier_ok(queue->nic->netdev))
		return;
	head = rd(queue->nic, head_reg);
	do {
		before = head;
		if (intel_wait_for(queue->nic, head_reg, ~0u, tail, DONE_LIMIT_US))
			return;
		head = rd(queue->nic, head_reg);
	} while (head != before && time_before(jiffies, end));
}

static bool stop_queue(struct zc_queue *queue)
{
	struct zc_nic *nic = queue->nic;
	bool stopped = true;

	if (!zc_queue_others_receive(queue))
		intel_set_receiving(nic, false);
	if (queue->owner->rx)
		stopped &= enable(nic, REG_RX(queue->index, DCTL), false);
	if (queue->owner->tx) {
		finish_sending(queue);
		stopped &= enable(nic, REG_TX(queue->index, DCTL), false);
	}
	msleep(STOP_MS);
	return stopped;
}

static bool forget_queue(struct zc_queue *queue)
{
	struct zc_nic *nic = queue->nic;

	wr(nic, REG_IVAR(queue->index), 0);
	wr(nic, REG_RX(queue->index, DLEN), 0);
	wr(nic, REG_TX(queue->index, DLEN), 0);
	rd(nic, REG_STATUS); /* the writes are there */
	return true;
}

const struct zc_nic_ops igb_ops = {
	.dma_mask = DMA_BIT_MASK(64),
	.queues_max = ZC_QUEUES_MAX,
	.desc_bytes = sizeof(struct rx_desc),
	.msix = true,
	.init = init,
	.reset = reset,
	.start = start,
	.link_is_up = intel_link_is_up,
	.read_address = intel_read_address,
	.start_queue = start_queue,
	.stop_queue = stop_queue,
	.forget_queue = forget_queue,
	.set_filter = intel_set_filter,
	.interrupt = interrupt,
	.mask = mask,
	.unmask = unmask,
	.set_interval = set_interval,
	.take_missed = take_missed,
	.take_damaged = intel_take_damaged,
	.refill = refill,
	.has = has,
	.harvest = harvest,
	.send = send,
	.reclaim = reclaim,
	.await_room = await_room,
};
