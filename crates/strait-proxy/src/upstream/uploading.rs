//! Body of a request that is sent while the response is received, as HTTP/2 allows on both sides.

use std::future::pending;
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::io::socket::Socket;
use crate::upstream::error::FetchError;
use crate::upstream::pool::Upstream;
use crate::upstream::upload::Upload;

/// Task that sends the body of a request. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Uploading(Option<JoinHandle<Result<(), FetchError>>>);

impl Uploading {
    /// Begins to send the rest of the body of a client on HTTP/2 to an origin on HTTP/2; `None` if
    /// there is no body, or the client has another protocol.
    pub(crate) fn begin(
        upstream: &Upstream<'_>,
        client: &Socket,
        upload: &mut Upload,
        origin: &mut Socket,
    ) -> Option<Self> {
        let mut client = client.split_request().filter(|_| upload.has_body())?;
        let mut origin_end = origin.split_to_origin()?;
        let mut upload = upload.take();
        let settings = upstream.settings;
        if !upload.is_of_known_length() {
            // Messages of a stream have no pace. The response has the time of a stream as well.
            let patience: Duration = settings.timeouts.tunnel;
            client.idle_timeout = patience;
            origin.idle_timeout = patience;
            origin_end.idle_timeout = patience;
        } else {
            client.pace = Some(upload.begun(upstream));
        }
        let task = async move { upload.send_beside(&mut client, &mut origin_end).await };
        Some(Self(Some(tokio::task::spawn_local(task))))
    }

    /// Returns the error that ends the exchange. An origin may respond without the whole body, so
    /// its errors are those of the response.
    pub(crate) async fn failed(&mut self) -> FetchError {
        if let Some(task) = &mut self.0 {
            let ended = task.await;
            self.0 = None;
            if let Ok(Err(error)) = ended {
                return error;
            }
        }
        pending().await
    }
}

impl Drop for Uploading {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}
