//! The pcap encoder and decoder against each other and against bytes written by hand.
