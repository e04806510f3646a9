// SPDX-License-Identifier: GPL-2.0
/*
 * The protocol family: socket, bind, mmap, poll, recvmsg, sendmsg and release, as
 * pf_zerocopy.h describes them.
 */
#include <linux/module.h>
#include <linux/net.h>
#include <linux/poll.h>
#include <linux/rtnetlink.h>
#include <linux/vmalloc.h>

#include "internal.h"

/* Linux 6.19 gave the addresses of socket calls a type of their own. */
#ifndef HAVE_SOCKADDR_UNSIZED
#define sockaddr_unsized sockaddr
#endif

static struct proto zc_proto = {
	.name = "ZEROCOPY",
	.owner = THIS_MODULE,
	.obj_size = sizeof(struct zc_sock),
};

/* Called by the device when slots have become writable. */
void zc_socket_writable(struct zc_sock *zs)
{
	struct socket_wq *wq;

	rcu_read_lock();
	wq = rcu_dereference(zs->sk.sk_wq);
	if (skwq_has_sleeper(wq))
		wake_up_interruptible_poll(&wq->wait,
					   EPOLLOUT | EPOLLWRNORM);
	rcu_read_unlock();
}

/*
 * Returns the reason of the end of traffic. Callers read it before a ring: the
 * ring then has all frames that arrived before the end.
 */
static int ended(const struct zc_sock *zs)
{
	return smp_load_acquire(&zs->ended); /* of set_ended() */
}

/*
 * Returns true if as many frames are readable as the process waits for, or if any
 * is and no other will come. At most half of the ring: the NIC needs slots to
 * receive, and to raise an interrupt.
 */
static bool readable(const struct zc_sock *zs, const struct zc_ring *rx)
{
	u32 wanted = ended(zs) ? 1 : READ_ONCE(zs->sk.sk_rcvlowat);

	return zc_ring_readable(rx, min(wanted, (rx->mask + 1) / 2));
}

/* Called by the device when frames have become readable. */
void zc_socket_received(struct zc_sock *zs)
{
	if (readable(zs, zs->rx))
		zs->sk.sk_data_ready(&zs->sk);
}

/* Also wakes waiting calls. */
static void set_ended(struct zc_sock *zs, int why)
{
	ASSERT_RTNL();
	/* Pairs with the acquire of ended(). */
	smp_store_release(&zs->ended, why);
	zs->sk.sk_state_change(&zs->sk);
}

/* Called by the device when it is up again. */
void zc_socket_up(struct zc_sock *zs)
{
	set_ended(zs, 0);
}

/* Called by the device when it is set down or removed. */
void zc_socket_error(struct zc_sock *zs, int error)
{
	WRITE_ONCE(zs->sk.sk_err, error);
	set_ended(zs, error);
	sk_error_report(&zs->sk);
}

/* Releases the device. Only the kernel and the process then use the rings. */
static void unbind(struct zc_sock *zs)
{
	ASSERT_RTNL();
	if (!zs->netdev)
		return;
	zc_nic_detach(zs->netdev, zs->queue);
	netdev_put(zs->netdev, &zs->tracker);
	zs->netdev = NULL;
}

static int zc_release(struct socket *sock)
{
	struct sock *sk = sock->sk;
	struct zc_sock *zs;

	if (!sk)
		return 0;
	zs = zc_sk(sk);
	rtnl_lock();
	unbind(zs);
	rtnl_unlock();
	/* No mapping is left: each holds the file, and so the socket. */
	zc_ring_destroy(zs->rx);
	zc_ring_destroy(zs->tx);
	zs->rx = NULL;
	zs->tx = NULL;

	sock_prot_inuse_add(sock_net(sk), sk->sk_prot, -1);
	sock_orphan(sk);
	sock->sk = NULL;
	sock_put(sk);
	return 0;
}

