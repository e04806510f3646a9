// SPDX-License-Identifier: GPL-2.0
/*
 * ethtool's view of the NIC: its link, its number of queues, their counters.
 */
#include <linux/ethtool.h>

#include "nic.h"

static void get_channels(struct net_device *netdev,
			 struct ethtool_channels *channels)
{
	const struct zc_nic *nic = netdev_priv(netdev);

	channels->max_combined = nic->queues_max;
	channels->combined_count = nic->queue_count;
}

static int set_channels(struct net_device *netdev,
			struct ethtool_channels *channels)
{
	if (!channels->combined_count)
		return -EINVAL;
	return zc_nic_set_queues(netdev_priv(netdev), channels->combined_count);
}

/* Names and order of the counters of a queue. */
static const char *const counter_names[] = {
	"rx_frames", "rx_bytes", "rx_errors", "rx_missed", "tx_frames", "tx_bytes",
};

static int get_sset_count(struct net_device *netdev, int set)
{
	const struct zc_nic *nic = netdev_priv(netdev);

	if (set != ETH_SS_STATS)
		return -EOPNOTSUPP;
	return nic->queue_count * ARRAY_SIZE(counter_names);
}

static void get_strings(struct net_device *netdev, u32 set, u8 *data)
{
	const struct zc_nic *nic = netdev_priv(netdev);
	unsigned int i, j;

	for (i = 0; i < nic->queue_count; i++)
		for (j = 0; j < ARRAY_SIZE(counter_names); j++)
			ethtool_sprintf(&data, "queue_%u_%s", i,
					counter_names[j]);
}

static void get_ethtool_stats(struct net_device *netdev,
			      struct ethtool_stats *stats, u64 *data)
{
	const struct zc_nic *nic = netdev_priv(netdev);
	unsigned int i;

	for (i = 0; i < nic->queue_count; i++) {
		const struct zc_queue *queue = &nic->queues[i];

		*data++ = READ_ONCE(queue->rx_frames);
		*data++ = READ_ONCE(queue->rx_bytes);
		*data++ = READ_ONCE(queue->rx_errors);
		*data++ = READ_ONCE(queue->rx_missed);
		*data++ = READ_ONCE(queue->tx_frames);
		*data++ = READ_ONCE(queue->tx_bytes);
	}
}

const struct ethtool_ops zc_ethtool_ops = {
	.get_link = ethtool_op_get_link,
	.get_channels = get_channels,
	.set_channels = set_channels,
	.get_sset_count = get_sset_count,
	.get_strings = get_strings,
	.get_ethtool_stats = get_ethtool_stats,
};
