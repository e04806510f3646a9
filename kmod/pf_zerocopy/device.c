// SPDX-License-Identifier: GPL-2.0
/*
 * The network device: its interrupts, its place on the bus, its PCI driver.
 *
 * A queue without a socket neither receives nor sends. The driver takes only a
 * device that driver_override gives to it.
 */
#include <linux/etherdevice.h>
#include <linux/module.h>
#include <linux/nospec.h>
#include <linux/rtnetlink.h>

#include "nic.h"

/* The sockets. Under RTNL. */

struct zc_sock *zc_nic_any_owner(struct net_device *netdev)
{
	struct zc_nic *nic = netdev_priv(netdev);
	unsigned int i;

	for (i = 0; i < nic->queue_count; i++)
		if (nic->queues[i].owner)
			return nic->queues[i].owner;
	return NULL;
}

int zc_nic_attach(struct net_device *netdev, u16 queue, struct zc_sock *zs)
{
	struct zc_nic *nic = netdev_priv(netdev);

	if (nic->failed)
		return -ENODEV;
	if (queue >= nic->queue_count)
		return -EINVAL;
	queue = array_index_nospec(queue, nic->queue_count);
	return zc_queue_attach(&nic->queues[queue], zs);
}

void zc_nic_detach(struct net_device *netdev, u16 queue)
{
	struct zc_nic *nic = netdev_priv(netdev);

	zc_queue_detach(&nic->queues[queue]);
}

/* Interrupts: a vector for each queue and one for the link, or one line. */

static int request_vectors(struct zc_nic *nic)
{
	struct net_device *netdev = nic->netdev;
	unsigned int i;
	int err;

	for (i = 0; i < nic->queue_count; i++) {
		err = request_irq(pci_irq_vector(nic->pdev, i),
				  zc_queue_interrupt, 0, nic->queues[i].name,
				  &nic->queues[i]);
		if (err)
			goto free;
	}
	err = request_irq(pci_irq_vector(nic->pdev, nic->queue_count),
			  nic->ops->interrupt, 0, netdev->name, nic);
	if (!err)
		return 0;
free:
	while (i--)
		free_irq(pci_irq_vector(nic->pdev, i), &nic->queues[i]);
	return err;
}

static int request_interrupts(struct zc_nic *nic)
{
	int vectors = nic->queue_count + 1, err;

	if (!nic->ops->msix)
		return request_irq(nic->pdev->irq, nic->ops->interrupt,
				   IRQF_SHARED, nic->netdev->name, nic);
	err = pci_alloc_irq_vectors(nic->pdev, vectors, vectors, PCI_IRQ_MSIX);
	if (err < 0)
		return err;
	err = request_vectors(nic);
	if (err)
		pci_free_irq_vectors(nic->pdev);
	return err;
}

static void free_interrupts(struct zc_nic *nic)
{
	unsigned int i;

	if (!nic->ops->msix) {
		free_irq(nic->pdev->irq, nic);
		return;
	}
	free_irq(pci_irq_vector(nic->pdev, nic->queue_count), nic);
	for (i = 0; i < nic->queue_count; i++)
		free_irq(pci_irq_vector(nic->pdev, i), &nic->queues[i]);
	pci_free_irq_vectors(nic->pdev);
}

/* The network device: a name, a link, an address and counters. */

void zc_nic_show_link(struct zc_nic *nic)
{
	if (nic->ops->link_is_up(nic))
		netif_carrier_on(nic->netdev);
	else
		netif_carrier_off(nic->netdev);
}

bool zc_nic_runs(struct net_device *netdev)
{
	const struct zc_nic *nic = netdev_priv(netdev);

	return nic->running;
}

static void start_watchdog(struct zc_nic *nic)
{
	schedule_delayed_work(&nic->watchdog, HZ);
}

