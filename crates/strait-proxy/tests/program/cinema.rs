//! Film that is being fetched through a proxy, and a client that watches it.
//!
//! The origin sends the whole film only as far as the test opens the gate, so bytes beyond it come
//! from requests for parts.

use std::io;
use std::net::TcpStream;

use lab::wait_until;

use crate::body::Body;
use crate::client::{Client, Response, get};
use crate::origin::{Gate, Origin, Request, send_body, send_body_behind};
use crate::rig::{LIMIT, Proxy, Setup};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const FILM: Body = Body::new(3, 24 * MIB);
/// Bytes that the origin sends before it pauses.
pub(crate) const BEGINNING: u64 = MIB;
pub(crate) const FRESH: &str = "Cache-Control: max-age=3600\r\n";

/// Range of a request for a part, first and last byte.
pub(crate) type Asked = Option<(u64, u64)>;

/// Origin that pauses within the film, a proxy, and a client that is sent the beginning.
pub(crate) struct Cinema {
    pub(crate) origin: Origin,
    pub(crate) gate: Gate,
    pub(crate) proxy: Proxy,
    pub(crate) viewer: Client,
}

impl Cinema {
    /// Opens it with an origin that answers requests for parts by `answer`.
    pub(crate) fn new(
        config: &str,
        answer: impl Fn(&Request, &mut TcpStream) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let gate = Gate::default();
        let behind = gate.clone();
        let origin = Origin::new(move |request, stream| {
            if request.field("range").is_some() {
                return answer(request, stream);
            }
            send_body_behind(&behind, request, stream, FRESH)
        });
        let proxy = Setup::for_origin(origin.address).config(config).start();
        let viewer = begin(&proxy, &gate);
        Self { origin, gate, proxy, viewer }
    }

    /// Opens it with an origin that sends parts at once.
    pub(crate) fn with_parts(config: &str) -> Self {
        Self::new(config, |request, stream| send_body(request, stream, FRESH))
    }

    /// Requests a part on a connection of its own.
    pub(crate) fn seek(&self, range: &str) -> Response {
        get(self.proxy.address, &FILM.target(), &format!("Range: bytes={range}\r\n"))
    }

    /// Requests a part, with further fields, and reads the head of the response.
    pub(crate) fn begin_seek(&self, range: &str, fields: &str) -> Client {
        let mut client = Client::connect(self.proxy.address).unwrap();
        client.ask("GET", &FILM.target(), &format!("Range: bytes={range}\r\n{fields}")).unwrap();
        client
    }

    /// Checks that the first client gets the rest of the film.
    #[track_caller]
    pub(crate) fn continues(&mut self) {
        let rest = self.viewer.exactly(FILM.len - BEGINNING).unwrap();
        assert!(FILM.is(BEGINNING, &rest), "the bytes of the rest");
    }

    /// Returns the ranges of the requests for parts, after that for the whole film.
    #[track_caller]
    pub(crate) fn parts(&self) -> Vec<Asked> {
        let asked = self.origin.asked();
        assert_eq!(asked[0].field("range"), None);
        asked[1..].iter().map(Request::range).collect()
    }

    /// Waits until a request that the origin must not answer is a hit.
    pub(crate) fn await_stored(&self) {
        let is_stored = || get(self.proxy.address, &FILM.target(), "Cache-Control: only-if-cached\r\n");
        assert!(wait_until(LIMIT, || is_stored().head.status == 200), "the film stays incomplete");
    }
}

/// Connects a client that requests the film and reads its beginning.
pub(crate) fn begin(proxy: &Proxy, gate: &Gate) -> Client {
    let mut client = Client::connect(proxy.address).unwrap();
    client.ask("GET", &FILM.target(), "").unwrap();
    gate.open(BEGINNING);
    assert_eq!(client.head().unwrap().len(), Some(FILM.len));
    assert!(FILM.is(0, &client.exactly(BEGINNING).unwrap()));
    client
}

#[track_caller]
pub(crate) fn assert_part(response: &Response, first: u64, len: u64) {
    let range = format!("bytes {first}-{}/{}", first + len - 1, FILM.len);
    assert_eq!((response.head.status, response.head.field("content-range")), (206, Some(&*range)));
    assert!(response.body.len() as u64 == len && FILM.is(first, &response.body), "{range}");
}

/// Reads the response to a seek that has to wait for the fill: its head comes before its bytes.
#[track_caller]
pub(crate) fn assert_waits(mut client: Client, gate: &Gate, first: u64, len: u64) {
    let head = client.head().unwrap();
    gate.open(FILM.len);
    let body = client.body(&head).unwrap();
    assert_part(&Response { head, body }, first, len);
}
