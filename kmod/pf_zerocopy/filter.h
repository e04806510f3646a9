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

/* What is to be done with a frame. */
enum zc_verdict {
	ZC_REJECT,
	ZC_ACCEPT,
	ZC_RUN, /* the program decides */
	ZC_RUN_RARE, /* the same, by zc_accepts_rare() */
};

/*
 * A filter that runs on the frames of a poll or an interrupt. Many programs
 * decide by the EtherType alone, at least about the frames of some: those frames
 * need no run.
 */
struct zc_filtering {
	const struct bpf_prog *filter;
	struct sk_buff *skb; /* prepared */
	enum zc_needs needs;
	/*
	 * The EtherType of the last frame, as it is on the wire, in the upper half,
	 * and the verdict on it; unless that is ZC_RUN_RARE.
	 */
	u32 known;
};

/* The longest filter that runs in an interrupt, translated by the kernel. */
#define ZC_INSTRUCTIONS_FEW 256

enum zc_needs zc_needs(const struct bpf_prog *filter);
enum zc_verdict zc_verdict(const struct bpf_prog *filter, enum zc_needs needs,
			   __be16 type);
void zc_prepare_filtering(struct sk_buff *skb);
bool zc_accepts_rare(const struct bpf_prog *filter, struct sk_buff *skb,
		     void *frame, u32 length, enum zc_needs needs);

/*
 * Returns the filter of the socket, or NULL. With bottom halves disabled, or in
 * an interrupt; it is valid until the end of that.
 */
static inline const struct bpf_prog *zc_filter(const struct zc_sock *zs)
{
	const struct sk_filter *filter = rcu_dereference_bh(zs->sk.sk_filter);

	return filter ? filter->prog : NULL;
}

/*
 * True if the filter is short enough for an interrupt, which looks at each
 * instruction once, and runs it on each frame.
 */
static inline bool zc_filters_soon(const struct zc_sock *zs)
{
	const struct bpf_prog *filter = zc_filter(zs);

	return !filter || filter->len <= ZC_INSTRUCTIONS_FEW;
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

static __always_inline struct zc_filtering
zc_filtering(const struct bpf_prog *filter, struct sk_buff *skb)
{
	return (struct zc_filtering){
		.filter = filter,
		.skb = skb,
		.needs = zc_needs(filter),
		.known = ZC_RUN_RARE,
	};
}

/*
 * Filters a received frame; true if the process gets it. With bottom halves
 * disabled, or in an interrupt.
 */
static __always_inline bool zc_accepts(struct zc_filtering *filtering,
				       void *frame, u32 length)
{
	const struct ethhdr *ethernet = frame;
	__be16 type = READ_ONCE(ethernet->h_proto);
	u32 high = (u32)(__force u16)type << 16;
	u32 verdict = filtering->known ^ high;

	/* For a rejected frame the least work pays most. */
	if (verdict == ZC_REJECT)
		return false;
	/* Of another type, if it is no verdict. */
	if (unlikely(verdict > ZC_RUN)) {
		verdict = zc_verdict(filtering->filter, filtering->needs, type);
		if (verdict == ZC_RUN_RARE)
			return zc_accepts_rare(filtering->filter,
					       filtering->skb, frame, length,
					       filtering->needs);
		filtering->known = high | verdict;
	}
	if (verdict != ZC_RUN)
		return verdict == ZC_ACCEPT;
	return zc_accepts_plain(filtering->filter, filtering->skb, frame,
				length);
}

#endif /* _ZEROCOPY_FILTER_H */
