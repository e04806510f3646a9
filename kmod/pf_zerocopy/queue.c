// SPDX-License-Identifier: GPL-2.0
/*
 * A queue of the NIC: its owner, NAPI, start and stop. No packet has an sk_buff.
 */
#include <linux/rtnetlink.h>

#include "filter.h"
#include "nic.h"

/* Receiving and sending. */

/*
 * Gives returned slots to the NIC. A NIC without a writable slot raises no
 * interrupt, so every call must do this before it waits.
 */
void zc_ring_refill(struct zc_ring *rx)
{
	spin_lock_bh(&rx->lock);
	if (rx->queue)
		rx->queue->nic->ops->refill(rx->queue, rx, U32_MAX);
	spin_unlock_bh(&rx->lock);
}

int zc_queue_send(struct zc_queue *queue, struct zc_ring *tx)
{
	return queue->nic->ops->send(queue, tx);
}

static bool has_room(const struct zc_ring *tx)
{
	return zc_ring_next(tx, tx->tail) != tx->head;
}

/*
 * Returns true if the process may fill another slot. If not, an interrupt will
 * come; slots that were sent before the request for it are reclaimed here.
 */
bool zc_queue_await_room(struct zc_queue *queue, struct zc_ring *tx)
{
	const struct zc_nic_ops *ops = queue->nic->ops;

	if (has_room(tx))
		return true;
	WRITE_ONCE(queue->awaits_room, true);
	ops->await_room(queue, true);
	ops->reclaim(queue, tx);
	return has_room(tx);
}

void zc_queue_read_losses(struct zc_queue *queue, struct zc_ring *rx)
{
	struct zc_nic *nic = queue->nic;
	u32 missed, damaged;

	spin_lock(&nic->losses_lock);
	missed = nic->ops->take_missed(queue);
	damaged = nic->ops->take_damaged(nic);
	spin_unlock(&nic->losses_lock);
	rx->no_buffer += missed;
	rx->errors += damaged;
	WRITE_ONCE(queue->rx_missed, queue->rx_missed + missed);
	WRITE_ONCE(queue->rx_errors, queue->rx_errors + damaged);
}

/* NAPI. */

/* Slots that may return to the NIC for each frame of a budget. */
#define REFILLS_PER_FRAME 16

/*
 * Makes received frames readable, and returns their number before the filter.
 * With the lock of the ring, which it releases.
 */
static int receive(struct zc_queue *queue, struct zc_ring *rx, int budget)
	__releases(&rx->lock)
{
	const struct zc_nic_ops *ops = queue->nic->ops;
	u32 head = rx->head;
	bool received;
	int count;

	count = ops->harvest(queue, rx, budget);
	received = rx->head != head;
	ops->refill(queue, rx, budget * REFILLS_PER_FRAME);
	queue->room = (rx->tail - rx->head) & rx->mask;
	spin_unlock(&rx->lock);
	if (received)
		zc_socket_received(queue->owner);
	queue->frames += count;
	return count;
}

static void sent(struct zc_queue *queue, struct zc_sock *zs)
{
	struct zc_ring *tx = zs->tx;
	bool room;

	if (!tx || !READ_ONCE(queue->awaits_room))
		return;
	spin_lock(&tx->lock);
	queue->nic->ops->reclaim(queue, tx);
	/* Another thread may have reclaimed slots: test the room itself. */
	room = has_room(tx);
	if (room) {
		WRITE_ONCE(queue->awaits_room, false);
		queue->nic->ops->await_room(queue, false);
	}
	spin_unlock(&tx->lock);
	if (room)
		zc_socket_writable(zs);
}

/* Intervals, those of the stock drivers: 20,000 and 4,000 interrupts a second. */
#define INTERVAL_US 50
#define INTERVAL_LONG_US 250
/* Frames of an interval above which the longer one is set, and below the shorter. */
#define FRAMES_SOME 8
#define FRAMES_MANY 64

/*
 * Returns the least time until the next interrupt. A queue with few frames needs
 * none, for short delays. The ring must have room for the frames of the longer
 * interval, which are five times those of the shorter one.
 */
static u32 choose_interval(const struct zc_queue *queue, const struct zc_sock *zs)
{
	if (!READ_ONCE(zs->moderates) || queue->frames < FRAMES_SOME)
		return 0;
	if (queue->frames < FRAMES_MANY || queue->room / 5 < queue->frames)
		return INTERVAL_US;
	return INTERVAL_LONG_US;
}

