//! Connection to one broker: requests and answers in frames, one after the other.

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

use super::requests::Api;
use super::wire::put_text;

/// Name of this program in the broker's log and quotas.
const CLIENT: &str = "strait";
/// Maximum length of an answer. The longest has the partitions of a topic.
const ANSWER_BYTES_MAX: usize = 8 << 20;

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Open connection.
pub(super) struct Connection {
    stream: Box<dyn Stream>,
    /// Number of the last request.
    number: i32,
}

impl Connection {
    /// Connects to the first address of HOST:PORT that works.
    pub(super) async fn open(
        address: &str,
        tls: Option<&TlsConnector>,
        end: Instant,
    ) -> Result<Self, String> {
        let stream = within(end, TcpStream::connect(address)).await?;
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
        Ok(Self { stream, number: 0 })
    }

    /// Sends a request.
    pub(super) async fn send(&mut self, api: Api, body: &[u8], end: Instant) -> Result<(), String> {
        self.number = self.number.wrapping_add(1);
        let mut frame = vec![0; 4];
        frame.extend(api.key.to_be_bytes());
        frame.extend(api.version.to_be_bytes());
        frame.extend(self.number.to_be_bytes());
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

    /// Reads the answer to the last request.
    pub(super) async fn receive(&mut self, end: Instant) -> Result<Vec<u8>, String> {
        let mut head = [0; 8];
        within(end, self.stream.read_exact(&mut head)).await?;
        let [a, b, c, d, number @ ..] = head;
        let length = i32::from_be_bytes([a, b, c, d]);
        let body = usize::try_from(length).ok().and_then(|length| length.checked_sub(number.len()));
        let body = body.filter(|body| *body <= ANSWER_BYTES_MAX && i32::from_be_bytes(number) == self.number);
        let mut answer = vec![0; body.ok_or("its answer is not in Kafka's protocol")?];
        within(end, self.stream.read_exact(&mut answer)).await?;
        Ok(answer)
    }

    /// Sends a request, and reads its answer.
    pub(super) async fn call(&mut self, api: Api, body: &[u8], end: Instant) -> Result<Vec<u8>, String> {
        self.send(api, body, end).await?;
        self.receive(end).await
    }
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
