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

#include "filter.h"
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

/* Gives the NIC's descriptor @index a slot. */
static __always_inline void zc_post_slot(void *descs, u16 *posted,
					 const dma_addr_t *dma, u32 index,
					 u16 slot, zc_post post)
{
	post(descs, index, dma[slot], posted[index] != slot);
	posted[index] = slot;
}

/* Writes the descriptors that the NIC had before it was stopped. */
static __always_inline void zc_post_all(struct zc_queue *queue,
					struct zc_ring *rx, zc_post post)
{
	u32 index;

	for (index = 0; index <= rx->mask; index++)
		post(queue->rx.descs, index, rx->dma[rx->posted[index]], true);
}

/*
 * Gives the slots that the process has returned to the NIC, at most @most.
 * Returns true if the NIC's tail register is to be written.
 */
static __always_inline bool zc_refill(struct zc_queue *queue,
				      struct zc_ring *rx, u32 most,
				      zc_post post)
{
	/* Not read again for each slot: the compiler cannot know that. */
	const struct zerocopy_desc *shared = rx->shared->desc;
	const dma_addr_t *dma = rx->dma;
	u32 mask = rx->mask, tail = rx->tail, index = rx->nic_tail;
	u32 last = (tail + min((rx->head - 1 - tail) & mask, most)) & mask;
	void *descs = queue->rx.descs;
	u16 *posted = rx->posted, *held = rx->held;

	for (; tail != last; tail = (tail + 1) & mask) {
		/* Pairs with the release of the process. */
		if (smp_load_acquire(&shared[tail].state) != ZEROCOPY_WRITABLE)
			break;
		zc_post_slot(descs, posted, dma, index, held[tail], post);
		index = (index + 1) & mask;
	}
	if (tail == rx->tail && !rx->reposted)
		return false;
	rx->tail = tail;
	rx->nic_tail = index;
	rx->reposted = false;
	/* The NIC reads descriptors up to the tail: they must be there first. */
	dma_wmb();
	return true;
}

/* Returns true if at least so many frames wait for zc_take(). */
static __always_inline bool zc_has(const struct zc_queue *queue,
				   const struct zc_ring *rx, u32 frames,
				   zc_received received)
{
	u32 last = (rx->nic_head + frames - 1) & rx->mask, length;

	return ((rx->nic_tail - rx->nic_head) & rx->mask) >= frames &&
	       received(queue->rx.descs, last, &length);
}

/* Counts of a run of zc_take(). */
struct zc_taken {
	u64 bytes;
	u32 frames; /* all, and of them: */
	u32 errors;
	u32 filtered;
};

/*
 * Takes at most @budget frames from the NIC, and makes them readable; the slots
 * of damaged and of rejected frames go back to the NIC.
 */
static __always_inline struct zc_taken zc_take(struct zc_queue *queue,
					       struct zc_ring *rx, int budget,
					       const struct bpf_prog *filter,
					       zc_received received,
					       zc_post post)
{
	struct zc_filtering filtering;
	/* Not read again for each frame: the compiler cannot know that. */
	struct zerocopy_desc *shared = rx->shared->desc;
	u32 mask = rx->mask, head = rx->head, index = rx->nic_head;
	u32 tail = rx->nic_tail, errors = 0;
	u16 *posted = rx->posted, *held = rx->held;
	void **frames_at = rx->frames_at;
	const dma_addr_t *dma = rx->dma;
	void *descs = queue->rx.descs;
	u32 limit = min_t(u32, budget, (tail - index) & mask);
	u32 end = (index + limit) & mask, frames, reposted;
	u64 now = ktime_get_real_ns(), bytes = 0;

	if (filter)
		filtering = zc_filtering(filter, rx->skb);
	while (index != end) {
		struct zerocopy_desc *desc = &shared[head];
		u16 slot = posted[index];
		u32 length;

		if (!received(descs, index, &length))
			break;
		index = (index + 1) & mask;
		if (unlikely(length > ZEROCOPY_SLOT_BYTES)) {
			errors++;
			goto repost;
		}
		bytes += length;
		if (filter && !zc_accepts(&filtering, frames_at[slot], length))
			goto repost;
		if (unlikely(held[head] != slot)) {
			held[head] = slot;
			WRITE_ONCE(desc->addr, zc_ring_slot_user(rx, slot));
		}
		WRITE_ONCE(desc->length, length);
		WRITE_ONCE(desc->timestamp_ns, now);
		/* Pairs with the acquire of the process. */
		smp_store_release(&desc->state, ZEROCOPY_READABLE);
		head = (head + 1) & mask;
		continue;
repost:
		zc_post_slot(descs, posted, dma, tail, slot, post);
		tail = (tail + 1) & mask;
	}
	reposted = (tail - rx->nic_tail) & mask;
	frames = (index - rx->nic_head) & mask;
	rx->head = head;
	rx->nic_head = index;
	rx->nic_tail = tail;
	rx->reposted |= reposted > 0;
	return (struct zc_taken){ bytes, frames, errors, reposted - errors };
}

/* Makes received frames readable, and returns their number before the filter. */
static __always_inline int zc_harvest(struct zc_queue *queue,
				      struct zc_ring *rx, int budget,
				      zc_received received, zc_post post)
{
	const struct bpf_prog *filter = zc_filter(queue->owner);
	struct zc_taken taken;

	taken = filter ? zc_take(queue, rx, budget, filter, received, post) :
			 zc_take(queue, rx, budget, NULL, received, post);
	/* Pairs with the acquire of the process. */
	smp_store_release(&rx->shared->write, rx->head);
	rx->frames += taken.frames - taken.errors - taken.filtered;
	rx->filtered += taken.filtered;
	rx->errors += taken.errors;
	WRITE_ONCE(queue->rx_frames, queue->rx_frames + taken.frames - taken.errors);
	WRITE_ONCE(queue->rx_bytes, queue->rx_bytes + taken.bytes);
	WRITE_ONCE(queue->rx_errors, queue->rx_errors + taken.errors);
	return taken.frames;
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
		if (length < ETH_ZLEN) {
			memset(tx->frames_at[tail] + length, 0,
			       ETH_ZLEN - length);
			length = ETH_ZLEN;
		}
		fill(queue->tx.descs, zc_nic_index(tx, tail), tx->dma[tail],
		     length);
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
