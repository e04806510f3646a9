// SPDX-License-Identifier: GPL-2.0
/*
 * The options of a socket: setsockopt and getsockopt, as pf_zerocopy.h describes
 * them.
 */
#include <linux/rtnetlink.h>

#include "internal.h"

static int set_ring(struct zc_sock *zs, int optname, sockptr_t optval,
		    unsigned int optlen)
{
	bool rx = optname == ZEROCOPY_RX_RING;
	struct zc_ring **place = rx ? &zs->rx : &zs->tx;
	struct zerocopy_ring_req request;
	struct zc_ring *ring;
	int err;

	err = copy_safe_from_sockptr(&request, sizeof(request), optval, optlen);
	if (err)
		return err;
	ring = zc_ring_create(&request);
	if (IS_ERR(ring))
		return PTR_ERR(ring);

	rtnl_lock();
	err = *place || zs->netdev ? -EBUSY : 0;
	if (!err)
		/* Pairs with the acquire of zc_rx_ring() and zc_tx_ring(). */
		smp_store_release(place, ring);
	rtnl_unlock();
	if (err)
		zc_ring_destroy(ring);
	return err;
}

static int set_moderation(struct zc_sock *zs, sockptr_t optval,
			  unsigned int optlen)
{
	int value, err;

	err = copy_safe_from_sockptr(&value, sizeof(value), optval, optlen);
	if (err)
		return err;
	if (value != 0 && value != 1)
		return -EINVAL;
	WRITE_ONCE(zs->moderates, value);
	return 0;
}

/* SO_RCVLOWAT: fewer frames than before may be readable already. */
int zc_set_rcvlowat(struct sock *sk, int value)
{
	WRITE_ONCE(sk->sk_rcvlowat, value ?: 1);
	sk->sk_data_ready(sk);
	return 0;
}

int zc_setsockopt(struct socket *sock, int level, int optname,
		  sockptr_t optval, unsigned int optlen)
{
	if (level != SOL_ZEROCOPY)
		return -ENOPROTOOPT;
	switch (optname) {
	case ZEROCOPY_RX_RING:
	case ZEROCOPY_TX_RING:
		return set_ring(zc_sk(sock->sk), optname, optval, optlen);
	case ZEROCOPY_MODERATION:
		return set_moderation(zc_sk(sock->sk), optval, optlen);
	default:
		return -ENOPROTOOPT;
	}
}

static void read_statistics(struct zc_sock *zs,
			    struct zerocopy_statistics *statistics)
{
	struct zc_ring *rx = zc_rx_ring(zs), *tx = zc_tx_ring(zs);

	memset(statistics, 0, sizeof(*statistics));
	if (rx) {
		spin_lock_bh(&rx->lock);
		if (rx->queue)
			zc_queue_read_losses(rx->queue, rx);
		statistics->rx_frames = rx->frames;
		statistics->rx_filtered = rx->filtered;
		statistics->rx_no_buffer = rx->no_buffer;
		statistics->rx_errors = rx->errors;
		spin_unlock_bh(&rx->lock);
	}
	if (tx) {
		spin_lock_bh(&tx->lock);
		statistics->tx_frames = tx->frames;
		statistics->tx_dropped = tx->dropped;
		spin_unlock_bh(&tx->lock);
	}
}

int zc_getsockopt(struct socket *sock, int level, int optname,
		  char __user *optval, int __user *optlen)
{
	struct zerocopy_statistics statistics;
	int len;

	if (level != SOL_ZEROCOPY || optname != ZEROCOPY_STATISTICS)
		return -ENOPROTOOPT;
	if (get_user(len, optlen))
		return -EFAULT;
	if (len < 0)
		return -EINVAL;
	read_statistics(zc_sk(sock->sk), &statistics);
	len = min_t(int, len, sizeof(statistics));
	if (put_user(len, optlen) || copy_to_user(optval, &statistics, len))
		return -EFAULT;
	return 0;
}
