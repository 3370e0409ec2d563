//! Garbage, oversized packets and stalled handshakes.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test's helpers fail the test as the test itself would"
)]

mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quinn::crypto::rustls::QuicClientConfig;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};
use support::{Member, VALIDITY, agent, authority, config, credentials, frame, linked, until};
use swimlet_protocol::Identity;
use swimlet_protocol::codec::encode_frame;
use swimlet_transport::ca::Authority;
use swimlet_transport::{Config, Event, LinkLoss};
use tokio::net::UdpSocket;

/// Scenario 29: what is no QUIC packet of a member is dropped and counted, and a
/// link beside it works on.
#[tokio::test]
async fn garbage_and_oversized_packets_are_dropped_and_counted() {
    let (a, mut b) = linked().await;
    let stranger = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let garbage: [&[u8]; 3] = [b"x", b"GET / HTTP/1.1\r\n\r\n", &[0; 300]];
    for packet in garbage {
        stranger.send_to(packet, b.address()).await.unwrap();
    }
    for len in [1_201, 9_000, 65_000] {
        let packet = vec![0xff; len];
        stranger.send_to(&packet, b.address()).await.unwrap();
    }
    // These look like QUIC: a short header and a long one with nonsense behind.
    for first in [0x40, 0xc0] {
        let packet = [&[first][..], &[0xaa; 1_199][..]].concat();
        stranger.send_to(&packet, b.address()).await.unwrap();
    }
    until("all of it is counted", || {
        let stats = b.transport.stats();
        stats.udp_garbage == 3 && stats.udp_oversized == 3
    })
    .await;
    a.reaches(&mut b, 1).await;
    assert_eq!(b.transport.links(), 1);
}

/// Scenario 29: a member's malformed datagrams are dropped and counted; a stream
/// of them costs it the link, a few do not, and another version's never do.
#[tokio::test]
async fn malformed_frames_are_counted_and_a_stream_of_them_ends_the_link() {
    let authority = authority();
    let mut b = Member::start(&authority, &agent("b")).await;
    let raw = RawMember::new(&authority, &agent("raw"));
    let connection = raw.connect(b.address()).await;
    b.link_up(&agent("raw")).await;

    let valid = encode_frame(&frame(7)).unwrap();
    let mut trailing = valid.clone();
    trailing.push(0);
    let mut other_version = valid.clone();
    other_version[0] = 99;
    let few = [vec![1], valid[..valid.len() - 1].to_vec(), trailing];
    for bytes in few.iter().chain([&other_version; 20]).chain([&valid]) {
        connection
            .send_datagram_wait(Bytes::from(bytes.clone()))
            .await
            .unwrap();
    }
    let (from, got) = b.frame().await;
    assert_eq!((from, got), (agent("raw").key(), frame(7)));
    until("all are counted", || {
        let stats = b.transport.stats();
        stats.frames_malformed == 3 && stats.frames_other_version == 20
    })
    .await;
    assert_eq!(b.transport.links(), 1);

    while connection
        .send_datagram_wait(Bytes::from_static(&[1]))
        .await
        .is_ok()
    {}
    let reason = b
        .wait(|event| match event {
            Event::LinkDown { reason, .. } => Some(reason),
            _ => None,
        })
        .await;
    assert_eq!(reason, LinkLoss::Malformed);
    assert_eq!(b.transport.stats().links_closed_malformed, 1);
}

/// Scenario 29: a stream message that claims too much, or ends early, is refused
/// without being waited for, and the link stays.
#[tokio::test]
async fn broken_sync_streams_are_refused_and_the_link_stays() {
    let authority = authority();
    let mut b = Member::start(&authority, &agent("b")).await;
    let raw = RawMember::new(&authority, &agent("raw"));
    let connection = raw.connect(b.address()).await;
    b.link_up(&agent("raw")).await;
    let messages: [&[u8]; 3] = [&[0xff; 4], &[0, 0, 0, 9, 1], &[0, 0, 0, 2, 1, 200]];
    for message in messages {
        let (mut send, mut receive) = connection.open_bi().await.unwrap();
        send.write_all(message).await.unwrap();
        send.finish().unwrap();
        let answer = receive.read_to_end(1_024).await;
        assert!(answer.is_err() || answer.is_ok_and(|bytes| bytes.is_empty()));
    }
    until("all are counted", || b.transport.stats().syncs_bad == 3).await;
    assert_eq!(b.transport.links(), 1);
}

