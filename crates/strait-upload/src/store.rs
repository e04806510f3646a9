//! The object store: one object for each file, which is visible when it is complete.

use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::time::{Duration, Instant};

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path as Key;
use object_store::{BackoffConfig, ClientOptions, MultipartUpload as _, ObjectStoreExt as _, RetryConfig};
use rustix::fs::{Mode, OFlags};
use strait_program::Error;
use strait_program::bucket::Bucket;
use tokio::runtime::Runtime;

use crate::http::Connector;
use crate::spool::Complete;

/// Size above which a file is sent in parts, and the size of a part. Stores require at least 5 MiB
/// for each part but the last, and take 10,000 parts.
const PART_BYTES: usize = 8 << 20;
/// Limits of one request: attempts, and the time for all of them.
const RETRIES_MAX: usize = 4;
const RETRY_FOR: Duration = Duration::from_secs(15);
const BACKOFF: Duration = Duration::from_millis(200);
const BACKOFF_MAX: Duration = Duration::from_secs(4);
/// Limits of one attempt.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
const REQUEST_LIMIT: Duration = Duration::from_mins(2);
/// Interval at which it is checked if a request has taken too long.
const CHECK_EVERY: Duration = Duration::from_millis(500);
/// Addresses that errors show.
const ENDPOINTS: [AmazonS3ConfigKey; 4] = [
    AmazonS3ConfigKey::Endpoint,
    AmazonS3ConfigKey::S3Endpoint,
    AmazonS3ConfigKey::StsEndpoint,
    AmazonS3ConfigKey::MetadataEndpoint,
];
/// Time for the store to remove the parts of a file that is not completed.
const ABORT_LIMIT: Duration = Duration::from_secs(5);
/// Maximum length of the text of an error.
const ERROR_LEN_MAX: usize = 400;

/// Bucket with a prefix.
pub(crate) struct Store {
    bucket: Bucket,
    client: object_store::aws::AmazonS3,
    runtime: Runtime,
}

/// Result of sending a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// The store has the object, with this many bytes.
    Bytes(u64),
    /// The file is gone: another process has sent it.
    Gone,
}

