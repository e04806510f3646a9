//! Classic BPF programs: check, interpret, translate to eBPF and XDP.
