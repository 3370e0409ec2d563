//! QUIC endpoints: sockets, keys and the lean settings.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use quinn::crypto::{CryptoError, HmacKey};
use quinn::{
    AsyncUdpSocket, ConnectionId, ConnectionIdGenerator, Endpoint, EndpointConfig, NoneTokenStore,
    Runtime, ServerConfig, TokioRuntime, TransportConfig,
};
use rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::crypto::tls13::OkmBlock;
use socket2::{Domain, Protocol, Socket, Type};

use crate::config::{Config, StartError};
use crate::credentials::Snapshot;
use crate::socket::{LeanSocket, UDP_PAYLOAD_MAX};
use crate::stats::Counters;
use crate::tls;

/// Window of a stream, of a link's streams together, and of what we send unacknowledged.
const WINDOW_BYTES: u32 = 16 * 1024;
/// Datagram buffer of a link, in each direction: seven full frames.
const DATAGRAM_BUFFER_BYTES: usize = 8 * 1024;
/// Streams that a peer may have open towards us: syncs, of which one is usual.
const PEER_STREAMS_MAX: u8 = 2;
/// Round trip assumed before one is measured. QUIC's 333 ms are the internet's:
/// they put the first retransmission at 1 s, where a dial is given up.
const INITIAL_RTT: Duration = Duration::from_millis(100);
/// Handshakes that wait for the accept loop, as a multiple of those in progress.
const WAITING_PER_HANDSHAKE: usize = 4;
/// Bytes kept for one waiting handshake: more than its two or three packets.
const WAITING_BYTES_MAX: u64 = 8 * 1024;

/// Length of our connection ids.
const CID_BYTES: usize = 8;

/// A bound endpoint.
#[derive(Clone)]
pub(crate) struct Bound {
    pub(crate) endpoint: Endpoint,
    pub(crate) address: SocketAddr,
}

/// HMAC-SHA256 with a fixed key: makes the stateless-reset token of a connection id.
struct Key([u8; 32]);

/// Makes connection ids: a keyed hash of a counter.
///
/// The key is fresh with each start. Were it kept, a restarted member would hand
/// out the ids of its former life again, take packets of a former link for those
/// of a new one, and not answer them with a reset.
struct ConnectionIds {
    key: Key,
    made: u64,
}

/// The settings of all links.
pub(crate) fn transport_config(config: &Config) -> Result<Arc<TransportConfig>, StartError> {
    let idle = config.idle_timeout.try_into().map_err(|_| {
        StartError::Tls(format!(
            "idle timeout {:?} is too long",
            config.idle_timeout
        ))
    })?;
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(PEER_STREAMS_MAX.into())
        .max_concurrent_uni_streams(0_u8.into())
        .stream_receive_window(WINDOW_BYTES.into())
        .receive_window(WINDOW_BYTES.into())
        .send_window(WINDOW_BYTES.into())
        .datagram_receive_buffer_size(Some(DATAGRAM_BUFFER_BYTES))
        .datagram_send_buffer_size(DATAGRAM_BUFFER_BYTES)
        .mtu_discovery_config(None)
        .initial_rtt(INITIAL_RTT)
        .max_idle_timeout(Some(idle));
    Ok(Arc::new(transport))
}

/// The server's settings that all incoming handshakes share; each brings its own TLS.
pub(crate) fn server_config(
    config: &Config,
    transport: Arc<TransportConfig>,
    credentials: Arc<Snapshot>,
) -> Result<ServerConfig, StartError> {
    let (crypto, _) = tls::server(&config.identity, credentials).map_err(StartError::Tls)?;
    let waiting = config.handshakes_max.saturating_mul(WAITING_PER_HANDSHAKE);
    let mut server = ServerConfig::with_crypto(crypto);
    server
        .transport_config(transport)
        // Members do not move: a link's address is where its peer is.
        .migration(false)
        .max_incoming(waiting)
        .incoming_buffer_size(WAITING_BYTES_MAX)
        .incoming_buffer_size_total(WAITING_BYTES_MAX.saturating_mul(waiting as u64));
    Ok(server)
}

