/*
 * Shared parts of the program: its handle, and a check that ends the program and prints its line.
 */
#include <pcap/pcap.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                       \
    do {                                                                       \
        if (!(condition)) {                                                    \
            fprintf(stderr, "%s: line %d: %s: %s\n", __FILE__, __LINE__,       \
                    #condition, handle ? pcap_geterr(handle) : "no handle");   \
            exit(1);                                                           \
        }                                                                      \
    } while (0)

extern pcap_t *handle;
extern int seen;

/* Counts a packet. With a user argument it breaks the loop at the fifth one. */
void count(u_char *user, const struct pcap_pkthdr *header, const u_char *bytes);
/* Compiles and sets a filter on the handle. */
void filter(const char *text);

/* Queries and options of a device, and of a handle before and after activation. */
void options_before_activation(const char *interface);
void options_after_activation(void);
void names(const char *interface);
/* poll, select and epoll on the handle's descriptor, with and without nonblocking mode. */
void waiting(void);
