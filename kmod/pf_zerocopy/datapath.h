/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The loops of the data path, for the descriptors of a model. A model calls them
 * with functions for one descriptor, which the compiler inlines.
 *
 * Receiving, descriptor n of the NIC has the slot posted[n]: a frame that the
 * filter rejects leaves its slot with the NIC, behind the others.
 */
#ifndef _ZEROCOPY_DATAPATH_H
#define _ZEROCOPY_DATAPATH_H

#include <linux/etherdevice.h>
#include <linux/if_vlan.h>

#include "nic.h"

/* A received frame with an error. */
#define ZC_DAMAGED U32_MAX

/* Gives a descriptor of the NIC a slot; @changed if it had another one. */
typedef void (*zc_post)(void *descs, u32 index, dma_addr_t slot, bool changed);
/* Returns true if the descriptor has a frame, of *length or ZC_DAMAGED. */
typedef bool (*zc_received)(const void *descs, u32 index, u32 *length);
typedef void (*zc_fill)(void *descs, u32 index, dma_addr_t slot, u32 length);
/* Returns true if the frame of the descriptor was sent. */
typedef bool (*zc_sent)(const void *descs, u32 index);

static __always_inline void zc_post_slot(struct zc_queue *queue,
					 struct zc_ring *rx, u16 slot,
					 zc_post post)
{
	u32 index = rx->nic_tail;
	bool changed = rx->posted[index] != slot;

	if (changed)
		rx->posted[index] = slot;
	post(queue->rx.descs, index, zc_ring_slot_dma(rx, slot), changed);
	rx->nic_tail = zc_ring_next(rx, index);
}

/* Writes the descriptors that the NIC had before it was stopped. */
static __always_inline void zc_post_all(struct zc_queue *queue,
					struct zc_ring *rx, zc_post post)
{
	u32 index;

	for (index = 0; index <= rx->mask; index++)
		post(queue->rx.descs, index,
		     zc_ring_slot_dma(rx, rx->posted[index]), true);
}

/*
 * Gives the slots that the process has returned to the NIC. Returns true if the
 * NIC's tail register is to be written.
 */
static __always_inline bool zc_refill(struct zc_queue *queue,
				      struct zc_ring *rx, zc_post post)
{
	u32 tail = rx->tail, next;

	for (; (next = zc_ring_next(rx, tail)) != rx->head; tail = next) {
		if (zc_ring_state(rx, tail) != ZEROCOPY_WRITABLE)
			break;
		zc_post_slot(queue, rx, rx->held[tail], post);
	}
	if (tail == rx->tail && !rx->reposted)
		return false;
	rx->tail = tail;
	rx->reposted = false;
	/* The NIC reads descriptors up to the tail: they must be there first. */
	dma_wmb();
	return true;
}

/* Makes a filled slot readable by the process. */
static __always_inline void zc_deliver(struct zc_ring *rx, u16 slot, u32 length,
				       u64 now)
{
	u32 head = rx->head;
	struct zerocopy_desc *shared = &rx->shared->desc[head];

	if (rx->held[head] != slot) {
		rx->held[head] = slot;
		WRITE_ONCE(shared->addr, zc_ring_slot_user(rx, slot));
	}
	WRITE_ONCE(shared->length, length);
	WRITE_ONCE(shared->timestamp_ns, now);
	zc_ring_hand_over(rx, head, ZEROCOPY_READABLE);
	rx->head = zc_ring_next(rx, head);
}

/* Makes filled slots readable, and returns the number of received frames. */
static __always_inline int zc_harvest(struct zc_queue *queue,
				      struct zc_ring *rx, int budget,
				      zc_received received, zc_post post)
{
	const struct bpf_prog *filter = zc_filter(queue->owner);
	u64 now = ktime_get_real_ns();
	u64 bytes = 0, errors = 0, filtered = 0;
	u32 index = rx->nic_head;
	int count;

	for (count = 0; count < budget && index != rx->nic_tail; count++) {
		u16 slot = rx->posted[index];
		u32 length;

		if (!received(queue->rx.descs, index, &length))
			break;
		index = zc_ring_next(rx, index);
		if (unlikely(length > ZEROCOPY_SLOT_BYTES)) {
			length = 0;
			errors++;
		} else if (filter && !zc_accepts(filter, rx, slot, length)) {
			bytes += length;
			filtered++;
			zc_post_slot(queue, rx, slot, post);
			continue;
		}
		bytes += length;
		zc_deliver(rx, slot, length, now);
	}
	rx->nic_head = index;
	rx->reposted |= filtered > 0;
	WRITE_ONCE(rx->shared->write, rx->head);
	rx->frames += count - errors - filtered;
	rx->filtered += filtered;
	rx->errors += errors;
	WRITE_ONCE(queue->rx_frames, queue->rx_frames + count - errors);
	WRITE_ONCE(queue->rx_bytes, queue->rx_bytes + bytes);
	WRITE_ONCE(queue->rx_errors, queue->rx_errors + errors);
	return count;
}

/* The NIC's descriptor of a slot that is sent. */
static inline u32 zc_nic_index(const struct zc_ring *tx, u32 slot)
{
	return (slot - tx->nic_start) & tx->mask;
}

/* Returns the sent slots to the process. */
static __always_inline void zc_reclaim(struct zc_queue *queue,
				       struct zc_ring *tx, zc_sent sent)
{
	u32 head = tx->head;
	u64 bytes = 0;
	int count;

	for (count = 0; head != tx->tail; count++) {
		if (!sent(queue->tx.descs, zc_nic_index(tx, head)))
			break;
		bytes += tx->sending[head];
		zc_ring_hand_over(tx, head, ZEROCOPY_WRITABLE);
		head = zc_ring_next(tx, head);
	}
	tx->head = head;
	WRITE_ONCE(tx->shared->write, head);
	tx->frames += count;
	WRITE_ONCE(queue->tx_frames, queue->tx_frames + count);
	WRITE_ONCE(queue->tx_bytes, queue->tx_bytes + bytes);
}

/*
 * Gives filled slots to the NIC while it has room, and returns their number; if
 * it is positive, the NIC's tail register is to be written. An invalid length
 * ends the loop, and is an error if it is the first one.
 */
static __always_inline int zc_send(struct zc_queue *queue, struct zc_ring *tx,
				   zc_sent sent, zc_fill fill)
{
	u32 longest = READ_ONCE(queue->nic->netdev->mtu) + ETH_HLEN + VLAN_HLEN;
	u32 tail = tx->tail, next;
	int count = 0;

	zc_reclaim(queue, tx, sent);
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
		tx->sending[tail] = length;
		fill(queue->tx.descs, zc_nic_index(tx, tail),
		     zc_ring_slot_dma(tx, tail), length);
		count++;
	}
	if (!count)
		return 0;
	tx->tail = tail;
	/* The NIC reads descriptors up to the tail: they must be there first. */
	dma_wmb();
	return count;
}

#endif /* _ZEROCOPY_DATAPATH_H */