static int start_nic(struct zc_nic *nic)
{
	unsigned int i;
	int err;

	if (WARN_ON(nic->running))
		return 0;
	if (!nic->ops->reset(nic))
		return -EIO;
	pci_set_master(nic->pdev);
	err = request_interrupts(nic);
	if (err) {
		pci_clear_master(nic->pdev);
		return err;
	}
	nic->ops->start(nic);
	nic->running = true;
	nic->halted = false;
	for (i = 0; i < nic->queue_count; i++)
		zc_queue_open(&nic->queues[i]);
	zc_nic_show_link(nic);
	return 0;
}

/* Sockets keep their queues; the traffic ends with ENETDOWN. */
static void stop_nic(struct zc_nic *nic)
{
	unsigned int i;

	if (!nic->running)
		return;
	for (i = 0; i < nic->queue_count; i++)
		zc_queue_close(&nic->queues[i]);
	nic->ops->reset(nic);
	pci_clear_master(nic->pdev);
	free_interrupts(nic);
	netif_carrier_off(nic->netdev);
	nic->running = false;
}

/* If the NIC does not start, the watchdog tries again. */
static void want_nic(struct zc_nic *nic)
{
	WRITE_ONCE(nic->wanted, true);
	start_watchdog(nic);
}

static void unwant_nic(struct zc_nic *nic)
{
	WRITE_ONCE(nic->wanted, false);
	stop_nic(nic);
}

static int open(struct net_device *netdev)
{
	struct zc_nic *nic = netdev_priv(netdev);
	int err;

	err = start_nic(nic);
	if (!err)
		want_nic(nic);
	return err;
}

static int close(struct net_device *netdev)
{
	unwant_nic(netdev_priv(netdev));
	return 0;
}

/*
 * Ends all transfers of a NIC that does not stop a queue, as the memory of the
 * queue will be freed. The watchdog resets it.
 */
void zc_nic_halt(struct zc_nic *nic)
{
	pci_clear_master(nic->pdev);
	nic->halted = true;
	cancel_delayed_work(&nic->watchdog);
	schedule_delayed_work(&nic->watchdog, 0);
}

static bool stalls(struct zc_nic *nic)
{
	bool stalled = false;
	unsigned int i;

	for (i = 0; i < nic->queue_count; i++)
		stalled |= zc_queue_stalls(&nic->queues[i]);
	return stalled;
}

/* Resets a NIC that hangs, and starts one that did not start. Under RTNL. */
static void revive(struct zc_nic *nic)
{
	if (!pci_device_is_present(nic->pdev))
		return;
	if (nic->running && !nic->halted) {
		if (!stalls(nic))
			return;
		netdev_err(nic->netdev, "sends nothing: resetting the device\n");
	}
	stop_nic(nic);
	if (start_nic(nic) && net_ratelimit())
		netdev_err(nic->netdev, "does not start\n");
}

/* It may run while the device is removed, which holds RTNL and waits for it. */
static void watch(struct work_struct *work)
{
	struct zc_nic *nic = container_of(to_delayed_work(work), struct zc_nic,
					  watchdog);

	if (rtnl_trylock()) {
		if (nic->wanted)
			revive(nic);
		if (nic->running)
			zc_nic_show_link(nic);
		rtnl_unlock();
	}
	/* A queue that does not start has asked for a reset at once, in a loop. */
	cancel_delayed_work(&nic->watchdog);
	if (READ_ONCE(nic->wanted))
		start_watchdog(nic);
}

/* Drops packets of the network stack: only the sockets send on this link. */
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
	unsigned int i;

	for (i = 0; i < ZC_QUEUES_MAX; i++) {
		const struct zc_queue *queue = &nic->queues[i];

		stats->rx_packets += READ_ONCE(queue->rx_frames);
		stats->rx_bytes += READ_ONCE(queue->rx_bytes);
		stats->rx_errors += READ_ONCE(queue->rx_errors);
		stats->rx_missed_errors += READ_ONCE(queue->rx_missed);
		stats->tx_packets += READ_ONCE(queue->tx_frames);
		stats->tx_bytes += READ_ONCE(queue->tx_bytes);
	}
}

static void set_rx_mode(struct net_device *netdev)
{
	struct zc_nic *nic = netdev_priv(netdev);

	nic->ops->set_filter(netdev);
}

