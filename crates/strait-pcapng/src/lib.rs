//! pcap and pcapng blocks, read and write.
