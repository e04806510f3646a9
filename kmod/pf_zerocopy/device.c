// SPDX-License-Identifier: GPL-2.0
/*
 * The device: the socket that owns the NIC, its network device, its PCI driver.
 *
 * Without a socket the NIC neither receives nor sends. The driver takes only a
 * device that driver_override gives to it.
 */
#include <linux/etherdevice.h>
#include <linux/ethtool.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/rtnetlink.h>

#include "e1000.h"

/* The socket that owns the NIC. Under RTNL. */

static void free_queue(struct zc_nic *nic, struct e1000_queue *queue)
{
	if (queue->descs)
		dma_free_coherent(&nic->pdev->dev, queue->bytes, queue->descs,
				  queue->dma);
	queue->descs = NULL;
}

static int make_queue(struct zc_nic *nic, struct e1000_queue *queue,
		      struct zc_ring *ring, enum dma_data_direction direction)
{
	int err;

	if (!ring)
		return 0;
	err = zc_ring_map(ring, &nic->pdev->dev, direction);
	if (err)
		return err;
	queue->bytes = ((size_t)ring->mask + 1) * sizeof(struct e1000_rx_desc);
	queue->descs = dma_alloc_coherent(&nic->pdev->dev, queue->bytes,
					  &queue->dma, GFP_KERNEL);
	return queue->descs ? 0 : -ENOMEM;
}

static int make_queues(struct zc_nic *nic, struct zc_sock *zs)
{
	struct e1000_rx_desc *descs;
	u32 slot;
	int err;

	BUILD_BUG_ON(sizeof(struct e1000_rx_desc) != 16);
	BUILD_BUG_ON(sizeof(struct e1000_tx_desc) != 16);
	err = make_queue(nic, &nic->rx_queue, zs->rx, DMA_FROM_DEVICE);
	if (!err)
		err = make_queue(nic, &nic->tx_queue, zs->tx, DMA_TO_DEVICE);
	if (err || !zs->rx)
		return err;
	descs = nic->rx_queue.descs;
	for (slot = 0; slot <= zs->rx->mask; slot++)
		descs[slot].addr = cpu_to_le64(zc_ring_slot_dma(zs->rx, slot));
	return 0;
}

/* Counters count from bind(). */
static void begin_count(struct zc_ring *ring)
{
	if (!ring)
		return;
	spin_lock_bh(&ring->lock);
	ring->frames = 0;
	ring->errors = 0;
	ring->dropped = 0;
	ring->no_buffer = 0;
	spin_unlock_bh(&ring->lock);
}

static void free_queues(struct zc_nic *nic, struct zc_sock *zs)
{
	free_queue(nic, &nic->rx_queue);
	free_queue(nic, &nic->tx_queue);
	if (zs->rx)
		zc_ring_unmap(zs->rx);
	if (zs->tx)
		zc_ring_unmap(zs->tx);
}

struct zc_sock *zc_nic_owner(struct net_device *netdev)
{
	struct zc_nic *nic = netdev_priv(netdev);

	return nic->owner;
}

int zc_nic_attach(struct net_device *netdev, struct zc_sock *zs)
{
	struct zc_nic *nic = netdev_priv(netdev);
	int err;

	if (nic->owner)
		return -EBUSY;
	err = make_queues(nic, zs);
	if (err) {
		free_queues(nic, zs);
		return err;
	}
	begin_count(zs->rx);
	begin_count(zs->tx);
	if (!netif_running(netdev)) {
		nic->owner = zs;
		return 0;
	}
	wr(nic, REG_IMC, ~0u);
	napi_disable(&nic->napi);
	nic->owner = zs;
	e1000_start(nic);
	napi_enable(&nic->napi);
	wr(nic, REG_IMS, nic->interrupts);
	return 0;
}

void zc_nic_detach(struct net_device *netdev)
{
	struct zc_nic *nic = netdev_priv(netdev);
	struct zc_sock *zs = nic->owner;

	if (!netif_running(netdev)) {
		nic->owner = NULL;
		free_queues(nic, zs);
		return;
	}
	wr(nic, REG_IMC, ~0u);
	napi_disable(&nic->napi);
	e1000_stop(nic);
	nic->owner = NULL;
	free_queues(nic, zs);
	e1000_set_link_up(nic);
	nic->interrupts = INT_LSC;
	napi_enable(&nic->napi);
	wr(nic, REG_IMS, nic->interrupts);
}

/* The network device: a name, a link, an address and counters. */

static int open(struct net_device *netdev)
{
	struct zc_nic *nic = netdev_priv(netdev);
	int err;

	e1000_reset(nic);
	err = request_irq(nic->pdev->irq, e1000_interrupt, IRQF_SHARED, netdev->name,
			  nic);
	if (err)
		return err;
	e1000_set_link_up(nic);
	nic->interrupts = INT_LSC;
	if (nic->owner)
		e1000_start(nic);
	napi_enable(&nic->napi);
	e1000_show_link(nic);
	wr(nic, REG_IMS, nic->interrupts);
	if (nic->owner)
		zc_socket_up(nic->owner);
	return 0;
}