/* Called before an interrupt is asked for. */
static void moderate(struct zc_queue *queue, const struct zc_sock *zs)
{
	u32 us = choose_interval(queue, zs);

	queue->frames = 0;
	if (us == queue->interval_us)
		return;
	queue->interval_us = us;
	queue->nic->ops->set_interval(queue, us);
}

/* Gives NAPI back, and turns interrupts on, unless it is to poll again. */
static void finish(struct zc_queue *queue, const struct zc_sock *zs, int count)
{
	if (zs)
		moderate(queue, zs);
	if (napi_complete_done(&queue->napi, count))
		queue->nic->ops->unmask(queue);
}

/* The budget is not 0, as netpoll is refused. */
static int poll(struct napi_struct *napi, int budget)
{
	struct zc_queue *queue = container_of(napi, struct zc_queue, napi);
	struct zc_sock *zs = queue->owner;
	int count = 0;

	if (zs) {
		sent(queue, zs);
		if (zs->rx) {
			spin_lock(&zs->rx->lock);
			count = receive(queue, zs->rx, budget);
		}
	}
	if (count < budget)
		finish(queue, zs, count);
	return count;
}

/* Frames that are NAPI's, and those that the interrupts of a queue may receive. */
#define FRAMES_FEW 4
#define FRAMES_FEW_SECOND 16000
#define FRAMES_FEW_JIFFY max(FRAMES_FEW_SECOND / HZ, FRAMES_FEW)

/*
 * Receives a few frames in the interrupt: the softirq would cost more than they
 * do. Returns false if NAPI is to continue. The lock is taken by a trial, as the
 * interrupted code may have it; without SMP the trial would not fail. What is
 * beyond a jiffy's share is NAPI's, which leaves time to processes, and all if
 * NAPI has a thread or the filter is long.
 */
static bool receive_few(struct zc_queue *queue)
{
	struct zc_sock *zs = queue->owner;
	struct zc_ring *rx = zs ? zs->rx : NULL;
	u32 now = (u32)jiffies;
	int count;

	if (queue->few_jiffy != now) {
		queue->few_jiffy = now;
		queue->few_left = FRAMES_FEW_JIFFY;
	}
	if (!IS_ENABLED(CONFIG_SMP) || !rx || READ_ONCE(queue->awaits_room) ||
	    test_bit(NAPI_STATE_THREADED, &queue->napi.state) ||
	    queue->few_left < FRAMES_FEW || !zc_filters_soon(zs) ||
	    !spin_trylock(&rx->lock))
		return false;
	if (queue->nic->ops->has(queue, rx, FRAMES_FEW)) {
		spin_unlock(&rx->lock);
		return false;
	}
	count = receive(queue, rx, FRAMES_FEW);
	queue->few_left -= count;
	if (count == FRAMES_FEW) /* others came meanwhile */
		return false;
	finish(queue, zs, count);
	return true;
}

/* In an interrupt, or in its thread. */
void zc_queue_schedule(struct zc_queue *queue)
{
	if (!napi_schedule_prep(&queue->napi))
		return;
	queue->nic->ops->mask(queue);
	if (!receive_few(queue))
		__napi_schedule_irqoff(&queue->napi);
}

irqreturn_t zc_queue_interrupt(int irq, void *queue)
{
	zc_queue_schedule(queue);
	return IRQ_HANDLED;
}

/* Starting and stopping. Under RTNL. */

static void pause(struct zc_queue *queue)
{
	napi_disable(&queue->napi);
	synchronize_net(); /* a poll that is at its end unmasks */
	queue->nic->ops->mask(queue);
}

/*
 * Polls once: an interrupt that came while NAPI was disabled, on a line that the
 * NIC shares with another device, has cleared its cause.
 */
static void resume(struct zc_queue *queue)
{
	napi_enable(&queue->napi);
	local_bh_disable();
	napi_schedule(&queue->napi);
	local_bh_enable();
}

static void rewind(struct zc_ring *ring)
{
	if (ring)
		zc_ring_rewind(ring);
}

/* System calls reach the NIC through the ring from here on. */
static void connect_ring(struct zc_queue *queue, struct zc_ring *ring)
{
	if (!ring)
		return;
	spin_lock_bh(&ring->lock);
	ring->queue = queue;
	spin_unlock_bh(&ring->lock);
}

