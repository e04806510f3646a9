//! Body of a request that is sent while the response is received, as HTTP/2 allows on both sides.

use std::future::pending;
use std::sync::Arc;

use strait_http::trailer::Trailers;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::io::socket::Socket;
use crate::upstream::error::FetchError;
use crate::upstream::pool::Upstream;
use crate::upstream::upload::Upload;

/// Task that sends the body of a request. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Uploading {
    /// `None` after its end.
    task: Option<JoinHandle<(Upload, Result<(), FetchError>)>>,
    stopped: Arc<Notify>,
    /// Body after the end of the task.
    rest: Option<Upload>,
}

impl Uploading {
    /// Begins to send the rest of the body of a client on HTTP/2 to an origin on HTTP/2, with its
    /// trailers if `has_trailers`; `None` if there is no body, or the client has another protocol.
    pub(crate) fn begin(
        upstream: &Upstream<'_>,
        client: &Socket,
        upload: &mut Upload,
        origin: &mut Socket,
        has_trailers: bool,
    ) -> Option<Self> {
        let mut client = client.split_request().filter(|_| upload.has_body())?;
        let mut origin_end = origin.split_to_origin()?;
        let mut upload = upload.take();
        if upload.is_of_known_length() {
            client.pace = Some(upload.begun(upstream));
        } else {
            // Messages of a stream have no pace. The response has the time of a stream as well.
            let patience = upstream.tunnel_timeout();
            (client.idle_timeout, origin.idle_timeout) = (patience, patience);
            origin_end.idle_timeout = patience;
        }
        let stopped = Arc::new(Notify::new());
        let stop = stopped.clone();
        let trailers = has_trailers.then(Trailers::of_request);
        let task = async move {
            // Bytes that were received are in the buffer until they are sent.
            let done = tokio::select! {
                biased;
                () = stop.notified() => Ok(()),
                done = upload.send_beside(&mut client, &mut origin_end, trailers) => done,
            };
            (upload, done)
        };
        Some(Self { task: Some(tokio::task::spawn_local(task)), stopped, rest: None })
    }

    /// Returns the error that ends the exchange. An origin may respond without the whole body, so
    /// its errors are those of the response.
    pub(crate) async fn failed(&mut self) -> FetchError {
        if let Err(error) = self.ended().await {
            return error;
        }
        pending().await
    }
}

impl Uploading {
    /// Stops sending, and returns the body.
    pub(crate) async fn stop(&mut self) -> Option<Upload> {
        self.stopped.notify_one();
        let _ = self.ended().await;
        self.rest.take()
    }

    /// Waits until nothing more is sent.
    ///
    /// # Errors
    /// As for [`Uploading::failed`].
    pub(crate) async fn ended(&mut self) -> Result<(), FetchError> {
        let Some(task) = &mut self.task else { return Ok(()) };
        let ended = task.await;
        self.task = None;
        let Ok((upload, done)) = ended else { return Ok(()) };
        self.rest = Some(upload);
        done
    }
}

impl Drop for Uploading {
    fn drop(&mut self) {
        self.task.iter().for_each(JoinHandle::abort);
    }
}
