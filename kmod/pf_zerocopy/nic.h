/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A NIC: its queues, and the functions of its model.
 *
 *   device.c   the network device: its place on the bus, its interrupts
 *   ethtool.c  what ethtool shows and sets
 *   queue.c    a queue: its owner, NAPI, start and stop
 *   intel.c    registers that the models below have in common
 *   e1000.c    82540EM: one queue, one interrupt line
 *   igb.c      82576: queues with an MSI-X vector each
 *
 * A model is a table of functions. Support for another one is a file with its
 * table, and a line in zc_ids of device.c.
 */
#ifndef _ZEROCOPY_NIC_H
#define _ZEROCOPY_NIC_H

#include <linux/interrupt.h>
#include <linux/io.h>
#include <linux/pci.h>

#include "internal.h"

#define ZC_QUEUES_MAX 8

/* The NIC's own ring: its memory, which no process sees. */
struct zc_nic_ring {
	void *descs;
	dma_addr_t dma;
	size_t bytes;
};

/*
 * A queue. It has one socket, or receives and sends nothing.
 */
struct zc_queue {
	struct zc_nic *nic;
	unsigned int index;
	char name[IFNAMSIZ + 8]; /* of its interrupt */
	struct napi_struct napi;

	/* RTNL, and changed only while NAPI is disabled. */
	struct zc_sock *owner;
	struct zc_nic_ring rx;
	struct zc_nic_ring tx;

	/* With the lock of the transmit ring: an interrupt was asked for. */
	bool awaits_room;

	/*
	 * In NAPI: frames since the last interrupt, the interval then set, and the
	 * slots that the NIC has.
	 */
	u32 frames;
	u32 interval_us;
	u32 room;

	/*
	 * In NAPI, which an interrupt owns too while it receives: the frames that
	 * interrupts may still receive in a jiffy.
	 */
	u32 few_jiffy;
	u32 few_left;

	/* In the watchdog: the count of sent frames, and since when it stands. */
	u64 tx_frames_before;
	unsigned int tx_stalls;

	/* Counts over all owners. With the lock of the counted ring. */
	u64 rx_frames;
	u64 rx_bytes;
	u64 rx_errors;
	u64 rx_missed;
	u64 tx_frames;
	u64 tx_bytes;
};

/* A register that counts losses of the NIC, and its last value. */
struct zc_counter {
	unsigned int reg;
	u32 before; /* where reading does not clear it */
};

#define ZC_ERROR_COUNTERS 4

struct zc_nic {
	struct net_device *netdev;
	struct pci_dev *pdev;
	u8 __iomem *regs;
	const struct zc_nic_ops *ops;
	unsigned int queues_max;
	unsigned int queue_count; /* RTNL, changed while no queue has a socket */
	/*
	 * RTNL. The NIC is to run: the interface is up, and the device is neither
	 * suspended nor in a reset of the bus. While it is, the watchdog runs.
	 */
	bool wanted;
	bool running;
	bool halted; /* by zc_nic_halt() */
	bool failed; /* for good: it takes no socket */
	struct delayed_work watchdog;
	struct zc_queue queues[ZC_QUEUES_MAX];

	/*
	 * Protects the receiver's switch: the network stack sets a filter at any
	 * time, without RTNL, and must not start a stopped receiver.
	 */
	spinlock_t receiver_lock;
	bool receiving;

	/* Protects the counters of losses. */
	spinlock_t losses_lock;
	struct zc_counter missed[ZC_QUEUES_MAX];
	struct zc_counter damaged[ZC_ERROR_COUNTERS];
};

/*
 * The functions of a model. Control runs under RTNL, with NAPI of the queue
 * disabled. Data runs with the lock of the ring.
 */
struct zc_nic_ops {
	u64 dma_mask;
	unsigned int queues_max;
	size_t desc_bytes;
	/* A vector for each queue, then one for the link; else one line. */
	bool msix;