bool zc_queue_others_receive(const struct zc_queue *queue)
{
	const struct zc_nic *nic = queue->nic;
	unsigned int i;

	for (i = 0; i < nic->queue_count; i++) {
		const struct zc_queue *other = &nic->queues[i];

		if (other != queue && other->owner && other->owner->rx)
			return true;
	}
	return false;
}

/* Damaged frames are those of the whole NIC: another queue may count them. */
static void forget_losses(struct zc_queue *queue)
{
	struct zc_nic *nic = queue->nic;

	spin_lock(&nic->losses_lock);
	nic->ops->take_missed(queue);
	if (!zc_queue_others_receive(queue))
		nic->ops->take_damaged(nic);
	spin_unlock(&nic->losses_lock);
}

/* Forgets losses from before this socket, and gives the NIC its slots. */
static void begin_receiving(struct zc_queue *queue, struct zc_ring *rx)
{
	if (!rx)
		return;
	spin_lock_bh(&rx->lock);
	forget_losses(queue);
	rx->skb->dev = queue->nic->netdev;
	/* As skb_record_rx_queue() on a NIC with queues; none on other NICs. */
	skb_set_queue_mapping(rx->skb, queue->nic->ops->msix ?
					       queue->index + 1 : 0);
	queue->nic->ops->refill(queue, rx, U32_MAX);
	spin_unlock_bh(&rx->lock);
}

static void start(struct zc_queue *queue)
{
	queue->awaits_room = false;
	queue->frames = 0;
	queue->interval_us = 0;
	queue->tx_stalls = 0;
	queue->nic->ops->set_interval(queue, 0);
	rewind(queue->owner->rx);
	rewind(queue->owner->tx);
	if (!queue->nic->ops->start_queue(queue))
		zc_nic_halt(queue->nic);
	connect_ring(queue, queue->owner->tx);
	connect_ring(queue, queue->owner->rx);
	begin_receiving(queue, queue->owner->rx);
}

/* No system call accesses the NIC through the ring after this. */
static void disconnect_ring(struct zc_ring *ring)
{
	if (!ring)
		return;
	spin_lock_bh(&ring->lock);
	ring->queue = NULL;
	spin_unlock_bh(&ring->lock);
}

/* Filled slots belong to the process. */
static void keep_received(struct zc_queue *queue, struct zc_ring *rx)
{
	int count;

	if (!rx)
		return;
	spin_lock_bh(&rx->lock);
	zc_queue_read_losses(queue, rx);
	spin_unlock_bh(&rx->lock);
	do {
		spin_lock_bh(&rx->lock);
		count = queue->nic->ops->harvest(queue, rx, NAPI_POLL_WEIGHT);
		spin_unlock_bh(&rx->lock);
		cond_resched(); /* a filter may be long */
	} while (count == NAPI_POLL_WEIGHT);
	zc_socket_received(queue->owner);
}

/* Slots that were given to the NIC and not sent are lost. */
static void drop_unsent(struct zc_queue *queue, struct zc_ring *tx)
{
	if (!tx)
		return;
	spin_lock_bh(&tx->lock);
	queue->nic->ops->reclaim(queue, tx);
	for (; tx->head != tx->tail; tx->head = zc_ring_next(tx, tx->head)) {
		tx->dropped++;
		zc_ring_hand_over(tx, tx->head, ZEROCOPY_WRITABLE);
	}
	WRITE_ONCE(tx->shared->write, tx->head);
	spin_unlock_bh(&tx->lock);
}

/*
 * Ends all traffic. The order matters: no interrupt, no system call that
 * touches the NIC, no transfer; only then may the process alone use the memory.
 */
static void stop(struct zc_queue *queue)
{
	const struct zc_nic_ops *ops = queue->nic->ops;
	struct zc_ring *rx = queue->owner->rx, *tx = queue->owner->tx;

	disconnect_ring(rx);
	disconnect_ring(tx);
	if (!ops->stop_queue(queue))
		zc_nic_halt(queue->nic);
	keep_received(queue, rx);
	drop_unsent(queue, tx);
	if (!ops->forget_queue(queue))
		zc_nic_halt(queue->nic);
}

void zc_queue_open(struct zc_queue *queue)
{
	if (queue->owner)
		start(queue);
	resume(queue);
	if (queue->owner)
		zc_socket_up(queue->owner);
}

