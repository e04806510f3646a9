//! Fuzzes headers of the PROXY protocol: a header is accepted regardless of the split into pieces,
//! and its parsed content encodes to the same content.

#![no_main]

use std::net::SocketAddr;

use libfuzzer_sys::fuzz_target;
use strait_transfer::relay::proxy_protocol::{Source, Version, header, read};

fuzz_target!(|data: &[u8]| {
    let Ok(Some((source, len))) = read(data) else { return };
    assert!(len <= data.len());
    // Later bytes have no effect, and a shorter prefix is not a header.
    assert_eq!(read(&data[..len]), Ok(Some((source, len))));
    assert!((0..len).all(|less| read(&data[..less]) == Ok(None)));
    let Source::Client(client) = source else { return };
    for version in [Version::V1, Version::V2] {
        let to = SocketAddr::new(client.ip(), 1);
        let written = header(version, client, to);
        let (Ok(Some((Source::Client(read), len))), false) = (read(&written), written.is_empty()) else {
            panic!("{client}");
        };
        assert_eq!((read.ip().to_canonical(), read.port()), (client.ip().to_canonical(), client.port()));
        assert_eq!(len, written.len());
    }
});
