// SPDX-License-Identifier: GPL-2.0
/*
 * Operation of the NIC, an Intel 82540EM: receiving, sending, interrupts, start
 * and stop. Descriptor n of the NIC is slot n of the ring, so no index is
 * translated, and no packet has an sk_buff.
 */
#include <linux/delay.h>
#include <linux/etherdevice.h>
#include <linux/if_vlan.h>
#include <linux/pci.h>

#include "e1000.h"

/* Receiving. With the ring's lock. */

/*
 * Returns the count since the last call. A read clears the register, but not
 * all registers of QEMU. So it is read twice: if the first read cleared it, the
 * second value is smaller. A value of all ones is not a count: the device was
 * removed.
 */
static u32 take(struct zc_nic *nic, struct e1000_counter *counter)
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

/* Frames that found no slot. */
static u32 take_missed(struct zc_nic *nic)
{
	return take(nic, &nic->missed);
}

/* Frames that the NIC dropped as invalid; no frame is in two counters. */
static u32 take_damaged(struct zc_nic *nic)
{
	u32 damaged = 0;
	int i;

	for (i = 0; i < E1000_ERROR_COUNTERS; i++)
		damaged += take(nic, &nic->damaged[i]);
	return damaged;
}

/* Adds the losses of the NIC since the last call. */
void zc_nic_read_losses(struct zc_nic *nic, struct zc_ring *rx)
{
	u32 missed = take_missed(nic), damaged = take_damaged(nic);

	rx->no_buffer += missed;
	rx->errors += damaged;
	WRITE_ONCE(nic->rx_missed, nic->rx_missed + missed);
	WRITE_ONCE(nic->rx_errors, nic->rx_errors + damaged);
}

/* Gives the slots that the process has returned to the NIC. */
void zc_nic_refill(struct zc_nic *nic, struct zc_ring *rx)
{
	struct e1000_rx_desc *descs = nic->rx_queue.descs;
	u32 tail = rx->tail, next;

	for (; (next = zc_ring_next(rx, tail)) != rx->head; tail = next) {
		if (zc_ring_state(rx, tail) != ZEROCOPY_WRITABLE)
			break;
		descs[tail].status = 0;
	}
	if (tail == rx->tail)
		return;
	rx->tail = tail;
	/* The NIC reads descriptors up to the tail: they must be there first. */
	dma_wmb();
	wr(nic, REG_RDT, tail);
}

/* Makes filled slots readable, and returns their number. */
static int harvest(struct zc_nic *nic, struct zc_ring *rx, int budget)
{
	struct e1000_rx_desc *descs = nic->rx_queue.descs;
	u64 now = ktime_get_real_ns();
	u64 bytes = 0, errors = 0;
	u32 head = rx->head;
	int count;

	for (count = 0; count < budget && head != rx->tail; count++) {
		struct zerocopy_desc *shared = &rx->shared->desc[head];
		u8 status = READ_ONCE(descs[head].status);
		u32 length;

		if (!(status & RX_DD))
			break;
		/* The rest of the descriptor is there once DD is. */
		dma_rmb();
		length = le16_to_cpu(descs[head].length);
		if (unlikely(!(status & RX_EOP) || descs[head].errors ||
			     length > ZEROCOPY_SLOT_BYTES)) {
			length = 0;
			errors++;
		}
		bytes += length;
		shared->length = length;
		shared->timestamp_ns = now;
		zc_ring_hand_over(rx, head, ZEROCOPY_READABLE);
		head = zc_ring_next(rx, head);
	}
	rx->head = head;
	WRITE_ONCE(rx->shared->write, head);
	rx->frames += count - errors;
	rx->errors += errors;
	WRITE_ONCE(nic->rx_frames, nic->rx_frames + count - errors);
	WRITE_ONCE(nic->rx_bytes, nic->rx_bytes + bytes);
	WRITE_ONCE(nic->rx_errors, nic->rx_errors + errors);
	return count;
}

/* Sending. With the ring's lock. */

/* Returns the sent slots to the process. */
static void reclaim(struct zc_nic *nic, struct zc_ring *tx)
{
	struct e1000_tx_desc *descs = nic->tx_queue.descs;
	u32 head = tx->head;
	u64 bytes = 0;
	int count;

	for (count = 0; head != tx->tail; count++) {
		if (!(READ_ONCE(descs[head].status) & TX_DD))
			break;
		bytes += le16_to_cpu(descs[head].length);
		zc_ring_hand_over(tx, head, ZEROCOPY_WRITABLE);
		head = zc_ring_next(tx, head);
	}
	tx->head = head;
	WRITE_ONCE(tx->shared->write, head);
	tx->frames += count;
	WRITE_ONCE(nic->tx_frames, nic->tx_frames + count);
	WRITE_ONCE(nic->tx_bytes, nic->tx_bytes + bytes);
}

/*
 * Gives filled slots to the NIC while it has room, and returns their number. An
 * invalid length ends the loop, and is an error if it is the first one.
 */
