//! Programs that know libpcap alone, on Strait's engine: one file a program.

mod behaviour;
mod dumpcap;
mod exports;
mod live;
mod python;
mod rig;
mod ring;
mod rust;
mod savefile;
mod suricata;
mod tcpdump;