	/* Once, before all others. */
	void (*init)(struct zc_nic *nic);
	/*
	 * To the state after power-on: no transfer, no interrupt. False if the
	 * NIC stays in reset, or is gone.
	 */
	bool (*reset)(struct zc_nic *nic);
	/* After a reset: sets the link up, and asks for its interrupt. */
	void (*start)(struct zc_nic *nic);
	bool (*link_is_up)(struct zc_nic *nic);
	/* Of the interface, ETH_ALEN bytes; after a reset. */
	void (*read_address)(struct zc_nic *nic, u8 *address);
	/*
	 * The queue has an owner, and memory for the NIC's rings. False if the NIC
	 * does not start it.
	 */
	bool (*start_queue)(struct zc_queue *queue);
	/*
	 * No transfer of the queue begins after this, and running ones end. False
	 * if the NIC does not stop.
	 */
	bool (*stop_queue)(struct zc_queue *queue);
	/*
	 * The memory of the stopped queue's rings is freed after this. False if
	 * the NIC needs a reset.
	 */
	bool (*forget_queue)(struct zc_queue *queue);

	/* At any time: */
	void (*set_filter)(struct net_device *netdev);
	/* Handles the line, or the vector of the link; @data is the NIC. */
	irqreturn_t (*interrupt)(int irq, void *data);
	/* Turns off interrupts of a queue, and of the link if they share. */
	void (*mask)(struct zc_queue *queue);
	void (*unmask)(struct zc_queue *queue);
	/* Sets the least time between two interrupts of a queue. */
	void (*set_interval)(struct zc_queue *queue, u32 us);
	/*
	 * Losses since the last call: for want of a slot of the queue, and invalid
	 * frames of all queues. With losses_lock.
	 */
	u32 (*take_missed)(struct zc_queue *queue);
	u32 (*take_damaged)(struct zc_nic *nic);

	/* Data: */
	/* At most so many slots. */
	void (*refill)(struct zc_queue *queue, struct zc_ring *rx, u32 most);
	/* Returns true if so many frames wait to be harvested. */
	bool (*has)(const struct zc_queue *queue, const struct zc_ring *rx,
		    u32 frames);
	int (*harvest)(struct zc_queue *queue, struct zc_ring *rx, int budget);
	int (*send)(struct zc_queue *queue, struct zc_ring *tx);
	void (*reclaim)(struct zc_queue *queue, struct zc_ring *tx);
	/* Turns interrupts for sent frames on or off. */
	void (*await_room)(struct zc_queue *queue, bool on);
};

extern const struct zc_nic_ops e1000_ops;
extern const struct zc_nic_ops igb_ops;

static inline u32 rd(const struct zc_nic *nic, unsigned int reg)
{
	return readl(nic->regs + reg);
}

static inline void wr(struct zc_nic *nic, unsigned int reg, u32 value)
{
	writel(value, nic->regs + reg);
}

/* queue.c. Under RTNL: */
int zc_queue_attach(struct zc_queue *queue, struct zc_sock *zs);
void zc_queue_detach(struct zc_queue *queue);
void zc_queue_open(struct zc_queue *queue);
void zc_queue_close(struct zc_queue *queue);
void zc_queue_init(struct zc_nic *nic, unsigned int index);
bool zc_queue_stalls(struct zc_queue *queue);
bool zc_queue_others_receive(const struct zc_queue *queue);
/* From an interrupt: */
void zc_queue_schedule(struct zc_queue *queue);
irqreturn_t zc_queue_interrupt(int irq, void *queue);

/* ethtool.c */
extern const struct ethtool_ops zc_ethtool_ops;

/* device.c. Under RTNL: */
void zc_nic_halt(struct zc_nic *nic);
/* Fails if a queue has a socket. */
int zc_nic_set_queues(struct zc_nic *nic, unsigned int queues);
/* At any time: */
void zc_nic_show_link(struct zc_nic *nic);

#endif /* _ZEROCOPY_NIC_H */
