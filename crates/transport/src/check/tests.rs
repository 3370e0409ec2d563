use std::net::TcpListener as StdListener;

use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use socket2::{Domain, Socket, Type};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;

/// Generous where an answer comes; short where silence is the point.
const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(300);

fn node() -> NodeName {
    "node-1".parse().unwrap()
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn certificate(
    common_name: &str,
    names: &[&str],
) -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
    let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    let mut params = rcgen::CertificateParams::new(names).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, common_name);
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
    (certificate.der().clone(), key)
}

/// Checks a port that finishes TLS with this certificate and then answers `answer`.
async fn check_server(common_name: &str, names: &[&str], answer: &[u8]) -> PortAnswer {
    let (certificate, key) = certificate(common_name, names);
    let config = ServerConfig::builder_with_provider(tls::provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let (listener, address) = listen().await;
    let serve = async {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = TlsAcceptor::from(Arc::new(config))
            .accept(stream)
            .await
            .unwrap();
        let mut request = [0; 512];
        let len = stream.read(&mut request).await.unwrap();
        assert!(request[..len].starts_with(b"GET /healthz HTTP/1.1\r\n"));
        stream.write_all(answer).await.unwrap();
        stream.flush().await.unwrap();
        // Like a kubelet, which need not close at once; a hung one never does.
        let _ = stream.read(&mut request).await;
    };
    let node = node();
    let (checked, ()) = tokio::join!(kubelet_port(address, &node, LONG), serve);
    checked
}

/// A kubelet that wants authentication is a kubelet that lives.
#[tokio::test]
async fn any_http_status_over_tls_is_an_answer() {
    for answer in [
        &b"HTTP/1.1 401 Unauthorized\r\n\r\n"[..],
        b"HTTP/1.1 200 OK\r\n\r\nok",
        b"HTTP/1.0 503 no\r\n\r\n",
    ] {
        assert_eq!(
            check_server("system:node:node-1", &[], answer).await,
            PortAnswer::Tls { names_node: true }
        );
    }
}

/// Scenario 34: the certificate tells whose kubelet it is.
#[tokio::test]
async fn the_certificate_tells_whether_it_is_that_node() {
    let ok = b"HTTP/1.1 200 OK\r\n\r\n";
    for (common_name, names, names_node) in [
        ("node-1@1700000000", &["node-1"][..], true),
        ("node-1@1700000000", &["NODE-1"][..], true),
        ("system:node:node-1", &["other"][..], true),
        ("system:node:node-2", &["node-2"][..], false),
        ("node-1", &["10.0.0.1"][..], false),
        ("system:node:node-11", &["node-1.example.com"][..], false),
    ] {
        assert_eq!(
            check_server(common_name, names, ok).await,
            PortAnswer::Tls { names_node },
            "{common_name} {names:?}"
        );
    }
}

/// TLS without HTTP, and HTTP without TLS, are no kubelet.
#[tokio::test]
async fn what_speaks_no_http_over_tls_only_accepts() {
    assert_eq!(
        check_server(
            "system:node:node-1",
            &[],
            b"SSH-2.0-OpenSSH\r\n\r\n\r\n\r\n"
        )
        .await,
        PortAnswer::Accepts
    );
    let (listener, address) = listen().await;
    let plain = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
    };
    let (checked, ()) = tokio::join!(kubelet_port(address, None, LONG), plain);
    assert_eq!(checked, PortAnswer::Accepts);
}

/// A hung userland: the kernel accepts, and nobody reads.
#[tokio::test]
async fn a_port_that_accepts_and_says_nothing_accepts() {
    let (_listener, address) = listen().await;
    assert_eq!(
        kubelet_port(address, None, SHORT).await,
        PortAnswer::Accepts
    );
    assert!(tcp(address, LONG).await);
    assert!(!healthz(address, SHORT).await);
}

/// Scenario 31: a refusal is a packet of a living host.
#[tokio::test]
async fn a_closed_port_refuses() {
    let listener = StdListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    assert_eq!(kubelet_port(address, None, LONG).await, PortAnswer::Refuses);
    assert!(!tcp(address, LONG).await);
}

/// A host that drops packets is silent, which is not a refusal. A full accept
/// queue makes the kernel drop.
#[tokio::test]
async fn a_port_that_drops_packets_is_silent() {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    socket.bind(&any.into()).unwrap();
    socket.listen(0).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    let mut held = Vec::new();
    while let Ok(Ok(stream)) = timeout(SHORT, TcpStream::connect(address)).await {
        held.push(stream);
    }
    assert_eq!(kubelet_port(address, None, SHORT).await, PortAnswer::Silent);
    assert!(!tcp(address, SHORT).await);
}

/// The kubelet's plain health port: 200 and nothing else is health.
#[tokio::test]
async fn healthz_is_200_and_nothing_else() {
    for (answer, healthy) in [
        (&b"HTTP/1.1 200 OK\r\n\r\nok"[..], true),
        (b"HTTP/1.1 500 Internal Server Error\r\n\r\n", false),
        (b"HTTP/1.1 2", false),
        (b"nonsense", false),
        (b"", false),
    ] {
        let (listener, address) = listen().await;
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(answer).await.unwrap();
        };
        let (found, ()) = tokio::join!(healthz(address, LONG), serve);
        assert_eq!(found, healthy, "{}", String::from_utf8_lossy(answer));
    }
}