static int close(struct net_device *netdev)
{
	struct zc_nic *nic = netdev_priv(netdev);

	wr(nic, REG_IMC, ~0u);
	napi_disable(&nic->napi);
	if (nic->owner)
		e1000_stop(nic);
	else
		e1000_reset(nic);
	free_irq(nic->pdev->irq, nic);
	netif_carrier_off(netdev);
	if (nic->owner)
		zc_socket_error(nic->owner, ENETDOWN);
	return 0;
}

/* Drops packets of the network stack: only the socket sends on this link. */
static netdev_tx_t refuse(struct sk_buff *skb, struct net_device *netdev)
{
	dev_core_stats_tx_dropped_inc(netdev);
	dev_kfree_skb_any(skb);
	return NETDEV_TX_OK;
}

static void get_stats64(struct net_device *netdev,
			struct rtnl_link_stats64 *stats)
{
	const struct zc_nic *nic = netdev_priv(netdev);

	stats->rx_packets = READ_ONCE(nic->rx_frames);
	stats->rx_bytes = READ_ONCE(nic->rx_bytes);
	stats->rx_errors = READ_ONCE(nic->rx_errors);
	stats->rx_missed_errors = READ_ONCE(nic->rx_missed);
	stats->tx_packets = READ_ONCE(nic->tx_frames);
	stats->tx_bytes = READ_ONCE(nic->tx_bytes);
}

static const struct net_device_ops zc_netdev_ops = {
	.ndo_open = open,
	.ndo_stop = close,
	.ndo_start_xmit = refuse,
	.ndo_set_rx_mode = e1000_set_filter,
	.ndo_get_stats64 = get_stats64,
	.ndo_validate_addr = eth_validate_addr,
};

bool zc_nic_backs(const struct net_device *netdev)
{
	return netdev->netdev_ops == &zc_netdev_ops;
}

static const struct ethtool_ops zc_ethtool_ops = {
	.get_link = ethtool_op_get_link,
};

/* PCI. */

static void read_address(struct zc_nic *nic)
{
	u8 address[ETH_ALEN];

	put_unaligned_le32(rd(nic, REG_RAL), address);
	put_unaligned_le16(rd(nic, REG_RAH), address + 4);
	if (is_valid_ether_addr(address))
		eth_hw_addr_set(nic->netdev, address);
	else
		eth_hw_addr_random(nic->netdev);
}

static void describe(struct net_device *netdev, struct pci_dev *pdev)
{
	SET_NETDEV_DEV(netdev, &pdev->dev);
	netdev->netdev_ops = &zc_netdev_ops;
	netdev->ethtool_ops = &zc_ethtool_ops;
	netdev->max_mtu = ETH_DATA_LEN;
}

static int probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct net_device *netdev;
	struct zc_nic *nic;
	int err;

	err = pcim_enable_device(pdev);
	if (err)
		return err;
	err = dma_set_mask_and_coherent(&pdev->dev, DMA_BIT_MASK(32));
	if (err)
		return err;
	err = pcim_request_all_regions(pdev, KBUILD_MODNAME);
	if (err)
		return err;
	netdev = devm_alloc_etherdev(&pdev->dev, sizeof(*nic));
	if (!netdev)
		return -ENOMEM;
	strscpy(netdev->name, "zc%d", sizeof(netdev->name));
	nic = netdev_priv(netdev);
	nic->netdev = netdev;
	nic->pdev = pdev;
	nic->regs = pcim_iomap(pdev, 0, 0);
	if (!nic->regs)
		return -ENOMEM;

	e1000_init(nic);
	describe(netdev, pdev);
	netif_napi_add(netdev, &nic->napi, e1000_poll);
	pci_set_master(pdev);
	e1000_reset(nic);
	read_address(nic);
	netif_carrier_off(netdev);
	pci_set_drvdata(pdev, netdev);
	return register_netdev(netdev);
}

static void remove(struct pci_dev *pdev)
{
	unregister_netdev(pci_get_drvdata(pdev));
	pci_clear_master(pdev);
}

/* Only by driver_override: the stock driver keeps every other 82540EM. */
static const struct pci_device_id zc_ids[] = {
	{
		PCI_DEVICE(PCI_VENDOR_ID_INTEL, 0x100e),
		.override_only = 1,
	},
	{}
};

static struct pci_driver zc_pci_driver = {
	.name = "pf_zerocopy",
	.id_table = zc_ids,
	.probe = probe,
	.remove = remove,
};

int zc_nic_register(void)
{
	return pci_register_driver(&zc_pci_driver);
}

void zc_nic_unregister(void)
{
	pci_unregister_driver(&zc_pci_driver);
}