static int zc_bind(struct socket *sock, struct sockaddr_unsized *address,
		   int length)
{
	struct sockaddr_zerocopy *szc = (struct sockaddr_zerocopy *)address;
	struct zc_sock *zs = zc_sk(sock->sk);
	struct net_device *netdev;
	int err;

	if (length < (int)sizeof(*szc) || szc->szc_family != AF_ZEROCOPY)
		return -EINVAL;

	rtnl_lock();
	err = -EINVAL;
	if (zs->netdev || (!zs->rx && !zs->tx))
		goto out;
	err = -ENODEV;
	netdev = __dev_get_by_index(sock_net(sock->sk), szc->szc_ifindex);
	if (!netdev)
		goto out;
	err = -EOPNOTSUPP;
	if (!zc_nic_backs(netdev))
		goto out;
	err = zc_nic_attach(netdev, szc->szc_queue, zs);
	if (err)
		goto out;
	netdev_hold(netdev, &zs->tracker, GFP_KERNEL);
	zs->netdev = netdev;
	zs->queue = szc->szc_queue;
	/* Forget the error of an earlier device. */
	WRITE_ONCE(sock->sk->sk_err, 0);
	set_ended(zs, zc_nic_runs(netdev) ? 0 : ENETDOWN);
out:
	rtnl_unlock();
	return err;
}

static int zc_getname(struct socket *sock, struct sockaddr *address, int peer)
{
	struct sockaddr_zerocopy *szc = (struct sockaddr_zerocopy *)address;
	struct zc_sock *zs = zc_sk(sock->sk);

	if (peer)
		return -EOPNOTSUPP;
	rtnl_lock();
	*szc = (struct sockaddr_zerocopy){
		.szc_family = AF_ZEROCOPY,
		.szc_queue = zs->netdev ? zs->queue : 0,
		.szc_ifindex = zs->netdev ? zs->netdev->ifindex : 0,
	};
	rtnl_unlock();
	return sizeof(*szc);
}

static int zc_mmap(struct file *file, struct socket *sock,
		   struct vm_area_struct *vma)
{
	unsigned long offset = vma->vm_pgoff << PAGE_SHIFT;
	unsigned long bytes = vma->vm_end - vma->vm_start;
	struct zc_sock *zs = zc_sk(sock->sk);
	struct zc_ring *ring;

	switch (offset) {
	case ZEROCOPY_PGOFF_RX_RING:
		ring = zc_rx_ring(zs);
		break;
	case ZEROCOPY_PGOFF_TX_RING:
		ring = zc_tx_ring(zs);
		break;
	default:
		return -EINVAL;
	}
	if (!ring || bytes > PAGE_ALIGN(zc_ring_shared_bytes(ring)))
		return -EINVAL;
	return remap_vmalloc_range(vma, ring->shared, 0);
}

/*
 * 0 if frames are readable, or if none will come because the socket was shut
 * down; EAGAIN if the caller has to wait; or the error that ended the traffic.
 */
static int receive(struct zc_sock *zs)
{
	int why = ended(zs);

	if (readable(zs, zs->rx))
		return 0;
	if (!why)
		return -EAGAIN;
	return sock_error(&zs->sk) ?: why == EPIPE ? 0 : -why;
}

/*
 * Sends the filled slots. Returns 0 if a frame was given to the NIC, or if no
 * slot is filled and one is free; EAGAIN if the caller has to wait for room; or
 * an error.
 */
static int send(struct zc_sock *zs)
{
	struct zc_ring *tx = zc_tx_ring(zs);
	int sent;

	if (!tx)
		return -ENOTCONN;
	spin_lock_bh(&tx->lock);
	if (!tx->queue) {
		/* Whoever took the ring from the NIC will name the end, and wake. */
		sent = -(ended(zs) ?: EAGAIN);
	} else {
		sent = zc_queue_send(tx->queue, tx);
		/* The NIC may have completed a slot since the first attempt. */
		if (!sent)
			sent = zc_queue_await_room(tx->queue, tx) ?
				       zc_queue_send(tx->queue, tx) : -EAGAIN;
	}
	spin_unlock_bh(&tx->lock);
	/* The result of sendmsg() counts bytes of the message: there are none. */
	return min(sent, 0);
}

