// SPDX-License-Identifier: GPL-2.0
/*
 * The filter of a socket: which programs can run, and frames with a VLAN tag.
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
		return ZC_CANNOT_RUN;
	for (i = 0; i < classic->len; i++) {
		const struct sock_filter *code = &classic->filter[i];

		if (BPF_CLASS(code->code) != BPF_LD ||
		    BPF_MODE(code->code) != BPF_ABS)
			continue;
		switch (code->k - SKF_AD_OFF) {
		case SKF_AD_PAY_OFFSET:
		case SKF_AD_NLATTR:
		case SKF_AD_NLATTR_NEST:
			return ZC_CANNOT_RUN;
		case SKF_AD_PROTOCOL:
		case SKF_AD_PKTTYPE:
			needs = ZC_NEEDS_TYPE;
		}
	}
	return needs;
}

/*
 * Moves the addresses over the tag while the filter runs, and puts the frame back
 * as it was.
 */
bool zc_accepts_tagged(const struct bpf_prog *filter, struct sk_buff *skb,
		       void *frame, u32 length, enum zc_needs needs)
{
	struct vlan_ethhdr header;
	bool accepted;

	memcpy(&header, frame, sizeof(header));
	memcpy(frame + VLAN_HLEN, &header, 2 * ETH_ALEN);
	__vlan_hwaccel_put_tag(skb, header.h_vlan_proto,
			       ntohs(header.h_vlan_TCI));
	accepted = zc_accepts_plain(filter, skb, frame + VLAN_HLEN,
				    length - VLAN_HLEN, needs);
	__vlan_hwaccel_clear_tag(skb);
	memcpy(frame, &header, sizeof(header));
	return accepted;
}
