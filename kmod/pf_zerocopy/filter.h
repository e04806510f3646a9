/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The filter of a socket. It runs on a frame before the frame takes a descriptor
 * of the process, and sees it as filters of packet sockets do: the outermost VLAN
 * tag is beside the frame (SKF_AD_VLAN_TAG), not in it.
 */
#ifndef _ZEROCOPY_FILTER_H
#define _ZEROCOPY_FILTER_H

#include <linux/etherdevice.h>
#include <linux/filter.h>
#include <linux/if_packet.h>
#include <linux/if_vlan.h>

#include "internal.h"

/* What a program needs of an sk_buff beside its pointers and its tag. */
enum zc_needs {
	ZC_NEEDS_NOTHING,
	ZC_NEEDS_TYPE, /* protocol and pkt_type */
	ZC_CANNOT_RUN,
};

enum zc_needs zc_needs(const struct bpf_prog *filter);
bool zc_accepts_tagged(const struct bpf_prog *filter, struct sk_buff *skb,
		       void *frame, u32 length, enum zc_needs needs);

/*
 * Returns the filter of the socket, or NULL. With bottom halves disabled; it is
 * valid until they are enabled.
 */
static inline const struct bpf_prog *zc_filter(const struct zc_sock *zs)
{
	const struct sk_filter *filter = rcu_dereference_bh(zs->sk.sk_filter);

	return filter ? filter->prog : NULL;
}

/* As eth_type_trans(), but for frames of raw IPX (ETH_P_802_3). */
static inline __be16 zc_protocol(__be16 type)
{
	return likely(eth_proto_is_802_3(type)) ? type : htons(ETH_P_802_2);
}

/* As eth_type_trans(). */
static inline u8 zc_packet_type(const struct net_device *netdev,
				const u8 *destination)
{
	if (ether_addr_equal(destination, netdev->dev_addr))
		return PACKET_HOST;
	if (!is_multicast_ether_addr(destination))
		return PACKET_OTHERHOST;
	return is_broadcast_ether_addr(destination) ? PACKET_BROADCAST :
						      PACKET_MULTICAST;
}

/*
 * Runs the filter on a frame without a tag, of at least an Ethernet header. All
 * pointers are set: the kernel computes the place of a load from their
 * differences, and does not check that it lies in the frame.
 */
static inline bool zc_accepts_plain(const struct bpf_prog *filter,
				    struct sk_buff *skb, void *frame,
				    u32 length, enum zc_needs needs)
{
	const struct ethhdr *ethernet = frame;

	skb->head = frame;
	skb->data = frame;
	skb->len = length;
	skb_set_tail_pointer(skb, length);
	skb_reset_mac_header(skb);
	skb_set_network_header(skb, ETH_HLEN);
	if (needs == ZC_NEEDS_TYPE) {
		skb->protocol = zc_protocol(READ_ONCE(ethernet->h_proto));
		skb->pkt_type = zc_packet_type(skb->dev, ethernet->h_dest);
	}
	return bpf_prog_run(filter, skb) != 0;
}

/*
 * Runs the filter on a received frame; true if the process gets the frame. With
 * bottom halves disabled; @needs is that of the filter.
 */
static inline bool zc_accepts(const struct bpf_prog *filter,
			      struct sk_buff *skb, void *frame, u32 length,
			      enum zc_needs needs)
{
	__be16 type = READ_ONCE(((const struct ethhdr *)frame)->h_proto);

	if (unlikely(needs == ZC_CANNOT_RUN))
		return false;
	if (unlikely(eth_type_vlan(type)) && length >= VLAN_ETH_HLEN)
		return zc_accepts_tagged(filter, skb, frame, length, needs);
	return zc_accepts_plain(filter, skb, frame, length, needs);
}

#endif /* _ZEROCOPY_FILTER_H */
