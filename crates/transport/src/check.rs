//! Host checks: what a TCP port answers to one who is not its client.
//!
//! They decide whether a silent agent's host is dead, so they tell apart what the
//! kernel says (accepts, refuses), what its userland says (TLS and HTTP), and
//! silence. Every read is bounded, and each check takes at most its timeout.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use swimlet_protocol::NodeName;
use swimlet_protocol::frame::PortAnswer;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::shared::lock;
use crate::tls;

/// Bytes of an answer that decide: `HTTP/1.1 200`.
const STATUS_BYTES: usize = 12;
/// Most bytes of an answer that are read.
const ANSWER_BYTES_MAX: usize = 512;
/// The server name sent to a kubelet. Its certificate is judged here, whatever it names.
const KUBELET_SERVER_NAME: &str = "kubelet.swimlet.internal";

/// What the kubelet port at `address` does within `limit`.
///
/// TLS is finished, taking any certificate, and `GET /healthz` is asked: any HTTP
/// status is an answer, 401 and 403 too, since all that matters is that the
/// kubelet's userland answers. A bare connect would be written into the kubelet's
/// log each time.
///
/// | found | answer |
/// | --- | --- |
/// | TLS finished and an HTTP status line came | [`PortAnswer::Tls`] |
/// | connected, and no such answer came in time or the connection broke | [`PortAnswer::Accepts`] |
/// | `ECONNREFUSED`, `ECONNRESET` or `ECONNABORTED` on connecting: a packet came back | [`PortAnswer::Refuses`] |
/// | no answer in time, `EHOSTUNREACH`, `ENETUNREACH`, `ETIMEDOUT`, `EPERM` and anything else on connecting | [`PortAnswer::Silent`] |
///
/// `EHOSTUNREACH` and `ENETUNREACH` are said by a router or our own kernel, not by
/// the host, so they are silence. `names_node` says that the certificate names
/// `node` (as `system:node:NAME` in the common name, or as a DNS name or address)
/// and that the server holds its key.
pub async fn kubelet_port<'a>(
    address: SocketAddr,
    node: impl Into<Option<&'a NodeName>>,
    limit: Duration,
) -> PortAnswer {
    let node = node.into();
    let mut connected = false;
    let tried = async {
        let stream = match TcpStream::connect(address).await {
            Ok(stream) => stream,
            Err(error) => return refused_or_silent(&error),
        };
        connected = true;
        match ask_kubelet(stream).await {
            Some(seen) => PortAnswer::Tls {
                names_node: node.is_some_and(|node| seen.names(node)),
            },
            None => PortAnswer::Accepts,
        }
    };
    match timeout(limit, tried).await {
        Ok(answer) => answer,
        Err(_) if connected => PortAnswer::Accepts,
        Err(_) => PortAnswer::Silent,
    }
}

/// Whether `GET /healthz` over plain HTTP answers 200 within `limit`.
pub async fn healthz(address: SocketAddr, limit: Duration) -> bool {
    let tried = async {
        let stream = TcpStream::connect(address).await.ok()?;
        status(stream, "/healthz").await
    };
    matches!(timeout(limit, tried).await, Ok(Some(200)))
}

/// Whether a TCP connection to `address` is accepted within `limit`.
pub async fn tcp(address: SocketAddr, limit: Duration) -> bool {
    matches!(timeout(limit, TcpStream::connect(address)).await, Ok(Ok(_)))
}

/// The certificate that a server showed.
#[derive(Debug, Default)]
struct Seen {
    certificate: Mutex<Option<CertificateDer<'static>>>,
    proven: OnceLock<bool>,
}

/// Takes any certificate and remembers it.
#[derive(Debug)]
struct TakesAny(Arc<Seen>);

impl Seen {
    /// Whether the certificate names `node` and the server holds its key.
    fn names(&self, node: &NodeName) -> bool {
        self.proven.get() == Some(&true)
            && lock(&self.certificate)
                .as_ref()
                .is_some_and(|certificate| certificate_names(certificate, node.as_str()))
    }
}

impl ServerCertVerifier for TakesAny {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        *lock(&self.0.certificate) = Some(end_entity.clone().into_owned());
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    /// A key of a kind that we cannot check still answers; it proves no name.
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = tls::provider().signature_verification_algorithms;
        let proven = rustls::crypto::verify_tls13_signature(message, cert, dss, &algorithms);
        // A connection verifies one signature, so the slot is empty.
        let _ = self.0.proven.set(proven.is_ok());
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        tls::provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}

fn refused_or_silent(error: &io::Error) -> PortAnswer {
    match error.kind() {
        ErrorKind::ConnectionRefused
        | ErrorKind::ConnectionReset
        | ErrorKind::ConnectionAborted => PortAnswer::Refuses,
        _ => PortAnswer::Silent,
    }
}

/// TLS and one request; `None` if either fails.
async fn ask_kubelet(stream: TcpStream) -> Option<Arc<Seen>> {
    let seen = Arc::new(Seen::default());
    let config = ClientConfig::builder_with_provider(tls::provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .ok()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(TakesAny(seen.clone())))
        .with_no_client_auth();
    let name = ServerName::try_from(KUBELET_SERVER_NAME).ok()?;
    let stream = TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .ok()?;
    status(stream, "/healthz").await?;
    Some(seen)
}

/// The HTTP status that answers `GET path`; `None` if no status line comes.
async fn status(mut stream: impl AsyncRead + AsyncWrite + Unpin, path: &str) -> Option<u16> {
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: swimlet\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.ok()?;
    stream.flush().await.ok()?;
    let mut answer = Vec::with_capacity(ANSWER_BYTES_MAX);
    let mut stream = stream.take(ANSWER_BYTES_MAX as u64);
    // An error after the status line, such as a missing TLS goodbye, is no matter.
    while answer.len() < STATUS_BYTES {
        if stream.read_buf(&mut answer).await.ok()? == 0 {
            break;
        }
    }
    parse_status(&answer)
}

/// The status of `HTTP/1.x NNN`, once all of that has arrived.
fn parse_status(answer: &[u8]) -> Option<u16> {
    let line = answer.strip_prefix(b"HTTP/1.")?;
    let (_minor, line) = line.split_first()?;
    let digits = line.strip_prefix(b" ")?.get(..3)?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn certificate_names(certificate: &CertificateDer<'_>, node: &str) -> bool {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else {
        return false;
    };
    let common_name = certificate
        .subject()
        .iter_common_name()
        .filter_map(|name| name.as_str().ok())
        .any(|name| name.strip_prefix("system:node:") == Some(node));
    let alternative = certificate
        .subject_alternative_name()
        .ok()
        .flatten()
        .is_some_and(|names| {
            names.value.general_names.iter().any(|name| match name {
                GeneralName::DNSName(name) => name.eq_ignore_ascii_case(node),
                GeneralName::IPAddress(bytes) => address_of(bytes).as_deref() == Some(node),
                _ => false,
            })
        });
    common_name || alternative
}

fn address_of(bytes: &[u8]) -> Option<String> {
    if let Ok(bytes) = <[u8; 4]>::try_from(bytes) {
        return Some(std::net::Ipv4Addr::from(bytes).to_string());
    }
    let bytes = <[u8; 16]>::try_from(bytes).ok()?;
    Some(std::net::Ipv6Addr::from(bytes).to_string())
}

#[cfg(test)]
mod tests;
