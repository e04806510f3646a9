// SPDX-License-Identifier: GPL-2.0
/*
 * Intel 82540EM, "e1000": one queue, one interrupt line. Its DMA reaches the
 * first 4 GiB of memory. Registers and descriptors: Intel's manual in intel.h,
 * chapters 3 and 13.
 */
#include <linux/delay.h>

#include "datapath.h"
#include "intel.h"

#define REG_ITR 0x00c4
#define INT_TXDW BIT(0)
#define INT_RXDMT0 BIT(4)
#define INT_RXT0 BIT(7)
#define INT_RX (INT_RXT0 | INT_RXDMT0)
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
#define REG_RXCSUM 0x5000

struct rx_desc {
	__le64 addr;
	__le16 length;
	__le16 checksum;
	u8 status;
	u8 errors;
	__le16 special;
};

#define RX_DD BIT(0)
#define RX_EOP BIT(1)
#define RX_ERRORS 0x97 /* of the frame, not of checksums in it */

struct tx_desc {
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

/* Descriptors. */

static __always_inline void post(void *descs, u32 index, dma_addr_t slot,
				 bool changed)
{
	struct rx_desc *desc = (struct rx_desc *)descs + index;

	if (unlikely(changed))
		desc->addr = cpu_to_le64(slot);
	desc->status = 0;
}

static __always_inline bool received(const void *descs, u32 index, u32 *length)
{
	const struct rx_desc *desc = (const struct rx_desc *)descs + index;
	u8 status = READ_ONCE(desc->status);

	if (!(status & RX_DD))
		return false;
	/* The rest of the descriptor is there once DD is. */
	dma_rmb();
	*length = le16_to_cpu(READ_ONCE(desc->length));
	if (unlikely(!(status & RX_EOP) || READ_ONCE(desc->errors) & RX_ERRORS))
		*length = ZC_DAMAGED;
	return true;
}

static __always_inline void fill(void *descs, u32 index, dma_addr_t slot,
				 u32 length)
{
	((struct tx_desc *)descs)[index] = (struct tx_desc){
		.addr = cpu_to_le64(slot),
		.length = cpu_to_le16(length),
		.command = TX_CMD_EOP | TX_CMD_IFCS | TX_CMD_RS,
	};
}

static __always_inline bool sent(const void *descs, u32 index)
{
	const struct tx_desc *desc = (const struct tx_desc *)descs + index;

	return READ_ONCE(desc->status) & TX_DD;
}

/* Data. */

static void refill(struct zc_queue *queue, struct zc_ring *rx, u32 most)
{
	if (zc_refill(queue, rx, most, post))
		wr(queue->nic, REG_RDT, rx->nic_tail);
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
		wr(queue->nic, REG_TDT, zc_nic_index(tx, tx->tail));
	return count;
}

static void reclaim(struct zc_queue *queue, struct zc_ring *tx)
{
	zc_reclaim(queue, tx, sent);
}

static void await_room(struct zc_queue *queue, bool on)
{
	wr(queue->nic, on ? REG_IMS : REG_IMC, INT_TXDW);
}

/* Interrupts. */

static irqreturn_t interrupt(int irq, void *data)
{
	struct zc_nic *nic = data;
	u32 cause = rd(nic, REG_ICR); /* which clears it */

	if (!cause || cause == ~0u)
		return IRQ_NONE;
	if (cause & INT_LSC)
		zc_nic_show_link(nic);
	zc_queue_schedule(&nic->queues[0]);
	return IRQ_HANDLED;
}

static void mask(struct zc_queue *queue)
{
	wr(queue->nic, REG_IMC, ~0u);
}

static void unmask(struct zc_queue *queue)
{
	u32 interrupts = INT_LSC;

	if (queue->owner)
		interrupts |= INT_RX;
	if (READ_ONCE(queue->awaits_room))
		interrupts |= INT_TXDW;
	wr(queue->nic, REG_IMS, interrupts);
}

/* In units of 256 ns. */
static void set_interval(struct zc_queue *queue, u32 us)
{
	wr(queue->nic, REG_ITR, us * 1000 / 256);
}

static u32 take_missed(struct zc_queue *queue)
{
	return intel_take(queue->nic, &queue->nic->missed[0]);
}

/* Starting and stopping. */

static void init(struct zc_nic *nic)
{
	BUILD_BUG_ON(sizeof(struct rx_desc) != 16);
	BUILD_BUG_ON(sizeof(struct tx_desc) != 16);
	intel_init(nic);
	nic->missed[0].reg = REG_MPC;
}

/* No transfer begins after this, and running ones have ended. */
static void silence(struct zc_nic *nic)
{
	wr(nic, REG_IMC, ~0u);
	intel_set_receiving(nic, false);
	wr(nic, REG_TCTL, 0);
	rd(nic, REG_STATUS); /* the writes are there */
	msleep(STOP_MS);
}

/*
 * Resets the NIC to its state after power-on. It is silent afterwards. False if
 * it stays in reset.
 */
static bool restart(struct zc_nic *nic)
{
	wr(nic, REG_CTRL, rd(nic, REG_CTRL) | CTRL_RST);
	msleep(RESET_MS);
	wr(nic, REG_IMC, ~0u);
	rd(nic, REG_ICR);
	return intel_reset_is_over(nic);
}

static bool reset(struct zc_nic *nic)
{
	silence(nic);
	return restart(nic);
}

static void start(struct zc_nic *nic)
{
	intel_forget_losses(nic);
	wr(nic, REG_CTRL, CTRL_SLU | CTRL_ASDE);
	intel_power_up_phy(nic);
	intel_write_address(nic);
	intel_clear_multicast(nic);
}

static void start_receiver(struct zc_queue *queue, struct zc_ring *rx)
{
	struct zc_nic *nic = queue->nic;

	zc_post_all(queue, rx, post);
	wr(nic, REG_RDBAL, lower_32_bits(queue->rx.dma));
	wr(nic, REG_RDBAH, upper_32_bits(queue->rx.dma));
	wr(nic, REG_RDLEN, queue->rx.bytes);
	wr(nic, REG_RDTR, 0);
	wr(nic, REG_RADV, 0);
	wr(nic, REG_RXCSUM, 0);
	wr(nic, REG_RDH, 0);
	wr(nic, REG_RDT, rx->nic_tail);
	intel_set_receiving(nic, true);
}

static void start_transmitter(struct zc_queue *queue)
{
	struct zc_nic *nic = queue->nic;

	wr(nic, REG_TDBAL, lower_32_bits(queue->tx.dma));
	wr(nic, REG_TDBAH, upper_32_bits(queue->tx.dma));
	wr(nic, REG_TDLEN, queue->tx.bytes);
	wr(nic, REG_TIDV, 0);
	wr(nic, REG_TIPG, TIPG_COPPER);
	wr(nic, REG_TDH, 0);
	wr(nic, REG_TDT, 0);
	wr(nic, REG_TCTL, TCTL_EN | TCTL_PSP | TCTL_CT | TCTL_COLD);
}

static bool start_queue(struct zc_queue *queue)
{
	if (queue->owner->rx)
		start_receiver(queue, queue->owner->rx);
	if (queue->owner->tx)
		start_transmitter(queue);
	return true;
}

static bool stop_queue(struct zc_queue *queue)
{
	silence(queue->nic);
	return true;
}

static bool forget_queue(struct zc_queue *queue)
{
	bool is_over = restart(queue->nic);

	start(queue->nic);
	return is_over;
}

const struct zc_nic_ops e1000_ops = {
	.dma_mask = DMA_BIT_MASK(32),
	.queues_max = 1,
	.desc_bytes = sizeof(struct rx_desc),
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
