// SPDX-License-Identifier: GPL-2.0
/*
 * A ring: the user buffer, pinned and accounted; its descriptors, shared with
 * the process; its DMA addresses, which never leave the kernel.
 */
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "internal.h"

#define SLOTS_PER_PAGE (PAGE_SIZE / ZEROCOPY_SLOT_BYTES)

size_t zc_ring_shared_bytes(const struct zc_ring *ring)
{
	return struct_size(ring->shared, desc, (size_t)ring->mask + 1);
}

/* Counts the pages against RLIMIT_MEMLOCK of the user, as AF_XDP does. */
static int account(struct zc_ring *ring)
{
	unsigned long limit = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;
	long old, new;

	if (capable(CAP_IPC_LOCK))
		return 0;
	ring->user = get_uid(current_user());
	old = atomic_long_read(&ring->user->locked_vm);
	do {
		new = old + ring->page_count;
		if (new > limit)
			return -ENOBUFS;
	} while (!atomic_long_try_cmpxchg(&ring->user->locked_vm, &old, new));
	ring->pages_accounted = ring->page_count;
	return 0;
}

static void unaccount(struct zc_ring *ring)
{
	if (!ring->user)
		return;
	atomic_long_sub(ring->pages_accounted, &ring->user->locked_vm);
	free_uid(ring->user);
}

static int pin(struct zc_ring *ring, unsigned long start)
{
	int pinned;

	ring->pages = kvcalloc(ring->page_count, sizeof(*ring->pages),
			       GFP_KERNEL_ACCOUNT);
	if (!ring->pages)
		return -ENOMEM;
	pinned = pin_user_pages_fast(start, ring->page_count,
				     FOLL_WRITE | FOLL_LONGTERM, ring->pages);
	if (pinned == ring->page_count)
		return 0;
	if (pinned > 0)
		unpin_user_pages(ring->pages, pinned);
	kvfree(ring->pages);
	ring->pages = NULL;
	return pinned < 0 ? pinned : -EFAULT;
}

/* Allocates the shared descriptors: every slot starts WRITABLE, as in D1. */
static int alloc_shared(struct zc_ring *ring, u64 start)
{
	u32 slot;

	ring->shared = vmalloc_user(zc_ring_shared_bytes(ring));
	if (!ring->shared)
		return -ENOMEM;
	for (slot = 0; slot <= ring->mask; slot++) {
		struct zerocopy_desc *desc = &ring->shared->desc[slot];

		desc->addr = start + (u64)slot * ZEROCOPY_SLOT_BYTES;
		desc->state = ZEROCOPY_WRITABLE;
	}
	return 0;
}

static int check(const struct zerocopy_ring_req *request)
{
	u64 bytes = (u64)request->slots * ZEROCOPY_SLOT_BYTES;

	if (request->reserved || !is_power_of_2(request->slots) ||
	    request->slots < ZEROCOPY_SLOTS_MIN ||
	    request->slots > ZEROCOPY_SLOTS_MAX)
		return -EINVAL;
	if (!PAGE_ALIGNED(request->addr) || bytes % PAGE_SIZE ||
	    request->addr + bytes < request->addr ||
	    request->addr != (unsigned long)request->addr)
		return -EINVAL;
	return 0;
}

struct zc_ring *zc_ring_create(const struct zerocopy_ring_req *request)
{
	struct zc_ring *ring;
	int err;

	err = check(request);
	if (err)
		return ERR_PTR(err);
	ring = kzalloc(sizeof(*ring), GFP_KERNEL_ACCOUNT);
	if (!ring)
		return ERR_PTR(-ENOMEM);
	spin_lock_init(&ring->lock);
	ring->mask = request->slots - 1;
	ring->page_count = request->slots / SLOTS_PER_PAGE;

	err = account(ring);
	if (!err)
		err = pin(ring, request->addr);
	if (!err)
		err = alloc_shared(ring, request->addr);
	if (err) {
		zc_ring_destroy(ring);
		return ERR_PTR(err);
	}
	return ring;
}

/*
 * Frees the ring. The caller must have unmapped it from the device; the process
 * may still have it mapped.
 */
void zc_ring_destroy(struct zc_ring *ring)
{
	if (!ring)
		return;
	vfree(ring->shared);
	if (ring->pages)
		unpin_user_pages_dirty_lock(ring->pages, ring->page_count,
					    true);
	kvfree(ring->pages);
	unaccount(ring);
	kfree(ring);
}

static void unmap_pages(struct zc_ring *ring, unsigned int count)
{
	while (count--)
		dma_unmap_page(ring->dma_device, ring->dma[count], PAGE_SIZE,
			       ring->direction);
	kvfree(ring->dma);
	ring->dma = NULL;
	ring->dma_device = NULL;
}

/*
 * Maps the user buffer for DMA by @device. Fails if the transfers would use
 * bounce buffers, which would be a copy.
 */
int zc_ring_map(struct zc_ring *ring, struct device *device,
		enum dma_data_direction direction)
{
	unsigned int i;
	int err;

	ring->dma = kvcalloc(ring->page_count, sizeof(*ring->dma),
			     GFP_KERNEL_ACCOUNT);
	if (!ring->dma)
		return -ENOMEM;
	ring->dma_device = device;
	ring->direction = direction;
	for (i = 0; i < ring->page_count; i++) {
		ring->dma[i] = dma_map_page(device, ring->pages[i], 0,
					    PAGE_SIZE, direction);
		if (dma_mapping_error(device, ring->dma[i])) {
			err = -ENOMEM;
			break;
		}
		if (dma_need_sync(device, ring->dma[i])) {
			i++;
			err = -EOPNOTSUPP;
			break;
		}
		err = 0;
	}
	if (err)
		unmap_pages(ring, i);
	return err;
}

void zc_ring_unmap(struct zc_ring *ring)
{
	if (ring->dma)
		unmap_pages(ring, ring->page_count);
}
