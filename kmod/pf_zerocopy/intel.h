/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Registers that Intel's gigabit NICs have in common: 82540EM ("PCI/PCI-X Family
 * of Gigabit Ethernet Controllers Software Developer's Manual", chapter 13) and
 * 82576 ("82576EB Gigabit Ethernet Controller Datasheet", chapter 8).
 */
#ifndef _ZEROCOPY_INTEL_H
#define _ZEROCOPY_INTEL_H

#include "nic.h"

#define REG_CTRL 0x0000
#define CTRL_MASTER_DISABLE BIT(2)
#define CTRL_ASDE BIT(5)
#define CTRL_SLU BIT(6)
#define CTRL_RST BIT(26)
#define REG_STATUS 0x0008
#define STATUS_LU BIT(1)
#define STATUS_MASTER BIT(19) /* transfers are not disabled, or still run */
#define REG_MDIC 0x0020
#define MDIC_REG(reg) ((reg) << 16)
#define MDIC_PHY BIT(21) /* the PHY of the NIC has address 1 */
#define MDIC_WRITE BIT(26)
#define MDIC_READ BIT(27)
#define MDIC_READY BIT(28)
#define REG_ICR 0x00c0
#define REG_IMS 0x00d0
#define REG_IMC 0x00d8
#define INT_LSC BIT(2)
#define REG_RCTL 0x0100
#define RCTL_EN BIT(1)
#define RCTL_UPE BIT(3)
#define RCTL_MPE BIT(4)
#define RCTL_BAM BIT(15)
#define RCTL_SECRC BIT(26) /* and, by zeros, buffers of 2048 bytes */
#define REG_TCTL 0x0400
#define TCTL_EN BIT(1)
#define TCTL_PSP BIT(3)
#define TCTL_CT (0x0f << 4)
#define TCTL_COLD (0x40 << 12)
#define REG_CRCERRS 0x4000
#define REG_MPC 0x4010
#define REG_RUC 0x40a4
#define REG_RFC 0x40a8
#define REG_ROC 0x40ac
#define REG_MTA 0x5200
#define MTA_ENTRIES 128
#define REG_RAL 0x5400
#define REG_RAH 0x5404
#define RAH_VALID BIT(31)

/* Time for the NIC to finish running transfers; to reset, and read its EEPROM. */
#define STOP_MS 10
#define RESET_MS 10
/* Time for the NIC to do as a register says; between two looks at it. */
#define DONE_LIMIT_US 10000
#define DONE_US 10

void intel_init(struct zc_nic *nic);
bool intel_wait_for(struct zc_nic *nic, unsigned int reg, u32 mask, u32 value,
		    unsigned int limit_us);
bool intel_link_is_up(struct zc_nic *nic);
void intel_write_phy(struct zc_nic *nic, unsigned int reg, u16 value);
void intel_power_up_phy(struct zc_nic *nic);
bool intel_reset_is_over(struct zc_nic *nic);
void intel_read_address(struct zc_nic *nic, u8 *address);
void intel_write_address(struct zc_nic *nic);
void intel_set_filter(struct net_device *netdev);
void intel_set_receiving(struct zc_nic *nic, bool receiving);
void intel_clear_multicast(struct zc_nic *nic);
u32 intel_take(struct zc_nic *nic, struct zc_counter *counter);
u32 intel_take_damaged(struct zc_nic *nic);
void intel_forget_losses(struct zc_nic *nic);

#endif /* _ZEROCOPY_INTEL_H */