/// The client's settings of one dial.
pub(crate) fn client_config(
    crypto: Arc<quinn::crypto::rustls::QuicClientConfig>,
    transport: Arc<TransportConfig>,
) -> quinn::ClientConfig {
    let mut client = quinn::ClientConfig::new(crypto);
    client
        .transport_config(transport)
        .token_store(Arc::new(NoneTokenStore));
    client
}

/// Binds `address`.
pub(crate) fn bind(
    config: &Config,
    address: SocketAddr,
    server: ServerConfig,
    silent: Arc<AtomicBool>,
    counters: Arc<Counters>,
) -> Result<Bound, StartError> {
    let failed = |source| StartError::Bind { address, source };
    let socket = TokioRuntime
        .wrap_udp_socket(udp_socket(address).map_err(failed)?)
        .map_err(failed)?;
    let socket = LeanSocket::new(socket, silent, counters);
    let bound = socket.local_addr().map_err(failed)?;
    let endpoint = Endpoint::new_with_abstract_socket(
        endpoint_config(&config.reset_seed)?,
        Some(server),
        Arc::new(socket),
        Arc::new(TokioRuntime),
    )
    .map_err(failed)?;
    Ok(Bound {
        endpoint,
        address: bound,
    })
}

fn udp_socket(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::DGRAM,
        Some(Protocol::UDP),
    )?;
    if address.is_ipv6() {
        // Each family has its own socket, and both may use the same port.
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// A peer notices our restart at its next packet, if we can still make the reset
/// token that we gave it. That takes the same token key, and a connection-id
/// generator that disowns no id it does not remember, as quinn's own would.
fn endpoint_config(seed: &[u8; 32]) -> Result<EndpointConfig, StartError> {
    let reset_key = Key(Key(*seed).hmac(b"swimlet stateless reset"));
    let mut cid_key = [0; 32];
    tls::provider()
        .secure_random
        .fill(&mut cid_key)
        .map_err(|_| StartError::Tls("the system yields no randomness".to_owned()))?;

    let mut config = EndpointConfig::new(Arc::new(reset_key));
    config
        .cid_generator(move || {
            Box::new(ConnectionIds {
                key: Key(cid_key),
                made: 0,
            })
        })
        // The socket tells QUIC from garbage by the fixed bit.
        .grease_quic_bit(false);
    config
        .max_udp_payload_size(UDP_PAYLOAD_MAX as u16)
        .map_err(|error| StartError::Tls(error.to_string()))?;
    Ok(config)
}

impl Key {
    fn hmac(&self, message: &[u8]) -> [u8; 32] {
        let mut out = [0; 32];
        self.sign(message, &mut out);
        out
    }
}

impl HmacKey for Key {
    fn sign(&self, data: &[u8], signature_out: &mut [u8]) {
        let Some(suite) = TLS13_AES_128_GCM_SHA256.tls13() else {
            return;
        };
        let tag = suite.hkdf_provider.hmac_sign(&OkmBlock::new(&self.0), data);
        for (to, from) in signature_out.iter_mut().zip(tag.as_ref()) {
            *to = *from;
        }
    }

    fn signature_len(&self) -> usize {
        32
    }

    fn verify(&self, data: &[u8], signature: &[u8]) -> Result<(), CryptoError> {
        let expected = self.hmac(data);
        // All bytes are looked at, so the time tells nothing.
        let differ = expected
            .iter()
            .zip(signature)
            .fold(expected.len() ^ signature.len(), |differ, (a, b)| {
                differ | usize::from(a ^ b)
            });
        if differ == 0 {
            Ok(())
        } else {
            Err(CryptoError)
        }
    }
}

impl ConnectionIdGenerator for ConnectionIds {
    fn generate_cid(&mut self) -> ConnectionId {
        self.made += 1;
        let hash = self.key.hmac(&self.made.to_le_bytes());
        ConnectionId::new(hash.get(..CID_BYTES).unwrap_or_default())
    }

    fn cid_len(&self) -> usize {
        CID_BYTES
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}
