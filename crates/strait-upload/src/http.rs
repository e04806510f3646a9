//! HTTP client of the store, which reads only the start of a response.
//!
//! All responses that an upload needs are short. The client of object_store keeps the whole body of
//! an error, and reserves memory for the length that the store claims, so that a store could end
//! this process.

use std::pin::Pin;

use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
    HttpService, ReqwestConnector,
};

/// Maximum length of a body; the rest is cut.
const BODY_BYTES_MAX: usize = 64 << 10;

/// Connector with the limit.
#[derive(Debug)]
pub(crate) struct Connector;

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(Limited { client }))
    }
}

#[derive(Debug)]
struct Limited {
    client: HttpClient,
}

impl HttpService for Limited {
    fn call<'a, 'b>(
        &'a self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            let (head, body) = self.client.execute(request).await?.into_parts();
            Ok(HttpResponse::from_parts(head, start(body).await?))
        })
    }
}

/// Reads a body up to the limit. The connection of a longer one is closed.
async fn start(body: HttpResponseBody) -> Result<HttpResponseBody, HttpError> {
    let mut rest = reqwest::Response::from(http::Response::new(reqwest::Body::wrap(body)));
    let mut bytes = Vec::new();
    while bytes.len() < BODY_BYTES_MAX {
        let chunk = rest.chunk().await.map_err(|error| failed(error.without_url()))?;
        let Some(chunk) = chunk else { break };
        let taken = chunk.len().min(BODY_BYTES_MAX - bytes.len());
        bytes.extend_from_slice(chunk.get(..taken).unwrap_or_default());
    }
    Ok(bytes.into())
}

fn failed(error: reqwest::Error) -> HttpError {
    let kind = if error.is_timeout() { HttpErrorKind::Timeout } else { HttpErrorKind::Interrupted };
    HttpError::new(kind, error)
}
