//! Example for the `pcap` crate, without knowledge of Strait: reads packets with a filter, prints
//! them, and prints the statistics.
//!
//!     sniff DEVICE COUNT FILTER

use pcap::{Capture, Direction};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, device, count, filter] = arguments.as_slice() else { return Err("three arguments".into()) };
    let inactive = Capture::from_device(device.as_str())?.promisc(true).snaplen(96).timeout(200);
    let mut capture = inactive.immediate_mode(true).buffer_size(1 << 20).open()?;
    capture.direction(Direction::In)?;
    capture.filter(filter, true)?;
    println!("{:?}", capture.get_datalink());
    println!("ready");
    for _ in 0..count.parse::<u32>()? {
        let packet = capture.next_packet()?;
        println!("{} {:02x?}", packet.header.len, packet.data);
    }
    let stats = capture.stats()?;
    println!("{} {}", stats.received >= count.parse()?, stats.dropped);
    // Stock libpcap 1.10 waits beyond its timeout while no frame arrives.
    let mut capture = capture.setnonblock()?;
    capture.filter("tcp port 9", true)?;
    println!("{:?}", capture.next_packet().err());
    Ok(())
}
