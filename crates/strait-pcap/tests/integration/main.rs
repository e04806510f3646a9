//! Programs for libpcap on Strait's engine: one file for each program.

mod behaviour;
mod dumpcap;
mod exports;
mod failing;
mod live;
mod python;
mod rig;
mod ring;
mod rust;
mod savefile;
mod suricata;
mod tcpdump;
