//! Encodes generated packets to measure the cost of a row:
//! `encode COLUMNS PACKETS FLOWS DIRECTORY`.
//!
//! It prints the rows, the bytes and the CPU time of each step. Packets are those of TCP flows with
//! random gaps in time, as a link with many users has them.

use std::error::Error;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use strait_os::clock::thread_cpu_time;
use strait_packet::summary::link_type;
use strait_table::flows::{FlowLimits, FlowTable};
use strait_table::packets::{Columns, PacketRows};
use strait_table::schema::PACKETS;
use strait_table::writer::{BATCH_ROWS, TableWriter};
use strait_table::{Extras, FileNumbers, Headers, Options, Packet, Selected};

/// Packets of a block, as in the sink.
const BLOCK: usize = 2048;

/// Linear congruential generator (Knuth's MMIX).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }
}

/// Connection with its sequence numbers.
#[derive(Clone)]
struct Connection {
    frame: [u8; 54],
    sequences: [u32; 2],
    identifications: [u16; 2],
}

fn connection(number: u64, random: &mut Random) -> Connection {
    let mut frame = [0; 54];
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14] = 0x45;
    frame[23] = 6;
    frame[22] = 64;
    frame[26..30].copy_from_slice(&[10, 1, (number >> 8) as u8, number as u8]);
    frame[30..34].copy_from_slice(&(0x2d00_0000 | (random.next() as u32 & 0x3ff) << 8 | 5).to_be_bytes());
    frame[34..36].copy_from_slice(&(32_768 + (random.next() % 28_000) as u16).to_be_bytes());
    frame[36..38].copy_from_slice(&443_u16.to_be_bytes());
    frame[46] = 0x50;
    let sequences = [random.next() as u32, random.next() as u32];
    Connection { frame, sequences, identifications: [random.next() as u16, random.next() as u16] }
}

/// Returns a frame of the connection and its length on the wire.
fn packet(connection: &mut Connection, random: &mut Random) -> ([u8; 54], u32) {
    let from = usize::from(!random.next().is_multiple_of(3));
    let data = if from == 1 { 1448 } else { 0 };
    let mut frame = connection.frame;
    if from == 1 {
        let (source, destination) = (connection.frame[26..30].to_vec(), connection.frame[30..34].to_vec());
        frame[26..30].copy_from_slice(&destination);
        frame[30..34].copy_from_slice(&source);
        frame[34..36].copy_from_slice(&connection.frame[36..38]);
        frame[36..38].copy_from_slice(&connection.frame[34..36]);
    }
    frame[16..18].copy_from_slice(&(40 + data as u16).to_be_bytes());
    connection.identifications[from] = connection.identifications[from].wrapping_add(1);
    frame[18..20].copy_from_slice(&connection.identifications[from].to_be_bytes());
    frame[38..42].copy_from_slice(&connection.sequences[from].to_be_bytes());
    frame[42..46].copy_from_slice(&connection.sequences[1 - from].to_be_bytes());
    frame[47] = 0x10;
    frame[48..50].copy_from_slice(&(500 + (random.next() % 16) as u16).to_be_bytes());
    connection.sequences[from] = connection.sequences[from].wrapping_add(data);
    (frame, 54 + data)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, columns, packets, flows, directory] = &arguments[..] else {
        return Err("give COLUMNS, PACKETS, FLOWS and DIRECTORY".into());
    };
    let (packets, flows): (u64, u64) = (packets.parse()?, flows.parse()?);
    let mut random = Random(1);
    let mut connections: Vec<Connection> = (0..flows).map(|number| connection(number, &mut random)).collect();
    let mut time_ns = 1_764_000_000_000_000_000;
    let frames: Vec<_> = (0..packets)
        .map(|_| {
            let at = random.next() as usize % connections.len();
            time_ns += random.next() % 2000;
            (time_ns, packet(&mut connections[at], &mut random))
        })
        .collect();
    let columns = Columns::parse(columns)?;
    let options = Arc::new(Options {
        directory: directory.into(),
        sensor: "bench".into(),
        capture: format!("{:x}", strait_os::clock::realtime_ns()),
        numbers: FileNumbers::default(),
        selected: Selected::default(),
        flows: FlowLimits::default(),
        columns: columns.clone(),
        frame_bytes: 0,
        rotate_bytes: u64::MAX,
        rotate_every: Duration::MAX,
        spool: None,
        waits: true,
    });
    let rows = move || PacketRows::new(&columns, Arc::new(|_| None), BATCH_ROWS, 0);
    let mut writer = TableWriter::new(&PACKETS, options, Box::new(rows));
    let (mut table, mut ended) = (FlowTable::new(FlowLimits::default()), Vec::new());
    let mut block = Vec::with_capacity(BLOCK);
    let mut spent = [Duration::ZERO; 3];
    for frames in frames.chunks(BLOCK) {
        block.clear();
        let start = thread_cpu_time();
        block.extend(frames.iter().map(headers));
        let read = thread_cpu_time();
        writer.write(&block, &Extras::default(), Instant::now())?;
        let encoded = thread_cpu_time();
        for headers in &block {
            table.take(headers, &mut ended);
        }
        let counted = thread_cpu_time();
        ended.clear();
        let steps =
            [read.saturating_sub(start), encoded.saturating_sub(read), counted.saturating_sub(encoded)];
        for (sum, step) in spent.iter_mut().zip(steps) {
            *sum += step;
        }
    }
    let start = thread_cpu_time();
    writer.complete_all()?;
    spent[1] += thread_cpu_time().saturating_sub(start);
    for (step, time) in ["headers", "encode", "flows"].into_iter().zip(spent) {
        println!("{step}: {:.0} ns a packet", time.as_nanos() as f64 / packets as f64);
    }
    println!("{:.2} bytes a packet", writer.written().bytes as f64 / packets as f64);
    Ok(fs::remove_dir_all(directory)?)
}

/// Returns the headers of a generated frame.
fn headers((time_ns, (frame, wire_len)): &(u64, ([u8; 54], u32))) -> Headers {
    Headers::of(&Packet {
        bytes: frame,
        link_type: link_type::ETHERNET,
        wire_len: *wire_len,
        time_ns: *time_ns,
        interface: 0,
        lane: 0,
        direction: None,
        owner: None,
    })
}
