//! Endpoint of `trace.export`: the collector that gets spans by OTLP over HTTP.

use strait_http::target::{Host, Scheme, Uri};

use crate::config::error::{Error, Result};
use crate::config::file::{Context, Trace};

/// End of the path at a collector (OTLP specification, section "OTLP/HTTP Request").
const PATH: &str = "/v1/traces";
/// Maximum of the bytes of the path.
const PATH_BYTES_MAX: usize = 1024;

/// Endpoint of a collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// Host name, or address without brackets.
    pub(crate) host: Box<str>,
    pub(crate) port: u16,
    /// True if the collector needs TLS.
    pub(crate) is_tls: bool,
    /// Value of Host.
    pub(crate) authority: Box<str>,
    pub(crate) path: Box<str>,
}

impl Endpoint {
    /// Checks the key; `None` if it is not set.
    pub(crate) fn new(trace: &Trace) -> Result<Option<Self>> {
        let Some(text) = &trace.export else { return Ok(None) };
        if !cfg!(feature = "otlp") {
            return Err(wrong(
                "this program was built without it; build it by \"cargo build --release -p strait-proxy --features otlp\", or remove the key",
            ));
        }
        if trace.context == Context::Pass {
            return Err(wrong("trace.context = \"pass\" has no spans; set \"join\" or \"begin\""));
        }
        Self::parse(text).map(Some).map_err(wrong)
    }

    /// Parses the endpoint; an error has the reason. It does not repeat the text, which can have a
    /// password.
    fn parse(text: &str) -> Result<Self, &'static str> {
        const EXPECTED: &str = "expected http://HOST:PORT/v1/traces or https://HOST:PORT/v1/traces, for example \"http://127.0.0.1:4318/v1/traces\"";
        let uri = Uri::parse(text).map_err(|_| EXPECTED)?;
        let port = uri.authority.port.ok_or(EXPECTED)?;
        if uri.path.contains('?') || !uri.path.ends_with(PATH) || uri.path.len() > PATH_BYTES_MAX {
            return Err(EXPECTED);
        }
        let host = match uri.authority.host {
            Host::Name(name) => name.to_ascii_lowercase(),
            Host::V4(address) => address.to_string(),
            Host::V6(address) => address.to_string(),
        };
        let authority = uri.authority.to_string().into();
        let is_tls = uri.scheme == Scheme::Https;
        Ok(Self { host: host.into(), port, is_tls, authority, path: uri.path.into() })
    }
}

fn wrong(why: &str) -> Error {
    Error::Config(format!("trace.export: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_checked() {
        let right = |text: &str| {
            let Endpoint { host, port, is_tls, authority, path } = Endpoint::parse(text).unwrap();
            format!("{host} {port} {is_tls} {authority} {path}")
        };
        assert_eq!(
            right("http://127.0.0.1:4318/v1/traces"),
            "127.0.0.1 4318 false 127.0.0.1:4318 /v1/traces"
        );
        assert_eq!(right("http://[::1]:1/v1/traces"), "::1 1 false [::1]:1 /v1/traces");
        assert_eq!(
            right("https://Otel.example:4318/in/v1/traces"),
            "otel.example 4318 true otel.example:4318 /in/v1/traces"
        );
        for (text, expected) in [
            ("", "expected http://HOST:PORT/v1/traces"),
            ("127.0.0.1:4318", "expected http"),
            ("http://127.0.0.1/v1/traces", "expected http"),
            ("http://127.0.0.1:0/v1/traces", "expected http"),
            ("http://127.0.0.1:4318", "expected http"),
            ("http://127.0.0.1:4318/v1/logs", "expected http"),
            ("http://127.0.0.1:4318/v1/traces?key=1", "expected http"),
            ("http://127.0.0.1:4318/v1/traces#a", "expected http"),
            ("http://me:secret@127.0.0.1:4318/v1/traces", "expected http"),
            ("http://127.0.0.1:4318/\r\nX: y/v1/traces", "expected http"),
            ("https://127.0.0.1/v1/traces", "expected http"),
            ("grpc://127.0.0.1:4317/v1/traces", "expected http"),
        ] {
            let error = Endpoint::parse(text).unwrap_err();
            assert!(error.starts_with(expected) && !error.contains("secret"), "{text}: {error}");
        }
    }

    #[test]
    fn an_endpoint_needs_the_feature_and_spans() {
        let of = |context| {
            let export = Some("http://127.0.0.1:4318/v1/traces".to_owned());
            Endpoint::new(&Trace { context, export, ..Trace::default() })
        };
        let error = |context| of(context).unwrap_err().to_string();
        if cfg!(feature = "otlp") {
            assert!(of(Context::Join).unwrap().is_some());
            assert!(error(Context::Pass).contains("set \"join\" or \"begin\""));
        } else {
            assert!(error(Context::Join).contains("--features otlp"), "{}", error(Context::Join));
        }
        assert_eq!(Endpoint::new(&Trace::default()).unwrap(), None);
    }
}
