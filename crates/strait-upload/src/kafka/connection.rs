//! Connection to one broker: requests and answers in frames, one after the other.

use std::net::SocketAddr;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

use super::requests::Api;
use super::wire::put_text;

/// Name of this program in the broker's log and quotas.
const CLIENT: &str = "strait";
/// Maximum number of addresses of a name that are tried.
const ADDRESSES_MAX: usize = 16;

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Open connection.
pub(super) struct Connection {
    stream: Box<dyn Stream>,
    /// Correlation ID of the last request, which its answer repeats.
    correlation: i32,
}

impl Connection {
    /// Connects to the first address of HOST:PORT that works.
    pub(super) async fn open(
        address: &str,
        tls: Option<&TlsConnector>,
        end: Instant,
    ) -> Result<Self, String> {
        let addresses: Vec<_> = within(end, lookup_host(address)).await?.take(ADDRESSES_MAX).collect();
        let stream = connect(&addresses, end).await?;
        // A request is written as a whole.
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let stream: Box<dyn Stream> = match tls {
            None => Box::new(stream),
            Some(tls) => {
                let (host, _) = address.rsplit_once(':').unwrap_or((address, ""));
                let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
                let name = ServerName::try_from(host).map_err(|error| error.to_string())?;
                Box::new(within(end, tls.connect(name, stream)).await?)
            }
        };
        Ok(Self { stream, correlation: 0 })
    }

    /// Sends a request.
    async fn send(&mut self, api: Api, body: &[u8], end: Instant) -> Result<(), String> {
        self.correlation = self.correlation.wrapping_add(1);
        let mut frame = vec![0; 4];
        frame.extend(api.key.to_be_bytes());
        frame.extend(api.version.to_be_bytes());
        frame.extend(self.correlation.to_be_bytes());
        put_text(&mut frame, CLIENT);
        frame.extend(body);
        // A batch is far below 2 GiB.
        let length = (frame.len() - 4) as i32;
        frame[..4].copy_from_slice(&length.to_be_bytes());
        within(end, async {
            self.stream.write_all(&frame).await?;
            self.stream.flush().await
        })
        .await
    }

    /// Reads the answer to the last request, of at most `len_max` bytes.
    async fn receive(&mut self, len_max: usize, end: Instant) -> Result<Vec<u8>, String> {
        let mut head = [0; 8];
        within(end, self.stream.read_exact(&mut head)).await?;
        let [a, b, c, d, correlation @ ..] = head;
        let length = i32::from_be_bytes([a, b, c, d]);
        let body = usize::try_from(length).ok().and_then(|length| length.checked_sub(correlation.len()));
        let body =
            body.filter(|body| *body <= len_max && i32::from_be_bytes(correlation) == self.correlation);
        let mut answer = vec![0; body.ok_or("its answer is not in Kafka's protocol")?];
        within(end, self.stream.read_exact(&mut answer)).await?;
        Ok(answer)
    }

    /// Sends a request, and reads its answer.
    pub(super) async fn call(&mut self, api: Api, body: &[u8], end: Instant) -> Result<Vec<u8>, String> {
        self.send(api, body, end).await?;
        self.receive(api.answer_len_max, end).await
    }
}

/// Connects to the first address that answers. Each has a share of the time: one may drop packets.
async fn connect(addresses: &[SocketAddr], end: Instant) -> Result<TcpStream, String> {
    let mut failure = "its name has no address".to_owned();
    for (address, left) in addresses.iter().zip((1..=addresses.len() as u32).rev()) {
        let now = Instant::now();
        let share = end.saturating_duration_since(now) / left;
        match within(now + share, TcpStream::connect(address)).await {
            Ok(stream) => return Ok(stream),
            Err(cause) => failure = cause,
        }
    }
    Err(failure)
}

/// Waits for an operation until `end`.
async fn within<T>(end: Instant, operation: impl Future<Output = std::io::Result<T>>) -> Result<T, String> {
    match timeout_at(end, operation).await {
        Ok(result) => result.map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => "it has closed the connection".to_owned(),
            _ => error.to_string(),
        }),
        Err(_) => Err("it has not answered in time".into()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::net::{TcpListener, TcpSocket};

    use super::super::requests::{METADATA, PRODUCE};
    use super::*;

    #[test]
    fn address_after_one_that_drops_packets_is_tried() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let any = "127.0.0.1:0".parse().unwrap();
            let full = TcpSocket::new_v4().unwrap();
            full.bind(any).unwrap();
            // The queue has room for one connection. The kernel drops the packets of others.
            let full = full.listen(0).unwrap();
            let full_at = full.local_addr().unwrap();
            let _first = TcpStream::connect(full_at).await.unwrap();
            let open = TcpListener::bind(any).await.unwrap();
            let end = Instant::now() + Duration::from_secs(4);
            let stream = connect(&[full_at, open.local_addr().unwrap()], end).await.unwrap();
            assert_eq!(stream.peer_addr().unwrap(), open.local_addr().unwrap());
            assert!(connect(&[], end).await.unwrap_err().contains("no address"));
        });
    }

    #[test]
    fn answer_is_refused_above_the_limit_of_its_request() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let end = Instant::now() + Duration::from_mins(1);
            let length = PRODUCE.answer_len_max + 1;
            for (api, is_taken) in [(METADATA, true), (PRODUCE, false)] {
                let (stream, mut broker) = tokio::io::duplex(2 * length);
                let mut answer = (4 + length as i32).to_be_bytes().to_vec();
                answer.extend(1_i32.to_be_bytes());
                answer.resize(answer.len() + length, 0);
                broker.write_all(&answer).await.unwrap();
                let mut connection = Connection { stream: Box::new(stream), correlation: 0 };
                let answer = connection.call(api, b"", end).await;
                assert_eq!(answer.is_ok_and(|answer| answer.len() == length), is_taken, "{api:?}");
            }
        });
    }
}
