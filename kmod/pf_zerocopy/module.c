// SPDX-License-Identifier: GPL-2.0
/*
 * PF_ZEROCOPY: a protocol family with sockets that receive and send frames in
 * the memory of the process. pf_zerocopy.h describes its use.
 */
#include <linux/module.h>

#include "internal.h"

static int __init zc_init(void)
{
	int err;

	err = zc_socket_register();
	if (err)
		return err;
	err = zc_nic_register();
	if (err)
		zc_socket_unregister();
	return err;
}

static void __exit zc_exit(void)
{
	zc_nic_unregister();
	zc_socket_unregister();
}

module_init(zc_init);
module_exit(zc_exit);

MODULE_DESCRIPTION("Frames between a NIC and the memory of a process, without a copy");
MODULE_LICENSE("GPL");
