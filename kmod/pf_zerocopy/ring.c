// SPDX-License-Identifier: GPL-2.0
/*
 * A ring: the user buffer, pinned and accounted; its descriptors, shared with
 * the process; its DMA addresses, which never leave the kernel.
 */
#include <linux/dma-map-ops.h>
#include <linux/iommu.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "filter.h"

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

static unsigned int shared_page_count(const struct zc_ring *ring)
{
	return DIV_ROUND_UP(zc_ring_shared_bytes(ring), PAGE_SIZE);
}

/*
 * Allocates zeroed memory that a process can map. Unlike that of vmalloc_user()
 * it is charged to the memory cgroup.
 */
static int alloc_mappable(struct zc_ring *ring)
{
	unsigned int count = shared_page_count(ring), i;

	ring->shared_pages = kvcalloc(count, sizeof(*ring->shared_pages),
				      GFP_KERNEL_ACCOUNT);
	if (!ring->shared_pages)
		return -ENOMEM;
	for (i = 0; i < count; i++) {
		ring->shared_pages[i] = alloc_page(GFP_KERNEL_ACCOUNT |
						   __GFP_ZERO);
		if (!ring->shared_pages[i])
			return -ENOMEM;
	}
	ring->shared = vmap(ring->shared_pages, count, VM_MAP | VM_USERMAP,
			    PAGE_KERNEL);
	return ring->shared ? 0 : -ENOMEM;
}

/* Also if not all of it was allocated. */
static void free_mappable(struct zc_ring *ring)
{
	unsigned int i;

	vunmap(ring->shared);
	if (!ring->shared_pages)
		return;
	for (i = 0; i < shared_page_count(ring); i++)
		if (ring->shared_pages[i])
			__free_page(ring->shared_pages[i]);
	kvfree(ring->shared_pages);
}

/* Allocates the shared descriptors: every slot starts WRITABLE, as in D1. */
static int alloc_shared(struct zc_ring *ring)
{
	u32 slot;
	int err;

	err = alloc_mappable(ring);
	if (err)
		return err;
	for (slot = 0; slot <= ring->mask; slot++) {
		struct zerocopy_desc *desc = &ring->shared->desc[slot];

		desc->addr = zc_ring_slot_user(ring, slot);
		desc->state = ZEROCOPY_WRITABLE;
	}
	return 0;
}

