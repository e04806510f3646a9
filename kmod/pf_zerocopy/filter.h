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
	ZC_REJECTS_ALL, /* or cannot run */
};

enum zc_needs zc_needs(const struct bpf_prog *filter);
void zc_prepare_filtering(struct sk_buff *skb);
bool zc_accepts_rare(const struct bpf_prog *filter, struct sk_buff *skb,
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

/* Runs the filter on a frame without a tag, of at least an Ethernet header. */
static __always_inline bool zc_accepts_plain(const struct bpf_prog *filter,
					     struct sk_buff *skb, void *frame,
					     u32 length)
{
	skb->head = frame;
	skb->data = frame;
	skb->len = length;
	skb_set_tail_pointer(skb, length);
	return bpf_prog_run(filter, skb) != 0;
}

/*
 * Runs the filter on a received frame; true if the process gets the frame. With
 * bottom halves disabled; @skb is prepared, and @needs is that of the filter.
 */
static __always_inline bool zc_accepts(const struct bpf_prog *filter,
				       struct sk_buff *skb, void *frame,
				       u32 length, enum zc_needs needs)
{
	const struct ethhdr *ethernet = frame;

	if (unlikely(needs != ZC_NEEDS_NOTHING ||
		     eth_type_vlan(READ_ONCE(ethernet->h_proto))))
		return zc_accepts_rare(filter, skb, frame, length, needs);
	return zc_accepts_plain(filter, skb, frame, length);
}

#endif /* _ZEROCOPY_FILTER_H */
