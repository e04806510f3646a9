/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Declarations that the parts of the module share.
 *
 *   socket.c   the protocol family: the calls of a process
 *   ring.c     a ring: user buffer, shared descriptors, private indices
 *   device.c   the device: its owner, its network device, its place on the bus
 *   e1000.c    the NIC: moves the indices as it receives and sends
 *
 * Control (bind, release, up, down, unplug) runs under RTNL. Data runs under
 * the lock of its ring, in softirq and process context.
 */
#ifndef _ZEROCOPY_INTERNAL_H
#define _ZEROCOPY_INTERNAL_H

#include <linux/dma-mapping.h>
#include <linux/netdevice.h>
#include <linux/sched/user.h>
#include <net/sock.h>

#include "pf_zerocopy.h"

struct zc_nic;

/*
 * A ring. The process can write to *shared at any time: the kernel trusts only
 * a state that has the expected value, and keeps everything that it depends on
 * here.
 *
 * The NIC has the slots from head up to, not including, tail. It never gets the
 * last slot, because head == tail means that it has none.
 */
struct zc_ring {
	spinlock_t lock; /* of the fields below, up to the counters, and *shared */
	struct zerocopy_ring *shared;
	struct zc_nic *nic; /* NULL: not bound, or the device is gone */
	u32 mask; /* slots - 1 */
	u32 head;
	u32 tail;

	u64 frames;
	u64 errors;
	u64 dropped;
	u64 no_buffer;

	/* The user buffer, two slots to a page; fixed once made. */
	struct page **pages;
	unsigned int page_count;
	unsigned int pages_accounted;
	struct user_struct *user;

	/* While it is bound. */
	struct device *dma_device;
	enum dma_data_direction direction;
	dma_addr_t *dma; /* of each page */
};

struct zc_ring *zc_ring_create(const struct zerocopy_ring_req *request);
void zc_ring_destroy(struct zc_ring *ring);
int zc_ring_map(struct zc_ring *ring, struct device *device,
		enum dma_data_direction direction);
void zc_ring_unmap(struct zc_ring *ring);
size_t zc_ring_shared_bytes(const struct zc_ring *ring);

static inline dma_addr_t zc_ring_slot_dma(const struct zc_ring *ring, u32 slot)
{
	return ring->dma[slot / 2] + (slot % 2) * ZEROCOPY_SLOT_BYTES;
}

static inline u32 zc_ring_next(const struct zc_ring *ring, u32 slot)
{
	return (slot + 1) & ring->mask;
}

/* The state that the process has written, or the kernel before. */
static inline u32 zc_ring_state(const struct zc_ring *ring, u32 slot)
{
	/* Pairs with the release of the process. */
	return smp_load_acquire(&ring->shared->desc[slot].state);
}

/* Gives a slot to the process, with all earlier writes to it. */
static inline void zc_ring_hand_over(struct zc_ring *ring, u32 slot, u32 state)
{
	/* Pairs with the acquire of the process. */
	smp_store_release(&ring->shared->desc[slot].state, state);
}

struct zc_sock {
	struct sock sk; /* first */
	struct zc_ring *rx;
	struct zc_ring *tx;
	struct net_device *netdev; /* RTNL; NULL: not bound, or gone */
	netdevice_tracker tracker;
	/*
	 * Reason of the end of traffic as an errno, 0 before. ENOTCONN:
	 * not bound yet. ENETDOWN: the interface is down. ENODEV: it is gone.
	 * EPIPE: shut down. Written under RTNL, when the last frame is in.
	 */
	int ended;
};

static inline struct zc_sock *zc_sk(struct sock *sk)
{
	return (struct zc_sock *)sk;
}

int zc_socket_register(void);
void zc_socket_unregister(void);
void zc_socket_readable(struct zc_sock *zs);
void zc_socket_writable(struct zc_sock *zs);
/* Under RTNL: */
void zc_socket_up(struct zc_sock *zs);
void zc_socket_error(struct zc_sock *zs, int error);

/* The device. Under RTNL: */
bool zc_nic_backs(const struct net_device *netdev);
int zc_nic_attach(struct net_device *netdev, struct zc_sock *zs);
void zc_nic_detach(struct net_device *netdev);
struct zc_sock *zc_nic_owner(struct net_device *netdev);
/* With the ring's lock: */
void zc_nic_refill(struct zc_nic *nic, struct zc_ring *rx);
int zc_nic_send(struct zc_nic *nic, struct zc_ring *tx);
bool zc_nic_await_room(struct zc_nic *nic, struct zc_ring *tx);
void zc_nic_read_losses(struct zc_nic *nic, struct zc_ring *rx);

int zc_nic_register(void);
void zc_nic_unregister(void);

#endif /* _ZEROCOPY_INTERNAL_H */
