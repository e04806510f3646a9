//! DNS server with records that change, and faults.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use hickory_resolver::proto::op::{Message, Query, ResponseCode};
use hickory_resolver::proto::rr::rdata::{A, AAAA, CNAME, SOA, SRV};
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};

/// Behaviour of a DNS server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// None: it answers.
    None,
    /// It answers nothing.
    Silent,
    /// It has failed (SERVFAIL).
    Fails,
    /// Queries for this type fail.
    FailsFor(RecordType),
    /// Its responses have another id.
    WrongId,
    /// Its responses are for another name.
    WrongName,
    /// Its responses by UDP are truncated, without a record.
    Truncates,
    /// Its responses are not DNS.
    Garbage,
}

/// Longest response by UDP.
const UDP_BYTES_MAX: usize = 1232;

/// DNS server on loopback. It answers for all names: with its records, or that there are none.
pub(crate) struct DnsServer {
    pub(crate) address: SocketAddr,
    state: Arc<State>,
}

struct State {
    records: Mutex<Vec<Record>>,
    fault: Mutex<Fault>,
    asked: AtomicUsize,
    asked_by_tcp: AtomicUsize,
}

impl DnsServer {
    pub(crate) fn start() -> Self {
        // A port that is free for both protocols.
        let (udp, tcp) = (0..100)
            .find_map(|_| {
                let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
                let tcp = TcpListener::bind(udp.local_addr().unwrap()).ok()?;
                Some((udp, tcp))
            })
            .unwrap();
        let state = Arc::new(State {
            records: Mutex::default(),
            fault: Mutex::new(Fault::None),
            asked: AtomicUsize::new(0),
            asked_by_tcp: AtomicUsize::new(0),
        });
        let (address, of_udp, of_tcp) = (udp.local_addr().unwrap(), state.clone(), state.clone());
        // The threads end with the test's process.
        thread::spawn(move || {
            let mut query = [0; 1500];
            while let Ok((len, peer)) = udp.recv_from(&mut query) {
                if let Some(response) = of_udp.answer(&query[..len], false) {
                    let _ = udp.send_to(&response, peer);
                }
            }
        });
        thread::spawn(move || {
            for mut stream in tcp.incoming().filter_map(Result::ok) {
                let state = of_tcp.clone();
                thread::spawn(move || {
                    let mut len = [0; 2];
                    while stream.read_exact(&mut len).is_ok() {
                        let mut query = vec![0; u16::from_be_bytes(len).into()];
                        stream.read_exact(&mut query).ok()?;
                        let response = state.answer(&query, true)?;
                        let len = u16::try_from(response.len()).unwrap().to_be_bytes();
                        stream.write_all(&[&len, &*response].concat()).ok()?;
                    }
                    Some(())
                });
            }
        });
        Self { address, state }
    }

    /// Returns the section of the file with this server, and bounds that let lifetimes of a second
    /// apply.
    pub(crate) fn section(&self) -> String {
        format!("dns.servers = [\"{}\"]", self.address)
    }

    /// Replaces all records.
    pub(crate) fn set(&self, records: Vec<Record>) {
        *self.state.records.lock().unwrap() = records;
    }

    pub(crate) fn become_fault(&self, fault: Fault) {
        *self.state.fault.lock().unwrap() = fault;
    }

    /// Returns the number of queries.
    pub(crate) fn asked(&self) -> usize {
        self.state.asked.load(Ordering::SeqCst)
    }

    pub(crate) fn asked_by_tcp(&self) -> usize {
        self.state.asked_by_tcp.load(Ordering::SeqCst)
    }
}

impl State {
    fn answer(&self, query: &[u8], is_tcp: bool) -> Option<Vec<u8>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.asked_by_tcp.fetch_add(is_tcp.into(), Ordering::SeqCst);
        let fault = *self.fault.lock().unwrap();
        let query = Message::from_vec(query).ok()?;
        let asked = query.queries.first()?.clone();
        let mut response = Message::response(query.metadata.id, query.metadata.op_code);
        response.metadata.recursion_available = true;
        response.add_query(asked.clone());
        match fault {
            Fault::Silent => return None,
            Fault::Garbage => return Some(b"what?".to_vec()),
            Fault::Fails => response.metadata.response_code = ResponseCode::ServFail,
            Fault::FailsFor(kind) if asked.query_type() == kind => {
                response.metadata.response_code = ResponseCode::ServFail;
            }
            Fault::Truncates if !is_tcp => response.metadata.truncation = true,
            Fault::WrongId => {
                response.metadata.id ^= 1;
                self.fill(&mut response, &asked);
            }
            Fault::WrongName => {
                response.queries[0].set_name(name("other.test"));
                self.fill(&mut response, &asked);
            }
            _ => self.fill(&mut response, &asked),
        }
        let mut bytes = response.to_vec().unwrap();
        if !is_tcp && bytes.len() > UDP_BYTES_MAX {
            bytes = response.truncate().to_vec().unwrap();
        }
        Some(bytes)
    }

    /// Adds the records for a query, those of aliases included.
    fn fill(&self, response: &mut Message, asked: &Query) {
        let records = self.records.lock().unwrap();
        let mut name = asked.name().to_lowercase();
        for _ in 0..20 {
            let own = records.iter().filter(|record| record.name.to_lowercase() == name);
            let (of_kind, others): (Vec<_>, Vec<_>) =
                own.cloned().partition(|record| record.record_type() == asked.query_type());
            let alias = others.into_iter().find(|record| record.record_type() == RecordType::CNAME);
            response.add_answers(of_kind);
            let Some(alias) = alias else { break };
            if let RData::CNAME(CNAME(target)) = &alias.data {
                name = target.to_lowercase();
            }
            response.add_answer(alias);
        }
        if response.answers.is_empty() {
            let is_known = records.iter().any(|record| record.name.to_lowercase() == name);
            let code = if is_known { ResponseCode::NoError } else { ResponseCode::NXDomain };
            response.metadata.response_code = code;
            let soa = SOA::new(self::name("ns.test"), self::name("admin.test"), 1, 1, 1, 1, 1);
            response.add_authority(Record::from_rdata(self::name("test"), 1, RData::SOA(soa)));
        }
    }
}

fn name(text: &str) -> Name {
    let mut name = Name::from_ascii(text).unwrap();
    name.set_fqdn(true);
    name
}

/// Returns the records of addresses with a lifetime in seconds.
pub(crate) fn addresses(of: &str, ttl: u32, addresses: &[&str]) -> Vec<Record> {
    let data = |address: &&str| match address.parse().unwrap() {
        IpAddr::V4(address) => RData::A(A(address)),
        IpAddr::V6(address) => RData::AAAA(AAAA(address)),
    };
    addresses.iter().map(|address| Record::from_rdata(name(of), ttl, data(address))).collect()
}

pub(crate) fn alias(of: &str, ttl: u32, target: &str) -> Record {
    Record::from_rdata(name(of), ttl, RData::CNAME(CNAME(name(target))))
}

/// Returns an SRV record with priority, weight, port and target.
pub(crate) fn srv(of: &str, ttl: u32, (priority, weight, port): (u16, u16, u16), target: &str) -> Record {
    Record::from_rdata(name(of), ttl, RData::SRV(SRV::new(priority, weight, port, name(target))))
}
