//! A member's certificate, key and trusted CAs, read anew while it runs.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use swimlet_protocol::Identity;

use crate::event::Refusal;
use crate::shared::lock;
use crate::tls;

/// Largest credential file in bytes: a bundle of some hundred CAs.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Where a member's certificate chain, private key and CA bundle come from.
///
/// The CA bundle may hold several CAs: while a CA is replaced, members trust the
/// old and the new one, and no link breaks.
#[derive(Clone, Debug)]
pub struct Credentials {
    source: Source,
}

/// Why credentials cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// A file cannot be read.
    #[error("credential file {} cannot be read ({source}); check the path and its mode", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// A file is larger than any credential file.
    #[error("credential file {} has more than {FILE_BYTES_MAX} bytes; is it the right file?", .path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// A PEM text holds nothing usable.
    #[error("the {what} is no usable PEM: {reason}")]
    Pem {
        /// Certificate chain, private key or CA bundle.
        what: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// The private key is not the certificate's, or of an unknown kind.
    #[error("certificate and private key do not fit together: {0}")]
    KeyPair(String),
    /// The certificate names no member, or another.
    #[error("the own certificate cannot be used: {0}")]
    Name(#[from] Refusal),
    /// The certificate names another member than the one configured.
    #[error("the own certificate is that of {found}, not of {expected}")]
    OtherName {
        /// The certificate's name.
        found: Box<Identity>,
        /// The configured name.
        expected: Box<Identity>,
    },
}

#[derive(Clone, Debug)]
enum Source {
    Files {
        certificate: PathBuf,
        key: PathBuf,
        authorities: PathBuf,
    },
    Memory(Pem),
}

#[derive(Clone, PartialEq, Eq)]
struct Pem {
    certificate: Vec<u8>,
    key: Vec<u8>,
    authorities: Vec<u8>,
}

/// Credentials as parsed at one time; a handshake uses one of these to its end.
pub(crate) struct Snapshot {
    pub(crate) own: Arc<SingleCertAndKey>,
    pub(crate) roots: Arc<RootCertStore>,
    pub(crate) client_verifier: Arc<dyn ClientCertVerifier>,
    pub(crate) not_after: SystemTime,
    pem: Pem,
}

/// The credentials in use.
pub(crate) struct Store {
    source: Source,
    expected: Identity,
    current: RwLock<Arc<Snapshot>>,
    /// Held by a look at the files, so that an older look never undoes a newer one.
    looking: Mutex<()>,
}

/// What a look at the files found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reloaded {
    Unchanged,
    Taken,
}

impl Credentials {
    /// PEM files: the certificate chain (leaf first), its private key, and the
    /// bundle of trusted CAs. They are read at [`start`](crate::Transport::start)
    /// and whenever they change later.
    #[must_use]
    pub fn from_files(
        certificate: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
        authorities: impl Into<PathBuf>,
    ) -> Self {
        Self {
            source: Source::Files {
                certificate: certificate.into(),
                key: key.into(),
                authorities: authorities.into(),
            },
        }
    }

    /// The same as PEM texts.
    #[must_use]
    pub fn from_pem(certificate: &str, key: &str, authorities: &str) -> Self {
        Self {
            source: Source::Memory(Pem {
                certificate: certificate.into(),
                key: key.into(),
                authorities: authorities.into(),
            }),
        }
    }

    /// The name in the certificate: how a member learns who it is.
    ///
    /// # Errors
    /// If the credentials cannot be read or used, or name no member.
    pub fn identity(&self) -> Result<Identity, CredentialsError> {
        let pem = self.source.read()?;
        let chain = certificates("certificate chain", &pem.certificate)?;
        Ok(own_name(&chain)?)
    }
}

impl Source {
    fn read(&self) -> Result<Pem, CredentialsError> {
        match self {
            Self::Files {
                certificate,
                key,
                authorities,
            } => Ok(Pem {
                certificate: read(certificate)?,
                key: read(key)?,
                authorities: read(authorities)?,
            }),
            Self::Memory(pem) => Ok(pem.clone()),
        }
    }
}

