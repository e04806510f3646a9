/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Declarations that the parts of the module share.
 *
 *   socket.c   the protocol family: the calls of a process
 *   options.c  the options of a socket
 *   ring.c     a ring: user buffer, shared descriptors, private indices
 *   filter.h   the filter of a socket, on a received frame
 *   nic.h      the NIC: its queues, which move the indices of the rings
 *
 * Control (bind, release, up, down, unplug) runs under RTNL. Data runs under
 * the lock of its ring, in softirq and process context; an interrupt, which may
 * have stopped the owner of the lock, only tries it.
 */
#ifndef _ZEROCOPY_INTERNAL_H
#define _ZEROCOPY_INTERNAL_H

#include <linux/dma-mapping.h>
#include <linux/if_ether.h>
#include <linux/netdevice.h>
#include <linux/sched/user.h>
#include <net/sock.h>

#include "pf_zerocopy.h"

#ifndef CONFIG_64BIT
#error "PF_ZEROCOPY needs a 64-bit kernel: it reads pages without mapping them"
#endif

struct zc_queue;

/*
 * A ring. The process can write to *shared at any time: the kernel trusts only
 * a state that has the expected value, and keeps everything that it depends on
 * here.
 *
 * The NIC has the slots of the descriptors from head up to, not including, tail.
 * It never gets the last slot, because head == tail means that it has none.
 *
 * A receive ring has two orders: that of the process, with head and tail, and
 * that of the NIC, with nic_head and nic_tail. They differ once the filter has
 * rejected a frame: its slot stays with the NIC, and the next frame takes its
 * place in the order of the process.
 */
struct zc_ring {
	spinlock_t lock; /* of the fields below, up to the counters, and *shared */
	struct zerocopy_ring *shared;
	struct page **shared_pages; /* of *shared */
	struct zc_queue *queue; /* NULL: not bound, or the device is gone */
	u32 mask; /* slots - 1 */
	u32 head;
	u32 tail;

	u16 *numbers; /* the memory of held, posted and sending */
	void **frames_at; /* each slot in the memory of the kernel */

	/* Of a receive ring. */
	u32 nic_head;
	u32 nic_tail;
	bool reposted; /* the NIC's tail register lags behind nic_tail */
	u16 *held; /* the slot of each descriptor of the process */
	u16 *posted; /* the slot of each descriptor of the NIC */
	struct sk_buff *skb; /* a frame for the filter; it owns no memory */

	/* Of a transmit ring. */
	u32 nic_start; /* the slot of the NIC's descriptor 0 */
	u16 *sending; /* the length of each frame */

	u64 frames;
	u64 filtered;
	u64 errors;
	u64 dropped;
	u64 no_buffer;

	/* The user buffer, two slots to a page; fixed once made. */
	u64 start;
	struct page **pages;
	unsigned int page_count;
	unsigned int pages_accounted;
	struct user_struct *user;

	/* While it is bound. */
	struct device *dma_device;
	enum dma_data_direction direction;
	dma_addr_t *dma; /* of each slot */
};

#define ZC_SLOTS_PER_PAGE (PAGE_SIZE / ZEROCOPY_SLOT_BYTES)

struct zc_ring *zc_ring_create(const struct zerocopy_ring_req *request);
void zc_ring_destroy(struct zc_ring *ring);
void zc_ring_begin(struct zc_ring *ring);
void zc_ring_rewind(struct zc_ring *ring);
int zc_ring_map(struct zc_ring *ring, struct device *device,
		enum dma_data_direction direction);
void zc_ring_unmap(struct zc_ring *ring);
size_t zc_ring_shared_bytes(const struct zc_ring *ring);

/* The slot in the memory of the process. */
static inline u64 zc_ring_slot_user(const struct zc_ring *ring, u32 slot)
{
	return ring->start + (u64)slot * ZEROCOPY_SLOT_BYTES;
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

/*
 * Returns true if the next @frames descriptors of the process have frames. They
 * become readable in order: all have frames if the last has one. If the process
 * keeps older frames, that may be one of them, and the first has none.
 */
static inline bool zc_ring_readable(const struct zc_ring *ring, u32 frames)
{
	u32 first = READ_ONCE(ring->shared->read) & ring->mask;
	u32 last = (first + frames - 1) & ring->mask;

	return zc_ring_state(ring, last) == ZEROCOPY_READABLE &&
	       (first == last ||
		zc_ring_state(ring, first) == ZEROCOPY_READABLE);
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
	u16 queue; /* of netdev */
	bool moderates; /* interrupts, by the number of frames */
	netdevice_tracker tracker;
	/*
	 * Reason of the end of traffic as an errno, 0 before. ENOTCONN:
	 * not bound yet. ENETDOWN: the interface is down. ENODEV: it is gone,
	 * or its device failed for good.
	 * EPIPE: shut down. Written under RTNL, when the last frame is in.
	 */
	int ended;
};

static inline struct zc_sock *zc_sk(struct sock *sk)
{
	return (struct zc_sock *)sk;
}

/*
 * A ring is set once, while other calls may look for it, and stays until the
 * socket is released. Acquire pairs with the release in set_ring(), so that the
 * ring is complete.
 */
static inline struct zc_ring *zc_rx_ring(struct zc_sock *zs)
{
	return smp_load_acquire(&zs->rx); /* of set_ring() */
}

static inline struct zc_ring *zc_tx_ring(struct zc_sock *zs)
{
	return smp_load_acquire(&zs->tx); /* of set_ring() */
}

int zc_setsockopt(struct socket *sock, int level, int optname,
		  sockptr_t optval, unsigned int optlen);
int zc_set_rcvlowat(struct sock *sk, int value);
int zc_getsockopt(struct socket *sock, int level, int optname,
		  char __user *optval, int __user *optlen);
int zc_socket_register(void);
void zc_socket_unregister(void);
void zc_socket_received(struct zc_sock *zs);
void zc_socket_writable(struct zc_sock *zs);
/* Under RTNL: */
void zc_socket_up(struct zc_sock *zs);
void zc_socket_error(struct zc_sock *zs, int error);
void zc_sockets_lose(struct net_device *netdev);

/* The device. Under RTNL: */
bool zc_nic_backs(const struct net_device *netdev);
bool zc_nic_runs(struct net_device *netdev);
int zc_nic_attach(struct net_device *netdev, u16 queue, struct zc_sock *zs);
void zc_nic_detach(struct net_device *netdev, u16 queue);
/* Returns a socket of the device, or NULL if it has none. */
struct zc_sock *zc_nic_any_owner(struct net_device *netdev);
/* In system calls: */
void zc_ring_refill(struct zc_ring *rx);
/* With the ring's lock: */
int zc_queue_send(struct zc_queue *queue, struct zc_ring *tx);
bool zc_queue_await_room(struct zc_queue *queue, struct zc_ring *tx);
void zc_queue_read_losses(struct zc_queue *queue, struct zc_ring *rx);

int zc_nic_register(void);
void zc_nic_unregister(void);

#endif /* _ZEROCOPY_INTERNAL_H */