/*
 * Sends the filled slots, and returns true if the process may fill another one;
 * if not, it will be woken. sendmsg() reports the error of a slot.
 */
static bool writable(struct zc_sock *zs)
{
	struct zc_ring *tx = zc_tx_ring(zs);
	bool room = false;

	if (!tx)
		return false;
	spin_lock_bh(&tx->lock);
	if (tx->queue) {
		zc_queue_send(tx->queue, tx);
		room = zc_queue_await_room(tx->queue, tx);
	}
	spin_unlock_bh(&tx->lock);
	return room;
}

static __poll_t zc_poll(struct file *file, struct socket *sock,
			struct poll_table_struct *wait)
{
	__poll_t events = poll_requested_events(wait);
	struct zc_sock *zs = zc_sk(sock->sk);
	struct zc_ring *rx = zc_rx_ring(zs);
	__poll_t mask = 0;
	int why;

	sock_poll_wait(file, sock, wait);
	why = ended(zs);
	/* An interface that is down may come up. */
	if (why && why != ENETDOWN)
		mask |= EPOLLHUP | EPOLLRDHUP;
	if (READ_ONCE(sock->sk->sk_err))
		mask |= EPOLLERR;
	if (rx) {
		zc_ring_refill(rx);
		if (readable(zs, rx))
			mask |= EPOLLIN | EPOLLRDNORM;
	}
	if (events & (EPOLLOUT | EPOLLWRNORM) && writable(zs))
		mask |= EPOLLOUT | EPOLLWRNORM;
	return mask;
}

/* Sleeps until woken, at most *timeout. Returns 0 to test again. */
static int sleep_once(struct sock *sk, long *timeout)
{
	int err = sock_error(sk);

	if (err)
		return err;
	if (!*timeout)
		return -EAGAIN;
	if (signal_pending(current))
		return sock_intr_errno(*timeout);
	*timeout = schedule_timeout(*timeout);
	return 0;
}

/* Returns the first result of @attempt but EAGAIN; waits at most @timeout. */
static int wait_until(struct sock *sk, int (*attempt)(struct zc_sock *zs),
		      long timeout)
{
	DEFINE_WAIT(wait);
	int done, err = 0;

	done = attempt(zc_sk(sk));
	if (done != -EAGAIN)
		return done;
	while (!err) {
		prepare_to_wait(sk_sleep(sk), &wait, TASK_INTERRUPTIBLE);
		done = attempt(zc_sk(sk));
		if (done != -EAGAIN)
			break;
		err = sleep_once(sk, &timeout);
	}
	finish_wait(sk_sleep(sk), &wait);
	return err ?: done;
}

/*
 * Waits for a frame. Callers interpret the result as the number of bytes written
 * to @m and pass on that many bytes. No bytes are written, so it must be 0.
 */
static int zc_recvmsg(struct socket *sock, struct msghdr *m, size_t length,
		      int flags)
{
	struct zc_ring *rx = zc_rx_ring(zc_sk(sock->sk));

	if (flags & ~(MSG_DONTWAIT | MSG_CMSG_COMPAT) || length)
		return -EOPNOTSUPP;
	if (!rx)
		return -ENOTCONN;
	zc_ring_refill(rx);
	return wait_until(sock->sk, receive,
			  sock_rcvtimeo(sock->sk, flags & MSG_DONTWAIT));
}

static int zc_sendmsg(struct socket *sock, struct msghdr *m, size_t length)
{
	long timeout = sock_sndtimeo(sock->sk, m->msg_flags & MSG_DONTWAIT);

	if (m->msg_flags & ~(MSG_DONTWAIT | MSG_NOSIGNAL | MSG_CMSG_COMPAT) ||
	    length)
		return -EOPNOTSUPP;
	return wait_until(sock->sk, send, timeout);
}

/*
 * Refuses splice(2) and sendfile(2) with EINVAL: otherwise they would call
 * recvmsg() to fill their pages, and it writes no bytes.
 */