impl Snapshot {
    fn parse(pem: Pem, expected: &Identity) -> Result<Self, CredentialsError> {
        let chain = certificates("certificate chain", &pem.certificate)?;
        let found = own_name(&chain)?;
        if found != *expected {
            return Err(CredentialsError::OtherName {
                found: Box::new(found),
                expected: Box::new(expected.clone()),
            });
        }
        let not_after = not_after(&chain)?;
        let key =
            PrivateKeyDer::from_pem_slice(&pem.key).map_err(|error| CredentialsError::Pem {
                what: "private key",
                reason: error.to_string(),
            })?;
        // This also checks that the key is the certificate's: a rotation seen
        // half-way fails here, and the next look finds both new.
        let own = CertifiedKey::from_der(chain, key, &tls::provider())
            .map_err(|error| CredentialsError::KeyPair(error.to_string()))?;

        let mut roots = RootCertStore::empty();
        for authority in certificates("CA bundle", &pem.authorities)? {
            roots
                .add(authority)
                .map_err(|error| CredentialsError::Pem {
                    what: "CA bundle",
                    reason: error.to_string(),
                })?;
        }
        let roots = Arc::new(roots);
        let client_verifier =
            WebPkiClientVerifier::builder_with_provider(roots.clone(), tls::provider())
                .build()
                .map_err(|error| CredentialsError::Pem {
                    what: "CA bundle",
                    reason: error.to_string(),
                })?;
        Ok(Self {
            own: Arc::new(SingleCertAndKey::from(own)),
            roots,
            client_verifier,
            not_after,
            pem,
        })
    }
}

impl Store {
    /// Reads and parses `credentials`, which must be those of `expected`.
    pub(crate) fn open(
        credentials: Credentials,
        expected: Identity,
    ) -> Result<Self, CredentialsError> {
        let snapshot = Snapshot::parse(credentials.source.read()?, &expected)?;
        Ok(Self {
            source: credentials.source,
            expected,
            current: RwLock::new(Arc::new(snapshot)),
            looking: Mutex::new(()),
        })
    }

    pub(crate) fn current(&self) -> Arc<Snapshot> {
        self.current
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Whether the credentials can change at all.
    pub(crate) fn is_fixed(&self) -> bool {
        matches!(self.source, Source::Memory(_))
    }

    /// Looks at the files and takes them into use if their content changed.
    ///
    /// Contents are compared instead of times: it is three small files, and a
    /// projected volume's symlink swap shows in no time stamp of the old ones.
    /// An error leaves what was in use in use. Reads files: not for async code.
    pub(crate) fn reload(&self) -> Result<Reloaded, CredentialsError> {
        let _looking = lock(&self.looking);
        let pem = self.source.read()?;
        if pem == self.current().pem {
            return Ok(Reloaded::Unchanged);
        }
        let snapshot = Arc::new(Snapshot::parse(pem, &self.expected)?);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = snapshot;
        Ok(Reloaded::Taken)
    }
}

impl std::fmt::Debug for Pem {
    /// Shows no key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pem").finish_non_exhaustive()
    }
}

fn read(path: &Path) -> Result<Vec<u8>, CredentialsError> {
    let failed = |source| CredentialsError::Read {
        path: path.to_owned(),
        source,
    };
    let mut bytes = Vec::new();
    File::open(path)
        .map_err(failed)?
        .take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(CredentialsError::TooLarge {
            path: path.to_owned(),
        });
    }
    Ok(bytes)
}

fn certificates(
    what: &'static str,
    pem: &[u8],
) -> Result<Vec<CertificateDer<'static>>, CredentialsError> {
    let found = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| CredentialsError::Pem {
            what,
            reason: error.to_string(),
        })?;
    if found.is_empty() {
        return Err(CredentialsError::Pem {
            what,
            reason: "it holds no certificate".to_owned(),
        });
    }
    Ok(found)
}

fn own_name(chain: &[CertificateDer<'_>]) -> Result<Identity, Refusal> {
    match chain.first() {
        Some(leaf) => tls::identity_of(leaf),
        None => Err(Refusal::NoIdentity("no certificate".to_owned())),
    }
}

/// When the first certificate of the chain expires: then the chain is worth nothing.
fn not_after(chain: &[CertificateDer<'_>]) -> Result<SystemTime, Refusal> {
    let mut first = None::<u64>;
    for certificate in chain {
        let (_, end) = tls::validity_of(certificate)?;
        first = Some(first.map_or(end, |earlier| earlier.min(end)));
    }
    Ok(UNIX_EPOCH + Duration::from_secs(first.unwrap_or(0)))
}