static const struct net_device_ops zc_netdev_ops = {
	.ndo_open = open,
	.ndo_stop = close,
	.ndo_start_xmit = refuse,
	.ndo_set_rx_mode = set_rx_mode,
	.ndo_get_stats64 = get_stats64,
	.ndo_validate_addr = eth_validate_addr,
};

bool zc_nic_backs(const struct net_device *netdev)
{
	return netdev->netdev_ops == &zc_netdev_ops;
}

/* The number of queues. */

/* Starts the NIC, if it is to run, with this number of queues. */
static int restart(struct zc_nic *nic, unsigned int queues)
{
	int err;

	err = netif_set_real_num_queues(nic->netdev, queues, queues);
	if (err)
		return err;
	nic->queue_count = queues;
	return nic->wanted ? start_nic(nic) : 0;
}

int zc_nic_set_queues(struct zc_nic *nic, unsigned int queues)
{
	unsigned int before = nic->queue_count;
	int err;

	if (zc_nic_any_owner(nic->netdev))
		return -EBUSY;
	stop_nic(nic);
	err = restart(nic, queues);
	if (err && restart(nic, before))
		netdev_err(nic->netdev, "does not start\n");
	return err;
}

/* PCI. */

static void read_address(struct zc_nic *nic)
{
	u8 address[ETH_ALEN];

	nic->ops->read_address(nic, address);
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
	strscpy(netdev->name, "zc%d", sizeof(netdev->name));
	/*
	 * The kernel sends no packets here, and an interrupt could not give NAPI
	 * back while netpoll polls.
	 */
	netdev->priv_flags |= IFF_DISABLE_NETPOLL;
}

/* As many queues as processors, if the NIC has them and their vectors. */
static void count_queues(struct zc_nic *nic)
{
	unsigned int most = min(nic->ops->queues_max, ZC_QUEUES_MAX);

	if (nic->ops->msix)
		most = min_t(unsigned int, most,
			     max(pci_msix_vec_count(nic->pdev) - 1, 1));
	nic->queues_max = most;
	nic->queue_count = min(most, num_online_cpus());
}

static void init_queues(struct zc_nic *nic)
{
	unsigned int i;

	count_queues(nic);
	for (i = 0; i < nic->queues_max; i++)
		zc_queue_init(nic, i);
}

static int map_registers(struct zc_nic *nic)
{
	int err;

	err = pcim_enable_device(nic->pdev);
	if (err)
		return err;
	err = dma_set_mask_and_coherent(&nic->pdev->dev, nic->ops->dma_mask);
	if (err)
		return err;
	err = pcim_request_all_regions(nic->pdev, KBUILD_MODNAME);
	if (err)
		return err;
	nic->regs = pcim_iomap(nic->pdev, 0, 0);
	return nic->regs ? 0 : -ENOMEM;
}

static int probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct net_device *netdev;
	struct zc_nic *nic;
	int err;

	netdev = devm_alloc_etherdev_mqs(&pdev->dev, sizeof(*nic),
					 ZC_QUEUES_MAX, ZC_QUEUES_MAX);
	if (!netdev)
		return -ENOMEM;
	nic = netdev_priv(netdev);
	nic->netdev = netdev;
	nic->pdev = pdev;
	nic->ops = (const struct zc_nic_ops *)id->driver_data;
	spin_lock_init(&nic->receiver_lock);
	spin_lock_init(&nic->losses_lock);
	INIT_DELAYED_WORK(&nic->watchdog, watch);
	err = map_registers(nic);
	if (err)
		return err;

	nic->ops->init(nic);
	describe(netdev, pdev);
	init_queues(nic);
	err = netif_set_real_num_queues(netdev, nic->queue_count,
					nic->queue_count);
	if (err)
		return err;
	if (!nic->ops->reset(nic))
		return -EIO;
	pci_clear_master(pdev); /* the firmware may have left it on */
	read_address(nic);
	netif_carrier_off(netdev);
	pci_set_drvdata(pdev, netdev);
	pci_save_state(pdev); /* for slot_reset() */
	return register_netdev(netdev);
}