int zc_nic_send(struct zc_nic *nic, struct zc_ring *tx)
{
	u32 longest = READ_ONCE(nic->netdev->mtu) + ETH_HLEN + VLAN_HLEN;
	struct e1000_tx_desc *descs = nic->tx_queue.descs;
	u32 tail = tx->tail, next;
	int count = 0;

	reclaim(nic, tx);
	for (; (next = zc_ring_next(tx, tail)) != tx->head; tail = next) {
		u32 length;

		if (zc_ring_state(tx, tail) != ZEROCOPY_READABLE)
			break;
		/* Once: the process may change it after it was checked. */
		length = READ_ONCE(tx->shared->desc[tail].length);
		if (length < ETH_HLEN || length > longest) {
			if (!count)
				return -EINVAL;
			break;
		}
		descs[tail] = (struct e1000_tx_desc){
			.addr = cpu_to_le64(zc_ring_slot_dma(tx, tail)),
			.length = cpu_to_le16(length),
			.command = TX_CMD_EOP | TX_CMD_IFCS | TX_CMD_RS,
		};
		count++;
	}
	if (!count)
		return 0;
	tx->tail = tail;
	/* The NIC reads descriptors up to the tail: they must be there first. */
	dma_wmb();
	wr(nic, REG_TDT, tail);
	return count;
}

static bool has_room(const struct zc_ring *tx)
{
	return zc_ring_next(tx, tx->tail) != tx->head;
}

/*
 * Returns true if the process may fill another slot. If not, an interrupt will
 * come; slots that were sent before the request for it are reclaimed here.
 */
bool zc_nic_await_room(struct zc_nic *nic, struct zc_ring *tx)
{
	if (has_room(tx))
		return true;
	WRITE_ONCE(nic->interrupts, nic->interrupts | INT_TXDW);
	wr(nic, REG_IMS, INT_TXDW);
	reclaim(nic, tx);
	return has_room(tx);
}

/* Interrupts. */

void e1000_show_link(struct zc_nic *nic)
{
	if (rd(nic, REG_STATUS) & STATUS_LU)
		netif_carrier_on(nic->netdev);
	else
		netif_carrier_off(nic->netdev);
}

irqreturn_t e1000_interrupt(int irq, void *data)
{
	struct zc_nic *nic = data;
	u32 cause = rd(nic, REG_ICR); /* which clears it */

	if (!cause || cause == ~0u)
		return IRQ_NONE;
	if (cause & INT_LSC)
		e1000_show_link(nic);
	if (napi_schedule_prep(&nic->napi)) {
		wr(nic, REG_IMC, ~0u);
		__napi_schedule(&nic->napi);
	}
	return IRQ_HANDLED;
}

static int receive(struct zc_nic *nic, struct zc_sock *zs, int budget)
{
	struct zc_ring *rx = zs->rx;
	int count;

	if (!rx)
		return 0;
	spin_lock(&rx->lock);
	count = harvest(nic, rx, budget);
	zc_nic_refill(nic, rx);
	spin_unlock(&rx->lock);
	if (count)
		zc_socket_readable(zs);
	return count;
}

static void sent(struct zc_nic *nic, struct zc_sock *zs)
{
	struct zc_ring *tx = zs->tx;
	bool room;

	if (!tx || !(READ_ONCE(nic->interrupts) & INT_TXDW))
		return;
	spin_lock(&tx->lock);
	reclaim(nic, tx);
	/* Another thread may have reclaimed slots: test the room itself. */
	room = has_room(tx);
	if (room)
		WRITE_ONCE(nic->interrupts, nic->interrupts & ~INT_TXDW);
	spin_unlock(&tx->lock);
	if (room)
		zc_socket_writable(zs);
}

int e1000_poll(struct napi_struct *napi, int budget)
{
	struct zc_nic *nic = container_of(napi, struct zc_nic, napi);
	struct zc_sock *zs = nic->owner;
	int count = 0;

	if (zs) {
		sent(nic, zs);
		count = receive(nic, zs, budget);
	}
	if (count < budget && napi_complete_done(napi, count))
		wr(nic, REG_IMS, READ_ONCE(nic->interrupts));
	return count;
}

/* The receiver's switch and filter. With rctl_lock. */
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

static void set_receiving(struct zc_nic *nic, bool receiving)
{
	spin_lock_bh(&nic->rctl_lock);
	nic->receiving = receiving;
	write_rctl(nic);
	spin_unlock_bh(&nic->rctl_lock);
}

/*
 * With the lock of the addresses, but not always with RTNL. A NIC that does not
 * receive is left alone, as it may be in reset.
 */
void e1000_set_filter(struct net_device *netdev)
{
	struct zc_nic *nic = netdev_priv(netdev);

	spin_lock_bh(&nic->rctl_lock);
	if (nic->receiving)
		write_rctl(nic);
	spin_unlock_bh(&nic->rctl_lock);
}

void e1000_init(struct zc_nic *nic)
{
	static const unsigned int damaged[E1000_ERROR_COUNTERS] = {
		REG_CRCERRS, REG_RUC, REG_RFC, REG_ROC
	};
	int i;

	spin_lock_init(&nic->rctl_lock);
	nic->missed.reg = REG_MPC;
	for (i = 0; i < E1000_ERROR_COUNTERS; i++)
		nic->damaged[i].reg = damaged[i];
}

