/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * PF_ZEROCOPY: frames between a NIC and the memory of a process, without a copy.
 *
 * A socket of this family has a receive ring, a transmit ring, or both. A ring
 * is a user buffer of equal slots, registered by setsockopt(), and one
 * descriptor per slot in memory of the kernel that the process maps by mmap().
 * After bind() the NIC moves frames straight between the wire and the slots.
 *
 * Descriptors are used in order, round the ring. The state of a descriptor names
 * the owner of its slot. Writing it, with release semantics, gives the slot to
 * the other side; reading it needs acquire semantics.
 *
 *   receiving   WRITABLE  the NIC may write    -> READABLE by the kernel
 *               READABLE  the process may read -> WRITABLE by the process
 *   sending     WRITABLE  the process may write -> READABLE by the process
 *               READABLE  the NIC may read      -> WRITABLE by the kernel
 *
 * poll() and recvmsg() give returned receive slots to the NIC and wait for
 * frames; sendmsg() gives filled transmit slots to the NIC and waits for room.
 * recvmsg() and sendmsg() move no bytes of their message, so a message with a
 * buffer is refused (EOPNOTSUPP), and success is 0. The states show the readable
 * and the free descriptors, and ZEROCOPY_STATISTICS has the totals. splice() and
 * sendfile() from the socket are refused (EINVAL).
 *
 * SO_RCVLOWAT sets the number of frames that poll() and recvmsg() wait for; a
 * number beyond half of the ring counts as half. SO_RCVTIMEO, or the timeout of
 * poll(), sets how long. Frames are readable before that, too. An edge-triggered
 * epoll does not call poll() again by itself: call it after slots were returned,
 * or up to a second passes until the NIC gets them.
 *
 * SO_ATTACH_FILTER sets a filter, as for packet sockets: it sees the outermost
 * VLAN tag by SKF_AD_VLAN_TAG only. A frame for which it returns 0 uses no slot
 * and wakes no one; other frames are received whole. An extended program, and one
 * that loads SKF_AD_PAY_OFFSET or SKF_AD_NLATTR, rejects all frames.
 *
 * shutdown(SHUT_RDWR) takes the rings from the NIC; received frames stay
 * readable. If there is nothing to read or to wait for, calls do not wait:
 *
 *                          recvmsg()  sendmsg()  poll()
 *   not bound yet          ENOTCONN   ENOTCONN   POLLHUP, POLLRDHUP
 *   the interface is down  ENETDOWN   ENETDOWN   POLLERR
 *   it was removed         ENODEV     ENODEV     POLLERR; POLLHUP, POLLRDHUP
 *   after shutdown()       0          EPIPE      POLLHUP, POLLRDHUP
 *
 * poll() reports POLLERR until recvmsg(), sendmsg() or SO_ERROR has returned the
 * error, also if the interface is up again.
 *
 * An error of the bus from which the device does not recover counts as removed,
 * although the interface exists: bind() to it fails with ENODEV.
 */
#ifndef _UAPI_PF_ZEROCOPY_H
#define _UAPI_PF_ZEROCOPY_H

#include <linux/types.h>

/* The number that AF_WANPIPE had; families above AF_MAX cannot be registered. */
#define AF_ZEROCOPY 25
#define PF_ZEROCOPY AF_ZEROCOPY

/* setsockopt() and getsockopt() */
#define SOL_ZEROCOPY 350
#define ZEROCOPY_RX_RING 1 /* set: struct zerocopy_ring_req */
#define ZEROCOPY_TX_RING 2 /* set: struct zerocopy_ring_req */
#define ZEROCOPY_STATISTICS 3 /* get: struct zerocopy_statistics */
/*
 * set: int; 0, the default: an interrupt for each frame; 1: fewer interrupts the
 * more frames arrive, at least 4,000 a second, as long as the ring has room for
 * the frames between two of them.
 */
#define ZEROCOPY_MODERATION 4

/* mmap() offsets */
#define ZEROCOPY_PGOFF_RX_RING 0x00000000UL
#define ZEROCOPY_PGOFF_TX_RING 0x80000000UL

/* Two slots to a page, so that no frame crosses one. */
#define ZEROCOPY_SLOT_BYTES 2048
#define ZEROCOPY_SLOTS_MIN 8
#define ZEROCOPY_SLOTS_MAX 4096

/* struct zerocopy_desc, state */
#define ZEROCOPY_UNINITIALIZED 0
#define ZEROCOPY_WRITABLE 1
#define ZEROCOPY_READABLE 2

/*
 * bind(): a queue of an interface, which a device of the module's driver must
 * back. A queue takes one socket. The NIC spreads received frames over all queues
 * of the interface by their flows; a queue without a socket drops them.
 */
struct sockaddr_zerocopy {
	__u16 szc_family; /* AF_ZEROCOPY */
	__u16 szc_queue; /* from 0 */
	__u32 szc_ifindex;
};

/* The user buffer of a ring: slots * ZEROCOPY_SLOT_BYTES bytes at addr. */
struct zerocopy_ring_req {
	__u64 addr; /* aligned to a page */
	__u32 slots; /* a power of two, ZEROCOPY_SLOTS_MIN to _MAX */
	__u32 reserved; /* 0 */
};

/* One slot of a ring. Frames with an error take no slot. */
struct zerocopy_desc {
	/*
	 * Of the slot, in the memory of the process. A descriptor that becomes
	 * readable may have another slot than before.
	 */
	__u64 addr;
	__u64 timestamp_ns; /* received: CLOCK_REALTIME as its batch was taken */
	/*
	 * Bytes of the frame, without its frame check sequence. A sent frame below
	 * 60 bytes is filled up with zeros in its slot.
	 */
	__u32 length;
	__u32 state;
	__u64 reserved;
};

/* The memory that mmap() maps: two indices, then the descriptors. */
struct zerocopy_ring {
	/* Index that the process reads next: poll() tests states from it on. */
	__u32 read;
	__u32 padding1[15]; /* to a cache line */
	/*
	 * Index that the NIC fills or sends next. Once it is loaded with acquire
	 * semantics, the received descriptors before it are readable. If it is
	 * that of the process, the ring is empty or full: full if the descriptor
	 * before it is readable, and this index is the same if it is then loaded
	 * again. The state of the descriptor at it does not tell: it becomes
	 * readable before this index is stored.
	 */
	__u32 write;
	__u32 padding2[15];
	struct zerocopy_desc desc[];
};

/* Counts of this socket since its last bind(). */
struct zerocopy_statistics {
	__u64 rx_frames; /* made readable */
	__u64 rx_no_buffer; /* lost by the NIC for want of a writable slot */
	__u64 rx_errors; /* damaged, too short or too long, by the NIC's counters */
	__u64 tx_frames; /* taken by the NIC */
	__u64 tx_dropped; /* handed over, but not sent: the link or device went */
	__u64 rx_filtered; /* rejected by the filter */
};

#endif /* _UAPI_PF_ZEROCOPY_H */