/// Scenario 28: handshakes that stall take a bounded number of places, for a
/// bounded time, while members link and talk as ever.
#[tokio::test]
async fn stalled_handshakes_are_bounded_and_members_unaffected() {
    let authority = authority();
    let narrow = Config {
        handshakes_max: 8,
        handshakes_retry_above: 4,
        handshake_timeout: Duration::from_secs(3),
        ..config(&agent("hub"))
    };
    let mut hub = Member::with(
        narrow,
        credentials(&authority, &agent("hub"), &[&authority]),
    )
    .await;
    let mut a = Member::start(&authority, &agent("a")).await;
    a.dial(&hub);
    hub.link_up(&agent("a")).await;
    a.link_up(&agent("hub")).await;

    let attacker = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    for packet in first_packets(&authority, 40).await {
        attacker.send_to(&packet, hub.address()).await.unwrap();
    }
    until("the places are taken and the rest is sent back", || {
        hub.transport.handshakes() == 4 && hub.transport.stats().handshakes_retried >= 36
    })
    .await;

    // A link that is up carries on, and a member that answers the Retry gets in.
    a.reaches(&mut hub, 1).await;
    let c = Member::start(&authority, &agent("c")).await;
    c.dial(&hub);
    hub.link_up(&agent("c")).await;
    until("the stalled ones are given up", || {
        hub.transport.stats().handshakes_stalled == 4
    })
    .await;
    assert_eq!(hub.transport.handshakes(), 0);
    assert_eq!(hub.transport.links(), 2);
}

/// The first packets of `count` handshakes, caught on their way.
async fn first_packets(authority: &Authority, count: usize) -> Vec<Vec<u8>> {
    let raw = RawMember::new(authority, &agent("attacker"));
    let catcher = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let mut packets = Vec::new();
    let mut buffer = [0; 1_500];
    for _ in 0..count {
        let connecting = raw.dial(catcher.local_addr().unwrap());
        let (len, _) = catcher.recv_from(&mut buffer).await.unwrap();
        packets.push(buffer[..len].to_vec());
        // Its goodbye is no first packet.
        drop(connecting);
        let _ = catcher.recv_from(&mut buffer).await.unwrap();
    }
    packets
}

/// A member with a valid certificate that speaks QUIC by hand.
struct RawMember {
    endpoint: quinn::Endpoint,
}

impl RawMember {
    fn new(authority: &Authority, identity: &Identity) -> Self {
        let issued = authority.issue(identity, VALIDITY).unwrap();
        let chain =
            vec![CertificateDer::from_pem_slice(issued.certificate_pem.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(issued.key_pem.as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(TrustsAll))
            .with_client_auth_cert(chain, key)
            .unwrap();
        tls.alpn_protocols = vec![b"swimlet/1".to_vec()];
        let tls = QuicClientConfig::try_from(tls).unwrap();
        let mut config = quinn::ClientConfig::new(Arc::new(tls));
        let mut transport = quinn::TransportConfig::default();
        transport.mtu_discovery_config(None);
        config.transport_config(Arc::new(transport));
        let mut endpoint_config = quinn::EndpointConfig::default();
        endpoint_config.grease_quic_bit(false);
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let runtime = Arc::new(quinn::TokioRuntime);
        let mut endpoint = quinn::Endpoint::new(endpoint_config, None, socket, runtime).unwrap();
        endpoint.set_default_client_config(config);
        Self { endpoint }
    }

    fn dial(&self, address: SocketAddr) -> quinn::Connecting {
        self.endpoint.connect(address, "any.name").unwrap()
    }

    async fn connect(&self, address: SocketAddr) -> quinn::Connection {
        self.dial(address).await.unwrap()
    }
}

#[derive(Debug)]
struct TrustsAll;

impl ServerCertVerifier for TrustsAll {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
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

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}