impl Store {
    /// Prepares requests. The environment has the credentials, the region and the endpoint.
    pub(crate) fn open(bucket: &Bucket) -> Result<Self, Error> {
        let builder = AmazonS3Builder::from_env().with_bucket_name(&bucket.name);
        let endpoints = ENDPOINTS.iter().filter_map(|key| builder.get_config_value(key));
        let endpoints: Vec<String> = endpoints.collect();
        if endpoints.iter().any(|endpoint| has_user(endpoint)) {
            return Err(Error::usage(
                "AWS_ENDPOINT_URL has a user or a password, which errors would show: give credentials by \
                 AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            ));
        }
        let is_plain = endpoints.iter().any(|endpoint| endpoint.starts_with("http://"));
        let options = ClientOptions::new()
            .with_allow_http(is_plain)
            .with_connect_timeout(CONNECT_LIMIT)
            .with_timeout(REQUEST_LIMIT);
        let retry = RetryConfig {
            backoff: BackoffConfig { init_backoff: BACKOFF, max_backoff: BACKOFF_MAX, base: 2.0 },
            max_retries: RETRIES_MAX,
            retry_timeout: RETRY_FOR,
        };
        let builder = builder.with_client_options(options).with_retry(retry);
        let client = builder.with_http_connector(Connector).build();
        let client = client.map_err(|error| Error::failed(format!("open {bucket}: {}", one_line(&error))))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Error::failed(format!("start the HTTP client: {error}")))?;
        Ok(Self { bucket: bucket.clone(), client, runtime })
    }

    pub(crate) fn bucket(&self) -> &Bucket {
        &self.bucket
    }

    /// Sends a file. An object of that name is replaced: it is the same file. Fails as soon as
    /// `check` does, which is called twice a second with the start of the current request.
    pub(crate) fn send(&self, file: &Complete, mut check: impl Check) -> Result<Sent, Error> {
        let failed = |error: std::io::Error| Error::failed(format!("read {}: {error}", file.path.display()));
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut content = match rustix::fs::open(&file.path, flags, Mode::empty()) {
            Ok(content) => File::from(content),
            Err(rustix::io::Errno::NOENT) => return Ok(Sent::Gone),
            Err(errno) => return Err(failed(errno.into())),
        };
        let prefix = &self.bucket.prefix;
        let key = if prefix.is_empty() { file.key.clone() } else { format!("{prefix}/{}", file.key) };
        let key = Key::parse(&key).map_err(|error| Error::failed(format!("send {key}: {error}")))?;
        let first = read_part(&mut content).map_err(failed)?;
        if first.len() >= PART_BYTES {
            let next = || read_part(&mut content).map_err(failed);
            return self.runtime.block_on(self.send_parts(&key, first, next, &mut check));
        }
        let length = first.len() as u64;
        self.runtime.block_on(checked(self.client.put(&key, first.into()), &mut check))?;
        Ok(Sent::Bytes(length))
    }

    /// Sends a file in parts. The store shows the object after the last one.
    async fn send_parts(
        &self,
        key: &Key,
        first: Vec<u8>,
        mut next: impl FnMut() -> Result<Vec<u8>, Error>,
        check: &mut impl Check,
    ) -> Result<Sent, Error> {
        let mut upload = checked(self.client.put_multipart(key), check).await?;
        let (mut part, mut bytes) = (first, 0);
        let sent = loop {
            bytes += part.len() as u64;
            if let Err(error) = checked(upload.put_part(part.into()), check).await {
                break Err(error);
            }
            part = match next() {
                Ok(part) if part.is_empty() => break Ok(()),
                Ok(part) => part,
                Err(error) => break Err(error),
            };
        };
        let sent = match sent {
            Ok(()) => checked(upload.complete(), check).await.map(drop),
            Err(error) => Err(error),
        };
        if sent.is_err() {
            // The error of the part is reported. The rules of the bucket remove what is left.
            let _ = tokio::time::timeout(ABORT_LIMIT, upload.abort()).await;
        }
        sent.map(|()| Sent::Bytes(bytes))
    }
}

/// Returns an error if a request since that time shall end.
pub(crate) trait Check: FnMut(Instant) -> Result<(), Error> {}
impl<F: FnMut(Instant) -> Result<(), Error>> Check for F {}

/// Waits for a request, and calls `check` at intervals, of which the failure ends the wait.
async fn checked<T>(
    request: impl Future<Output = object_store::Result<T>>,
    check: &mut impl Check,
) -> Result<T, Error> {
    let started = Instant::now();
    let mut request = std::pin::pin!(request);
    loop {
        match tokio::time::timeout(CHECK_EVERY, &mut request).await {
            Ok(sent) => return sent.map_err(|error| Error::failed(one_line(&error))),
            Err(_) => check(started)?,
        }
    }
}

/// Returns true if a URL has a user or a password before its host (RFC 3986 s3.2.1).
fn has_user(url: &str) -> bool {
    let authority = url.split_once("://").map_or(url, |(_, rest)| rest);
    authority.split(['/', '\\', '?', '#']).next().is_some_and(|authority| authority.contains('@'))
}

/// Reads up to a whole part.
fn read_part(content: &mut File) -> std::io::Result<Vec<u8>> {
    let mut part = Vec::new();
    loop {
        match content.by_ref().take((PART_BYTES - part.len()) as u64).read_to_end(&mut part) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result.map(|_| part),
        }
    }
}

/// Returns the text of an error on one line, with its innermost cause. Stores answer with XML of
/// any length.
fn one_line(error: &object_store::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let (mut text, cause) = (error.to_string(), cause.to_string());
    if !text.contains(&cause) {
        text = format!("{cause}: {text}");
    }
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match text.char_indices().nth(ERROR_LEN_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_without_an_end_is_ended_by_its_check() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut checks = 0;
        let mut check = |_| {
            checks += 1;
            if checks == 2 { Err(Error::failed("late")) } else { Ok(()) }
        };
        let ended = runtime.block_on(checked(std::future::pending::<object_store::Result<()>>(), &mut check));
        assert_eq!((ended.unwrap_err().to_string(), checks), ("late".into(), 2));
        let done = runtime.block_on(checked(async { Ok(7) }, &mut |_| Err(Error::failed("late"))));
        assert_eq!(done.unwrap(), 7);
    }

    #[test]
    fn user_in_an_address_is_found() {
        for url in ["http://user:pass@host:1/x", "https://user@host", "http://a@b@host/", "user:pass@host"] {
            assert!(has_user(url), "{url}");
        }
        for url in ["http://host:1/@x", "https://host?a@b", "host", ""] {
            assert!(!has_user(url), "{url}");
        }
    }
}
