// SPDX-License-Identifier: GPL-2.0
/*
 * The filter of a socket: which programs can run, and on what. Most frames of
 * most filters need only the functions of filter.h.
 */
#include "filter.h"

/*
 * Programs cannot run that dissect the frame for its payload's offset, or search
 * it for netlink attributes: those read a length twice, and the process can write
 * to the frame meanwhile. Nor can extended programs, which have no original
 * instructions.
 */
enum zc_needs zc_needs(const struct bpf_prog *filter)
{
	const struct sock_fprog_kern *classic = filter->orig_prog;
	enum zc_needs needs = ZC_NEEDS_NOTHING;
	unsigned int i;

	if (!classic)
		return ZC_REJECTS_ALL;
	for (i = 0; i < classic->len; i++) {
		const struct sock_filter *code = &classic->filter[i];

		if (BPF_CLASS(code->code) != BPF_LD ||
		    BPF_MODE(code->code) != BPF_ABS)
			continue;
		switch (code->k - SKF_AD_OFF) {
		case SKF_AD_PAY_OFFSET:
		case SKF_AD_NLATTR:
		case SKF_AD_NLATTR_NEST:
			return ZC_REJECTS_ALL;
		case SKF_AD_PROTOCOL:
		case SKF_AD_PKTTYPE:
			needs = ZC_NEEDS_TYPE;
		}
	}
	return needs;
}

/*
 * Steps after which a verdict costs more than a run. A sender that alternates
 * two EtherTypes asks for a verdict on each frame.
 */
#define STEPS_MAX 64

/*
 * Follows a program on any frame without a tag whose EtherType is @type. ZC_RUN
 * if the verdict depends on more: on other bytes, or on the length.
 */
static enum zc_verdict verdict_by_type(const struct sock_fprog_kern *classic,
				       u16 type)
{
	unsigned int i, steps;
	u32 a = 0;

	for (i = 0, steps = 0; i < classic->len && steps < STEPS_MAX;
	     i++, steps++) {
		const struct sock_filter *code = &classic->filter[i];
		bool jumps;

		switch (code->code) {
		case BPF_LD | BPF_H | BPF_ABS:
			if (code->k != offsetof(struct ethhdr, h_proto))
				return ZC_RUN;
			a = type;
			continue;
		case BPF_JMP | BPF_JA:
			i += code->k;
			continue;
		case BPF_JMP | BPF_JEQ | BPF_K:
			jumps = a == code->k;
			break;
		case BPF_JMP | BPF_JGT | BPF_K:
			jumps = a > code->k;
			break;
		case BPF_JMP | BPF_JGE | BPF_K:
			jumps = a >= code->k;
			break;
		case BPF_JMP | BPF_JSET | BPF_K:
			jumps = a & code->k;
			break;
		case BPF_RET | BPF_K:
			return code->k ? ZC_ACCEPT : ZC_REJECT;
		default:
			return ZC_RUN;
		}
		i += jumps ? code->jt : code->jf;
	}
	return ZC_RUN;
}

/* Returns what is to be done with frames of an EtherType. */
enum zc_verdict zc_verdict(const struct bpf_prog *filter, enum zc_needs needs,
			   __be16 type)
{
	enum zc_verdict verdict;

	if (needs == ZC_REJECTS_ALL)
		return ZC_REJECT;
	if (eth_type_vlan(type))
		return ZC_RUN_RARE;
	verdict = verdict_by_type(filter->orig_prog, ntohs(type));
	if (verdict == ZC_RUN && needs == ZC_NEEDS_TYPE)
		return ZC_RUN_RARE;
	return verdict;
}

/*
 * Sets the offsets of the headers, which are those of every frame. The kernel
 * computes the place of a load from them, and does not check that it lies in the
 * frame.
 */
void zc_prepare_filtering(struct sk_buff *skb)
{
	skb_reset_mac_header(skb);
	skb_set_network_header(skb, ETH_HLEN);
}

/* As eth_type_trans(), but for frames of raw IPX (ETH_P_802_3). */
static __be16 protocol(__be16 type)
{
	return likely(eth_proto_is_802_3(type)) ? type : htons(ETH_P_802_2);
}

/* As eth_type_trans(). */
static u8 packet_type(const struct net_device *netdev, const u8 *destination)
{
	if (ether_addr_equal(destination, netdev->dev_addr))
		return PACKET_HOST;
	if (!is_multicast_ether_addr(destination))
		return PACKET_OTHERHOST;
	return is_broadcast_ether_addr(destination) ? PACKET_BROADCAST :
						      PACKET_MULTICAST;
}

/* Runs the filter on a frame without a tag. */
static bool accepts(const struct bpf_prog *filter, struct sk_buff *skb,
		    void *frame, u32 length, enum zc_needs needs)
{
	const struct ethhdr *ethernet = frame;

	if (needs == ZC_NEEDS_TYPE) {
		skb->protocol = protocol(READ_ONCE(ethernet->h_proto));
		skb->pkt_type = packet_type(skb->dev, ethernet->h_dest);
	}
	return zc_accepts_plain(filter, skb, frame, length);
}

/*
 * Runs the filter on a frame with a tag. Moves the addresses over the tag while
 * it runs, and puts the frame back as it was.
 */
static bool accepts_tagged(const struct bpf_prog *filter, struct sk_buff *skb,
			   void *frame, u32 length, enum zc_needs needs)
{
	struct vlan_ethhdr header;
	bool accepted;

	memcpy(&header, frame, sizeof(header));
	memcpy(frame + VLAN_HLEN, &header, 2 * ETH_ALEN);
	__vlan_hwaccel_put_tag(skb, header.h_vlan_proto,
			       ntohs(header.h_vlan_TCI));
	accepted = accepts(filter, skb, frame + VLAN_HLEN, length - VLAN_HLEN,
			   needs);
	__vlan_hwaccel_clear_tag(skb);
	memcpy(frame, &header, sizeof(header));
	return accepted;
}

/* Runs a filter that needs more than pointers, or on a frame with a tag. */
bool zc_accepts_rare(const struct bpf_prog *filter, struct sk_buff *skb,
		     void *frame, u32 length, enum zc_needs needs)
{
	const struct ethhdr *ethernet = frame;

	if (eth_type_vlan(READ_ONCE(ethernet->h_proto)) &&
	    length >= VLAN_ETH_HLEN)
		return accepts_tagged(filter, skb, frame, length, needs);
	return accepts(filter, skb, frame, length, needs);
}