/* Starting and stopping. Under RTNL. */

/* No transfer begins after this, and running ones have ended. */
static void silence(struct zc_nic *nic)
{
	wr(nic, REG_IMC, ~0u);
	set_receiving(nic, false);
	wr(nic, REG_TCTL, 0);
	rd(nic, REG_STATUS); /* the writes are there */
	msleep(STOP_MS);
}

/* Resets the NIC to its state after power-on. It is silent afterwards. */
static void restart(struct zc_nic *nic)
{
	wr(nic, REG_CTRL, rd(nic, REG_CTRL) | CTRL_RST);
	msleep(RESET_MS);
	wr(nic, REG_IMC, ~0u);
	rd(nic, REG_ICR);
}

void e1000_reset(struct zc_nic *nic)
{
	silence(nic);
	restart(nic);
}

static void start_receiver(struct zc_nic *nic, struct zc_ring *rx)
{
	wr(nic, REG_RDBAL, lower_32_bits(nic->rx_queue.dma));
	wr(nic, REG_RDBAH, upper_32_bits(nic->rx_queue.dma));
	wr(nic, REG_RDLEN, nic->rx_queue.bytes);
	wr(nic, REG_RDTR, 0);
	wr(nic, REG_RADV, 0);

	spin_lock_bh(&rx->lock);
	/* The NIC continues where it stopped, as the process does. */
	wr(nic, REG_RDH, rx->head);
	wr(nic, REG_RDT, rx->tail);
	rx->nic = nic;
	/* Counts from before this socket. */
	take_missed(nic);
	take_damaged(nic);
	zc_nic_refill(nic, rx);
	spin_unlock_bh(&rx->lock);
	set_receiving(nic, true);
}

static void start_transmitter(struct zc_nic *nic, struct zc_ring *tx)
{
	wr(nic, REG_TDBAL, lower_32_bits(nic->tx_queue.dma));
	wr(nic, REG_TDBAH, upper_32_bits(nic->tx_queue.dma));
	wr(nic, REG_TDLEN, nic->tx_queue.bytes);
	wr(nic, REG_TIDV, 0);
	wr(nic, REG_TIPG, TIPG_COPPER);

	spin_lock_bh(&tx->lock);
	wr(nic, REG_TDH, tx->head);
	wr(nic, REG_TDT, tx->tail);
	tx->nic = nic;
	spin_unlock_bh(&tx->lock);
	wr(nic, REG_TCTL, TCTL_EN | TCTL_PSP | TCTL_CT | TCTL_COLD);
}

void e1000_set_link_up(struct zc_nic *nic)
{
	wr(nic, REG_CTRL, CTRL_SLU | CTRL_ASDE);
}

/* The device is up and has an owner. NAPI is disabled. */
void e1000_start(struct zc_nic *nic)
{
	unsigned int i;

	e1000_set_link_up(nic);
	wr(nic, REG_ITR, 0);
	for (i = 0; i < MTA_ENTRIES; i++)
		wr(nic, REG_MTA + i * sizeof(u32), 0);
	nic->interrupts = INT_LSC;
	if (nic->owner->rx) {
		nic->interrupts |= INT_RX;
		start_receiver(nic, nic->owner->rx);
	}
	if (nic->owner->tx)
		start_transmitter(nic, nic->owner->tx);
}

/* No system call accesses the NIC through the ring after this. */
static void detach_ring(struct zc_ring *ring)
{
	spin_lock_bh(&ring->lock);
	ring->nic = NULL;
	spin_unlock_bh(&ring->lock);
}

/* Filled slots belong to the process. */
static void keep_received(struct zc_nic *nic, struct zc_ring *rx)
{
	spin_lock_bh(&rx->lock);
	zc_nic_read_losses(nic, rx);
	harvest(nic, rx, rx->mask + 1);
	spin_unlock_bh(&rx->lock);
	zc_socket_readable(nic->owner);
}

/* Slots that were given to the NIC and not sent are lost. */
static void drop_unsent(struct zc_nic *nic, struct zc_ring *tx)
{
	spin_lock_bh(&tx->lock);
	reclaim(nic, tx);
	for (; tx->head != tx->tail; tx->head = zc_ring_next(tx, tx->head)) {
		tx->dropped++;
		zc_ring_hand_over(tx, tx->head, ZEROCOPY_WRITABLE);
	}
	spin_unlock_bh(&tx->lock);
}

/*
 * Ends all traffic. The order matters: no interrupt, no system call that
 * touches the NIC, no transfer; only then may the process alone use the memory.
 * NAPI is disabled.
 */
void e1000_stop(struct zc_nic *nic)
{
	struct zc_ring *rx = nic->owner->rx, *tx = nic->owner->tx;

	wr(nic, REG_IMC, ~0u);
	if (rx)
		detach_ring(rx);
	if (tx)
		detach_ring(tx);
	silence(nic);
	if (rx)
		keep_received(nic, rx);
	if (tx)
		drop_unsent(nic, tx);
	restart(nic);
}
