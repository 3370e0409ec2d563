//! Mutual TLS by member identity.
//!
//! Chains are verified by rustls' webpki against the cluster's CAs. What is ours
//! is the name: exactly one URI SAN, which must be the SPIFFE ID of a member of
//! our cluster, and of the expected one where we dial. DNS names mean nothing.
//!
//! There is no session resumption, because a resumed session skips the verifiers,
//! so that a replaced CA or a changed name would go unnoticed for a ticket's life.
//! It would save about 0.4 ms of CPU for a link that lives for days.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::ring::cipher_suite::{
    TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, OtherError, SignatureScheme,
};
use swimlet_protocol::Identity;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::credentials::Snapshot;
use crate::event::Refusal;

/// The application protocol; its number changes with the meaning of the streams.
const ALPN: &[u8] = b"swimlet/1";
/// The server name that every dial sends: a member is known by its URI SAN alone.
pub(crate) const SERVER_NAME: &str = "member.swimlet.internal";

/// What the peer's certificate turned out to be; set once per handshake.
pub(crate) type Outcome = Arc<OnceLock<Result<Identity, Refusal>>>;

/// Whom a handshake accepts.
#[derive(Clone, Debug)]
pub(crate) enum Expect {
    /// This member only.
    Exactly(Identity),
    /// Any member of our cluster but ourselves.
    AnyMember,
}

/// Checks the certificate of the peer of one handshake.
struct PeerVerifier {
    own: Identity,
    expect: Expect,
    credentials: Arc<Snapshot>,
    provider: Arc<CryptoProvider>,
    outcome: Outcome,
}

/// The one crypto provider, with AES-128-GCM first: the cheapest where the CPU has AES.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    PROVIDER
        .get_or_init(|| {
            Arc::new(CryptoProvider {
                cipher_suites: vec![
                    TLS13_AES_128_GCM_SHA256,
                    TLS13_AES_256_GCM_SHA384,
                    TLS13_CHACHA20_POLY1305_SHA256,
                ],
                ..ring::default_provider()
            })
        })
        .clone()
}

/// The client's side of one dial.
pub(crate) fn client(
    own: &Identity,
    expect: Expect,
    credentials: Arc<Snapshot>,
) -> Result<(Arc<QuicClientConfig>, Outcome), String> {
    let key = credentials.own.clone();
    let verifier = PeerVerifier::new(own, expect, credentials);
    let outcome = verifier.outcome.clone();
    let mut config = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_cert_resolver(key);
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = Resumption::disabled();
    let config = QuicClientConfig::try_from(config).map_err(|error| error.to_string())?;
    Ok((Arc::new(config), outcome))
}

/// The server's side of one incoming handshake.
pub(crate) fn server(
    own: &Identity,
    credentials: Arc<Snapshot>,
) -> Result<(Arc<QuicServerConfig>, Outcome), String> {
    let key = credentials.own.clone();
    let verifier = PeerVerifier::new(own, Expect::AnyMember, credentials);
    let outcome = verifier.outcome.clone();
    let mut config = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| error.to_string())?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_cert_resolver(key);
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    let config = QuicServerConfig::try_from(config).map_err(|error| error.to_string())?;
    Ok((Arc::new(config), outcome))
}

/// The member that a certificate names.
pub(crate) fn identity_of(certificate: &CertificateDer<'_>) -> Result<Identity, Refusal> {
    let parsed = parse(certificate)?;
    let names = parsed
        .subject_alternative_name()
        .map_err(|error| Refusal::NoIdentity(error.to_string()))?
        .ok_or_else(|| Refusal::NoIdentity("it has no subject alternative name".to_owned()))?;
    let mut uris = names
        .value
        .general_names
        .iter()
        .filter_map(|name| match name {
            GeneralName::URI(uri) => Some(*uri),
            _ => None,
        });
    match (uris.next(), uris.next()) {
        (Some(uri), None) => uri
            .parse::<Identity>()
            .map_err(|error| Refusal::NoIdentity(error.to_string())),
        (None, _) => Err(Refusal::NoIdentity("it has no URI SAN".to_owned())),
        (Some(_), Some(_)) => Err(Refusal::NoIdentity("it has several URI SANs".to_owned())),
    }
}

