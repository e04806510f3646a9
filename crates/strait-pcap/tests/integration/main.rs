//! Programs that know libpcap alone, on Strait's engine: tcpdump, dumpcap, and one in C that uses the live calls.

mod dumpcap;
mod exports;
mod live;
mod rig;
mod savefile;
mod tcpdump;
