/*
 * What the parts of the program share: the handle that they use, and a check that ends the program with its line.
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

/* Counts a packet; with a user argument it breaks the loop at the fifth. */
void count(u_char *user, const struct pcap_pkthdr *header, const u_char *bytes);
/* Compiles and sets a filter on the handle. */
void filter(const char *text);

/* What may be asked and set of a device and of a handle that is active or not. */
void options_before_activation(const char *interface);
void options_after_activation(void);
void names(const char *interface);
/* poll, select and epoll on the handle's descriptor, with and without nonblocking mode. */
void waiting(void);