/// A certificate's validity, in seconds since 1970; times before that count as 0.
pub(crate) fn validity_of(certificate: &CertificateDer<'_>) -> Result<(u64, u64), Refusal> {
    let parsed = parse(certificate)?;
    let seconds = |time: i64| u64::try_from(time).unwrap_or(0);
    Ok((
        seconds(parsed.validity().not_before.timestamp()),
        seconds(parsed.validity().not_after.timestamp()),
    ))
}

impl PeerVerifier {
    fn new(own: &Identity, expect: Expect, credentials: Arc<Snapshot>) -> Self {
        Self {
            own: own.clone(),
            expect,
            credentials,
            provider: provider(),
            outcome: Outcome::default(),
        }
    }

    fn judge(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
        chain: impl FnOnce(UnixTime) -> Result<(), rustls::Error>,
    ) -> Result<(), rustls::Error> {
        let verdict = not_before_ignored(now, leaf, intermediates)
            .and_then(|now| chain(now).map_err(refusal_of))
            .and_then(|()| self.name(leaf));
        let answer = match &verdict {
            Ok(_) => Ok(()),
            Err(refusal) => {
                Err(CertificateError::Other(OtherError(Arc::new(refusal.clone()))).into())
            }
        };
        // A handshake verifies one certificate, so the slot is empty.
        let _ = self.outcome.set(verdict);
        answer
    }

    fn name(&self, leaf: &CertificateDer<'_>) -> Result<Identity, Refusal> {
        let found = identity_of(leaf)?;
        if found.cluster != self.own.cluster {
            return Err(Refusal::WrongCluster {
                found: found.cluster.to_string(),
            });
        }
        if found == self.own {
            return Err(Refusal::Ourselves);
        }
        match &self.expect {
            Expect::Exactly(expected) if *expected != found => Err(Refusal::WrongName {
                found: Box::new(found),
            }),
            Expect::Exactly(_) | Expect::AnyMember => Ok(found),
        }
    }

    fn signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(
            message,
            certificate,
            signed,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

impl ServerCertVerifier for PeerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.judge(end_entity, intermediates, now, |now| {
            verify_server_cert_signed_by_trust_anchor(
                &ParsedCertificate::try_from(end_entity)?,
                &self.credentials.roots,
                intermediates,
                now,
                self.provider.signature_verification_algorithms.all,
            )
        })?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("QUIC has no TLS 1.2".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}

impl ClientCertVerifier for PeerVerifier {
    /// None: a member has one certificate, and the hints would cost bytes.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.judge(end_entity, intermediates, now, |now| {
            self.credentials
                .client_verifier
                .verify_client_cert(end_entity, intermediates, now)
                .map(|_| ())
        })?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("QUIC has no TLS 1.2".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}

impl fmt::Debug for PeerVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerVerifier")
            .field("own", &self.own)
            .field("expect", &self.expect)
            .finish_non_exhaustive()
    }
}

fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, Refusal> {
    X509Certificate::from_der(certificate)
        .map(|(_, parsed)| parsed)
        .map_err(|error| Refusal::Invalid(error.to_string()))
}

/// The time to verify at: now, but not before the chain begins to be valid.
///
/// A node whose clock restarted years in the past must be able to rejoin, and
/// "not valid yet" protects nothing here: the CA did sign the certificate.
/// Expiry counts all the same.
fn not_before_ignored(
    now: UnixTime,
    leaf: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
) -> Result<UnixTime, Refusal> {
    let (mut begin, _) = validity_of(leaf)?;
    for certificate in intermediates {
        begin = begin.max(validity_of(certificate)?.0);
    }
    Ok(UnixTime::since_unix_epoch(Duration::from_secs(
        now.as_secs().max(begin),
    )))
}

fn refusal_of(error: rustls::Error) -> Refusal {
    let rustls::Error::InvalidCertificate(error) = error else {
        return Refusal::Invalid(error.to_string());
    };
    match error {
        // A foreign CA that bears our CA's name shows as a bad signature.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => Refusal::ForeignCa,
        CertificateError::Expired
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYet
        | CertificateError::NotValidYetContext { .. } => Refusal::Expired,
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            Refusal::Usage
        }
        other => Refusal::Invalid(other.to_string()),
    }
}