static void remove(struct pci_dev *pdev)
{
	struct net_device *netdev = pci_get_drvdata(pdev);
	struct zc_nic *nic = netdev_priv(netdev);

	unregister_netdev(netdev);
	cancel_delayed_work_sync(&nic->watchdog);
}

/* Suspend, reset and shutdown: the NIC stops, and may continue later. */

static void pause_device(struct pci_dev *pdev)
{
	struct net_device *netdev = pci_get_drvdata(pdev);

	rtnl_lock();
	netif_device_detach(netdev);
	unwant_nic(netdev_priv(netdev));
	rtnl_unlock();
}

/* If the NIC does not start, the watchdog tries again. */
static void resume_device(struct pci_dev *pdev)
{
	struct net_device *netdev = pci_get_drvdata(pdev);
	struct zc_nic *nic = netdev_priv(netdev);

	pci_save_state(pdev); /* for slot_reset(): a restore may forget it */
	rtnl_lock();
	if (nic->failed)
		goto unlock;
	stop_nic(nic); /* a reset and an error of the bus may overlap */
	if (netif_running(netdev)) {
		if (start_nic(nic))
			netdev_err(netdev, "does not start\n");
		want_nic(nic);
	}
	netif_device_attach(netdev);
unlock:
	rtnl_unlock();
}

static int suspend(struct device *device)
{
	pause_device(to_pci_dev(device));
	return 0;
}

static int resume(struct device *device)
{
	resume_device(to_pci_dev(device));
	return 0;
}

static DEFINE_SIMPLE_DEV_PM_OPS(zc_pm_ops, suspend, resume);

/* For good: the kernel must find the device anew. */
static pci_ers_result_t give_up(struct pci_dev *pdev)
{
	struct net_device *netdev = pci_get_drvdata(pdev);
	struct zc_nic *nic = netdev_priv(netdev);

	rtnl_lock();
	/* The kernel may report it once more after slot_reset(). */
	if (!nic->failed)
		netdev_err(netdev, "the bus failed for good\n");
	nic->failed = true;
	zc_sockets_lose(netdev);
	rtnl_unlock();
	return PCI_ERS_RESULT_DISCONNECT;
}

static pci_ers_result_t error_detected(struct pci_dev *pdev,
				       pci_channel_state_t state)
{
	pause_device(pdev);
	return state == pci_channel_io_perm_failure ?
		       give_up(pdev) : PCI_ERS_RESULT_NEED_RESET;
}

/* Not every kernel reports to a driver that the recovery failed. */
static pci_ers_result_t slot_reset(struct pci_dev *pdev)
{
	pci_restore_state(pdev);
	return pci_device_is_present(pdev) ? PCI_ERS_RESULT_RECOVERED :
					     give_up(pdev);
}

static const struct pci_error_handlers zc_error_handlers = {
	.error_detected = error_detected,
	.slot_reset = slot_reset,
	.resume = resume_device,
	.reset_prepare = pause_device,
	.reset_done = resume_device,
};

/* Only by driver_override: the stock drivers keep all other devices. */
#define ZC_DEVICE(device, ops)                                       \
	{                                                            \
		PCI_DEVICE(PCI_VENDOR_ID_INTEL, device),             \
		.driver_data = (kernel_ulong_t)(ops),                \
		.override_only = 1,                                  \
	}

static const struct pci_device_id zc_ids[] = {
	ZC_DEVICE(0x100e, &e1000_ops), /* 82540EM */
	ZC_DEVICE(0x10c9, &igb_ops), /* 82576 */
	{}
};

static struct pci_driver zc_pci_driver = {
	.name = "pf_zerocopy",
	.id_table = zc_ids,
	.probe = probe,
	.remove = remove,
	.shutdown = pause_device,
	.driver.pm = pm_sleep_ptr(&zc_pm_ops),
	.err_handler = &zc_error_handlers,
};

int zc_nic_register(void)
{
	return pci_register_driver(&zc_pci_driver);
}

void zc_nic_unregister(void)
{
	pci_unregister_driver(&zc_pci_driver);
}