static ssize_t zc_splice_read(struct socket *sock, loff_t *ppos,
			      struct pipe_inode_info *pipe, size_t length,
			      unsigned int flags)
{
	return -EINVAL;
}

/* Ends all traffic; frames in the receive ring stay readable. */
static int zc_shutdown(struct socket *sock, int how)
{
	struct zc_sock *zs = zc_sk(sock->sk);
	int err = 0;

	if (how != SHUT_RDWR)
		return -EOPNOTSUPP;
	rtnl_lock();
	if (zs->netdev) {
		unbind(zs);
		set_ended(zs, EPIPE);
	} else {
		err = -ENOTCONN;
	}
	rtnl_unlock();
	return err;
}

static const struct proto_ops zc_proto_ops = {
	.family = PF_ZEROCOPY,
	.owner = THIS_MODULE,
	.release = zc_release,
	.bind = zc_bind,
	.connect = sock_no_connect,
	.socketpair = sock_no_socketpair,
	.accept = sock_no_accept,
	.getname = zc_getname,
	.poll = zc_poll,
	.ioctl = sock_no_ioctl,
	.listen = sock_no_listen,
	.shutdown = zc_shutdown,
	.setsockopt = zc_setsockopt,
	.getsockopt = zc_getsockopt,
	.set_rcvlowat = zc_set_rcvlowat,
	.sendmsg = zc_sendmsg,
	.recvmsg = zc_recvmsg,
	.mmap = zc_mmap,
	.splice_read = zc_splice_read,
};

static int zc_create(struct net *net, struct socket *sock, int protocol,
		     int kern)
{
	struct sock *sk;

	if (!ns_capable(net->user_ns, CAP_NET_RAW))
		return -EPERM;
	if (sock->type != SOCK_RAW)
		return -ESOCKTNOSUPPORT;
	if (protocol)
		return -EPROTONOSUPPORT;
	sk = sk_alloc(net, PF_ZEROCOPY, GFP_KERNEL, &zc_proto, kern);
	if (!sk)
		return -ENOBUFS;
	sock->ops = &zc_proto_ops;
	sock_init_data(sock, sk);
	sk->sk_family = PF_ZEROCOPY;
	zc_sk(sk)->ended = ENOTCONN;
	sock_prot_inuse_add(net, &zc_proto, 1);
	return 0;
}

static const struct net_proto_family zc_family = {
	.family = PF_ZEROCOPY,
	.create = zc_create,
	.owner = THIS_MODULE,
};

/* Detaches the sockets of a device; also called by it when it failed for good. */
void zc_sockets_lose(struct net_device *netdev)
{
	struct zc_sock *zs;

	while ((zs = zc_nic_any_owner(netdev))) {
		unbind(zs);
		zc_socket_error(zs, ENODEV);
	}
}

/* The device is removed or moves to a namespace. */
static int netdev_event(struct notifier_block *block, unsigned long event,
			void *data)
{
	struct net_device *netdev = netdev_notifier_info_to_dev(data);

	if (event == NETDEV_UNREGISTER && zc_nic_backs(netdev))
		zc_sockets_lose(netdev);
	return NOTIFY_DONE;
}

static struct notifier_block zc_notifier = {
	.notifier_call = netdev_event,
};

int zc_socket_register(void)
{
	int err;

	err = proto_register(&zc_proto, 1); /* a slab, charged to the cgroup */
	if (err)
		return err;
	err = register_netdevice_notifier(&zc_notifier);
	if (err)
		goto unregister_proto;
	err = sock_register(&zc_family);
	if (err)
		goto unregister_notifier;
	return 0;

unregister_notifier:
	unregister_netdevice_notifier(&zc_notifier);
unregister_proto:
	proto_unregister(&zc_proto);
	return err;
}

void zc_socket_unregister(void)
{
	sock_unregister(PF_ZEROCOPY);
	unregister_netdevice_notifier(&zc_notifier);
	proto_unregister(&zc_proto);
}