void zc_queue_close(struct zc_queue *queue)
{
	pause(queue);
	if (!queue->owner)
		return;
	stop(queue);
	zc_socket_error(queue->owner, ENETDOWN);
}

/* Of the watchdog. */

/* Intervals of the watchdog after which a queue that sends nothing hangs. */
#define STALLS_MAX 2

/*
 * Reads the counters of losses, some of which are short. Gives returned slots to
 * the NIC: a process may wait without a call, by an edge-triggered epoll. Returns
 * true if frames have waited in the transmit ring too long.
 */
bool zc_queue_stalls(struct zc_queue *queue)
{
	struct zc_ring *rx = queue->owner ? queue->owner->rx : NULL;
	struct zc_ring *tx = queue->owner ? queue->owner->tx : NULL;

	if (rx) {
		spin_lock_bh(&rx->lock);
		zc_queue_read_losses(queue, rx);
		queue->nic->ops->refill(queue, rx, U32_MAX);
		spin_unlock_bh(&rx->lock);
	}
	if (!tx)
		return false;
	spin_lock_bh(&tx->lock);
	queue->nic->ops->reclaim(queue, tx);
	if (tx->head == tx->tail || !netif_carrier_ok(queue->nic->netdev) ||
	    queue->tx_frames != queue->tx_frames_before)
		queue->tx_stalls = 0;
	else
		queue->tx_stalls++;
	queue->tx_frames_before = queue->tx_frames;
	spin_unlock_bh(&tx->lock);
	return queue->tx_stalls >= STALLS_MAX;
}

/* The owner. */

static void free_ring(struct zc_queue *queue, struct zc_nic_ring *nic_ring,
		      struct zc_ring *ring)
{
	if (nic_ring->descs)
		dma_free_coherent(&queue->nic->pdev->dev, nic_ring->bytes,
				  nic_ring->descs, nic_ring->dma);
	nic_ring->descs = NULL;
	if (ring)
		zc_ring_unmap(ring);
}

static int make_ring(struct zc_queue *queue, struct zc_nic_ring *nic_ring,
		     struct zc_ring *ring, enum dma_data_direction direction)
{
	struct device *device = &queue->nic->pdev->dev;
	int err;

	if (!ring)
		return 0;
	err = zc_ring_map(ring, device, direction);
	if (err)
		return err;
	nic_ring->bytes = ((size_t)ring->mask + 1) *
			  queue->nic->ops->desc_bytes;
	nic_ring->descs = dma_alloc_coherent(device, nic_ring->bytes,
					     &nic_ring->dma, GFP_KERNEL);
	return nic_ring->descs ? 0 : -ENOMEM;
}

static void free_rings(struct zc_queue *queue, struct zc_sock *zs)
{
	free_ring(queue, &queue->rx, zs->rx);
	free_ring(queue, &queue->tx, zs->tx);
}

static int make_rings(struct zc_queue *queue, struct zc_sock *zs)
{
	int err;

	err = make_ring(queue, &queue->rx, zs->rx, DMA_FROM_DEVICE);
	if (!err)
		err = make_ring(queue, &queue->tx, zs->tx, DMA_TO_DEVICE);
	if (err)
		free_rings(queue, zs);
	return err;
}

int zc_queue_attach(struct zc_queue *queue, struct zc_sock *zs)
{
	int err;

	if (queue->owner)
		return -EBUSY;
	err = make_rings(queue, zs);
	if (err)
		return err;
	zc_ring_begin(zs->rx);
	zc_ring_begin(zs->tx);
	if (!queue->nic->running) {
		queue->owner = zs;
		return 0;
	}
	pause(queue);
	queue->owner = zs;
	start(queue);
	resume(queue);
	return 0;
}

void zc_queue_detach(struct zc_queue *queue)
{
	struct zc_sock *zs = queue->owner;

	if (!queue->nic->running) {
		queue->owner = NULL;
		free_rings(queue, zs);
		return;
	}
	pause(queue);
	stop(queue);
	queue->owner = NULL;
	free_rings(queue, zs);
	resume(queue);
}

void zc_queue_init(struct zc_nic *nic, unsigned int index)
{
	struct zc_queue *queue = &nic->queues[index];

	queue->nic = nic;
	queue->index = index;
	snprintf(queue->name, sizeof(queue->name), "%s-%u",
		 pci_name(nic->pdev), index);
	netif_napi_add(nic->netdev, &queue->napi, poll);
}
