//! Test rigs: network namespaces, veth pairs, processes in them.
