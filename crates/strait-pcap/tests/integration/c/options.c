/*
 * Options of a handle that an Ethernet device supports or refuses, and the names of devices.
 */
#include "check.h"
#include <string.h>

void options_before_activation(const char *interface)
{
    char errbuf[PCAP_ERRBUF_SIZE];
    int *types;
    handle = pcap_create(interface, errbuf);
    CHECK(handle != NULL);
    CHECK(pcap_can_set_rfmon(handle) == 0);
    CHECK(pcap_bufsize(handle) == PCAP_ERROR_NOT_ACTIVATED);
    CHECK(pcap_datalink(handle) == PCAP_ERROR_NOT_ACTIVATED);
    CHECK(pcap_snapshot(handle) == PCAP_ERROR_NOT_ACTIVATED);
    CHECK(pcap_list_datalinks(handle, &types) == PCAP_ERROR_NOT_ACTIVATED);
    CHECK(pcap_set_datalink(handle, DLT_EN10MB) < 0);
    CHECK(pcap_set_rfmon(handle, 1) == 0);
    CHECK(pcap_activate(handle) == PCAP_ERROR_RFMON_NOTSUP);
    pcap_close(handle);
    handle = pcap_create(interface, errbuf);
    int found = pcap_list_tstamp_types(handle, &types);
    CHECK(found >= 0 && pcap_set_tstamp_type(handle, PCAP_TSTAMP_HOST) >= 0);
    for (int at = 0; at < found; at++)
        CHECK(pcap_tstamp_type_val_to_name(types[at]) != NULL);
    if (found > 0)
        pcap_free_tstamp_types(types);
    CHECK(pcap_set_tstamp_type(handle, 77) == PCAP_WARNING_TSTAMP_TYPE_NOTSUP);
    CHECK(pcap_set_immediate_mode(handle, 1) == 0);
    CHECK(pcap_set_protocol_linux(handle, 0) == 0);
    CHECK(pcap_set_rfmon(handle, 0) == 0);
    CHECK(pcap_activate(handle) == 0);
    CHECK(pcap_set_immediate_mode(handle, 0) == PCAP_ERROR_ACTIVATED);
    CHECK(pcap_set_rfmon(handle, 0) == PCAP_ERROR_ACTIVATED);
    CHECK(pcap_set_tstamp_type(handle, PCAP_TSTAMP_HOST) == PCAP_ERROR_ACTIVATED);
    CHECK(pcap_set_protocol_linux(handle, 0) == PCAP_ERROR_ACTIVATED);
    pcap_close(handle);
}

void options_after_activation(void)
{
    int *types, found = pcap_list_datalinks(handle, &types), ethernet = 0;
    CHECK(found > 0);
    for (int at = 0; at < found; at++)
        ethernet |= types[at] == DLT_EN10MB;
    CHECK(ethernet);
    pcap_free_datalinks(types);
    CHECK(pcap_set_datalink(handle, DLT_EN10MB) == 0);
    CHECK(pcap_datalink(handle) == DLT_EN10MB);
    CHECK(pcap_set_datalink(handle, DLT_IEEE802_11) == PCAP_ERROR);
    CHECK(strstr(pcap_geterr(handle), "not one of the DLTs") != NULL);
    pcap_perror(handle, "as expected");
    CHECK(pcap_bufsize(handle) > 0);
    CHECK(pcap_is_swapped(handle) == 0);
    CHECK(pcap_file(handle) == NULL);
}

void names(const char *interface)
{
    char errbuf[PCAP_ERRBUF_SIZE];
    pcap_if_t *all, *at;
    int there = 0;
    CHECK(pcap_findalldevs(&all, errbuf) == 0);
    for (at = all; at; at = at->next)
        there += strcmp(at->name, interface) == 0 && (at->flags & PCAP_IF_UP);
    CHECK(there == 1);
    pcap_freealldevs(all);
}
