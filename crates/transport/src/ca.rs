//! An issuing authority: signs members' certificates.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, SanType,
};
use swimlet_protocol::{ClusterId, Identity};

/// How far a certificate's validity begins in the past, for clocks that lag.
const BACKDATED: Duration = Duration::from_secs(300);
/// An authority's own life.
const AUTHORITY_VALIDITY: Duration = Duration::from_secs(10 * 365 * 86_400);

/// A CA of one cluster, with its key in memory.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A signed certificate and its private key.
#[derive(Clone)]
pub struct Issued {
    /// The certificate as PEM.
    pub certificate_pem: String,
    /// Its private key as PEM (PKCS #8).
    pub key_pem: String,
}

/// Why a certificate could not be made.
#[derive(Debug, thiserror::Error)]
#[error("the certificate of {subject} could not be made: {source}")]
pub struct IssueError {
    /// Whose certificate it was to be.
    subject: String,
    /// What the X.509 library said.
    source: rcgen::Error,
}

impl Authority {
    /// A new CA for `cluster`, with a fresh ECDSA P-256 key.
    ///
    /// # Errors
    /// If the system yields no randomness.
    pub fn new(cluster: &ClusterId) -> Result<Self, IssueError> {
        let subject = format!("swimlet CA of {cluster}");
        let failed = |source| IssueError {
            subject: subject.clone(),
            source,
        };
        let mut params = CertificateParams::default();
        params.distinguished_name = common_name(&subject);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let now = now();
        set_validity(&mut params, now - BACKDATED, now + AUTHORITY_VALIDITY);
        let key = KeyPair::generate().map_err(failed)?;
        let issuer = CertifiedIssuer::self_signed(params, key).map_err(failed)?;
        Ok(Self { issuer })
    }

    /// The CA's certificate as PEM; several of them one after the other are a bundle.
    #[must_use]
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// A certificate for `identity` that is valid from now for `validity`, with a fresh key.
    ///
    /// # Errors
    /// If the system yields no randomness.
    pub fn issue(&self, identity: &Identity, validity: Duration) -> Result<Issued, IssueError> {
        let now = now();
        self.issue_between(identity, now - BACKDATED, now + validity)
    }

    /// A certificate with exactly this validity.
    ///
    /// # Errors
    /// If the system yields no randomness.
    pub fn issue_between(
        &self,
        identity: &Identity,
        not_before: SystemTime,
        not_after: SystemTime,
    ) -> Result<Issued, IssueError> {
        let failed = |source| IssueError {
            subject: identity.to_string(),
            source,
        };
        let mut params = CertificateParams::default();
        // X.520 bounds a common name at 64 characters; it is for humans only.
        params.distinguished_name =
            common_name(&identity.name.as_str().chars().take(64).collect::<String>());
        params.subject_alt_names = vec![SanType::URI(
            identity.to_string().try_into().map_err(failed)?,
        )];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        set_validity(&mut params, not_before, not_after);
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(failed)?;
        Ok(Issued {
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
        })
    }
}

fn common_name(text: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, text);
    name
}

fn set_validity(params: &mut CertificateParams, not_before: SystemTime, not_after: SystemTime) {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let since = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default();
    params.not_before = epoch + since(not_before);
    params.not_after = epoch + since(not_after);
}

#[expect(
    clippy::disallowed_methods,
    reason = "X.509 validity is wall-clock time"
)]
fn now() -> SystemTime {
    SystemTime::now()
}

impl std::fmt::Debug for Issued {
    /// Shows no key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Issued")
            .field("certificate_pem", &self.certificate_pem)
            .finish_non_exhaustive()
    }
}