/* Allocates what only the kernel has: descriptor n has slot n at first. */
static int alloc_private(struct zc_ring *ring)
{
	u32 slots = ring->mask + 1, slot;

	ring->numbers = kvcalloc(slots, 3 * sizeof(*ring->numbers),
				 GFP_KERNEL_ACCOUNT);
	ring->frames_at = kvcalloc(slots, sizeof(*ring->frames_at),
				   GFP_KERNEL_ACCOUNT);
	ring->skb = kzalloc(sizeof(*ring->skb), GFP_KERNEL_ACCOUNT);
	if (!ring->numbers || !ring->frames_at || !ring->skb)
		return -ENOMEM;
	zc_prepare_filtering(ring->skb);
	ring->held = ring->numbers;
	ring->posted = ring->held + slots;
	ring->sending = ring->posted + slots;
	for (slot = 0; slot < slots; slot++) {
		struct page *page = ring->pages[slot / ZC_SLOTS_PER_PAGE];

		ring->held[slot] = slot;
		ring->posted[slot] = slot;
		ring->frames_at[slot] =
			page_address(page) +
			slot % ZC_SLOTS_PER_PAGE * ZEROCOPY_SLOT_BYTES;
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
	ring->start = request->addr;
	ring->page_count = request->slots / ZC_SLOTS_PER_PAGE;

	err = account(ring);
	if (!err)
		err = pin(ring, request->addr);
	if (!err)
		err = alloc_shared(ring);
	if (!err)
		err = alloc_private(ring);
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
	free_mappable(ring);
	kvfree(ring->numbers);
	kvfree(ring->frames_at);
	kfree(ring->skb);
	if (ring->pages)
		unpin_user_pages_dirty_lock(ring->pages, ring->page_count,
					    true);
	kvfree(ring->pages);
	unaccount(ring);
	kfree(ring);
}

/* Counters count from bind(). */
void zc_ring_begin(struct zc_ring *ring)
{
	if (!ring)
		return;
	spin_lock_bh(&ring->lock);
	ring->frames = 0;
	ring->filtered = 0;
	ring->errors = 0;
	ring->dropped = 0;
	ring->no_buffer = 0;
	spin_unlock_bh(&ring->lock);
}

/*
 * Numbers the NIC's descriptors anew, as a NIC that is started begins at
 * descriptor 0. The process continues where it was.
 */
void zc_ring_rewind(struct zc_ring *ring)
{
	u16 *posted = ring->sending; /* not in use: a ring is of one kind */
	u32 index;

	for (index = 0; index <= ring->mask; index++)
		posted[index] = ring->posted[(ring->nic_head + index) &
					     ring->mask];
	ring->sending = ring->posted;
	ring->posted = posted;
	ring->nic_tail = (ring->nic_tail - ring->nic_head) & ring->mask;
	ring->nic_head = 0;
	ring->nic_start = ring->head;
}

/* No copy to or from a bounce buffer: the process may write to the page. */
#define MAP_ATTRS DMA_ATTR_SKIP_CPU_SYNC

static void unmap_pages(struct zc_ring *ring, unsigned int count)
{
	while (count--)
		dma_unmap_page_attrs(ring->dma_device,
				     ring->dma[count * ZC_SLOTS_PER_PAGE],
				     PAGE_SIZE, ring->direction, MAP_ATTRS);
	kvfree(ring->dma);
	ring->dma = NULL;
	ring->dma_device = NULL;
}

/*
 * Returns true if transfers of the page, mapped at @start, need a copy: they use
 * another page of the kernel, or a cache hides them. Behind an IOMMU
 * dma_need_sync() is true for every page on a kernel with DMA_API_DEBUG.
 */
static bool bounces(struct device *device, struct page *page, dma_addr_t start)
{
	struct iommu_domain *domain = iommu_get_domain_for_dev(device);

	if (domain && iommu_is_dma_domain(domain) &&
	    dev_is_dma_coherent(device))
		return iommu_iova_to_phys(domain, start) != page_to_phys(page);
	return dma_need_sync(device, start);
}

/* Maps a page. Fails if the transfers would use bounce buffers. */
static int map_page(struct zc_ring *ring, unsigned int page)
{
	dma_addr_t *dma = &ring->dma[page * ZC_SLOTS_PER_PAGE];
	dma_addr_t start = dma_map_page_attrs(ring->dma_device,
					      ring->pages[page], 0, PAGE_SIZE,
					      ring->direction, MAP_ATTRS);
	unsigned int i;

	if (dma_mapping_error(ring->dma_device, start))
		return -ENOMEM;
	if (bounces(ring->dma_device, ring->pages[page], start)) {
		dma_unmap_page_attrs(ring->dma_device, start, PAGE_SIZE,
				     ring->direction, MAP_ATTRS);
		return -EOPNOTSUPP;
	}
	for (i = 0; i < ZC_SLOTS_PER_PAGE; i++)
		dma[i] = start + i * ZEROCOPY_SLOT_BYTES;
	return 0;
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

	ring->dma = kvcalloc((size_t)ring->mask + 1, sizeof(*ring->dma),
			     GFP_KERNEL_ACCOUNT);
	if (!ring->dma)
		return -ENOMEM;
	ring->dma_device = device;
	ring->direction = direction;
	for (i = 0; i < ring->page_count; i++) {
		err = map_page(ring, i);
		if (err) {
			unmap_pages(ring, i);
			return err;
		}
	}
	return 0;
}

void zc_ring_unmap(struct zc_ring *ring)
{
	if (ring->dma)
		unmap_pages(ring, ring->page_count);
}
